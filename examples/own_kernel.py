"""Write your own kernel: a season that repeats, plus a trend. See docs/own-kernels.md for more."""

import torch

from cagp import GP, CaGPOpt, fit, kernels, metrics
from cagp.engine import backend_for
from cagp.parameters import Positive


class Periodic(kernels.Kernel):
    """exp(-2 sin²(π (x - z) / period) / lengthscale²)."""

    period, lengthscale = Positive(), Positive()

    def __init__(self, period: float = 1.0, lengthscale: float = 1.0):
        super().__init__()
        self.period, self.lengthscale = period, lengthscale

    def forward(self, X, Z):
        phase = torch.pi * (X.unsqueeze(-2) - Z.unsqueeze(-3)) / self.period.to(X)
        return torch.exp(-2 * (torch.sin(phase) / self.lengthscale.to(X)).square().sum(-1))


# Ten years of measurements with a yearly season. The model forecasts the last two.
generator = torch.Generator().manual_seed(0)
X = 10 * torch.rand(600, 1, generator=generator).sort(0).values
wave = torch.sin(2 * torch.pi * X[:, 0]) + 0.5 * torch.sin(4 * torch.pi * X[:, 0] + 1)
y = wave + 0.2 * X[:, 0] + 0.2 * torch.randn(600, generator=generator)
X, X_test, y, y_test = X[:480], X[480:], y[:480], y[480:]

periodic = Periodic(period=1.02)
season = kernels.Scale(periodic * kernels.RBF(num_dims=1, lengthscale=20.0))
trend = kernels.Linear(num_dims=1) + kernels.Constant()
smooth = kernels.Scale(kernels.Matern32(num_dims=1))

for name, kernel in {"season and trend": season + trend, "Matern 3/2": smooth}.items():
    method = CaGPOpt.from_data(GP(kernel), X, num_actions=60)
    fit(method, X, y, num_steps=50, lr=0.05)  # small steps, since the loss reacts strongly to the period
    mean, variance = method.condition(X, y).predict(X_test, noise=True)
    print(f"{name}: {backend_for(kernel, X)}")
    print(f"  error {metrics.rmse(y_test, mean):.2f}, coverage {metrics.coverage(y_test, mean, variance):.0%} of 95%")
print(f"learned period {periodic.period.item():.3f} years")
