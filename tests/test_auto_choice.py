"""The choice of a model: what is compared and how, what is left out, and whether the right one wins."""

import math

import numpy as np
import oracle
import pytest
import torch

from cagp import GP, CaGPRegressor, GaussianNoise, kernels, limits, trees
from cagp.comparison import Score, compare
from cagp.data.splits import split
from cagp.kernels import Matern12, Matern32, Scale
from cagp.recipes import auto, trials
from cagp.recipes.task import VALIDATION_SHARE, Task
from cagp.training import history

SHORT = {"first_steps": 6, "more_steps": 6, "other_steps": 6, "last_steps": 6}
KEYS = {"model", "nll", "crps", "gain", "gain_error", "steps", "seconds", "outcome", "target"}
FAST = {"n_neighbors": 4, "n_actions": 8}


@pytest.fixture(autouse=True)
def small_tables(monkeypatch):
    """Races for small tables; single tests change more."""
    monkeypatch.setattr(limits, "EXACT_ROWS", 100)


def effort(monkeypatch, **changes) -> None:
    monkeypatch.setitem(auto.EFFORTS, "default", auto.EFFORTS["default"]._replace(**changes))


def table(num_rows: int = 200, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(num_rows, 2))
    return X, np.sin(2 * X[:, 0]) + (X[:, 1] > 0) + 0.1 * rng.normal(size=num_rows)


def tried(model) -> list[str]:
    return [trial["model"] for trial in model.choices_]


def without_time(model) -> list[dict]:
    return [{name: value for name, value in trial.items() if name != "seconds"} for trial in model.choices_]


# ---- how two models are compared ----


def score(nll, crps) -> Score:
    nll, crps = (torch.as_tensor(values, dtype=torch.float64) for values in (nll, crps))
    return Score(nll, crps, crps[None], crps[None].square())


def test_the_score_of_several_targets():
    y, mean, variance = torch.randn(3, 2, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    variance = variance.square() + 0.1
    found = Score.of(zip(y, mean, variance, strict=True))
    density = torch.distributions.Normal(mean, variance.sqrt()).log_prob(y)
    torch.testing.assert_close(found.nll, -density.mean(0))
    torch.testing.assert_close(found.error.square().mean(0), (y - mean).square().mean(0))
    # The CRPS is E|Z - y| - E|Z - Z'| / 2 for draws Z, Z' of the prediction.
    draws = mean + variance.sqrt() * torch.randn(2, 40_000, 2, 7, generator=torch.Generator().manual_seed(1)).double()
    crps = (draws[0] - y).abs().mean(0) - (draws[0] - draws[1]).abs().mean(0) / 2
    torch.testing.assert_close(found.crps, crps.mean(0), atol=0.03, rtol=0)


def test_the_gain_by_hand():
    new, old = score([1.0, 2.0, 0.5, 3.0], [0.2, 0.3, 0.1, 0.5]), score([1.5, 1.0, 0.7, 3.0], [0.3, 0.2, 0.4, 0.5])
    found = compare(new, old)
    unit = (1.1 / 4 + 1.4 / 4) / 2
    rows = [(0.5 + 0.1 / unit) / 2, (-1.0 - 0.1 / unit) / 2, (0.2 + 0.3 / unit) / 2, 0.0]
    mean = sum(rows) / 4
    assert found.mean == pytest.approx(mean)
    assert found.error == pytest.approx(math.sqrt(sum((row - mean) ** 2 for row in rows) / 4) / 2)
    back = compare(old, new)
    assert back.mean == pytest.approx(-found.mean)
    assert back.error == pytest.approx(found.error)
    other_units = compare(score(new.nll + 2, 7 * new.crps), score(old.nll + 2, 7 * old.crps))
    assert other_units.mean == pytest.approx(found.mean)


def test_one_improbable_row_decides_nothing():
    """A little better everywhere, and a thousand nats worse in one row of two thousand."""
    old = score([1.0] * 2000, [0.5] * 2000)
    new = score([0.9] * 1999 + [1000.0], [0.45] * 1999 + [300.0])
    found = compare(new, old)
    assert found.exceed("model")
    assert (old.nll - new.nll).mean() < -0.3  # the mean log density would have said the opposite
    assert not compare(old, new).exceed("model")


def test_a_gain_by_chance_is_not_clear():
    rng = np.random.default_rng(0)
    noise = rng.normal(size=400)
    same = score(1 + 0.0 * noise, 0.5 + 0 * noise)
    other = score(1 + noise - noise.mean() - 0.02, 0.5 + 0 * noise)
    found = compare(other, same)
    assert found.mean == pytest.approx(0.01, abs=1e-3)
    assert found.error > found.mean
    assert not found.exceed("model")
    assert compare(score(0.98 + 0 * noise, 0.5 + 0 * noise), same).exceed("model")


def test_a_model_that_cannot_be_computed_loses():
    failed, good = score([math.inf] * 3, [math.inf] * 3), score([1.0, 2.0, 3.0], [0.5] * 3)
    assert compare(good, failed).exceed("model")
    assert compare(good, failed).exceed("far")
    assert not compare(failed, good).exceed("model")
    same = compare(failed, failed)
    assert (same.mean, same.error) == (0.0, 0.0)


def test_leave_one_out_is_a_fit_without_each_row():
    X, y = (torch.from_numpy(part) for part in table(40))
    row_noise = torch.linspace(0.01, 0.3, 40, dtype=torch.float64)
    prior = GP(Scale(Matern32(2, [0.7, 1.2]), 1.3), noise=GaussianNoise(0.05))
    for known in (None, row_noise):
        mean, variance = trials.leave_out(prior, X, y, known)
        for row in range(0, 40, 3):
            rest = np.array([i for i in range(40) if i != row])
            noise = None if known is None else known[rest]
            found = oracle.exact_posterior(prior, X[rest], y[rest], X[row : row + 1], noise)
            own = oracle.noise_vector(prior.noise, 1, None if known is None else known[row : row + 1])
            assert float(mean[row]) == pytest.approx(found.mean[0], rel=1e-8)
            assert float(variance[row]) == pytest.approx(found.variance[0] + own[0], rel=1e-8)


def test_leave_one_out_of_a_matrix_without_factor(monkeypatch):
    monkeypatch.setattr("cagp.linalg.JITTERS", (0.0,))
    prior = GP(Scale(Matern32(1)), noise=GaussianNoise(1e-30, noise_floor=0.0))
    mean, variance = trials.leave_out(prior, torch.zeros(20, 1).double(), torch.ones(20).double(), None)
    assert bool(variance.isinf().all())
    assert bool(mean.isfinite().all())


@pytest.mark.parametrize("kernel", [Matern12, Matern32])
def test_hyperparameters_are_taken_over(kernel):
    """Of the same kind: all of them. Of another kind: those that mean the same."""
    known = GP(Scale(Matern32(2, [0.3, 2.0]), 1.7), noise=GaussianNoise(0.04))
    prior = GP(Scale(kernel(2)), noise=GaussianNoise())
    prior.take_over(known)
    ratio = (prior.kernel.kernel.lengthscale / known.kernel.kernel.lengthscale).detach()
    assert float(ratio[0]) == pytest.approx(float(ratio[1]))
    assert float(ratio[0]) == pytest.approx(1.0 if kernel is Matern32 else Matern12.relative_lengthscale)
    assert prior.kernel.outputscale.item() == pytest.approx(1.7)
    assert prior.noise.noise.item() == pytest.approx(0.04)
    prior.noise.noise = 0.5
    assert known.noise.noise.item() == pytest.approx(0.04)  # a copy


# ---- what is tried ----


def test_every_entry_has_the_documented_keys(monkeypatch):
    X, y = table()
    effort(monkeypatch, **SHORT)
    for model in (CaGPRegressor(**FAST).fit(X, y), CaGPRegressor(max_epochs=2).fit(X[:100], y[:100])):
        assert len(model.choices_) > 2
        firsts = 0
        for trial in model.choices_:
            assert set(trial) == KEYS
            assert isinstance(trial["model"], str)
            assert all(math.isfinite(trial[name]) for name in ("nll", "crps", "seconds"))
            assert trial["steps"] >= 1
            assert (trial["gain"] is None) == (trial["gain_error"] is None)
            firsts += trial["gain"] is None
        assert firsts == 1
        assert model.choices_[0]["model"] in model.fit_report_
        assert f"the best of {len(model.choices_)} on held-out rows" in model.choice_


@pytest.mark.slow
def test_the_choice_is_the_same_for_the_same_seed(monkeypatch):
    X, y = table()
    effort(monkeypatch, **SHORT)
    for rows in (200, 100):  # local and exact
        one, two = (CaGPRegressor(**FAST, max_epochs=8).fit(X[:rows], y[:rows]) for _ in range(2))
        assert without_time(one) == without_time(two)
        np.testing.assert_array_equal(one.predict(X, return_std=True), two.predict(X, return_std=True))
        other = CaGPRegressor(**FAST, max_epochs=8, random_state=1).fit(X[:rows], y[:rows])
        if rows == 200:
            assert without_time(other) != without_time(one)


@pytest.mark.slow
@pytest.mark.parametrize("num_rows", [200, 100])
def test_what_the_user_fixes_is_not_tried(num_rows, monkeypatch):
    X, y = table(num_rows)
    monkeypatch.setattr(auto, "LEAST_TREE_ROWS", 50)
    effort(monkeypatch, **SHORT)
    some = {"max_epochs": 2, **FAST}

    def models(**choices) -> list[str]:
        return tried(CaGPRegressor(**{**some, **choices}).fit(X, y))

    everything = models()
    assert {"on trees" in words for words in everything} == {True, False}
    assert any(words.startswith("Matern 1/2") for words in everything)
    assert not any("on trees" in words for words in models(mean="zero"))
    assert all("on trees" in words for words in models(mean="trees"))
    for kernel in ("matern12", Scale(Matern32(2))):
        assert all(words.startswith("the kernel given") for words in models(kernel=kernel))
    assert models(kernel="matern12", mean="zero", effort="fast", objective="loo")[1:] == []
    if num_rows == 200:
        assert any("ordered" in words for words in everything)
        assert not any("ordered" in words for words in models(objective="loo"))
        assert all("ordered" in words for words in models(objective="ordered"))
        assert not any("in predictions" in words for words in everything)  # the user gave a number
        monkeypatch.setitem(
            auto.EFFORTS, "default", auto.EFFORTS["default"]._replace(more_neighbours=(100,), train_neighbours=(40,))
        )
        free = models(n_neighbors="auto")
        assert any("100 neighbours in predictions" in words for words in free)
        assert any("40 neighbours" in words for words in free)


def test_a_kernel_object_starts_where_its_owner_put_it(monkeypatch):
    """No other starting values are tried, and none are read off the data."""
    X, y = table()
    effort(monkeypatch, **SHORT)
    seen = []
    trained = trials.HeldOutRows._trained

    def watch(self, candidate, methods, *rest, **settings):
        seen.append((candidate, methods[0].prior.kernel.kernel.lengthscale.detach().clone()))
        return trained(self, candidate, methods, *rest, **settings)

    monkeypatch.setattr(trials.HeldOutRows, "_trained", watch)
    CaGPRegressor(kernel=Scale(Matern32(2, [0.37, 4.0])), max_epochs=1, **FAST).fit(X, y)
    begun = {mean: next(lengths for c, lengths in seen if c.mean == mean) for mean in ("zero", "trees")}
    for mean, lengthscales in begun.items():
        np.testing.assert_allclose(lengthscales, [0.37, 4.0], err_msg=mean)
    assert len({candidate.start for candidate, _ in seen if candidate.mean == "zero"}) == 1


class Exponential(kernels.Kernel):
    """exp(-r), without a word about itself."""

    def __init__(self):
        super().__init__()
        self.raw = torch.nn.Parameter(torch.zeros((), dtype=torch.float64))

    def forward(self, X, Z):
        return (-torch.cdist(X.double(), Z.double()) * self.raw.exp()).exp().to(X)


def test_a_kernel_of_a_users_own_is_compared_like_any_other(monkeypatch):
    """Nobody knows whether it decays; the fit report does not claim to."""
    X, y = table()
    effort(monkeypatch, **SHORT)
    model = CaGPRegressor(kernel=Exponential(), max_epochs=8, **FAST).fit(X, y)
    assert {"on trees" in words for words in tried(model)} == {True, False}
    assert any("ordered" in words for words in tried(model))
    assert "at any distance" not in model.fit_report_
    assert "does not say whether it goes to zero with distance" in model.fit_report_
    known = CaGPRegressor(kernel=Scale(Matern32(2)), max_epochs=2, **FAST).fit(X, y)
    assert "does not say" not in known.fit_report_


def test_fast_tries_one_model():
    X, y = table()
    model = CaGPRegressor(effort="fast", max_epochs=3, **FAST).fit(X, y)
    assert len(model.choices_) == 1
    assert model.trees_ is None
    few = CaGPRegressor(effort="fast", max_epochs=3).fit(X[:100], y[:100])
    assert few.choices_ == []


def test_a_mean_that_is_far_behind_is_dropped_early(monkeypatch):
    """What is far behind after the first steps gets no more of them."""
    X, y = table(400)
    effort(monkeypatch, **SHORT, kernels=(), objectives=False, starts=(1.0,), more_neighbours=())
    fitted = trees.fit_trees

    def useless(inputs, y, *rest, **choices):
        found = fitted(inputs, np.random.default_rng(0).permutation(y), *rest, **choices)
        return found._replace(mean=found.mean + 5 * np.sign(np.random.default_rng(1).normal(size=y.shape)))

    monkeypatch.setattr(trees, "fit_trees", useless)
    model = CaGPRegressor(n_neighbors=8, n_actions=8).fit(X, y)
    (behind,) = (trial for trial in model.choices_ if "on trees" in trial["model"])
    (first,) = (trial for trial in model.choices_ if trial["outcome"] == "first")
    assert behind["outcome"] == "far behind after 6 steps"
    assert behind["steps"] == 6
    assert behind["gain"] < -2 * behind["gain_error"]
    assert first["steps"] == 12
    assert model.trees_ is None


# ---- held-out rows ----


@pytest.mark.slow
@pytest.mark.parametrize("screen_rows", [10_000, 120])
def test_held_out_rows_are_never_learned_from(screen_rows, monkeypatch):
    """Neither by a trial, nor by trees, nor by the choice of a local scale; other targets there change no trial."""
    X, y = table()
    effort(monkeypatch, **SHORT, screen_rows=screen_rows)
    held, learned, tree_rows, scored = [], [], [], []
    hold_out, run, fit_trees, score_of = Task.hold_out, Task.run, trees.fit_trees, trials.HeldOutRows._score_of
    quick_prediction = trees.quick_prediction

    def watch_hold_out(self, *rest):
        parts = hold_out(self, *rest)
        held.append(parts)
        return parts

    def watch_run(self, method, name, *rest, **choices):
        if name != "opt":  # once all is chosen, its actions are refined with all rows
            learned.append(self)
        return run(self, method, name, *rest, **choices)

    def watch_trees(inputs, *rest, **choices):
        tree_rows.append(inputs)
        return fit_trees(inputs, *rest, **choices)

    def watch_quick_trees(inputs, y, *rest, **choices):
        tree_rows.append(inputs)
        return quick_prediction(inputs, y, *rest, **choices)

    def watch_scores(self, *rest, **options):
        scored.append(self.parts.held_out)
        return score_of(self, *rest, **options)

    monkeypatch.setattr(Task, "hold_out", watch_hold_out)
    monkeypatch.setattr(Task, "run", watch_run)
    monkeypatch.setattr(trees, "fit_trees", watch_trees)
    monkeypatch.setattr(trees, "quick_prediction", watch_quick_trees)
    monkeypatch.setattr(trials.HeldOutRows, "_score_of", watch_scores)
    CaGPRegressor(**FAST, mean="trees").fit(X, y)
    CaGPRegressor(**FAST).fit(X, y)

    def rows_of(inputs) -> set[int]:
        return {int(np.abs(X - row).sum(1).argmin()) for row in inputs}

    for parts in held:
        assert not rows_of(parts.train.inputs) & rows_of(parts.held_out.inputs)
        assert rows_of(parts.train.inputs) | rows_of(parts.held_out.inputs) == set(range(200))
    test_rows = rows_of(held[0].held_out.inputs)
    assert len(test_rows) == 20
    assert all(rows_of(parts.held_out.inputs) == test_rows for parts in held)
    assert len(learned) > 8
    assert len(tree_rows) >= 2
    for inputs in [*(task.inputs for task in learned), *tree_rows]:
        assert not rows_of(inputs) & test_rows
    assert all(rows_of(task.inputs) == test_rows for task in scored)
    if screen_rows < 200:
        assert {len(task.inputs) for task in learned} == {screen_rows, 180}


def test_the_targets_of_held_out_rows_change_no_trial(monkeypatch):
    """Hyperparameters after each trial are the same to the bit, whatever the held-out rows say."""
    X, y = table()
    effort(monkeypatch, **SHORT)
    found = []
    trained = trials.HeldOutRows._trained

    def watch(self, candidate, *rest, **settings):
        trial = trained(self, candidate, *rest, **settings)
        found[-1][len(found[-1])] = [p.detach().clone() for prior in trial.priors for p in prior.parameters()]
        return trial

    monkeypatch.setattr(trials.HeldOutRows, "_trained", watch)
    (held,) = {len(X)}
    _, test = split(held, VALIDATION_SHARE, 0)
    other = y.copy()
    other[test.numpy()] = y[np.roll(test.numpy(), 7)]  # the same values: standard units stay as they are
    for targets in (y, other):
        found.append({})
        CaGPRegressor(**FAST, mean="zero", kernel="matern32", objective="loo", target="identity").fit(X, targets)
    # Until a choice was made by different scores, every trial is the same.
    for j in range(2):
        for one, two in zip(found[0][j], found[1][j], strict=True):
            torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-12)


def test_the_winner_is_trained_on_all_rows(monkeypatch):
    X, y = table(300)
    effort(monkeypatch, **SHORT, screen_rows=100)
    for mean in ("zero", "trees"):
        model = CaGPRegressor(**FAST, mean=mean).fit(X, y)
        assert model.choices_[-1]["outcome"] == "on all 270 rows"
        assert model.choices_[-1]["steps"] == 6
        assert sum("on all" in trial["outcome"] for trial in model.choices_) == 1
        assert len(model.posteriors_[0].X) == 300
        assert len(model.fit_result_.steps) >= 6
        if model.trees_ is not None:  # the trees are those of all rows to learn from
            assert "of the variance" in model.fit_report_
            std = (y - y.mean()) / y.std(ddof=1)
            train, _ = split(300, VALIDATION_SHARE, 0)
            rows = train.numpy()
            expected = trees.fit_trees(X[rows], std[rows, None])
            assert expected.trees.texts == model.trees_.texts


def test_checkpoints_of_some_rows_and_of_all_do_not_meet(monkeypatch, tmp_path):
    """With few epochs, trials on some rows and the last fit on all take as many steps."""
    X, y = table(300)
    effort(monkeypatch, **SHORT, screen_rows=100)
    plain = CaGPRegressor(**FAST, max_epochs=2).fit(X, y)
    for _ in range(2):
        model = CaGPRegressor(**FAST, max_epochs=2, checkpoint_dir=tmp_path).fit(X, y)
        np.testing.assert_array_equal(model.predict(X), plain.predict(X))


# ---- whether the right model wins ----


@pytest.mark.slow
def test_a_rough_walk_is_rough():
    rng = np.random.default_rng(0)
    X = np.sort(rng.uniform(size=(600, 1)), axis=0)
    y = np.cumsum(rng.normal(size=600))
    model = CaGPRegressor(mean="zero", objective="loo", n_actions=16).fit(X, y)
    nll = {trial["model"].split(",")[0]: trial["nll"] for trial in model.choices_}
    assert nll["Matern 1/2"] < nll["Matern 5/2"]
    assert "Matern 1/2" in model.choice_


@pytest.mark.slow
def test_a_step_function_of_many_columns_needs_trees():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(700, 10))
    y = (X > 0) @ np.arange(1.0, 11.0) + 5 * ((X[:, 0] > 0) & (X[:, 9] > 0)) + 0.1 * rng.normal(size=700)
    model = CaGPRegressor(kernel="matern32", objective="loo", n_actions=16).fit(X, y)
    assert model.trees_ is not None
    assert "on trees" in model.choice_


@pytest.mark.slow
def test_a_smooth_function_of_few_columns_needs_no_trees():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 2))
    y = np.sin(X[:, 0]) * np.cos(X[:, 1]) + 0.01 * rng.normal(size=600)
    model = CaGPRegressor(kernel="matern52", objective="loo", n_actions=16).fit(X, y)
    assert model.trees_ is None
    assert any("on trees" in trial["model"] for trial in model.choices_)


# ---- Ctrl-C ----


def interrupt_in(monkeypatch, letters: str) -> None:
    """Ctrl-C after the second step of the first trial whose name has these letters."""
    run, append, current = Task.run, history.History.append, []

    def watch(self, method, name, *rest, **choices):
        current[:] = [name]
        return run(self, method, name, *rest, **choices)

    def interrupt(self, step):
        append(self, step)
        if step.number == 2 and letters in current[0]:
            raise KeyboardInterrupt

    monkeypatch.setattr(Task, "run", watch)
    monkeypatch.setattr(history.History, "append", interrupt)


def assert_ended(model, X) -> None:
    assert np.isfinite(model.predict(X, return_std=True)).all()
    assert "interrupted" in model.choice_
    assert model.fit_result_.interrupted
    assert "Interrupted after" in model.fit_report_


@pytest.mark.thinned(2)
@pytest.mark.parametrize("screen_rows", [10_000, 120])
@pytest.mark.parametrize("letters", ["zero-1-", "zero-0.4", "trees", "matern12", "ordered"])
def test_control_c_in_a_trial_ends_the_race(letters, screen_rows, monkeypatch):
    X, y = table()
    effort(monkeypatch, **SHORT, screen_rows=screen_rows)
    interrupt_in(monkeypatch, letters)
    model = CaGPRegressor(**FAST).fit(X, y)
    assert_ended(model, X)
    told = [trial["outcome"] for trial in model.choices_]
    left = [outcome for outcome in told if outcome.startswith("not tried")]
    assert set(left) <= {"not tried: the fit was interrupted"}
    if letters != "ordered":
        assert left
    assert not any("on all" in outcome for outcome in told)
    assert model.method_ == "local"


@pytest.mark.parametrize("screen_rows", [10_000, 120])
def test_control_c_in_the_trees_ends_the_race(screen_rows, monkeypatch):
    X, y = table()
    effort(monkeypatch, **SHORT, screen_rows=screen_rows)

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(trees, "fit_trees", interrupt)
    model = CaGPRegressor(**FAST).fit(X, y)
    assert_ended(model, X)
    assert model.trees_ is None
    assert [trial["outcome"] for trial in model.choices_ if "on trees" in trial["model"]] == [
        "not tried: the fit was interrupted"
    ]
    with pytest.raises(KeyboardInterrupt):  # nothing else was asked for
        CaGPRegressor(**FAST, mean="trees").fit(X, y)


def test_control_c_in_the_last_trees_keeps_those_of_some_rows(monkeypatch):
    X, y = table(400)
    effort(monkeypatch, **SHORT, screen_rows=200)
    fitted, calls = trees.fit_trees, []

    def interrupt(inputs, *rest, **choices):
        calls.append(len(inputs))
        if len(inputs) > 200:
            raise KeyboardInterrupt
        return fitted(inputs, *rest, **choices)

    monkeypatch.setattr(trees, "fit_trees", interrupt)
    model = CaGPRegressor(**FAST, mean="trees").fit(X, y)
    assert calls == [200, 360]
    assert_ended(model, X)
    assert len(model.posteriors_[0].X) == 400
    # The rows that the trees learned from have out-of-fold means, all others those of the trees themselves.
    std = (y - y.mean()) / y.std(ddof=1)
    residual = std - model.trees_.mean(X)[:, 0]
    posterior = model.posteriors_[0]
    place = [int(np.abs((X - X.mean(0)) / X.std(0, ddof=1) - row).sum(1).argmin()) for row in posterior.X.numpy()]
    same = np.isclose(posterior.y.numpy(), residual[place], atol=1e-9)
    assert 200 <= same.sum() < 210


def test_control_c_while_methods_are_compared(monkeypatch):
    X, y = table()
    effort(monkeypatch, **SHORT)

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(trials.HeldOutRows, "with_shared", interrupt)
    assert_ended(CaGPRegressor(**FAST, effort="fast", max_epochs=2).fit(X, y), X)


@pytest.mark.slow
@pytest.mark.parametrize("at", ["trees", "second", "third"])
def test_control_c_in_the_choice_for_few_rows(at, monkeypatch):
    X, y = table(100)
    monkeypatch.setattr(auto, "LEAST_TREE_ROWS", 50)
    count, leave_one_out = [], trials.leave_out

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    def sometimes(*rest):
        count.append(1)
        if len(count) == {"second": 2, "third": 3}.get(at):
            interrupt()
        return leave_one_out(*rest)

    if at == "trees":
        monkeypatch.setattr(trees, "fit_trees", interrupt)
    monkeypatch.setattr(trials, "leave_out", sometimes)
    model = CaGPRegressor(max_epochs=20).fit(X, y)
    assert model.method_ == "exact"
    assert_ended(model, X)
    assert len(model.fit_result_.steps) == 1
    assert len(count) == {"trees": 1, "second": 2, "third": 3}[at]
    compared = [trial for trial in model.choices_ if "nll" in trial]
    assert len(compared) == {"trees": 1, "second": 1, "third": 2}[at]
    assert all(trial["outcome"] == "not tried: the fit was interrupted" for trial in model.choices_[len(compared) :])


def test_control_c_in_a_step_of_the_choice_for_few_rows(monkeypatch):
    X, y = table(100)
    interrupt_in(monkeypatch, "")
    model = CaGPRegressor(max_epochs=20).fit(X, y)
    assert_ended(model, X)
    assert model.choices_[0]["outcome"] == "first"
    assert {trial["outcome"] for trial in model.choices_[1:]} == {"not tried: the fit was interrupted"}


def test_control_c_ends_the_targets_that_are_left(monkeypatch):
    X, y = table()
    effort(monkeypatch, **SHORT)
    both = np.stack([y, y], 1)
    both[:3, 0], both[3:6, 1] = np.nan, np.nan
    interrupt_in(monkeypatch, "matern12")
    model = CaGPRegressor(**FAST).fit(X, both)
    assert model.fit_results_[0].interrupted
    assert len(model.fit_results_[1].steps) <= 2
    assert np.isfinite(model.predict(X)).all()
