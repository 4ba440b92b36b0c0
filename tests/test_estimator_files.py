"""Saved models, fits that are interrupted and go on, and the choices that "auto" makes."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from test_estimators import REGRESSORS, every_regressor, table, task_of

import cagp
from cagp import CaGPRegressor, CGGPRegressor, ExactGPRegressor, SGPRRegressor, limits
from cagp.dataset import Data
from cagp.estimators import Units
from cagp.kernels import RBF, Kernel, Linear, Scale
from cagp.recipes import local, opt, trials
from cagp.recipes.table import RECIPES
from cagp.recipes.task import Task
from cagp.training import PRESETS, Settings, history


def answers(model, Z) -> list[np.ndarray]:
    """All that a model can be asked, as one list."""
    parts = model.predict(Z, return_components=True)[1]
    return [
        model.predict(Z),
        *model.predict(Z, return_std=True),
        model.predict(Z, return_cov=True)[1],
        *(parts[name] for name in ("noise", "latent", "computational")),
        model.sample_y(Z, 3, random_state=2),
        model.predict_quantiles(Z),
        model.lengthscales_,
        model.noise_std_,
    ]


def assert_same(one, other, Z) -> None:
    for left, right in zip(answers(one, Z), answers(other, Z), strict=True):
        np.testing.assert_array_equal(left, right)
        assert left.dtype == right.dtype


# ---- saved models ----


@pytest.mark.thinned(2)
@every_regressor
@pytest.mark.parametrize("several", [False, True])
def test_a_loaded_model_answers_with_the_same_bits(regressor, several, tmp_path):
    X, y = table(40)
    target = np.stack([y, y**2], 1) if several else y[:, None].astype(np.float32)
    noise = np.linspace(0.1, 1, 40) if several else None
    model = regressor(max_epochs=2, random_state=7).fit(X, target, sample_noise=noise)
    path = model.save(tmp_path / "model.cagp")
    loaded = cagp.load(path)
    assert_same(model, loaded, X[:6] + 0.1)
    assert type(loaded) is type(model)
    assert loaded.get_params() == model.get_params()
    assert repr(loaded) == repr(model)
    for name in ("method_", "n_rows_", "n_outputs_", "n_features_in_", "target_names_", "fit_report_", "fit_result_"):
        assert getattr(loaded, name) == getattr(model, name), name
    assert loaded.feature_names_out_.tolist() == ["x0", "x1"]
    assert_same(loaded, cagp.load(loaded.save(tmp_path / "again.cagp")), X[:6])
    assert (tmp_path / "again.cagp").read_bytes() == path.read_bytes()


def test_frames_and_their_categories_come_back(tmp_path):
    rng = np.random.default_rng(1)
    frame = pd.DataFrame({"größe": rng.normal(size=40), "kind": rng.choice(["a", "b", "c"], 40)})
    frame["day"] = pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 90, 40), unit="D")
    y = pd.Series(frame["größe"] + (frame["kind"] == "b") + 0.1 * rng.normal(size=40), name="Preis in €")
    model = CaGPRegressor("hybrid", n_actions=4, max_epochs=2).fit(frame, y)
    loaded = cagp.load(model.save(tmp_path / "model.cagp"))
    assert_same(model, loaded, frame[:7])
    assert loaded.feature_names_in_.tolist() == ["größe", "kind", "day"]
    assert loaded.target_names_ == ("Preis in €",)
    with pytest.raises(ValueError, match="feature names should match"):
        loaded.predict(frame[["kind", "größe", "day"]])
    assert_same(model, loaded, frame[:7].assign(kind="d"))


@pytest.mark.thinned(5)
@pytest.mark.parametrize("name", ["exact", "opt", "local", "hybrid", "cg", "CGGP"])
def test_rounded_rows_make_a_smaller_file_and_close_answers(name, tmp_path):
    X, y = table(300, 10)
    model = REGRESSORS[name](max_epochs=1).fit(X, y)
    whole, rounded = model.save(tmp_path / "whole.cagp"), model.save(tmp_path / "rounded.cagp", dtype="float32")
    loaded = cagp.load(rounded)
    mean, std = model.predict(X, return_std=True)
    close = loaded.predict(X, return_std=True)
    assert not np.array_equal(close[0], mean)
    np.testing.assert_allclose(close[0], mean, atol=1e-4)
    np.testing.assert_allclose(close[1], std, rtol=1e-4)
    assert rounded.stat().st_size < whole.stat().st_size - 4 * X.size / 2
    with pytest.raises(ValueError, match="dtype is 'float16'"):
        model.save(tmp_path / "other.cagp", dtype="float16")
    assert not (tmp_path / "other.cagp").exists()


class Squared(Kernel):
    """A kernel of a user's own: (x · z + shift)²."""

    def __init__(self, shift: float = 1.0):
        super().__init__()
        self.shift = shift
        self.weight = torch.nn.Parameter(torch.tensor(0.3, dtype=torch.float64))

    def forward(self, X, Z):
        return self.weight.to(X) ** 2 * (X @ Z.mT + self.shift) ** 2


def test_kernels_of_ones_own(tmp_path):
    X, y = table(30)
    kernel = Scale(RBF(2, [0.7, 1.1]), 0.8) + Squared(0.5)
    model = ExactGPRegressor(kernel, max_epochs=3).fit(X, y)
    path = model.save(tmp_path / "model.cagp")
    with pytest.raises(ValueError, match="Squared is a class of your own"):
        cagp.load(path)
    with pytest.raises(ValueError, match=r"shift = 0\.5, the one given 2\.0"):
        cagp.load(path, kernel=Scale(RBF(2)) + Squared(2.0))
    loaded = cagp.load(path, kernel=Scale(RBF(2)) + Squared(0.5))
    assert_same(model, loaded, X[:5])
    # The parameter is the kernel as it was given, not as it was learned.
    for name, value in loaded.kernel.state_dict().items():
        assert torch.equal(value, kernel.state_dict()[name]), name
    assert repr(loaded) == repr(model)
    again, once_more = loaded.fit(X, y), model.fit(X, y)
    assert_same(again, once_more, X[:5])


def test_kernels_of_the_package_need_no_help(tmp_path):
    X, y = table(30)
    model = CaGPRegressor("local", kernel=Scale(RBF(2)) * Linear(2), max_epochs=2).fit(X, y)
    loaded = cagp.load(model.save(tmp_path / "model.cagp"))
    assert_same(model, loaded, X[:5])
    assert repr(loaded.kernel) == repr(model.kernel)


def test_a_loaded_model_can_be_fitted_further(tmp_path):
    X, y = table(40)
    model = CaGPRegressor("opt", n_actions=8, max_epochs=4, warm_start=True).fit(X, y)
    loaded = cagp.load(model.save(tmp_path / "model.cagp"))
    assert_same(loaded.fit(X, y), model.fit(X, y), X)


def test_an_unfitted_model_cannot_be_saved(tmp_path):
    with pytest.raises(Exception, match="not fitted"):
        ExactGPRegressor().save(tmp_path / "model.cagp")
    with pytest.raises(FileNotFoundError, match="does not exist"):
        cagp.load(tmp_path / "model.cagp")


def test_damaged_files_are_refused(tmp_path):
    X, y = table(6)
    model = SGPRRegressor(n_inducing=2, max_epochs=1).fit(X, np.stack([y, -y], 1), sample_noise=np.ones(6))
    whole = model.save(tmp_path / "model.cagp").read_bytes()
    rng, path = np.random.default_rng(0), tmp_path / "damaged.cagp"
    for _ in range(1000):
        content = bytearray(whole)
        place, other = sorted(rng.integers(0, len(whole), 2).tolist())
        match rng.integers(5):
            case 0:
                content[place] ^= 1 << int(rng.integers(8))
            case 1:
                del content[place:]
            case 2:
                del content[place : other + 1]
            case 3:
                content[place:place] = rng.bytes(int(rng.integers(1, 64)))
            case 4:
                content[place : other + 1] = bytes(other + 1 - place)
        if bytes(content) == whole:
            continue
        path.write_bytes(content)
        with pytest.raises(ValueError, match="cannot be read"):
            cagp.load(path)
    path.write_bytes(whole)
    assert_same(cagp.load(path), model, X)


# ---- fits that are interrupted ----


class Killed(BaseException):
    """What ends a process from outside."""


@pytest.mark.thinned(2)
@every_regressor
def test_a_fit_that_was_killed_goes_on_to_the_same_bits(regressor, tmp_path, monkeypatch):
    X, y = table(40)
    y = np.stack([y, y**2], 1)
    monkeypatch.setitem(PRESETS, "default", Settings(checkpoint_steps=2))
    epochs, fatal = (24, 22) if regressor is REGRESSORS["opt"] else (6, 4)  # blocks are cut again before step 21
    untouched = regressor(max_epochs=epochs).fit(X, y)
    model = regressor(max_epochs=epochs, checkpoint_dir=tmp_path / "run")
    append = history.History.append

    def kill(self, step):
        append(self, step)
        if step.number == fatal:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(history.History, "append", kill)
        with pytest.raises(Killed):
            model.fit(X, y)
    assert not hasattr(model, "posteriors_")
    model.fit(X, y)
    assert_same(model, untouched, X)
    assert [step.loss for step in model.fit_result_.steps] == [step.loss for step in untouched.fit_result_.steps]
    other = model.fit(X, np.exp(y)).predict(X)  # other data have a folder of their own
    np.testing.assert_array_equal(other, regressor(max_epochs=epochs).fit(X, np.exp(y)).predict(X))
    assert len(list((tmp_path / "run").iterdir())) == 2


def test_a_fit_that_ran_out_of_time_goes_on(tmp_path):
    X, y = table(40)
    untouched = CaGPRegressor("opt", n_actions=8, max_epochs=8).fit(X, y)
    model = CaGPRegressor("opt", n_actions=8, max_epochs=8, max_time=1e-9, checkpoint_dir=tmp_path).fit(X, y)
    assert len(model.fit_result_.steps) < 8
    assert "time limit" in model.fit_report_
    assert_same(model.set_params(max_time=None).fit(X, y), untouched, X)


def test_control_c_ends_a_fit_with_what_it_has(monkeypatch):
    X, y = table(40)
    append = history.History.append

    def interrupt(self, step):
        append(self, step)
        if step.number == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(history.History, "append", interrupt)
    model = CaGPRegressor("opt", n_actions=8, max_epochs=50).fit(X, y)
    assert "Interrupted after 3 steps" in model.fit_report_
    assert np.isfinite(model.predict(X)).all()
    monkeypatch.setattr(limits, "EXACT_ROWS", 10)
    model = CaGPRegressor(max_epochs=50).fit(X, y)
    assert model.method_ == "local"
    assert model.fit_report_.startswith("Chose local: the fit was interrupted")
    model = CaGPRegressor("opt", n_actions=8, max_epochs=50).fit(X, y)  # while it learns from neighbours
    assert "learned in 3 steps" in model.fit_report_
    assert len(model.fit_result_.steps) == 1
    assert np.isfinite(model.predict(X)).all()


# ---- the choice of a method ----


def auto(monkeypatch, X, y, **choices) -> CaGPRegressor:
    monkeypatch.setattr(limits, "EXACT_ROWS", 100)
    return CaGPRegressor(**{"max_epochs": 20, **choices}).fit(X, y)


def test_few_rows_are_exact(monkeypatch):
    X, y = table(100)
    model = auto(monkeypatch, X, y, max_epochs=2)
    assert model.method_ == "exact"
    assert model.fit_report_.startswith("Chose exact inference: 100 rows are few enough (at most 100).")


def rough(rng) -> tuple[np.ndarray, np.ndarray]:
    """A walk: given the two nearest values, the others say nothing."""
    X = np.sort(rng.uniform(size=(400, 1)), axis=0)
    return X, np.cumsum(rng.normal(size=400))


def smooth_and_noisy(rng) -> tuple[np.ndarray, np.ndarray]:
    """A plane under much noise: a few neighbours average too little of it away."""
    X = rng.normal(size=(800, 2))
    return X, X.sum(1) + 3.0 * rng.normal(size=800)


def wide_and_fine(rng) -> tuple[np.ndarray, np.ndarray]:
    """Smooth in four dimensions, hardly any noise: neighbours find the detail, shared actions the rest."""
    X = rng.normal(size=(800, 4))
    return X, np.sin(1.2 * X).sum(1) + 0.02 * rng.normal(size=800)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "data", "choices"),
    [
        ("local", rough, {}),
        ("opt", smooth_and_noisy, {"n_neighbors": 2, "n_actions": 64, "effort": "fast"}),
        ("hybrid", wide_and_fine, {"n_neighbors": 4}),
    ],
)
def test_more_rows_are_judged_on_held_out_ones(method, data, choices, monkeypatch):
    X, y = data(np.random.default_rng(0))
    model = auto(monkeypatch, X, y, **choices)
    report = model.fit_report_
    assert model.method_ == method
    assert report.startswith(f"Chose {method}: ")
    for words in ("held-out rows: local ", ", opt ", ", hybrid "):
        assert words in report
    assert model.n_rows_ == len(X)
    assert np.isfinite(model.predict(X, return_std=True)[1]).all()
    assert len(model.posteriors_[0].X) == len(X)  # all rows, those held out as well


def test_held_out_rows_are_training_rows_that_nothing_was_learned_from(monkeypatch):
    X, y = table(200)
    noise = np.linspace(0.1, 1, 200)
    seen = []
    with_shared = trials.HeldOutRows.with_shared

    def watch(self, *given):
        seen.append([task.data.column(0).tensors for task in (self.learning, self.parts.held_out)])
        return with_shared(self, *given)

    monkeypatch.setattr(trials.HeldOutRows, "with_shared", watch)
    monkeypatch.setattr(limits, "EXACT_ROWS", 100)
    trained_on = []
    run = Task.run

    def watch_run(self, *arguments, **choices):
        trained_on.append(self.X)
        return run(self, *arguments, **choices)

    monkeypatch.setattr(Task, "run", watch_run)
    CaGPRegressor(max_epochs=2, n_neighbors=4, mean="zero").fit(X, y, sample_noise=noise)
    (train, held_out) = seen[0]
    scaled = (X - X.mean(0)) / X.std(0, ddof=1)

    def places(rows: torch.Tensor) -> list[int]:
        return [int(np.abs(scaled - row).sum(1).argmin()) for row in rows.numpy()]

    assert sorted(places(train[0]) + places(held_out[0])) == list(range(200))
    assert len(held_out[0]) == 20
    assert len(trained_on) > 1
    assert all(torch.equal(rows, train[0]) for rows in trained_on)
    for part in (train, held_out):  # targets and known noise belong to the same rows
        rows = places(part[0])
        np.testing.assert_allclose(part[1], ((y - y.mean()) / y.std(ddof=1))[rows], atol=1e-12)
        np.testing.assert_allclose(part[2], noise[rows] / y.var(ddof=1), rtol=1e-12)


def test_memory_limits_the_number_of_actions(monkeypatch):
    X, y = table(200)
    for memory, count in ((None, 25), ("1MB", 25), (200_000, 12), (100_000, 6), (13_000, 1)):
        model = CaGPRegressor("opt", max_memory=memory, max_epochs=1).fit(X, y)
        assert model.posteriors_[0].num_actions == count, memory
    assert (
        CaGPRegressor("opt", n_actions=30, max_memory=13_000, max_epochs=1).fit(X, y).posteriors_[0].num_actions == 30
    )
    units, rows = Units.learn(X, y, None)
    task = task_of(CaGPRegressor(), RECIPES["auto"], units, rows)
    for num_rows, expected in ((10_000, 512), (5, 1)):
        rows = Data(torch.zeros(num_rows, 2), torch.zeros(num_rows, 1))
        many = replace(task, data=rows, memory=2**40)
        assert local.number_of_actions("auto", many) == expected

    model = CaGPRegressor(n_actions=30, max_memory=13_000, max_epochs=1).fit(X, y)  # too little for an exact answer
    assert model.method_ == "local"
    assert "Chose local: the memory limit does not allow 30 shared actions" in model.fit_report_
    for exact in (CaGPRegressor("exact", max_memory="1MB"), ExactGPRegressor(max_memory="1MB")):
        with pytest.raises(MemoryError, match="200 rows needs about 2 MB, max_memory is 1MB"):
            exact.fit(X, y)
    assert CGGPRegressor(max_memory="1MB", max_epochs=1).fit(X, y).n_rows_ == 200


def test_rows_that_are_too_many_to_be_kept_are_compared_all_the_same(monkeypatch):
    X, y = table(200)
    kept = auto(monkeypatch, X, y, max_epochs=1, n_actions=21)
    monkeypatch.setattr("cagp.posteriors.nearest_rows.KEPT_BYTES", 0)
    model = auto(monkeypatch, X, y, max_epochs=1, n_actions=21)
    assert "held-out rows: local" in model.fit_report_
    assert model.fit_report_.splitlines()[0] == kept.fit_report_.splitlines()[0]


def test_several_targets_are_judged_together(monkeypatch):
    X, y = table(200)
    model = auto(monkeypatch, X, np.stack([y, -y], 1), max_epochs=2, n_neighbors=4)
    assert model.method_ in model.fit_report_.splitlines()[0]
    assert model.predict(X).shape == (200, 2)


def test_many_rows_weigh_some_rows_of_each_block(monkeypatch, tmp_path):
    X, y = table(300)
    monkeypatch.setattr(local, "SUPPORT_ROWS", 100)
    monkeypatch.setattr(local, "SUPPORT_SIZE", 3)
    noise = np.linspace(0.1, 1, 300)
    for method in ("opt", "hybrid"):
        model = CaGPRegressor(method, n_actions=20, n_neighbors=4, max_epochs=2).fit(X, y, sample_noise=noise)
        parts = model.predict(X[:9], return_components=True)[1]
        assert parts["computational_kind"] == ("estimate" if method == "opt" else "exact")
        total = parts["noise"] + parts["latent"] + parts["computational"]
        np.testing.assert_allclose(total, model.predict(X[:9], return_std=True)[1] ** 2)
        assert (parts["computational"] >= 0).all()
        loaded = cagp.load(model.save(tmp_path / "model.cagp"))
        assert_same(model, loaded, X[:9])
    rows = CaGPRegressor("opt", n_actions=20, max_epochs=2).fit(X, y).posteriors_[0].X
    assert len(rows) == 60


def test_many_rows_are_learned_from_minibatches(monkeypatch):
    """Beyond a number of rows, or from fewer rows on if the time is short; the report says so."""
    X, y = table(300)
    monkeypatch.setattr(opt, "BATCH_SIZE", 50)
    monkeypatch.setattr(local, "SUPPORT_SIZE", 3)

    def report(**choices) -> str:
        return CaGPRegressor("opt", n_actions=20, max_epochs=2, **choices).fit(X, y).fit_report_

    in_minibatches = "20 actions on 60 of the 300 rows (3 in each block), loss elbo, minibatches of 50 rows"
    all_rows = "20 actions on all 300 rows (15 in each block), loss elbo, kernel"
    assert all_rows in report()
    assert all_rows in report(max_time=600.0)
    monkeypatch.setattr(opt, "MINIBATCH_ROWS", 100)
    monkeypatch.setattr(opt, "FULL_STEP", 0.1)  # a step of 6,400 s or more
    assert all_rows in report()
    assert in_minibatches in report(max_time=600.0)
    monkeypatch.setattr(opt, "FULL_STEP", 1e-9)
    assert all_rows in report(max_time=600.0)
    monkeypatch.setattr(local, "SUPPORT_ROWS", 100)
    assert in_minibatches in report()


def test_memory_does_not_limit_the_actions_of_minibatches(monkeypatch):
    X, y = table(300)
    monkeypatch.setattr(opt, "BATCH_SIZE", 20)
    monkeypatch.setattr(local, "SUPPORT_SIZE", 2)
    memory = 64 * 20 * 37  # of a minibatch and a row in eight as actions
    assert CaGPRegressor("opt", max_memory=memory, max_epochs=1).fit(X, y).posteriors_[0].num_actions == 2
    monkeypatch.setattr(local, "SUPPORT_ROWS", 100)
    assert CaGPRegressor("opt", max_memory=memory, max_epochs=1).fit(X, y).posteriors_[0].num_actions == 37


@pytest.mark.slow
def test_opt_says_where_shared_actions_do_not_fit(monkeypatch):
    monkeypatch.setattr(limits, "EXACT_ROWS", 100)
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(1200, 2))
    reports = {}
    for frequency in (3, 40):
        y = np.sin(frequency * (X[:, 0] + X[:, 1] ** 2)) + 0.1 * rng.normal(size=1200)
        model = CaGPRegressor("opt", n_actions=48, max_epochs=60).fit(X, y)
        reports[frequency] = model.fit_report_
    assert "Shared actions do not fit" not in reports[3]
    assert "Shared actions do not fit this problem: blocks of rows are" in reports[40]
    assert 'Use method="local" or "hybrid", or more actions (n_actions).' in reports[40]


def test_one_regressor_is_as_good_as_the_other_name_for_it():
    X, y = table(40)
    one, other = (make(max_epochs=2).fit(X, y) for make in (REGRESSORS["exact"], ExactGPRegressor))
    np.testing.assert_array_equal(one.predict(X), other.predict(X))
