"""Objectives and fits of CaGP-Local, and what it finds about the inputs."""

import math
from typing import NamedTuple

import numpy as np
import oracle
import pytest
import torch
from hypothesis import given, settings
from local_problems import assert_close, slope
from problems import recipes
from torch import Tensor

from cagp import (
    GP,
    MAP,
    CaGPLocal,
    ConstantMean,
    GaussianNoise,
    fit,
)
from cagp.actions import BlockActions
from cagp.dataset import Data
from cagp.kernels import RBF, Constant, Matern32, Scale
from cagp.local_inference import local_answers
from cagp.methods import cagp_local
from cagp.methods.base import idle_inputs
from cagp.neighbours import NeighbourIndex
from cagp.prior import ZeroMean
from cagp.training import Batch, Coming

# --- objectives -------------------------------------------------------------------------------------------------------


class Training(NamedTuple):
    X: Tensor
    y: Tensor
    row_noise: Tensor | None
    method: CaGPLocal


def training(
    objective: str, shared: str = "none", *, n: int = 30, k: int = 5, row_noise: bool = True, **choices
) -> Training:
    """A small problem; shared actions touch a third of the rows."""
    g = torch.Generator().manual_seed(1)
    X = torch.randn(n, 2, generator=g, dtype=torch.float64)
    X[3] = X[4]
    y = torch.sin(2 * X.sum(1)) + 0.1 * torch.randn(n, generator=g, dtype=torch.float64)
    known = 0.02 + 0.1 * torch.rand(n, generator=g, dtype=torch.float64) if row_noise else None
    prior = GP(Scale(Matern32(2, [0.9, 1.2]), 1.3), ConstantMean(0.2), GaussianNoise(0.05))
    actions = None
    if shared == "blocks":
        actions = BlockActions.from_data(X, 5, support_size=2, generator=g)
        with torch.no_grad():
            actions.values.add_(torch.rand(10, generator=g, dtype=torch.float64))
    choices = {"index_kind": "scan", **choices}
    return Training(X, y, known, CaGPLocal(prior, k, objective=objective, shared=actions, **choices))


def oracle_terms(t: Training) -> np.ndarray:
    """The negative log predictive density of every row that may be predicted."""
    rows = t.method._training_rows(len(t.X))
    S = None if t.method.shared is None else oracle.action_matrix(t.method.shared)
    neighbours = t.method.lookup(Data(t.X, t.y)).of(t.X, rows)
    prior = t.method.prior
    prediction = oracle.local_posterior(prior, t.X, t.y, t.X[rows], neighbours, S, t.row_noise)
    noise = oracle.noise_vector(prior.noise, len(t.X), t.row_noise)[rows]
    return -oracle.log_predictive_densities(t.y[rows], prediction, noise)


every_objective = pytest.mark.parametrize("objective", ["loo", "ordered"])
every_shared = pytest.mark.parametrize("shared", ["none", "blocks"])


@every_objective
@every_shared
@pytest.mark.parametrize("row_noise", [False, True])
def test_the_objective_is_the_mean_of_predictive_densities(objective, shared, row_noise):
    t = training(objective, shared, row_noise=row_noise)
    value = t.method.objective(t.X, t.y, t.row_noise)
    assert_close(value, oracle_terms(t).mean(), 1e-10)
    t.method.max_bytes = 1024  # a row at a time
    assert_close(t.method.objective(t.X, t.y, t.row_noise), value, 1e-10)


@every_objective
@every_shared
def test_gradients_of_the_objective_are_its_slopes(objective, shared):
    t = training(objective, shared)

    def loss() -> Tensor:
        return t.method.objective(t.X, t.y, t.row_noise)

    parameters = dict(t.method.named_parameters())
    assert ("shared.values" in parameters) == (shared == "blocks")
    for (name, parameter), gradient in zip(
        parameters.items(), torch.autograd.grad(loss(), list(parameters.values())), strict=True
    ):
        direction = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
        expected = slope(loss, parameter, direction, step=1e-4)
        assert float((gradient * direction).sum()) == pytest.approx(expected, rel=1e-5, abs=1e-8), name
        assert abs(expected) > 1e-6, name


@every_objective
def test_without_mean_and_known_noise_the_objective_and_its_slopes_are_right_too(objective):
    t = training(objective, row_noise=False)
    t.method.prior.mean = ZeroMean()
    assert_close(t.method.objective(t.X, t.y), oracle_terms(t).mean(), 1e-10)
    t.method.max_bytes = 1024  # a row at a time
    assert_close(t.method.objective(t.X, t.y), oracle_terms(t).mean(), 1e-10)
    parameters = list(t.method.parameters())
    for parameter, gradient in zip(
        parameters, torch.autograd.grad(t.method.objective(t.X, t.y), parameters), strict=True
    ):
        expected = slope(lambda: t.method.objective(t.X, t.y), parameter, torch.ones_like(parameter))
        assert float(gradient.sum()) == pytest.approx(expected, rel=1e-6, abs=1e-8)


@every_objective
def test_gradients_are_the_slopes_for_sums_of_kernels(objective):
    t = training(objective)
    t.method.prior.kernel = Scale(RBF(2, 0.8), 0.7) + Constant(0.3)
    parameters = list(t.method.parameters())
    for parameter, gradient in zip(
        parameters, torch.autograd.grad(t.method.objective(t.X, t.y), parameters), strict=True
    ):
        expected = slope(lambda: t.method.objective(t.X, t.y), parameter, torch.ones_like(parameter))
        assert float(gradient.sum()) == pytest.approx(expected, rel=1e-6, abs=1e-8)


@every_objective
@every_shared
def test_a_minibatch_is_an_unbiased_estimate(objective, shared):
    """Rows are drawn uniformly and independently, so that the mean over all batches is the full objective. With
    replacement: a row can come twice, and the variance is σ²/b, not σ²/b (n - b)/(n - 1)."""
    t = training(objective, shared, batch_size=4)
    terms = oracle_terms(t)
    rows = t.method._training_rows(30)
    place = {row: number for number, row in enumerate(rows.tolist())}
    means, counts = [], np.zeros(len(rows))
    for step in range(1500):
        batch = t.method.rows(step, 30).drawn
        drawn = [place[row] for row in batch.tolist()]
        assert len(drawn) == 4
        means.append(terms[drawn].mean())
        np.add.at(counts, drawn, 1)
        if step < 5:
            assert_close(t.method.objective(t.X, t.y, t.row_noise, rows=batch), means[-1], 1e-10)
    expected = 6_000 / len(rows)
    assert (((counts - expected) ** 2) / expected).sum() < len(rows) + 5 * math.sqrt(2 * len(rows))  # chi squared
    assert abs(np.mean(means) - terms.mean()) < 5 * terms.std() / math.sqrt(6_000)
    assert np.var(means) == pytest.approx(terms.var() / 4, rel=0.2)


def test_minibatches_follow_seed_and_step_alone_and_become_all_rows_where_they_fit():
    t, same, other = (training("loo", batch_size=4, seed=seed) for seed in (0, 0, 1))
    for step in (0, 17):
        assert torch.equal(t.method.rows(step, 30).drawn, same.method.rows(step, 30).drawn)
        assert not torch.equal(t.method.rows(step, 30).drawn, other.method.rows(step, 30).drawn)
    assert int(t.method.rows(17, 6).drawn.max()) < 6  # other data are no trouble
    t.method.batch_size = 30
    assert t.method.rows(17, 30).drawn is None  # all rows
    every = torch.arange(30)
    assert t.method.objective(t.X, t.y).item() == t.method.objective(t.X, t.y, rows=every).item()


@settings(max_examples=25)
@given(recipes(max_rows=25))
def test_ordered_with_all_earlier_rows_is_the_marginal_likelihood(recipe):
    p = recipe.build()
    method = CaGPLocal(p.prior, recipe.n, objective="ordered", index_kind="scan")
    expected = -oracle.log_marginal_likelihood(p.prior, p.X, p.y, p.row_noise) / recipe.n
    assert_close(method.objective(p.X, p.y, p.row_noise), expected, 1e-9)


def test_ordered_with_a_tree_is_the_marginal_likelihood_too():
    t = training("ordered", k=29, index_kind="tree")
    expected = -oracle.log_marginal_likelihood(t.method.prior, t.X, t.y, t.row_noise) / 30
    assert_close(t.method.objective(t.X, t.y, t.row_noise), expected, 1e-10)


@every_objective
def test_one_row_is_predicted_by_the_prior(objective):
    X, y = torch.ones(1, 2, dtype=torch.float64), torch.tensor([0.7], dtype=torch.float64)
    value = CaGPLocal(GP(Scale(RBF(2), 1.5), noise=GaussianNoise(0.5)), objective=objective).objective(X, y)
    assert value.item() == pytest.approx(0.5 * (0.7**2 / 2 + math.log(2 * math.pi * 2)))


@every_objective
@every_shared
def test_a_rows_own_target_never_enters_its_prediction(objective, shared):
    t = training(objective, shared)
    rows = t.method._training_rows(30)
    neighbours = t.method.lookup(Data(t.X, t.y)).of(t.X, rows)

    def means(y: Tensor) -> Tensor:
        actions = t.method._seen(t.method.prior, Data(t.X, y, t.row_noise))
        return local_answers(t.method.prior, t.X, y, t.row_noise, t.X[rows], neighbours, actions).mean.detach()

    before, influence = means(t.y), 0
    for place, row in enumerate(rows.tolist()):
        y = t.y.clone()
        y[row] += 100.0
        after = means(y)
        assert float(after[place]) == float(before[place])
        influence += int((after != before).sum())
    assert influence > len(rows)  # of other rows' predictions


def test_shared_actions_on_all_rows_cannot_be_trained_beside():
    X = torch.randn(20, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    method = CaGPLocal(GP(RBF(2)), 3, shared=BlockActions.from_data(X, 4))
    with pytest.raises(ValueError, match="give the actions a support_size, or train without them"):
        method.objective(X, X[:, 0])
    assert bool(torch.isfinite(method.condition(X, X[:, 0]).variance(X)).all())


# --- fits -------------------------------------------------------------------------------------------------------------


@pytest.mark.thinned(2)
@every_objective
@every_shared
def test_a_fit_lowers_the_full_objective_and_resumes_bit_for_bit(objective, shared, tmp_path):
    def make() -> Training:
        return training(objective, shared, n=120, batch_size=32, refresh_at=(2, 7, 20), seed=4)

    class StopError(Exception):
        pass

    def stop(step):
        if step.number == 13:
            raise StopError

    whole, parts, resumed = make(), make(), make()
    data = whole.X, whole.y, whole.row_noise
    start = whole.method.objective(*data).item()
    changes = {"num_steps": 30, "lr": 0.1, "checkpoint_steps": 5}
    result = fit(whole.method, *data, **changes)
    assert not result.failures
    assert "CaGP-Local with 5 neighbours" in str(result)
    with pytest.raises(StopError):
        fit(parts.method, *data, callback=stop, checkpoint_dir=tmp_path, **changes)
    resumed.method.objective(*data)  # having been asked something changes nothing
    fit(resumed.method, *data, checkpoint_dir=tmp_path, **changes)
    for name, value in whole.method.state_dict().items():
        assert torch.equal(value, resumed.method.state_dict()[name]), name
    assert whole.method.objective(*data).item() < start - 0.01


def test_neighbours_are_sought_anew_when_it_is_time():
    t = training("loo", refresh_at=(3,))
    seen = []

    def record(step):
        seen.append(t.method.search_lengthscale.clone())

    with torch.no_grad():
        t.method.prior.kernel.kernel.raw_lengthscale.add_(0.3)  # a prior may get its starting values late
    start = t.method.prior.kernel.kernel.lengthscale.detach().clone()
    fit(t.method, t.X, t.y, num_steps=6, lr=0.1, callback=record)
    assert all(torch.equal(value, start) for value in seen[:3])
    assert all(torch.equal(value, seen[3]) for value in seen[3:])
    assert not torch.equal(seen[3], start)
    assert not torch.equal(seen[3], t.method.prior.kernel.kernel.lengthscale)  # learned further since


@pytest.mark.thinned(2)
@pytest.mark.parametrize("objective", ["loo", "ordered"])
@pytest.mark.parametrize("kind", ["scan", "tree"])
def test_neighbours_that_are_kept_from_step_to_step_change_nothing(objective, kind, monkeypatch):
    look_up = cagp_local.Lookup.found

    found = []
    for most in (0, 10**6):
        monkeypatch.setattr(cagp_local, "KEPT_NEIGHBOURS", most)
        t = training(objective, n=60, index_kind=kind, batch_size=16, refresh_at=(3, 6))
        looked_up = []
        counted = lambda self, X, rows, seen=looked_up: seen.append(rows) or look_up(self, X, rows)  # noqa: E731
        monkeypatch.setattr(cagp_local.Lookup, "found", counted)
        result = fit(t.method, t.X, t.y, t.row_noise, num_steps=40)
        found.append(([step.loss for step in result.steps], sum(map(len, looked_up))))
    (anew, every), (kept, few) = found
    assert anew == kept
    assert every >= 40 * 16
    assert few <= 3 * 60
    # Lookups of an earlier step serve a later one, whatever its rows.
    data, rows = Data(t.X, t.y, t.row_noise), torch.arange(5)
    batch = t.method.before_step(data, Coming(1, 0.5, False, rows, rows))
    everything = t.method.before_step(data, Coming(2, 0.5, False, None, None, batch))
    assert everything.prepared is batch.prepared
    assert t.method.terms(data, everything) == t.method.terms(data, Batch())


def test_the_index_follows_the_data_and_the_lengthscales():
    t = training("loo", k=3)
    X = t.X.flip(0).contiguous()
    data, unit = Data(t.X, t.y), t.method.search_lengthscale
    index = data.index(unit, "scan")
    assert data.index(unit, "scan") is index
    assert Data(X, t.y).index(unit, "scan") is not index
    assert data.with_targets(2 * t.y).index(unit, "scan") is index  # of the same rows
    t.method.search_lengthscale = torch.tensor([0.01, 5.0], dtype=torch.float64)
    rows = torch.arange(30)
    expected = NeighbourIndex(t.X, t.method.search_lengthscale, "scan").nearest(t.X, 3, left_out=rows)
    assert torch.equal(t.method.lookup(data).of(t.X, rows), expected)
    refreshed = t.method.before_step(data, Coming(1, 0.5, False, rows, rows))
    assert torch.equal(refreshed.prepared.of(t.X, rows), expected)


def test_priors_on_hyperparameters_go_with_it():
    t = training("loo")
    plain = t.method.objective(t.X, t.y).item()
    method = MAP(t.method, lengthscale="dimension-scaled")
    assert method.objective(t.X, t.y).item() == pytest.approx(plain - method.log_prior(2).item() / 30)
    assert "CaGP-Local" in str(fit(method, t.X, t.y, num_steps=3))


@pytest.mark.usefixtures("annotations_off")
def test_choices_that_make_no_sense_are_refused():
    prior = GP(RBF(2))
    with pytest.raises(ValueError, match='expected "loo" or "ordered"'):
        CaGPLocal(prior, objective="vecchia")
    with pytest.raises(ValueError, match="num_neighbours is 0"):
        CaGPLocal(prior, 0)
    with pytest.raises(ValueError, match="batch_size is -1"):
        CaGPLocal(prior, batch_size=-1)
    X = torch.zeros(4, 2, dtype=torch.float64)
    with pytest.raises(ValueError, match="num_neighbours is -1, expected 0"):
        CaGPLocal(prior).condition(X, X[:, 0], num_neighbours=-1)


# --- findings ---------------------------------------------------------------------------------------------------------


def test_findings_name_inputs_that_do_not_matter():
    g = torch.Generator().manual_seed(0)
    X = torch.rand(60, 2, generator=g, dtype=torch.float64)
    method = CaGPLocal(GP(Scale(Matern32(2, [0.3, 500.0]))), 8)
    summary, *others = method.findings(Data(X, X[:, 0]))
    assert "CaGP-Local with 8 neighbours (16 in predictions) on 60 rows" in summary
    assert any("1 of 2 inputs hardly matter" in words and words.endswith(": 1.") for words in others)
    names = ("depth", "colour")
    assert any(words.endswith(": colour.") for words in method.findings(Data(X, X[:, 0]), names))
    result = fit(method, X, X[:, 0], num_steps=1, lr=0.0, input_names=names)
    assert any(words.endswith(": colour.") for words in result.findings)


def test_an_input_with_a_long_lengthscale_matters_where_the_outputscale_is_large():
    X = torch.rand(60, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    X = torch.cat([X, torch.ones(60, 1, dtype=torch.float64)], 1)  # an input that does not vary is not listed
    y = 5 * X[:, 0]
    # From end to end f changes with a variance of about 2 · 1e4 · 1.5 · (1 / 20)², and (1 / 20,000)².
    smooth = Scale(Matern32(3, [20.0, 20_000.0, 1.0]), 1e4)
    assert idle_inputs(smooth, X, y) == [1]
