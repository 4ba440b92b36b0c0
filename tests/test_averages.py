"""Averages of two processes: the bound, the answers, files, and the choice of "auto"."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import cagp
from cagp import CaGPRegressor
from cagp.comparison import Gains, Score, best_average
from cagp.kernels import Matern12, Matern32, Scale
from cagp.methods import CaGPLocal, CholeskyGP
from cagp.posteriors import AveragedPosterior, Posterior, posterior_from_state
from cagp.prior import GP, GaussianNoise
from cagp.recipes import auto
from cagp.recipes.search import Search
from cagp.recipes.trials import Candidate, Trial
from cagp.testing import check_posterior


def problem(num_rows: int = 60, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    X = torch.rand(num_rows, 2, generator=generator, dtype=torch.float64)
    return X, torch.sin(5 * X[:, 0]) + X[:, 1].square() + 0.1 * torch.randn(num_rows, generator=generator).double()


def components(scale: float | None = None) -> list[Posterior]:
    X, y = problem()
    smooth = GP(Scale(Matern32(2, 0.5), 1.5), noise=GaussianNoise(0.02))
    rough = GP(Scale(Matern12(2, 0.9), 0.7), noise=GaussianNoise(0.05))
    local = CaGPLocal(rough, 6, num_neighbours_predict=8, local_scale=scale)
    return [CholeskyGP(smooth).condition(X, y), local.condition(X, 0.5 * y)]


@given(st.integers(1, 6), st.floats(0.01, 0.99), st.integers(0, 2**31))
def test_the_covariance_bounds_that_of_any_coupling(size, weight, seed):
    """Cov(Σ aⱼ fⱼ) ≼ Σ aⱼ Cov(fⱼ) aⱼ / wⱼ for a random joint covariance of both processes and any shares a."""
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(2 * size, 2 * size))
    joint, weights, shares = root @ root.T, (1 - weight, weight), rng.uniform(size=size)
    first, second = np.diag(1 - shares), np.diag(shares)
    mix = np.concatenate([first, second], 1)
    bound = first @ joint[:size, :size] @ first / weights[0] + second @ joint[size:, size:] @ second / weights[1]
    assert np.linalg.eigvalsh(bound - mix @ joint @ mix.T).min() >= -1e-9 * np.trace(bound)


@pytest.mark.slow
@pytest.mark.parametrize("scale", [None, 8.0])
def test_it_is_a_posterior_like_any_other(scale):
    check_posterior(AveragedPosterior(components(scale), [0.25, 0.75]), problem(12, seed=1)[0])


@pytest.mark.parametrize("scale", [None, 8.0])
def test_new_targets_have_the_normalised_product_of_the_densities(scale):
    """log p = Σ wⱼ log pⱼ + const: the same constant for all values of a target."""
    parts, X = components(scale), problem(15, seed=2)[0]
    own = [part.predict(X, noise=True) for part in parts]
    found = AveragedPosterior(parts, [0.3, 0.7]).predict(X, noise=True)

    def log_density(prediction, value):
        return torch.distributions.Normal(prediction.mean, prediction.variance.sqrt()).log_prob(value)

    values = torch.linspace(-2, 3, 7, dtype=torch.float64)[:, None]
    rest = log_density(found, values) - 0.3 * log_density(own[0], values) - 0.7 * log_density(own[1], values)
    torch.testing.assert_close(rest, rest[:1].expand_as(rest))


@pytest.mark.parametrize("scale", [None, 8.0])
def test_covariances_are_those_of_scaled_processes(scale):
    """f̄ = Σ wⱼ gⱼ with gⱼ = aⱼ fⱼ / wⱼ, and the covariance is the average of theirs."""
    parts, X, Z = components(scale), problem(15, seed=2)[0], problem(6, seed=5)[0]
    average, weights = AveragedPosterior(parts, [0.3, 0.7]), (0.3, 0.7)

    def shares(points):
        precision = [w / part.variance(points, noise=True) for w, part in zip(weights, parts, strict=True)]
        return [own / sum(precision) for own in precision]

    at_X, at_Z = shares(X), shares(Z)
    expected = sum(at_X[j][:, None] * parts[j].covariance(X, Z) * at_Z[j] / weights[j] for j in range(2))
    torch.testing.assert_close(average.covariance(X, Z), expected)
    expected = sum(at_X[j].square() * parts[j].variance(X) / weights[j] for j in range(2))
    torch.testing.assert_close(average.variance(X), expected)
    noise = torch.diag(average.variance(X, noise=True) - average.variance(X))
    torch.testing.assert_close(average.covariance(X, noise=True) - average.covariance(X), noise)


def test_known_noise_of_test_points_is_added_once():
    average, X = AveragedPosterior(components(8.0), [0.3, 0.7]), problem(15, seed=2)[0]
    known = torch.linspace(0, 2, 15, dtype=torch.float64)
    found, without = average.predict(X, noise=True, row_noise=known), average.predict(X, noise=True)
    torch.testing.assert_close(found.variance, without.variance + known)
    torch.testing.assert_close(found.mean, without.mean)


@pytest.mark.parametrize("offset_of", [(0,), (1,), (0, 1)])
def test_an_offset_counts_as_much_as_its_components(offset_of):
    """The same as a component that has the offset in its targets: here a constant, for a prior mean of zero."""
    parts, X = components(8.0), problem(15, seed=2)[0]
    average, offset = AveragedPosterior(parts, [0.3, 0.7], offset_of), torch.full((15,), 5.0, dtype=torch.float64)
    precision = [w / part.variance(X, noise=True) for w, part in zip((0.3, 0.7), parts, strict=True)]
    own = [part.mean(X, offset if j in offset_of else None) for j, part in enumerate(parts)]
    expected = sum(p * mean for p, mean in zip(precision, own, strict=True)) / sum(precision)
    torch.testing.assert_close(average.predict(X, offset=offset).mean, expected)
    torch.testing.assert_close(average.mean(X, offset), expected)
    draws = [average.sample(X, 3, offset=value, generator=torch.Generator().manual_seed(0)) for value in (offset, None)]
    torch.testing.assert_close(draws[0] - draws[1], (expected - average.mean(X)).expand(3, -1))


@pytest.mark.parametrize("scale", [None, 8.0])
def test_noise_and_parts_of_the_variance_add_up(scale):
    from cagp.diagnostics import reference_for, variance_components

    average, X = AveragedPosterior(components(scale), [0.4, 0.6]), problem(10, seed=3)[0]
    found = variance_components(average, reference_for(average, None, 60), X)
    torch.testing.assert_close(
        found.noise + found.latent + found.computational, average.variance(X, noise=True), rtol=1e-9, atol=1e-12
    )
    assert bool((found.computational >= -1e-9).all())
    assert float(found.computational.max()) > 1e-6  # eight neighbours of sixty rows


def test_left_out_rows_are_averages():
    parts, rows = components(), torch.tensor([3, 17, 40])
    found = AveragedPosterior(parts, [0.5, 0.5]).left_out(rows)
    own = [part.left_out(rows) for part in parts]
    assert found is not None
    precision = [0.5 / part.variance for part in own]
    torch.testing.assert_close(found.variance, 1 / sum(precision))
    expected = sum(p * part.error for p, part in zip(precision, own, strict=True)) / sum(precision)
    torch.testing.assert_close(found.error, expected)


@pytest.mark.parametrize(
    ("weights", "words"),
    [([1.0], "as many"), ([0.5, 0.6], "whose sum is 1"), ([1.5, -0.5], "positive"), ([1.0, 0.0], "positive")],
)
def test_wrong_weights_are_refused(weights, words):
    with pytest.raises(ValueError, match=words):
        AveragedPosterior(components(), weights)


def test_files_hold_averages_to_the_bit():
    average, X = AveragedPosterior(components(8.0), [0.25, 0.75], [1]), problem(9, seed=4)[0]
    again = posterior_from_state(average.state())
    assert torch.equal(again.predict(X, noise=True).variance, average.predict(X, noise=True).variance)
    assert torch.equal(again.mean(X, X[:, 0]), average.mean(X, X[:, 0]))
    state = average.state()
    damaged = [{"offset_of": value} for value in (1, 2, [0, 2], [], ["x"], None)]
    damaged += [{"weights": [0.25, "x"]}, {"weights": [0.5, 0.75]}, {"components": [state, state]}]
    for damage in damaged:
        with pytest.raises(ValueError, match=r"weights|averages|offset_of"):
            posterior_from_state({**state, **damage})


def test_the_best_weight_is_the_one_that_predicts_best():
    generator = torch.Generator().manual_seed(0)
    errors = torch.randn(2, 1, 4000, generator=generator, dtype=torch.float64)
    one, other = (Score.of_errors(0.3 * error, torch.full_like(error, 0.09)) for error in errors)
    found = best_average(one, other)  # independent errors of equal size
    assert found.weight == 0.5
    assert found.gain.exceed("model")
    assert float(found.score.error.square().mean()) == pytest.approx(0.045, rel=0.1)
    assert not best_average(one, Score.of_errors(9 * errors[1], 81 * errors[1] ** 0)).gain.exceed("model")


def test_the_winner_is_averaged_with_the_rival_that_helps_most():
    generator = torch.Generator().manual_seed(1)
    errors = 0.3 * torch.randn(2, 1, 4000, generator=generator, dtype=torch.float64)
    variance = torch.full_like(errors[0], 0.09)
    same, independent, poor = (
        Score.of_errors(e, v)
        for e, v in ((errors[0], variance), (errors[1], variance), (30 * errors[1], 900 * variance))
    )
    rivals = [Trial(Candidate("matern32"), [], [], [], score, 0.0, 1) for score in (same, independent, poor)]
    search = Search.__new__(Search)
    search.validation, search.rivals = None, []
    assert search.partner(rivals[0]) is None
    search.rivals = rivals
    rival, found = search.partner(rivals[0])
    assert rival is rivals[1]
    assert found.weight == 0.5
    assert found.gain.exceed("model")


@pytest.mark.slow
@pytest.mark.parametrize("mean", ["zero", "trees"])
def test_auto_averages_two_kernels(mean, monkeypatch, tmp_path):
    """Both models have the same trees, or none: an offset belongs to both."""
    from cagp import limits

    monkeypatch.setattr(limits, "EXACT_ROWS", 100)
    monkeypatch.setattr(
        Gains, "exceed", lambda self, kind: kind == "model" and self.mean > -10
    )  # whatever is last wins
    X, y = steps_and_waves(300, 0, 0.5, 6.0)
    model = CaGPRegressor(mean=mean, target="identity", local_scale=None, max_epochs=20, n_actions=8).fit(X, y)
    (average,) = model.posteriors_
    assert isinstance(average, AveragedPosterior)
    assert len({type(part.prior.kernel) for part in average.components} | {mean}) >= 2
    Z, _ = steps_and_waves(50, 1, 0.5, 6.0)
    found = model.predict(Z, return_std=True)
    if mean == "trees":
        assert average.offset_of == (0, 1)
        points = model.fitted.points(Z)
        standard = model.units_.standard(points.inputs, average)
        expected = average.mean(standard) + torch.from_numpy(model.trees_.mean(points.inputs))[:, 0]
        np.testing.assert_allclose(
            found[0], model.scaler_.restore_mean(expected[:, None])[:, 0].numpy(), rtol=1e-9, atol=1e-12
        )
    model.save(tmp_path / "model.cagp")
    assert all(map(np.array_equal, cagp.load(tmp_path / "model.cagp").predict(Z, return_std=True), found))


def steps_and_waves(num_rows: int, seed: int, jump: float, pace: float) -> tuple[np.ndarray, np.ndarray]:
    """Jumps in one input, for trees, and a smooth function of two others, for a process."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(size=(num_rows, 3))
    jumps, waves = jump * np.sin(40 * np.floor(6 * X[:, 0])), np.sin(pace * X[:, 1]) * np.cos(pace * X[:, 2])
    return X, jumps + waves + 0.2 * rng.normal(size=num_rows)


@pytest.fixture(scope="module", params=[(500, 0.7, 6.5), (2600, 0.5, 12.0)], ids=["exact", "local"])
def problem_and_model(request):
    """Makes rows of a table, and a model that was fitted to some."""
    num_rows, *shape = request.param
    model = CaGPRegressor(target="identity", max_epochs=60).fit(*steps_and_waves(num_rows, 0, *shape))
    return lambda rows, seed: steps_and_waves(rows, seed, *shape), model


@pytest.mark.slow
def test_models_that_were_trained_are_averaged_though_no_time_is_left_for_more(monkeypatch):
    """Both were judged on the same rows: shared actions are not compared, and the average costs nothing."""
    trained, compared = [], auto._compare_methods
    monkeypatch.setattr(auto, "_compare_methods", lambda *arguments: (trained.append(True), compared(*arguments))[1])
    monkeypatch.setattr(Search, "in_time", property(lambda self: not trained))
    model = CaGPRegressor(target="identity", max_epochs=60, max_time=1000.0).fit(*steps_and_waves(2600, 0, 0.5, 12.0))
    assert "the time limit does not allow shared actions to be compared" in model.choice_
    assert isinstance(model.posteriors_[0], AveragedPosterior)


@pytest.mark.slow
def test_auto_averages_what_trees_and_a_process_say(problem_and_model, tmp_path):
    table, averaged = problem_and_model
    (average,) = averaged.posteriors_
    assert isinstance(average, AveragedPosterior)
    assert ", averaged with " in averaged.choice_
    assert "outcome" in averaged.choices_[-1]
    assert averaged.choices_[-1]["outcome"] == "better"
    X, y = table(400, 1)
    mean, std = averaged.predict(X, return_std=True)
    assert 0.9 <= np.mean(np.abs(y - mean) < 1.96 * std) <= 0.995

    # The prior mean belongs to the model with trees, and counts as much as that model does.
    points = averaged.fitted.points(X)
    Z = averaged.units_.standard(points.inputs, average)
    trees = torch.from_numpy(averaged.trees_.mean(points.inputs))
    own = [part.mean(Z) + (trees[:, 0] if j in average.offset_of else 0) for j, part in enumerate(average.components)]
    pooled = (average.pooled(Z).shares * torch.stack(own)).sum(0)
    np.testing.assert_allclose(mean, averaged.scaler_.restore_mean(pooled[:, None])[:, 0].numpy(), rtol=1e-9)
    alone = averaged.scaler_.restore_mean(trees)
    np.testing.assert_allclose(averaged.prior_mean(X), alone[:, 0].numpy(), rtol=1e-9)

    averaged.save(tmp_path / "model.cagp")
    again = cagp.load(tmp_path / "model.cagp")
    assert np.array_equal(again.predict(X, return_std=True)[1], std)
    assert np.array_equal(again.predict(X), averaged.predict(X))
    assert again.guarantee_ == averaged.guarantee_
    low, high = averaged.predict_interval(X, method="conformal")
    assert 0.9 <= np.mean((low <= y) & (y <= high)) <= 0.995
    _, parts = averaged.predict(X[:20], return_components=True)
    total = parts["noise"] + parts["latent"] + parts["computational"]
    np.testing.assert_allclose(total, std[:20] ** 2, rtol=1e-6)


@pytest.mark.slow
def test_the_average_is_nearer_to_the_better_one_than_to_the_worse(problem_and_model):
    table, averaged = problem_and_model
    X, y = table(1500, 2)
    rows = table(averaged.n_rows_, 0)
    errors = [
        np.mean((CaGPRegressor(mean=mean, target="identity", max_epochs=60).fit(*rows).predict(X) - y) ** 2)
        for mean in ("zero", "trees")
    ]
    assert np.mean((averaged.predict(X) - y) ** 2) < np.mean(errors)


def test_info_describes_an_average(problem_and_model, tmp_path, capsys):
    _, averaged = problem_and_model
    from cagp.cli import main

    averaged.save(tmp_path / "model.cagp")
    assert main(["info", str(tmp_path / "model.cagp")]) in (0, None)
    assert averaged.guarantee_.split(",")[0] in " ".join(capsys.readouterr().out.split())
