"""GPyTorch's exact GP, SGPR and SVGP with a Matérn 3/2 kernel, trained as its examples do; for standardised data.

SGPR predicts without GPyTorch's diagonal correction, which would be another model than the one that was trained (see
docs/compared-methods.md); its variance then lacks what the inducing points do not explain, which is added here.
"""

import itertools
import time
import warnings
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cagp.posteriors import Prediction
from cagp_bench.boosted_trees import installed
from cagp_bench.peers import Outcome

RATES = {"exact": 0.1, "sgpr": 0.1, "svgp": 0.01}
"""Adam's learning rates in GPyTorch's examples."""

STEPS = {"exact": 100, "sgpr": 200, "svgp": 30}  # of SVGP: epochs
NUM_INDUCING, BATCH, PREDICT_ROWS = 512, 1024, 4096


class Model(NamedTuple):
    """A model of GPyTorch with its likelihood and its objective."""

    model: Any
    likelihood: Any
    objective: Any  # to be maximised


def gpytorch_module() -> Any:
    """GPyTorch, without the warnings of its own imports."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return installed("gpytorch")


def gpytorch_outcome(
    kind: str, X: Tensor, y: Tensor, X_test: Tensor, seed: int, seconds: float | None = None
) -> Outcome:
    """What one of GPyTorch's models ("exact", "sgpr", "svgp") learns and predicts, with the noise of new targets.

    Args:
        seconds: how long it is trained, whatever ``STEPS`` says.
    """
    gpytorch = gpytorch_module()
    start = time.perf_counter()
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")  # of a peer's own making
        torch.manual_seed(seed)  # GPyTorch draws the first variational means of SVGP from torch's own generator
        found = new_model(kind, X, y, inducing_rows(X, seed))
        steps = _train(kind, found, X, y, seed, None if seconds is None else start + seconds)
        fitted = time.perf_counter()
        mean, variance = predict(kind, found, X_test)
        predicted = time.perf_counter()
    details = {"gpytorch": gpytorch.__version__, "noise": float(found.likelihood.noise.detach()), "rate": RATES[kind]}
    details |= {"steps": steps}
    details |= {"lengthscales": base_kernel(found).lengthscale.detach().flatten().tolist()}
    return Outcome(Prediction(mean.double(), variance.double()), fitted - start, predicted - fitted, details)


def inducing_rows(X: Tensor, seed: int) -> Tensor:
    """Random rows: where inducing points start."""
    return X[torch.randperm(len(X), generator=torch.Generator().manual_seed(seed))[:NUM_INDUCING]]


def new_model(kind: str, X: Tensor, y: Tensor, Z: Tensor) -> Model:
    """A model with GPyTorch's starting values, in the dtype of the data."""
    gpytorch = gpytorch_module()
    likelihood = gpytorch.likelihoods.GaussianLikelihood().to(X)
    kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(nu=1.5, ard_num_dims=X.shape[1]))
    if kind == "svgp":
        model = _svgp(gpytorch, kernel, Z).to(X)
        return Model(model, likelihood, gpytorch.mlls.VariationalELBO(likelihood, model, num_data=len(y)))
    if kind == "sgpr":
        kernel = gpytorch.kernels.InducingPointKernel(kernel, inducing_points=Z.clone(), likelihood=likelihood)
    model = _exact(gpytorch, kernel, X, y, likelihood).to(X)
    return Model(model, likelihood, gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model))


def base_kernel(found: Model) -> Any:
    """The kernel that has the lengthscales."""
    return scale_kernel(found).base_kernel


def scale_kernel(found: Model) -> Any:
    """The kernel that has the outputscale; that of SGPR is inside another."""
    kernel = found.model.covar_module
    return getattr(kernel, "base_kernel", kernel) if hasattr(kernel, "inducing_points") else kernel


@torch.no_grad()
def predict(kind: str, found: Model, X_test: Tensor) -> tuple[Tensor, Tensor]:
    """Means and variances of new targets, some rows at a time."""
    gpytorch = gpytorch_module()
    found.model.eval()
    found.likelihood.eval()
    settings = gpytorch.settings
    means, variances = [], []
    with settings.fast_computations(False, False, False), settings.sgpr_diagonal_correction(False):
        for part in X_test.split(PREDICT_ROWS):
            answer = found.model(part)
            variance = answer.variance + (_unexplained(found, part) if kind == "sgpr" else 0.0)
            means.append(answer.mean)
            variances.append(variance.clamp_min(0.0) + found.likelihood.noise)
    return torch.cat(means), torch.cat(variances)


def _unexplained(found: Model, points: Tensor) -> Tensor:
    """diag(K - Q): prior variance that the inducing points do not explain."""
    kernel, Z = scale_kernel(found), found.model.covar_module.inducing_points
    cross = kernel(Z, points).to_dense()
    inner = kernel(Z, Z).to_dense()
    jitter = 1e-12 if points.dtype == torch.float64 else 1e-6
    root = torch.linalg.cholesky(inner + jitter * torch.eye(len(Z)).to(inner))
    seen = torch.linalg.solve_triangular(root, cross, upper=False).square().sum(0)
    return (kernel(points, diag=True) - seen).clamp_min(0.0)


def _train(kind: str, found: Model, X: Tensor, y: Tensor, seed: int, end: float | None) -> int:
    """Take the steps of ``STEPS``, or as many as there are before the clock shows ``end``; return their number."""
    found.model.train()
    found.likelihood.train()
    parameters = {id(p): p for module in (found.model, found.likelihood) for p in module.parameters()}
    optimizer = torch.optim.Adam(list(parameters.values()), lr=RATES[kind])
    generator = torch.Generator().manual_seed(seed)
    number = 0
    for _ in range(STEPS[kind]) if end is None else itertools.count():
        batches = torch.randperm(len(y), generator=generator).split(BATCH) if kind == "svgp" else [None]
        for rows in batches:
            if end is not None and time.perf_counter() >= end:
                return number
            inputs, targets = (X, y) if rows is None else (X[rows], y[rows])
            optimizer.zero_grad()
            (-found.objective(found.model(inputs), targets)).sum().backward()
            optimizer.step()
            number += 1
    return number


def _exact(gpytorch: Any, kernel: Any, X: Tensor, y: Tensor, likelihood: Any) -> Any:
    class Exact(gpytorch.models.ExactGP):
        def __init__(self):
            super().__init__(X, y, likelihood)
            self.mean_module, self.covar_module = gpytorch.means.ZeroMean(), kernel

        def forward(self, x: Tensor) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    return Exact()


def _svgp(gpytorch: Any, kernel: Any, Z: Tensor) -> Any:
    class Variational(gpytorch.models.ApproximateGP):
        def __init__(self):
            q = gpytorch.variational.CholeskyVariationalDistribution(len(Z))
            super().__init__(gpytorch.variational.VariationalStrategy(self, Z.clone(), q))
            self.mean_module, self.covar_module = gpytorch.means.ZeroMean(), kernel

        def forward(self, x: Tensor) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    return Variational()
