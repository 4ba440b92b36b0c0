"""Fit 3,000 noisy values of a surface with 100 actions, using the tensor interface, and check the error bars."""

import torch

from cagp import GP, CaGPOpt, fit, kernels, metrics

generator = torch.Generator().manual_seed(0)
X = torch.rand(4000, 2, generator=generator)
y = torch.sin(9 * X[:, 0]) * torch.cos(7 * X[:, 1]) + 0.1 * torch.randn(4000, generator=generator)
X, X_test, y, y_test = X[:3000], X[3000:], y[:3000], y[3000:]

method = CaGPOpt.from_data(GP(kernels.Scale(kernels.Matern32(num_dims=2))), X, num_actions=100)
fit(method, X, y, num_steps=40, lr=0.2)
mean, variance = method.condition(X, y).predict(X_test, noise=True)

print(f"error {metrics.rmse(y_test, mean):.3f} (the noise alone is 0.100)")
print(f"{metrics.coverage(y_test, mean, variance):.1%} of the test values lie in their 95% intervals")
