"""Priors on hyperparameters: densities of scipy, one named term for every method, a pull that few rows feel."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from cagp import (
    CGGP,
    GP,
    MAP,
    SGPR,
    SVGP,
    CaGPCG,
    CaGPOpt,
    CholeskyGP,
    GaussianNoise,
    KnownNoise,
    Method,
    Posterior,
    fit,
    metrics,
)
from cagp.dataset import Data
from cagp.kernels import RBF, Linear, Matern32, Scale
from cagp.methods import LogNormal
from cagp.methods.base import dimension_scaled
from cagp.parameters import named_values
from cagp.training import Batch, Coming, StepRows, Trainable


class ExactNLL(Method):
    """A method of a user's own: the negative log marginal likelihood, from the dense formula."""

    def __init__(self, prior: GP):
        super().__init__()
        self.prior = prior

    def terms(self, data, batch) -> dict[str, Tensor]:
        X, y, row_noise = data
        covariance = self.prior.kernel(X, X) + torch.diag(self.prior.noise_variance(X, row_noise))
        distribution = torch.distributions.MultivariateNormal(self.prior.mean(X), covariance)
        return {"nll": -distribution.log_prob(y) / len(y)}

    def hyperparameters(self) -> dict:
        return named_values(self.prior)

    def posterior(self, data) -> Posterior:
        return CholeskyGP(self.prior).posterior(data)

    def rows(self, step: int, num_rows: int) -> StepRows:
        return StepRows(torch.arange(step % num_rows + 1), stochastic=True)

    def before_step(self, data, coming) -> Batch:
        return Batch(event=f"changed at {coming.step}, {coming.share}, {coming.flat}")

    def findings(self, data, input_names=None) -> list[str]:
        return ["exact"]


def data(n: int, d: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    X = torch.randn(n, d, generator=g, dtype=torch.float64)
    return X, torch.sin(X[:, 0]) + 0.3 * torch.randn(n, generator=g, dtype=torch.float64)


def cagp_opt(X: Tensor, num_actions: int) -> CaGPOpt:
    return CaGPOpt.from_data(GP(Scale(Matern32(X.shape[1]))), X, num_actions)


# --- densities --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prior", [LogNormal(0.0, 1.0), LogNormal(-4.0, 0.5), LogNormal(2.5, math.sqrt(3))], ids=str)
def test_the_density_is_normal_in_the_logarithm(prior):
    value = torch.logspace(-4, 4, 25, dtype=torch.float64)
    expected = stats.norm.logpdf(np.log(value.numpy()), prior.location, prior.scale)
    assert np.allclose(prior.log_density(value).numpy(), expected, rtol=1e-12)


def test_the_density_with_respect_to_the_value_is_that_of_a_shifted_location():
    location, scale = 1.3, 0.7
    value = np.logspace(-2, 2, 25)
    with_respect_to_value = stats.lognorm.logpdf(value, s=scale, scale=math.exp(location))
    ours = LogNormal(location - scale**2, scale).log_density(torch.from_numpy(value)).numpy()
    assert np.ptp(ours - with_respect_to_value) < 1e-12  # equal up to a constant


@pytest.mark.parametrize("d", [1, 4, 100])
def test_the_dimension_scaled_prior_is_the_published_one(d):
    assert dimension_scaled(d) == pytest.approx((math.sqrt(2) + math.log(d) / 2, math.sqrt(3)), rel=1e-14)
    assert math.exp(dimension_scaled(4 * d).location) == pytest.approx(2 * math.exp(dimension_scaled(d).location))


# --- the term ---------------------------------------------------------------------------------------------------------


def test_log_prior_is_the_sum_over_all_parameters_with_a_prior_divided_by_the_rows():
    X, y = data(12, 3)
    kernel = Scale(Matern32(3, [0.5, 1.0, 2.0]), 1.7) + Scale(RBF(3, 4.0) * Linear(3), 0.2)
    noise, outputscale = LogNormal(-4.0, 1.0), LogNormal(0.0, 0.5)
    method = CaGPOpt.from_data(GP(kernel, noise=GaussianNoise(0.3)), X, 5)
    terms = MAP(method, noise=noise, outputscale=outputscale).terms(Data(X, y), Batch())
    lengthscale = stats.norm(math.sqrt(2) + math.log(3) / 2, math.sqrt(3))
    expected = (
        lengthscale.logpdf(np.log([0.5, 1.0, 2.0, 4.0, 4.0, 4.0])).sum()
        + stats.norm(0.0, 0.5).logpdf(np.log([1.7, 0.2])).sum()
        + stats.norm(-4.0, 1.0).logpdf(math.log(0.3))
    )
    assert terms["log_prior"].item() == pytest.approx(-expected / 12, rel=1e-10)
    assert list(terms) == [*method.terms(Data(X, y), Batch()), "log_prior"]


METHODS: dict[str, Callable[[GP, Tensor], Method]] = {
    "CaGPOpt": lambda prior, X: CaGPOpt.from_data(prior, X, 4),
    "CaGPCG": lambda prior, X: CaGPCG(prior, 4),
    "CholeskyGP": lambda prior, X: CholeskyGP(prior),
    "SGPR": lambda prior, X: SGPR.from_data(prior, X, 4),
    "SVGP": lambda prior, X: SVGP.from_data(prior, X, 4),
    "CGGP": lambda prior, X: CGGP(prior),
    "own": lambda prior, X: ExactNLL(prior),
}


@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_fitted_with_the_term(name):
    X, y = data(20, 2)
    start = GP(Scale(RBF(2, 0.5)))
    method = METHODS[name](start, X)
    map_ = MAP(method, lengthscale=LogNormal(math.log(1e3), 0.01))  # so strong that nothing else counts
    steps = fit(map_, X, y, num_steps=5, lr=0.1).steps
    assert all(list(step.terms)[-1] == "log_prior" for step in steps)
    assert steps[-1].terms["log_prior"] < steps[0].terms["log_prior"]
    assert all(value > 0.55 for value in method.hyperparameters()["kernel.kernel.lengthscale"])


@pytest.mark.parametrize("make", [lambda X: cagp_opt(X, 4), lambda X: ExactNLL(GP(Scale(RBF(2))))], ids=["opt", "own"])
def test_the_objective_of_any_method_gains_the_term_and_keeps_the_others(make):
    X, y = data(10, 2)
    method = make(X)
    map_ = MAP(method)
    assert isinstance(map_, Trainable)
    given = Data(X, y)
    own = method.terms(given, Batch())
    terms = map_.terms(given, Batch())
    assert {name: terms[name].item() for name in own} == {name: term.item() for name, term in own.items()}
    log_prior = map_.log_prior(2).item() / 10
    assert map_.objective(X, y).item() == pytest.approx(method.objective(X, y).item() - log_prior, rel=1e-12)
    assert map_.parameter_groups() == method.parameter_groups()
    assert map_.hyperparameters() == method.hyperparameters()
    assert map_.rows(3, 10).stochastic is method.rows(3, 10).stochastic
    assert map_.findings(given)[:-1] == method.findings(given)
    assert "lengthscale" in map_.findings(given)[-1]
    coming = Coming(3, 0.5, True, None, None)
    assert map_.before_step(given, coming) == method.before_step(given, coming)
    for a, b in (
        (map_.rows(3, 10).drawn, method.rows(3, 10).drawn),
        (map_.rows(9, 10).drawn, method.rows(9, 10).drawn),
    ):
        assert (a is None and b is None) or torch.equal(a, b)
    new = X[:3] + 0.1
    assert torch.equal(map_.condition(X, y).variance(new), method.condition(X, y).variance(new))


def test_known_noise_passes_through():
    X, y = data(8, 2)
    row_noise = torch.linspace(0.1, 0.4, 8, dtype=torch.float64)
    method = CaGPOpt.from_data(GP(Matern32(2), noise=KnownNoise()), X, 4)
    known = Data(X, y, row_noise), Batch()
    with_, without = MAP(method).terms(*known), method.terms(*known)
    assert with_["kl"].item() == without["kl"].item()


def test_gradients_of_the_log_prior_are_finite_differences():
    X, _ = data(6, 3)
    method = CaGPOpt.from_data(GP(Scale(Matern32(3, [0.02, 1.0, 30.0]))), X, 2)
    map_ = MAP(method, noise=LogNormal(-4.0, 1.0), outputscale=LogNormal(0.0, 1.0))
    parameters = dict(method.prior.named_parameters())

    def log_prior(*values: Tensor) -> Tensor:
        state = {f"method.prior.{name}": value for name, value in zip(parameters, values, strict=True)}
        return torch.func.functional_call(_LogPrior(map_), {f"map.{name}": v for name, v in state.items()}, (3,))

    start = [value.detach().clone().requires_grad_() for value in parameters.values()]
    assert torch.autograd.gradcheck(log_prior, start)


class _LogPrior(torch.nn.Module):
    def __init__(self, map_: MAP):
        super().__init__()
        self.map = map_

    def forward(self, num_dims: int) -> Tensor:
        return self.map.log_prior(num_dims)


def test_gradients_of_the_whole_objective_are_finite_differences():
    X, y = data(8, 2)
    map_ = MAP(ExactNLL(GP(Scale(Matern32(2)))), noise=LogNormal(-4.0, 1.0))
    map_.objective(X, y).backward()
    for parameter in map_.parameters():
        assert parameter.grad is not None
        for index in range(parameter.numel()):
            values = []
            for shift in (1e-5, -1e-5):
                with torch.no_grad():
                    parameter.view(-1)[index] += shift
                    values.append(map_.objective(X, y).item())
                    parameter.view(-1)[index] -= shift
            assert parameter.grad.view(-1)[index].item() == pytest.approx((values[0] - values[1]) / 2e-5, abs=1e-8)


def test_the_term_fades_per_row_and_so_does_its_effect():
    def waves(n: int) -> tuple[Tensor, Tensor]:
        g = torch.Generator().manual_seed(0)
        X = n / 2 * torch.rand(n, 1, generator=g, dtype=torch.float64)  # more waves, not more of one wave
        return X, torch.sin(X[:, 0]) + 0.3 * torch.randn(n, generator=g, dtype=torch.float64)

    few, many = waves(15), waves(150)
    strong = LogNormal(math.log(0.3), 0.5)
    map_ = MAP(ExactNLL(GP(Matern32(1))), lengthscale=strong)
    for X, y in (few, many):
        assert map_.terms(Data(X, y), Batch())["log_prior"].item() * len(y) == pytest.approx(-map_.log_prior(1).item())

    def shift(X: Tensor, y: Tensor) -> float:
        """How far the prior moves the logarithm of the lengthscale from its most likely value."""
        ends = []
        for with_prior in (False, True):
            method = ExactNLL(GP(Matern32(1), noise=GaussianNoise(0.1)))
            fit(MAP(method, lengthscale=strong if with_prior else None), X, y, num_steps=50, lr=0.2)
            ends.append(math.log(method.hyperparameters()["kernel.lengthscale"][0]))
        return abs(ends[1] - ends[0])

    assert shift(*few) > 3 * shift(*many) > 0


@pytest.mark.slow
def test_few_rows_with_many_irrelevant_inputs_are_learned_better_with_the_prior():
    d, n = 20, 30
    for seed in range(2):
        X, y = data(n + 400, d, seed)
        nll = []
        for with_prior in (False, True):
            method = cagp_opt(X[:n], n)
            trained = MAP(method) if with_prior else method
            fit(trained, X[:n], y[:n], num_steps=60, lr={"hyperparameters": 0.2, "actions": 0.0})
            nll.append(metrics.nll(y[n:], *method.condition(X[:n], y[:n]).predict(X[n:], noise=True)))
        without, with_ = nll
        assert with_ < without - 0.3


def test_a_fit_with_a_prior_records_the_term_and_does_not_resume_one_without(tmp_path):
    X, y = data(20, 2)
    result = fit(MAP(cagp_opt(X, 5)), X, y, num_steps=4, checkpoint_dir=tmp_path)
    for step in result.steps:
        assert step.loss == pytest.approx(sum(step.terms.values()), rel=1e-12)
    assert set(result.steps[0].terms) == {"negative_log_likelihood", "kl", "log_prior"}
    with pytest.raises(ValueError, match="another fit"):
        fit(MAP(cagp_opt(X, 5), lengthscale=LogNormal(0.0, 1.0)), X, y, num_steps=4, checkpoint_dir=tmp_path)
    with pytest.raises(ValueError, match="another fit"):
        fit(cagp_opt(X, 5), X, y, num_steps=4, checkpoint_dir=tmp_path)


# --- what cannot be done ----------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("annotations_off")
def test_what_cannot_be_done_is_refused_with_its_name():
    X, _ = data(6, 2)

    class Priorless(ExactNLL):
        def __init__(self):
            super(ExactNLL, self).__init__()

    with pytest.raises(ValueError, match="Priorless has none"):
        MAP(Priorless())
    with pytest.raises(ValueError, match="'period', but the GP has no positive parameter"):
        MAP(cagp_opt(X, 3), period=LogNormal(0.0, 1.0))
    with pytest.raises(ValueError, match="'lengthscale', but"):
        MAP(CaGPOpt.from_data(GP(Linear(2)), X, 3))
    for wrong in (LogNormal(0.0, 0.0), LogNormal(math.nan, 1.0), "wide", (0.0, 1.0)):
        with pytest.raises(ValueError, match=r"prior on 'noise' is .*expected LogNormal"):
            MAP(cagp_opt(X, 3), noise=wrong)
