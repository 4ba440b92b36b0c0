"""What every posterior must answer, whatever the method: add a method to METHODS, and the whole suite runs over it."""

from collections.abc import Callable

import numpy as np
import oracle
import pytest
import torch
from torch import Tensor

from cagp import (
    CGGP,
    GP,
    SGPR,
    SVGP,
    CaGPCG,
    CaGPLocal,
    CaGPOpt,
    CholeskyGP,
    ConstantMean,
    GaussianNoise,
    Method,
    Posterior,
    fit,
)
from cagp.actions import BlockActions
from cagp.kernels import RBF, Constant, Matern32, Scale
from cagp.posteriors import InducingPosterior
from cagp.testing import check_posterior

seeded = torch.Generator().manual_seed
Make = Callable[[GP, Tensor, int], Method]
"""A method from a prior, the inputs and a limit for temporaries."""

METHODS: dict[str, Make] = {
    "CaGP-Opt": lambda prior, X, limit: CaGPOpt.from_data(prior, X, 7, max_bytes=limit),
    "CaGP-CG": lambda prior, X, limit: CaGPCG.from_data(prior, X, 7, max_bytes=limit),
    "CholeskyGP": lambda prior, X, limit: CholeskyGP(prior, max_bytes=limit),
    "SGPR": lambda prior, X, limit: SGPR.from_data(prior, X, 7, max_bytes=limit),
    "SVGP": lambda prior, X, limit: SVGP.from_data(prior, X, 7, batch_size=16, max_bytes=limit),
    "SVGP, joint gradient": lambda prior, X, limit: SVGP.from_data(
        prior, X, 7, batch_size=16, gradient="joint", max_bytes=limit
    ),
    "CGGP": lambda prior, X, limit: CGGP(prior, tolerance=1e-9, precondition_rank=5, max_bytes=limit),
    "CaGP-Local": lambda prior, X, limit: CaGPLocal(prior, 4, max_bytes=limit),
    "CaGP-Local, shared actions": lambda prior, X, limit: CaGPLocal(
        prior, 4, shared=BlockActions.from_data(X, 7, support_size=3, generator=seeded(1)), max_bytes=limit
    ),
}
NEVER_BELOW_THE_EXACT_ONE = ("CaGP-Opt", "CaGP-CG", "CholeskyGP", "CGGP", "CaGP-Local", "CaGP-Local, shared actions")
DTYPES = (torch.float64, torch.float32)
ROUND_OFF = {torch.float64: 1e-9, torch.float32: 2e-4}
LIMIT = 2**28

every_method = pytest.mark.parametrize("name", METHODS)
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=["float64", "float32"])


def make_prior() -> GP:
    kernel = Scale(Matern32(2, [0.9, 1.3]), 1.2) + Constant(0.3)
    return GP(kernel, ConstantMean(0.4), GaussianNoise(0.2))


def make_data(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Inputs, targets, known noise variances, and new inputs: among them training rows, a duplicate, one far away."""
    g = torch.Generator().manual_seed(0)
    X = torch.randn(40, 2, generator=g, dtype=torch.float64)
    y = torch.sin(2 * X.sum(1)) + 0.2 * torch.randn(40, generator=g, dtype=torch.float64)
    row_noise = 0.05 + 0.2 * torch.rand(40, generator=g, dtype=torch.float64)
    new = torch.randn(9, 2, generator=g, dtype=torch.float64)
    new = torch.cat([new, X[:3], new[:1], torch.full((1, 2), 30.0, dtype=torch.float64)])
    return X.to(dtype), y.to(dtype), row_noise.to(dtype), new.to(dtype)


def trained(name: str, dtype: torch.dtype = torch.float64, max_bytes: int = LIMIT) -> Method:
    """A method after two steps of a fit, so that nothing is at its starting value."""
    X, y, row_noise, _ = make_data(dtype)
    method = METHODS[name](make_prior(), X, max_bytes)
    fit(method, X, y, row_noise, num_steps=2, lr=0.05)
    return method


def condition(name: str, dtype: torch.dtype = torch.float64, max_bytes: int = LIMIT) -> Posterior:
    X, y, row_noise, _ = make_data(dtype)
    return trained(name, dtype, max_bytes).condition(X, y, row_noise)


def assert_close(actual: Tensor, expected: Tensor, tolerance: float) -> None:
    torch.testing.assert_close(actual.double(), expected.double(), rtol=tolerance, atol=tolerance)


@pytest.mark.thinned(2)
@every_method
@every_dtype
def test_the_answers_of_every_posterior_fit_together(name, dtype):
    X, y, row_noise, new = make_data(dtype)
    method = trained(name, dtype)
    posterior = method.condition(X, y, row_noise)
    assert posterior.never_below_exact == (name in NEVER_BELOW_THE_EXACT_ONE)
    exact = CholeskyGP(posterior.prior).condition(X, y, row_noise)
    check_posterior(posterior, new, exact=exact, tolerance=ROUND_OFF[dtype])
    if dtype == torch.float64:
        check_posterior(posterior, torch.cat([new, X[5:12]]), seed=2)


def test_a_local_scale_fits_together_too_and_promises_nothing():
    X, y, row_noise, new = make_data()
    for shared in (None, BlockActions.from_data(X, 7, support_size=3, generator=seeded(1))):
        posterior = CaGPLocal(make_prior(), 4, shared=shared, local_scale=2.0).condition(X, y, row_noise)
        assert not posterior.never_below_exact
        check_posterior(posterior, new)


@every_method
def test_the_slopes_that_are_compared_are_not_zero(name):
    posterior, new = condition(name), make_data()[-1][:4].clone().requires_grad_()
    for value in (*posterior.predict(new), posterior.mean(new), posterior.covariance(new)[0, 1:]):
        (gradient,) = torch.autograd.grad(value.sum(), new, retain_graph=True)
        assert float(gradient.abs().max()) > 1e-4


@pytest.mark.thinned(5)
@every_method
def test_tiles_agree_with_no_tiles(name):
    X, y, row_noise, new = make_data()
    method = trained(name)
    whole = method.condition(X, y, row_noise)
    method.max_bytes = limit = 12_000 if name == "CGGP" else 1024  # four rows
    tiled = method.condition(X, y, row_noise)
    assert tiled.max_bytes == limit
    for a, b in zip(whole.predict(new), tiled.predict(new), strict=True):
        assert_close(a, b, 1e-9)
    assert_close(whole.mean(new), tiled.mean(new), 1e-9)
    rows = torch.stack([torch.stack(list(whole.predict(row[None]))) for row in new])[:, :, 0]  # one row at a time
    assert_close(rows.mT, torch.stack(list(whole.predict(new))), 1e-9)


@pytest.mark.thinned(8)
@every_method
def test_float32_answers_are_the_float64_ones_to_float32_accuracy(name):
    answers = [condition(name, dtype).predict(make_data(dtype)[-1]) for dtype in DTYPES]
    for a, b in zip(*answers, strict=True):
        assert_close(a, b, 5e-3)


@pytest.mark.thinned(6)
@every_method
def test_predictions_do_not_change_when_method_or_data_change_later(name):
    X, y, row_noise, new = make_data()
    method = trained(name)
    posterior = method.condition(X, y, row_noise)
    before = [*posterior.predict(new, noise=True), posterior.mean(new), posterior.covariance(new)]
    fit(method, X, y, row_noise, num_steps=3, lr=0.3)
    with torch.no_grad():
        for tensor in (*method.parameters(), *method.buffers()):
            if tensor.is_floating_point():
                tensor += 0.1
    after_training = [*posterior.predict(new, noise=True), posterior.mean(new), posterior.covariance(new)]
    for given in (X, y, row_noise):
        given += 1.0
    after_all = [*posterior.predict(new, noise=True), posterior.mean(new), posterior.covariance(new)]
    for a, b, c in zip(before, after_training, after_all, strict=True):
        assert torch.equal(a, b)
        assert torch.equal(a, c)
    assert not any(p.requires_grad for p in posterior.prior.parameters())


@every_method
def test_far_from_all_data_the_posterior_is_the_prior(name):
    X, y, row_noise, _ = make_data()
    prior = GP(Scale(RBF(2), 1.7), ConstantMean(0.4), GaussianNoise(0.2))
    posterior = METHODS[name](prior, X, LIMIT).condition(X, y, row_noise)
    mean, variance = posterior.predict(torch.full((1, 2), 60.0, dtype=torch.float64))
    assert float(mean) == pytest.approx(0.4)
    assert float(variance) == pytest.approx(1.7)


# --- what the methods claim of their variance -------------------------------------------------------------------------


@pytest.mark.parametrize("name", NEVER_BELOW_THE_EXACT_ONE)
def test_the_variance_is_never_below_the_exact_one(name):
    X, y, row_noise, new = make_data()
    points = torch.cat([new, X])
    posterior = trained(name).condition(X, y, row_noise)
    exact = oracle.exact_posterior(posterior.prior, X, y, points, row_noise)
    excess = oracle.array(posterior.covariance(points)) - exact.covariance
    assert np.linalg.eigvalsh((excess + excess.T) / 2)[0] > -1e-9


def test_svgp_is_sure_of_itself_at_an_inducing_point_away_from_the_data_and_cagp_is_not():
    """Inducing variables are treated as if they explained the data: 400 rows, a lengthscale away on both sides, pin one
    down, while they leave the exact posterior wide open there. CaGP's variance is never below the exact one."""
    g = torch.Generator().manual_seed(0)
    sides = torch.where(torch.arange(400) % 2 == 0, 1.0, -1.0).double()
    X = (sides + 0.05 * torch.randn(400, generator=g, dtype=torch.float64))[:, None]
    y = 0.5 + 0.1 * torch.randn(400, generator=g, dtype=torch.float64)
    gap = torch.zeros(1, 1, dtype=torch.float64)
    prior = GP(Matern32(1, 1.0), noise=GaussianNoise(0.01))
    exact = float(oracle.exact_posterior(prior, X, y, gap).variance[0])
    assert exact > 0.3
    svgp = SVGP(prior, gap)
    svgp.natural_step(X, y)  # the best q there is
    assert float(svgp.condition(X, y).variance(gap)) < 1e-3 * exact
    for num_actions in (1, 2, 8, 32):
        cagp = CaGPOpt.from_data(prior, X, num_actions)
        assert float(cagp.condition(X, y).variance(gap)) >= exact - 1e-10


def test_an_inducing_posterior_takes_any_square_root_of_the_covariance():
    X, y, row_noise, new = make_data()
    posterior = trained("SGPR").condition(X, y, row_noise)
    Q = torch.linalg.qr(torch.randn(7, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64))[0]
    turned = InducingPosterior(
        posterior.prior, posterior.X, posterior.chol, posterior.whitened_mean, posterior.whitened_root @ Q
    )
    assert_close(turned.covariance(new), posterior.covariance(new), 1e-12)
