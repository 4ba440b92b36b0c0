"""Write your own kernel: a random walk, whose forecasts get less certain. See docs/own-kernels.md for more."""

import torch

from cagp import GP, CholeskyGP, fit, kernels, metrics
from cagp.engine import backend_for
from cagp.parameters import Positive


class RandomWalk(kernels.Kernel):
    """speed · min(x, z) for x, z ≥ 0: a walk that starts at 0 and gains this variance in each unit of time."""

    speed = Positive()

    def __init__(self, speed: float = 1.0):
        super().__init__()
        self.speed = speed

    def forward(self, X, Z):
        return self.speed.to(X) * torch.minimum(X, Z.mT)


# Ten years of measurements of a walk. The model forecasts the last two.
generator = torch.Generator().manual_seed(0)
X = 10 * torch.rand(600, 1, generator=generator, dtype=torch.float64).sort(0).values
gains = torch.diff(X[:, 0], prepend=torch.zeros(1)).sqrt() * torch.randn(600, generator=generator, dtype=torch.float64)
y = 1.5 * gains.cumsum(0) + 0.3 * torch.randn(600, generator=generator, dtype=torch.float64)
X, X_test, y, y_test = X[:480], X[480:], y[:480], y[480:]

walk = RandomWalk()
smooth = kernels.Scale(kernels.Matern32(num_dims=1))

for name, kernel in {"random walk": walk, "Matern 3/2": smooth}.items():
    method = CholeskyGP(GP(kernel))
    fit(method, X, y, num_steps=50)
    mean, variance = method.condition(X, y).predict(X_test, noise=True)
    print(f"{name}: {backend_for(kernel, X)}")
    print(f"  error {metrics.rmse(y_test, mean):.2f}, coverage {metrics.coverage(y_test, mean, variance):.0%} of 95%")
    print(f"  error bars from {variance[0].sqrt():.2f} to {variance[-1].sqrt():.2f}")
print(f"learned speed {walk.speed.item():.2f} (the true value is 2.25)")
