"""Inference by sites against dense Laplace and variational inference in NumPy, scikit-learn, and Gaussian limits."""

import math
import time

import numpy as np
import oracle
import pytest
import torch
from fit_problems import CrashError, crash_at
from hypothesis import given
from hypothesis import strategies as st
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process import kernels as sklearn_kernels
from torch import Tensor

from cagp import GP, CaGPCG, CaGPLocal, CaGPOpt, CholeskyGP, GaussianNoise, KnownNoise, fit
from cagp.actions import BlockActions
from cagp.kernels import RBF, Matern32, Scale
from cagp.likelihoods import Likelihood, Logit, NegativeBinomial, Poisson, StudentT
from cagp.sites import SitesWarning, WithLikelihood

N = 120


def data(targets: str, n: int = N, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    X = torch.randn(n, 2, generator=generator, dtype=torch.float64)
    f = 2 * torch.sin(2 * X[:, 0]) + X[:, 1]
    if targets == "classes":
        return X, Logit().sample(f, generator)
    if targets == "counts":
        return X, Poisson().sample(f / 2 + 1, generator)
    return X, f + StudentT(0.2, 3.0).sample(torch.zeros_like(f), generator)


def prior(kernel=Matern32, outputscale: float = 3.0) -> GP:
    return GP(Scale(kernel(2, torch.tensor([1.3, 2.1])), outputscale), noise=KnownNoise())


# --- the oracle: dense float64 NumPy, of the package it reads kernel parameters and nothing else ---

NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(100)
WEIGHTS = WEIGHTS / WEIGHTS.sum()


def slopes(likelihood: Likelihood, y: np.ndarray, f: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    if isinstance(likelihood, Logit):
        p = 1 / (1 + np.exp(-f))
        return y - p, -p * (1 - p)
    if isinstance(likelihood, Poisson):
        return y - np.exp(f), -np.exp(f)
    s2, df = float(likelihood.scale.detach()) ** 2, float(likelihood.df.detach())
    weight = (df + 1) / (df * s2 + (y - f) ** 2)
    return weight * (y - f), -weight  # of the EM bound


def dense_sites(K: np.ndarray, likelihood: Likelihood, y: np.ndarray, offset: float, newton: bool):
    """Targets, precisions, mean and variance of f at the rows at the fixed point, by damped steps without end."""
    n = len(y)
    mean, variance = np.full(n, offset), np.zeros(n)
    w = wz = None
    for _ in range(3000):
        v = np.zeros(n) if newton else variance
        if isinstance(likelihood, StudentT):
            s2, df = float(likelihood.scale.detach()) ** 2, float(likelihood.df.detach())
            new = (df + 1) / (df * s2 + (y - mean) ** 2 + v)
            first = new * (y - mean)
        else:
            grid = mean[:, None] + np.sqrt(v)[:, None] * NODES
            first, second = (part @ WEIGHTS for part in slopes(likelihood, y[:, None], grid))
            new = -second
        new_wz = new * mean + first
        w, wz = (new, new_wz) if w is None else (w + 0.3 * (new - w), wz + 0.3 * (new_wz - wz))
        Khat = K + np.diag(1 / w)
        mean = offset + K @ np.linalg.solve(Khat, wz / w - offset)
        last, variance = variance, np.diag(K - K @ np.linalg.solve(Khat, K))
        if np.abs(variance - last).max() < 1e-13 and np.abs(new_wz - wz).max() < 1e-11 * np.abs(wz).max():
            break
    return wz / w, w, mean, variance


CASES = [
    (Logit, "classes", "variational"),
    (Logit, "classes", "newton"),
    (Poisson, "counts", "variational"),
    (Poisson, "counts", "newton"),
    (StudentT, "numbers", "variational"),
]


def exact_sites(kind: type[Likelihood], targets: str, sites: str, n: int = N):
    X, y = data(targets, n)
    method = WithLikelihood(CholeskyGP(prior()), kind(), n, offset=0.3, kind=sites, tolerance=1e-11, max_steps=1000)
    return method, X, y


@pytest.mark.thinned(3)
@pytest.mark.parametrize(("likelihood", "targets", "kind"), CASES)
def test_exact_inference_is_the_dense_oracle(likelihood, targets, kind):
    method, X, y = exact_sites(likelihood, targets, kind)
    found = method.infer(X, y)
    assert found.converged
    assert found.change < 1e-11
    assert found.num_steps < 1000
    K = oracle.kernel_matrix(method.prior.kernel, X, X)
    z, w, mean, variance = dense_sites(K, method.likelihood, y.numpy(), 0.3, kind == "newton")
    np.testing.assert_allclose(found.precision.numpy(), w, rtol=1e-6)
    np.testing.assert_allclose(found.target.numpy(), z, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(found.mean.numpy(), mean, atol=1e-6)
    np.testing.assert_allclose(found.variance.numpy(), variance, atol=1e-6)


def whole_methods(X: Tensor) -> dict[str, object]:
    """Every method, with as many actions or neighbours as rows."""
    n = len(X)
    shared = BlockActions.from_data(X, 20)
    return {
        "opt": CaGPOpt(prior(), BlockActions.from_data(X, n)),
        "cg": CaGPCG(prior(), n),
        "local": CaGPLocal(prior(), n - 1),
        "hybrid": CaGPLocal(prior(), n - 1, shared=shared),
    }


@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", ["opt", "cg", "local", "hybrid"])
def test_every_method_meets_exact_inference(name):
    X, y = data("classes", 60)
    generator = torch.Generator().manual_seed(5)
    Z = torch.randn(15, 2, generator=generator, dtype=torch.float64)
    options = {"offset": 0.3, "tolerance": 1e-9, "max_steps": 300}
    right = WithLikelihood(CholeskyGP(prior()), Logit(), 60, **options).condition(X, y).predict(Z)
    found = WithLikelihood(whole_methods(X)[name], Logit(), 60, **options).condition(X, y).predict(Z)
    torch.testing.assert_close(found.mean, right.mean, rtol=0, atol=1e-6)
    torch.testing.assert_close(found.variance, right.variance, rtol=0, atol=1e-6)


def test_newton_sites_are_scikit_learns_laplace_approximation():
    X, y = data("classes")
    Z = torch.randn(50, 2, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    kernel = sklearn_kernels.ConstantKernel(3.0) * sklearn_kernels.RBF([1.3, 2.1])
    known = GaussianProcessClassifier(kernel, optimizer=None, max_iter_predict=1000).fit(X.numpy(), y.numpy())
    method = WithLikelihood(CholeskyGP(prior(RBF)), Logit(), N, kind="newton", tolerance=1e-10)
    mean, variance = method.condition(X, y).predict(Z)
    found = method.likelihood.log_predictive(torch.ones(50).double(), mean, variance).exp().numpy()
    # Their integral over the link is an approximation by five error functions; f* itself is the same.
    np.testing.assert_allclose(found, known.predict_proba(Z.numpy())[:, 1], atol=2e-3)
    theirs = known.base_estimator_
    np.testing.assert_allclose(
        mean.numpy(), theirs.kernel_(theirs.X_train_, Z.numpy()).T @ (theirs.y_train_ - theirs.pi_), atol=1e-4
    )
    evidence = laplace_evidence(method, X, y)
    assert evidence == pytest.approx(known.log_marginal_likelihood(), abs=1e-4)


def laplace_evidence(method: WithLikelihood, X: Tensor, y: Tensor) -> float:
    """log p(y | f̂) - ½ f̂ᵀK⁻¹f̂ - ½ log|I + KW|."""
    sites = method.infer(X, y)
    K = oracle.kernel_matrix(method.prior.kernel, X, X)
    f, w = sites.mean.numpy(), sites.precision.numpy()
    weights = method.likelihood.slopes(y, sites.mean).first.numpy()  # K⁻¹f̂ at the mode
    fit_term = float(method.likelihood.log_density(y, sites.mean).sum())
    return fit_term - 0.5 * f @ weights - 0.5 * np.linalg.slogdet(np.eye(len(f)) + K * w)[1]


def test_large_counts_tend_to_gaussian_regression_on_their_logarithms():
    X, _ = data("counts", 60)
    f = torch.sin(2 * X[:, 0]) / 5 + 14  # counts of a million
    y = torch.exp(f + torch.exp(-f / 2) * torch.randn(60, generator=torch.Generator().manual_seed(4)).double()).round()
    c = float(y.log().mean())
    kernel = Scale(RBF(2, torch.tensor([1.3, 2.1])), 0.1)
    counted = WithLikelihood(CholeskyGP(GP(kernel, noise=KnownNoise())), Poisson(), 60, offset=c, tolerance=1e-9)
    known = CholeskyGP(GP(kernel, noise=KnownNoise())).condition(X, y.log() - c, 1 / y).predict(X)
    found = counted.condition(X, y).predict(X)
    torch.testing.assert_close(found.mean, known.mean, rtol=0, atol=2e-6)
    torch.testing.assert_close(found.variance, known.variance, rtol=2e-3, atol=0)


def test_students_t_with_many_degrees_of_freedom_is_gaussian_regression():
    X, y = data("numbers", 60)
    gaussian = CholeskyGP(GP(prior().kernel, noise=GaussianNoise(0.04))).condition(X, y).predict(X)
    robust = WithLikelihood(CholeskyGP(prior()), StudentT(0.2, 1e9), 60, tolerance=1e-9).condition(X, y).predict(X)
    torch.testing.assert_close(robust.mean, gaussian.mean, rtol=0, atol=1e-6)
    torch.testing.assert_close(robust.variance, gaussian.variance, rtol=0, atol=1e-6)


def test_one_gross_error_hardly_moves_students_t():
    X, y = data("numbers", 60)
    spoiled = y.clone()
    spoiled[7] += 50.0
    method = WithLikelihood(CholeskyGP(prior()), StudentT(0.2, 3.0), 60)
    clean, moved = method.condition(X, y).predict(X).mean, method.condition(X, spoiled).predict(X).mean
    gaussian = CholeskyGP(GP(prior().kernel, noise=GaussianNoise(0.04)))
    by_gaussian = gaussian.condition(X, spoiled).predict(X).mean - gaussian.condition(X, y).predict(X).mean
    away = torch.arange(60) != 7
    assert float((moved - clean)[away].abs().max()) < 0.2 < 5 * 0.2 < float(by_gaussian[away].abs().max())


# --- the objective ---


def bound(method: WithLikelihood, X: Tensor, y: Tensor) -> float:
    """E_q[log p(y | f)] - KL(q ‖ p) at converged sites, dense."""
    sites = method.infer(X, y)
    K = oracle.kernel_matrix(method.prior.kernel, X, X)
    w, m = sites.precision.numpy(), sites.mean.numpy() - method.offset.numpy()
    expected = float(method.likelihood.expected_log_density(y, sites.mean, sites.variance).detach().sum())
    B = np.eye(len(m)) + K * w
    C = K - K @ np.linalg.solve(K + np.diag(1 / w), K)
    kl = 0.5 * (np.trace(np.linalg.solve(K, C)) + m @ np.linalg.solve(K, m) - len(m) + np.linalg.slogdet(B)[1])
    return expected - kl


@pytest.mark.slow
@pytest.mark.parametrize(
    ("likelihood", "targets"), [(Logit, "classes"), (Poisson, "counts"), (NegativeBinomial, "counts")]
)
def test_the_objective_is_the_evidence_lower_bound_and_its_gradient_needs_no_moving_sites(likelihood, targets):
    X, y = data(targets, 40)
    method = WithLikelihood(CholeskyGP(prior()), likelihood(), 40, offset=0.3, tolerance=1e-11, max_steps=500)
    method.refresh(X, y, 500)
    loss = method.objective(X, y)
    assert float(loss.detach()) == pytest.approx(-bound(method, X, y) / 40, abs=1e-8)
    loss.backward()
    h = 1e-4
    for parameter in [*method.prior.parameters(), *method.likelihood.parameters()]:
        values, ends = parameter.data.view(-1), []
        for s in (h, -h):
            values[0] += s
            ends.append(-bound(method, X, y) / 40)
            values[0] -= s
        assert float(parameter.grad.view(-1)[0]) == pytest.approx((ends[0] - ends[1]) / (2 * h), rel=1e-4, abs=1e-7)


@pytest.mark.parametrize("name", ["opt", "local"])
def test_gradients_at_fixed_sites_are_finite_differences(name):
    X, y = data("classes", 40)
    inner = {
        "opt": lambda: CaGPOpt(prior(), BlockActions.from_data(X, 10)),
        "local": lambda: CaGPLocal(prior(), 8, objective="ordered"),
    }[name]()
    method = WithLikelihood(inner, Logit(), 40)
    method.refresh(X, y)
    method.objective(X, y).backward()
    for parameter in method.prior.parameters():
        values, ends = parameter.data.view(-1), []
        for s in (1e-5, -1e-5):
            values[0] += s
            ends.append(float(method.objective(X, y).detach()))
            values[0] -= s
        assert float(parameter.grad.view(-1)[0]) == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-5, abs=1e-8)


@pytest.mark.slow
@given(st.integers(0, 10_000), st.integers(1, 12), st.sampled_from(["local", "opt", "cg"]))
def test_given_the_sites_the_variance_is_never_below_that_of_all_rows(seed, size, name):
    X, y = data("classes", 40, seed)
    inner = {
        "opt": lambda: CaGPOpt(prior(), BlockActions.from_data(X, size)),
        "local": lambda: CaGPLocal(prior(), size),
        "cg": lambda: CaGPCG(prior(), size),
    }[name]()
    method = WithLikelihood(inner, Logit(), 40)
    sites = method.infer(X, y, max_steps=10)
    Z = torch.randn(10, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    everything = CholeskyGP(prior()).condition(X, sites.target, 1 / sites.precision)
    assert bool((method.given(sites, X).variance(Z) >= everything.variance(Z) - 1e-9).all())


# --- fits ---


def test_a_fit_learns_kernel_and_likelihood():
    X, y = data("counts", 200)
    y = NegativeBinomial(0.4).sample((X[:, 0] * 1.5).sin() + 2, torch.Generator().manual_seed(8))
    likelihood = NegativeBinomial(3.0)
    method = WithLikelihood(CaGPLocal(prior(), 20, objective="ordered", batch_size=64), likelihood, 200, offset=2.0)
    before = float(likelihood.dispersion.detach())
    fit(method, X, y, num_steps=60)
    learned = float(likelihood.dispersion.detach())
    assert learned < 0.5 * before
    assert 0.2 < learned < 0.8
    assert float(method.prior.kernel.kernel.lengthscale.detach()[1]) > 4.0  # the second input plays no part
    assert "likelihood.dispersion" in method.hyperparameters()


def test_a_resumed_fit_has_the_same_sites_to_the_bit(tmp_path):
    X, y = data("classes", 80)

    def made() -> WithLikelihood:
        return WithLikelihood(CaGPLocal(prior(), 10, objective="ordered", batch_size=32), Logit(), 80)

    whole, resumed = made(), made()
    fit(whole, X, y, num_steps=14)
    settings = {"num_steps": 14, "checkpoint_dir": tmp_path, "checkpoint_steps": 4}
    with pytest.raises(CrashError):
        fit(made(), X, y, callback=crash_at(10), **settings)
    result = fit(resumed, X, y, **settings)
    assert len(result.steps) == 14
    for name, value in whole.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name


@pytest.mark.parametrize("name", ["exact", "opt", "local"])
def test_float32_rows_give_nearly_the_same(name):
    X, y = data("classes", 60)
    makers = {
        "exact": lambda X: CholeskyGP(prior()),
        "opt": lambda X: CaGPOpt(prior(), BlockActions.from_data(X, 10)),
        "local": lambda X: CaGPLocal(prior(), 12, objective="ordered"),
    }
    found = []
    for dtype in (torch.float64, torch.float32):
        method = WithLikelihood(makers[name](X), Logit(), 60)
        fit(method, X.to(dtype), y.to(dtype), num_steps=3)
        found.append(method.condition(X.to(dtype), y.to(dtype)).predict(X.to(dtype)))
        assert found[-1].mean.dtype == dtype
    torch.testing.assert_close(found[1].mean.double(), found[0].mean, rtol=0, atol=0.02)


# --- what cannot work ---


def test_sites_that_have_not_converged_say_so():
    X, y = data("classes", 40)
    method = WithLikelihood(CholeskyGP(prior()), Logit(), 40, tolerance=1e-12, max_steps=2)
    found = method.infer(X, y)
    assert not found.converged
    assert found.num_steps == 2
    assert found.change > 1e-12
    with pytest.warns(SitesWarning, match="have not converged after 2 steps"):
        method.condition(X, y)


def test_wrong_arguments_are_refused():
    X, y = data("classes", 40)
    with pytest.raises(ValueError, match="KnownNoise"):
        WithLikelihood(CholeskyGP(GP(RBF(2))), Logit(), 40)
    with pytest.raises(ValueError, match="expected 40 finite numbers"):
        WithLikelihood(CholeskyGP(prior()), Logit(), 40, offset=torch.full((40,), math.nan).double())
    with pytest.raises(ValueError, match="tolerance is 2"):
        WithLikelihood(CholeskyGP(prior()), Logit(), 40, tolerance=2.0)
    method = WithLikelihood(CholeskyGP(prior()), Logit(), 40)
    with pytest.raises(ValueError, match="there are no sites yet"):
        method.objective(X, y)
    with pytest.raises(ValueError, match="other than 0 and 1"):
        method.condition(X, y + 1)
    with pytest.raises(ValueError, match="row_noise is given"):
        method.condition(X, y, torch.ones(40).double())
    with pytest.raises(ValueError, match="num_rows = 40"):
        method.condition(X[:20], y[:20])


def test_whole_steps_of_students_t_never_lower_its_bound():
    """Where rows contradict each other, every step of EM raises E[log p(y, τ | f)] - KL, without damping."""
    generator = torch.Generator().manual_seed(5)
    X = torch.rand(40, 1, generator=generator, dtype=torch.float64) * 4
    y = torch.sin(X[:, 0]) + 3.0 * (torch.rand(40, generator=generator) < 0.4)
    likelihood, prior = StudentT(scale=0.1, df=3.0), GP(Scale(Matern32(1)), noise=KnownNoise())
    method = WithLikelihood(CholeskyGP(prior), likelihood, 40, tolerance=1e-10, max_steps=1)
    K = prior.kernel(X, X).detach()
    s2, df = float(likelihood.scale.detach()) ** 2, float(likelihood.df.detach())
    bounds = []
    for _ in range(60):
        sites = method.refresh(X, y, 1)
        mean, variance = sites.mean, sites.variance  # of q(f) that the sites before gave
        bound = -0.5 * (df + 1) * torch.log1p(((y - mean).square() + variance) / (df * s2)).sum()
        bounds.append((bound, method.precision.clone(), method.shift.clone()))
        if len(bounds) > 1:
            _, w, shift = bounds[-2]
            A = K + torch.diag(1 / w)
            m, C = K @ torch.linalg.solve(A, shift / w), K - K @ torch.linalg.solve(A, K)
            torch.testing.assert_close(m, mean, rtol=1e-8, atol=1e-8)
            solved = torch.linalg.solve(K, torch.stack([m], 1))[:, 0]
            kl = 0.5 * (torch.trace(torch.linalg.solve(K, C)) - 40 + m @ solved)
            kl = kl + 0.5 * (torch.logdet(K) - torch.logdet(C))
            bounds[-1] = (bound - kl, *bounds[-1][1:])
    values = torch.stack([value for value, _, _ in bounds[1:]])
    assert bool((values.diff() > -1e-7).all())
    assert float(values[-1] - values[0]) > 0.1


def test_a_share_of_rows_may_still_move():
    X = torch.linspace(0, 4, 50).double()[:, None]
    y = torch.sin(X[:, 0]) + 2.0 * (torch.arange(50) % 2)
    prior = GP(Scale(Matern32(1)), noise=KnownNoise())
    strict, lenient = (
        WithLikelihood(CholeskyGP(prior), StudentT(0.1, 3.0), 50, tolerance=1e-6, max_steps=500, unsettled=share)
        for share in (0.0, 0.5)
    )
    all_of_them, half = strict.infer(X, y), lenient.infer(X, y)
    assert (all_of_them.num_moving, all_of_them.converged) == (0, True)
    assert half.converged
    assert 0 < half.num_moving <= 25
    assert half.num_steps < all_of_them.num_steps
    with pytest.raises(ValueError, match="unsettled is 1"):
        WithLikelihood(CholeskyGP(prior), StudentT(), 50, unsettled=1.0)


def test_a_deadline_ends_the_sites_after_one_step():
    """A step is taken in any case, and the status says that sites have not converged."""
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(30, 1, generator=generator, dtype=torch.float64)
    y = (X[:, 0] > 0.5).double()
    method = WithLikelihood(CholeskyGP(GP(Scale(Matern32(1)), noise=KnownNoise())), Logit(), 30)
    assert method.infer(X, y).converged
    late = method.infer(X, y, until=time.perf_counter() - 1)
    assert late.num_steps == 1
    assert not late.converged
    with pytest.warns(SitesWarning, match="allow more time"):
        method.condition(X, y, until=time.perf_counter() - 1)
