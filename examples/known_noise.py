"""Use measurements with known error bars: pass the noise variance of each row as ``row_noise``."""

import torch

from cagp import GP, CaGPOpt, KnownNoise, fit, kernels, metrics

# Two instruments took the measurements, one of them twenty times as precise. We know which one took each row.
generator = torch.Generator().manual_seed(0)
X = torch.rand(1500, 1, generator=generator)
truth = torch.sin(12 * X[:, 0]) + X[:, 0]
std = torch.where(torch.rand(1500, generator=generator) < 0.2, 0.05, 1.0)
y = truth + std * torch.randn(1500, generator=generator)


def report(name: str, prior: GP, row_noise: torch.Tensor | None) -> None:
    """Fit a model and compare the learned function with the truth at the training inputs."""
    method = CaGPOpt.from_data(prior, X, num_actions=50)
    fit(method, X, y, row_noise, num_steps=40)
    mean, variance = method.condition(X, y, row_noise).predict(X)
    error, covered = metrics.rmse(truth, mean), metrics.coverage(truth, mean, variance)
    print(f"{name:<24} error {error:.3f}, mean error bar {variance.sqrt().mean():.3f}, coverage {covered:.0%}")


def kernel() -> kernels.Kernel:
    """Return a new kernel, so that each fit has its own."""
    return kernels.Scale(kernels.Matern52(num_dims=1, lengthscale=0.3))


report("one variance for all", GP(kernel()), None)
report("known for each row", GP(kernel(), noise=KnownNoise()), std.square())
report("known, and more learned", GP(kernel()), std.square())
