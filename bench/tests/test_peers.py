"""Exact GP, SGPR and SVGP against GPyTorch at fixed hyperparameters; where they differ, the dense formulas decide."""

import itertools
import warnings

import numpy as np
import oracle
import pytest
import torch
from torch import Tensor

from cagp import GP, SGPR, SVGP, CholeskyGP, ConstantMean, GaussianNoise, KnownNoise
from cagp.kernels import RBF, Kernel, Matern12, Matern32, Matern52, Scale
from cagp_bench import gpytorch_peers

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of the peer's imports
    gpytorch = pytest.importorskip("gpytorch", reason="GPyTorch is not installed: pip install 'cagp-bench[peers]'")

LENGTHSCALE, OUTPUTSCALE, CONSTANT, NOISE = [0.8, 1.1], 1.4, 0.3, 0.1
KERNELS: dict[str, type[Kernel]] = {"RBF": RBF, "Matern12": Matern12, "Matern32": Matern32, "Matern52": Matern52}
SMOOTHNESS = {"Matern12": 0.5, "Matern32": 1.5, "Matern52": 2.5}
TOLERANCE = 1e-6

g = torch.Generator().manual_seed(0)
X = torch.randn(40, 2, generator=g, dtype=torch.float64)
y = torch.sin(2 * X.sum(1)) + 0.1 * torch.randn(40, generator=g, dtype=torch.float64)
Z = torch.randn(8, 2, generator=g, dtype=torch.float64)
new = torch.randn(6, 2, generator=g, dtype=torch.float64)
row_noise = 0.05 + 0.3 * torch.rand(40, generator=g, dtype=torch.float64)


def our_prior(kernel: str, known: bool = False) -> GP:
    noise = KnownNoise() if known else GaussianNoise(NOISE)
    return GP(Scale(KERNELS[kernel](2, LENGTHSCALE), OUTPUTSCALE), ConstantMean(CONSTANT), noise)


def their_kernel(kernel: str):
    if kernel == "RBF":
        base = gpytorch.kernels.RBFKernel(ard_num_dims=2)
    else:
        base = gpytorch.kernels.MaternKernel(nu=SMOOTHNESS[kernel], ard_num_dims=2)
    scaled = gpytorch.kernels.ScaleKernel(base).double()
    base.lengthscale = torch.tensor([LENGTHSCALE], dtype=torch.float64)
    scaled.outputscale = torch.tensor(OUTPUTSCALE, dtype=torch.float64)
    return scaled


def their_mean():
    mean = gpytorch.means.ConstantMean().double()
    mean.constant.data.fill_(CONSTANT)
    return mean


def their_likelihood(known: bool = False):
    if known:
        return gpytorch.likelihoods.FixedNoiseGaussianLikelihood(noise=row_noise)
    likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
    likelihood.noise = torch.tensor(NOISE, dtype=torch.float64)
    return likelihood


class TheirExact(gpytorch.models.ExactGP):
    def __init__(self, likelihood, kernel):
        super().__init__(X, y, likelihood)
        self.mean_module, self.covar_module = their_mean(), kernel

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


class TheirSVGP(gpytorch.models.ApproximateGP):
    def __init__(self, kernel, mean: Tensor, root: Tensor):
        q = gpytorch.variational.CholeskyVariationalDistribution(len(Z))
        strategy = gpytorch.variational.VariationalStrategy(self, Z.clone(), q)
        super().__init__(strategy)
        self.mean_module, self.covar_module = their_mean(), kernel
        self.double()
        strategy.variational_params_initialized.fill_(1)
        q.variational_mean.data.copy_(mean)
        q.chol_variational_covar.data.copy_(root)

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def bound_and_prediction(model, likelihood, objective) -> tuple[float, Tensor, Tensor]:
    with torch.no_grad(), gpytorch.settings.fast_computations(False, False, False):
        model.train(), likelihood.train()
        bound = float(objective(model(X), y).sum())
        model.eval(), likelihood.eval()
        p = model(new)
        return bound, p.mean, p.variance


def assert_close(ours, theirs, tolerance: float = TOLERANCE) -> None:
    np.testing.assert_allclose(oracle.array(ours), oracle.array(theirs), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("kernel", KERNELS)
def test_the_exact_gp_is_gpytorchs(kernel, known):
    likelihood = their_likelihood(known)
    model = TheirExact(likelihood, their_kernel(kernel))
    objective = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    bound, mean, variance = bound_and_prediction(model, likelihood, objective)
    given = X, y, row_noise if known else None
    method = CholeskyGP(our_prior(kernel, known))
    assert_close(-method.objective(*given), bound)
    assert_close(method.condition(*given).mean(new), mean)
    assert_close(method.condition(*given).variance(new), variance)


def their_sgpr(kernel: str, diagonal_correction: bool) -> tuple[float, Tensor, Tensor]:
    likelihood = their_likelihood()
    model = TheirExact(likelihood, gpytorch.kernels.InducingPointKernel(their_kernel(kernel), Z.clone(), likelihood))
    objective = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    with gpytorch.settings.sgpr_diagonal_correction(diagonal_correction):
        return bound_and_prediction(model, likelihood, objective)


def unexplained(prior: GP, points: Tensor) -> np.ndarray:
    """diag(K - Q): prior variance that the inducing points do not explain."""
    cross = oracle.kernel_matrix(prior.kernel, Z, points)
    Q = cross.T @ np.linalg.solve(oracle.kernel_matrix(prior.kernel, Z, Z), cross)
    return np.diag(oracle.kernel_matrix(prior.kernel, points, points) - Q)


@pytest.mark.parametrize("kernel", KERNELS)
def test_sgpr_is_gpytorchs_without_its_diagonal_correction_up_to_the_variance_that_it_forgets(kernel):
    """Off, its mean is Titsias' and its variance lacks diag(K - Q) at the new inputs; on, see the next test."""
    bound, mean, variance = their_sgpr(kernel, diagonal_correction=False)
    prior = our_prior(kernel)
    method = SGPR(prior, Z)
    posterior = method.condition(X, y)
    assert_close(-method.objective(X, y), bound)
    assert_close(posterior.mean(new), mean)
    forgotten = unexplained(prior, new)
    assert_close(posterior.variance(new), oracle.array(variance) + forgotten)
    assert forgotten.max() > 0.01
    # Who is right: the q(u) that maximises the very bound both report, and f(new) under it.
    expected = oracle.inducing_posterior(prior, Z, oracle.best_inducing_values(prior, Z, X, y), new)
    assert_close(bound * len(y), oracle.collapsed_bound(prior, Z, X, y))
    assert_close(posterior.mean(new), expected.mean)
    assert_close(posterior.variance(new), expected.variance)


@pytest.mark.parametrize("kernel", KERNELS)
def test_gpytorchs_default_sgpr_trains_titsias_bound_and_predicts_with_another_model(kernel):
    """By default it adds diag(K - Q) to the noise of the training rows, in prediction alone: FITC, not SGPR."""
    bound, mean, variance = their_sgpr(kernel, diagonal_correction=True)
    prior = our_prior(kernel)
    assert_close(bound * len(y), oracle.collapsed_bound(prior, Z, X, y))
    fitc_noise = torch.from_numpy(NOISE + unexplained(prior, X))
    fitc_prior = GP(prior.kernel, prior.mean, KnownNoise())
    fitc = oracle.inducing_posterior(
        prior, Z, oracle.best_inducing_values(fitc_prior, Z, X, y, row_noise=fitc_noise), new
    )
    assert_close(mean, fitc.mean)
    assert_close(variance, fitc.variance)
    assert float((SGPR(prior, Z).condition(X, y).mean(new) - mean).abs().max()) > 1e-2


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("kernel", KERNELS)
def test_svgp_is_gpytorchs_for_any_q(kernel, known):
    random = torch.Generator().manual_seed(1)
    w = torch.randn(8, generator=random, dtype=torch.float64)
    lower = 0.3 * torch.randn(8, 8, generator=random, dtype=torch.float64).tril() + 0.5 * torch.eye(8)
    with gpytorch.settings.variational_cholesky_jitter(double_value=1e-12):  # the default, 1e-6, shows in the 6th digit
        likelihood = their_likelihood(known)
        model = TheirSVGP(their_kernel(kernel), w, lower)
        elbo = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=len(y))
        bound, mean, variance = bound_and_prediction(model, likelihood, elbo)
    given = X, y, row_noise if known else None
    method = SVGP(our_prior(kernel, known), Z)
    with torch.no_grad():
        method.whitened_mean.copy_(w)
        method.whitened_root.copy_(upper_root(lower @ lower.mT))
    assert_close(-method.objective(*given), bound)
    assert_close(method.condition(*given).mean(new), mean)
    assert_close(method.condition(*given).variance(new), variance)


def upper_root(A: Tensor) -> Tensor:
    """Upper triangular R with RRᵀ = A: Cholesky of A with rows and columns reversed."""
    return torch.linalg.cholesky(A.flip(0, 1)).flip(0, 1)


# ---- the peers of the benchmarks ----


def benchmark_peer(kind: str):
    """The model that ``cagp bench run peers`` trains, with the hyperparameters of this file; its mean is zero."""
    found = gpytorch_peers.new_model(kind, X, y, Z)
    gpytorch_peers.base_kernel(found).lengthscale = torch.tensor([LENGTHSCALE], dtype=torch.float64)
    gpytorch_peers.scale_kernel(found).outputscale = torch.tensor(OUTPUTSCALE, dtype=torch.float64)
    found.likelihood.noise = torch.tensor(NOISE, dtype=torch.float64)
    return found


def zero_mean_prior() -> GP:
    return GP(Scale(Matern32(2, LENGTHSCALE), OUTPUTSCALE), noise=GaussianNoise(NOISE))


def test_all_exact_implementations_agree():
    """Ours, GPyTorch's as it is benchmarked, scikit-learn's, and the dense formulas: predictions of new targets."""
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

    posterior = CholeskyGP(zero_mean_prior()).condition(X, y)
    ours = posterior.predict(new, noise=True)
    mean, covariance = oracle.exact_posterior(zero_mean_prior(), X, y, new)
    assert_close(ours.mean, mean)
    assert_close(ours.variance, np.diag(covariance) + NOISE)
    theirs = gpytorch_peers.predict("exact", benchmark_peer("exact"), new)
    assert_close(ours.mean, theirs[0])
    assert_close(ours.variance, theirs[1])
    kernel = ConstantKernel(OUTPUTSCALE) * Matern(LENGTHSCALE, nu=1.5) + WhiteKernel(NOISE)
    model = GaussianProcessRegressor(kernel, optimizer=None, alpha=0.0).fit(X.numpy(), y.numpy())
    mean, std = model.predict(new.numpy(), return_std=True)
    assert_close(ours.mean, mean)
    assert_close(ours.variance, std**2)
    nll = CholeskyGP(zero_mean_prior()).objective(X, y).detach() * len(y)
    assert_close(nll, -model.log_marginal_likelihood(model.kernel_.theta))


def test_all_sgpr_implementations_agree():
    """Ours, GPyTorch's as it is benchmarked, and the dense formulas."""
    prior = zero_mean_prior()
    ours = SGPR(prior, Z).condition(X, y).predict(new, noise=True)
    expected = oracle.inducing_posterior(prior, Z, oracle.best_inducing_values(prior, Z, X, y), new)
    assert_close(ours.mean, expected.mean)
    assert_close(ours.variance, oracle.array(expected.variance) + NOISE)
    theirs = gpytorch_peers.predict("sgpr", benchmark_peer("sgpr"), new)
    assert_close(ours.mean, theirs[0])
    assert_close(ours.variance, theirs[1])


@pytest.mark.slow
@pytest.mark.parametrize("kind", gpytorch_peers.RATES)
def test_the_benchmarked_models_of_gpytorch_learn(kind, monkeypatch):
    """A smooth function of 150 rows: better than its standard deviation, with error bars of the right size."""
    random = torch.Generator().manual_seed(2)
    inputs = torch.rand(190, 2, generator=random, dtype=torch.float64)
    targets = (
        torch.sin(5 * inputs[:, 0]) + inputs[:, 1] + 0.05 * torch.randn(190, generator=random, dtype=torch.float64)
    )
    targets = (targets - targets.mean()) / targets.std()
    monkeypatch.setattr(gpytorch_peers, "NUM_INDUCING", 30)
    monkeypatch.setitem(gpytorch_peers.STEPS, "svgp", 150)
    monkeypatch.setitem(gpytorch_peers.RATES, "svgp", 0.1)
    outcome = gpytorch_peers.gpytorch_outcome(kind, inputs[:150], targets[:150], inputs[150:], 0)
    error = (outcome.prediction.mean - targets[150:]).square().mean().sqrt()
    assert error < 0.3
    z = (outcome.prediction.mean - targets[150:]) / outcome.prediction.variance.sqrt()
    assert 0.3 < float(z.square().mean().sqrt()) < 2
    assert 0 < outcome.details["noise"] < 1
    assert len(outcome.details["lengthscales"]) == 2
    assert outcome.details["steps"] == gpytorch_peers.STEPS[kind]  # of SVGP: an epoch is one minibatch


@pytest.mark.parametrize("kind", gpytorch_peers.RATES)
def test_gpytorch_trains_for_the_time_that_it_is_given(kind, monkeypatch):
    """The clock advances by a second whenever it is read: once at the start, and once before each step."""
    ticks = itertools.count()
    monkeypatch.setattr(gpytorch_peers.time, "perf_counter", lambda: float(next(ticks)))
    inputs = torch.rand(60, 2, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    outcome = gpytorch_peers.gpytorch_outcome(kind, inputs, inputs[:, 0], inputs[:4], 0, seconds=8.0)
    assert outcome.details["steps"] == 7
