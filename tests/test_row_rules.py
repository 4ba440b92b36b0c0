"""Rows that validate models: drawn at random, the latest ones, or whole groups; in trees, scales and every choice."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cagp import GP, CaGPRegressor, GaussianNoise, limits, trees
from cagp.cli import main
from cagp.data import open_chunks
from cagp.data.splits import RowRule, validation_rule
from cagp.estimators import load
from cagp.kernels import Matern32, Scale
from cagp.methods import CaGPLocal
from cagp.recipes import target_scale, trials
from cagp.recipes.task import Task

values = st.lists(st.integers(0, 6), min_size=2, max_size=50).filter(lambda v: len(set(v)) > 1)


@given(values, st.integers(2, 6), st.integers(0, 99))
def test_folds_divide_no_group_and_are_of_about_one_size(groups, num_folds, seed):
    groups = np.array(groups)
    fold = RowRule.of(group=groups).folds(len(groups), num_folds, seed)
    assert sorted(set(fold)) == list(range(min(num_folds, len(set(groups)))))
    assert all(len(set(fold[groups == value])) == 1 for value in set(groups))
    sizes = np.bincount(fold)
    assert sizes.max() - sizes.min() <= np.bincount(groups).max()  # the largest group explains the difference
    assert (fold == RowRule.of(group=groups).folds(len(groups), num_folds, seed)).all()


@given(values, st.integers(2, 6))
def test_folds_by_time_follow_each_other(times, num_folds):
    times = np.array(times)
    fold = RowRule.of(time=times).folds(len(times), num_folds, 0)
    assert sorted(set(fold)) == list(range(fold.max() + 1))
    assert 2 <= fold.max() + 1 <= max(2, num_folds)
    order = np.argsort(times, kind="stable")
    assert (np.diff(fold[order]) >= 0).all()
    assert all(len(set(fold[times == value])) == 1 for value in set(times))


def test_rows_that_no_longer_differ_are_drawn_at_random():
    rule = RowRule.of(group=["a", "a", "b"])
    assert rule.take(np.array([0, 2])).kind == "group"
    assert rule.take(np.array([0, 1])) == RowRule()
    kept = np.array([0, 1])
    assert validation_rule(3, kept, group=["a", "a", None]) == (
        RowRule(),
        ["All training rows have one group: validation rows are drawn at random."],
    )


def test_what_is_refused():
    with pytest.raises(ValueError, match="time and group are both given"):
        RowRule.of(time=[1, 2], group=[1, 2])
    X, y = np.arange(20.0)[:, None], np.arange(20.0)
    with pytest.raises(ValueError, match="group has 19 values, expected 20: one for each row of X"):
        CaGPRegressor().fit(X, y, group=np.zeros(19))
    with pytest.raises(ValueError, match="time is missing in 1 of 20 rows"):
        CaGPRegressor().fit(X, y, time=np.where(X[:, 0] == 3, np.nan, X[:, 0]))
    with pytest.raises(ValueError, match="holds text or categories"):
        CaGPRegressor().fit(X, y, time=["a", "b"] * 10)
    with pytest.raises(ValueError, match="time and group need the table in memory"):
        CaGPRegressor("local").fit(open_chunks([pd.DataFrame({"a": y, "y": y})], "y"), time=y)


# ---- each place where rows are held out ----


def grouped(num_groups=40, per_group=8, seed=0):
    """Each group has its own place, close together, and an offset that other groups do not tell."""
    rng = np.random.default_rng(seed)
    centre = rng.uniform(0, 10, size=(num_groups, 2))
    group = np.repeat(np.arange(num_groups), per_group)
    X = centre[group] + 0.01 * rng.normal(size=(len(group), 2))
    y = 0.3 * X[:, 0] + rng.normal(size=num_groups)[group] + 0.05 * rng.normal(size=len(group))
    order = rng.permutation(len(group))
    return X[order], y[order], group[order]


def rows_of(part: Task, whole: Task) -> np.ndarray:
    """The numbers of the rows of a part, whose inputs no other row has."""
    return (part.inputs[:, None] == whole.inputs).all(2).argmax(1)


class Watched:
    """Calls of a function, with what it was given and returned."""

    def __init__(self, monkeypatch, owner, name, *others):
        self.calls, call = [], getattr(owner, name)

        def watch(*arguments, **choices):
            result = call(*arguments, **choices)
            self.calls.append((arguments, choices, result))
            return result

        for module in (owner, *others):  # that import it
            monkeypatch.setattr(module, name, watch)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("kind", ["time", "group"])
@pytest.mark.parametrize("method", ["auto", "opt", "local"])
def test_every_part_of_a_fit_follows_the_rule(kind, method, monkeypatch):
    """Whatever a fit holds out: no group on both sides, and no earlier row on the judging one."""
    monkeypatch.setattr(limits, "EXACT_ROWS", 100)
    held = Watched(monkeypatch, Task, "hold_out")
    folds = Watched(monkeypatch, trees, "fit_trees")
    scales = Watched(monkeypatch, CaGPLocal, "choose_local_scale")
    target = Watched(monkeypatch, target_scale, "_held_out_nll")
    X, y, value = grouped()
    y = np.exp(y)
    model = CaGPRegressor(method, max_epochs=3, mean="auto" if method == "auto" else "zero")
    model.fit(X, y, **{kind: value})
    assert held.calls
    for (task, *_), _, parts in held.calls:
        known = task.rule.values
        if known is None:  # the rows to learn from are all of one kind
            continue
        train, test = known[parts.rows.numpy()], known[rows_of(parts.held_out, task)]
        assert not set(train) & set(test)
        assert kind == "group" or train.max() < test.min()
    for (inputs, *_), choices, _ in folds.calls:
        fold, own = choices["fold"], {tuple(row): v for row, v in zip(model.encoder_.codes(X), value, strict=True)}
        of_rows = np.array([own[tuple(row)] for row in inputs])
        assert all(len(set(fold[of_rows == v])) == 1 for v in set(of_rows))
    assert bool(folds.calls) == (method == "auto")
    asked = [choices.get("held_out") for _, choices, _ in scales.calls if "seed" not in choices]
    assert all(part is not None for part in asked)
    assert bool(asked) == (method != "opt")
    assert target.calls
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0)).numpy()
    for (_, _, _, rule, *_), _, _ in target.calls:
        assert rule.kind == kind
        assert (rule.values == RowRule.of(**{kind: value}).values[order]).all()
    words = {"time": "Models are validated on the latest rows", "group": "Models are validated on whole groups, of 40"}
    assert words[kind] in model.fit_report_


def test_a_large_group_judges_by_some_of_its_rows(monkeypatch):
    monkeypatch.setattr(limits, "EXACT_ROWS", 100)
    held = Watched(monkeypatch, Task, "hold_out")
    X, y, _ = grouped()
    group = np.where(np.arange(len(y)) < 250, "large", np.where(np.arange(len(y)) < 300, "b", "c"))
    CaGPRegressor("opt", max_epochs=2).fit(X, y, group=group)
    ((task, *_), _, parts), *_ = held.calls
    assert len(set(group[rows_of(parts.held_out, task)])) == 1
    few = parts.train.hold_out(5)
    assert few.held_out.num_rows == 5
    assert len(few.rows) + 5 < parts.train.num_rows


def test_rows_of_a_group_are_predicted_from_other_groups():
    """The closed form against a fit without the group, by the dense formulas in float64."""
    X, y, group = grouped(6, 5)
    X, y, group = torch.from_numpy(X), torch.from_numpy(y), torch.from_numpy(group)
    known = torch.linspace(0.01, 0.2, len(y)).double()
    for row_noise in (None, known):
        prior = GP(Scale(Matern32(2, 1.5), 0.8), noise=GaussianNoise(0.05)).double()
        mean, variance = trials.leave_out(prior, X, y, row_noise, group)
        for value in range(6):
            out = group == value
            K = np.asarray(prior.kernel(X, X).detach())
            noise = 0.05 + (np.zeros(len(y)) if row_noise is None else known.numpy())
            inside, outside = np.flatnonzero(~out), np.flatnonzero(out)
            A = K[np.ix_(inside, inside)] + np.diag(noise[inside])
            cross = K[np.ix_(outside, inside)]
            expected = cross @ np.linalg.solve(A, y.numpy()[inside])
            spread = K[outside, outside] - np.einsum("ij,ji->i", cross, np.linalg.solve(A, cross.T)) + noise[outside]
            np.testing.assert_allclose(mean[out].detach(), expected, rtol=1e-8, atol=1e-10)
            np.testing.assert_allclose(variance[out].detach(), spread, rtol=1e-8)
    alone = trials.leave_out(prior, X, y, known, torch.arange(len(y)))
    for one, other in zip(alone, trials.leave_out(prior, X, y, known), strict=True):
        torch.testing.assert_close(one, other)


def test_held_out_rows_choose_the_local_scale():
    rng = np.random.default_rng(0)
    X = torch.from_numpy(rng.uniform(size=(300, 1)))
    y = torch.from_numpy(rng.normal(size=300))
    method = CaGPLocal(GP(Scale(Matern32(1)), noise=GaussianNoise(0.5)).double(), 8)
    # New rows have half their error where x is small, and twice elsewhere; the rows of X do not show it.
    found = method.choose_local_scale(X[:200], y[:200], held_out=(X[200:], y[200:], None))
    expected = method.condition(X[:200], y[:200]).predict(X[200:], noise=True)
    nll = 0.5 * ((y[200:] - expected.mean) ** 2 / expected.variance + torch.log(2 * torch.pi * expected.variance))
    assert found.num_rows == 100
    assert found.nll_without == pytest.approx(float(nll.mean()), rel=1e-6)


# ---- the choice that follows ----


def with_code(seed, num_groups=60, per_group=10):
    """The second column is a code of the group, which tells its offset to the rows of the group and to no others."""
    rng = np.random.default_rng(seed)
    group = rng.permutation(np.repeat(np.arange(num_groups), per_group))
    x, code = rng.uniform(-2, 2, size=len(group)), rng.uniform(size=num_groups)
    y = np.sin(2 * x) + 1.5 * rng.normal(size=num_groups)[group] + 0.1 * rng.normal(size=len(group))
    return np.column_stack([x, code[group]]), y, group


@pytest.mark.slow
@pytest.mark.parametrize("exact_rows", [2000, 100])
def test_groups_choose_otherwise_than_random_rows(exact_rows, monkeypatch):
    """Random rows choose a smooth function of the code, which is wrong for new groups; whole groups a rough one."""
    monkeypatch.setattr(limits, "EXACT_ROWS", exact_rows)
    X, y, group = with_code(5)
    new_X, new_y, _ = with_code(105)
    scale = {"local_scale": "auto" if exact_rows == 2000 else None}
    fits = {
        "random": CaGPRegressor(**scale).fit(X, y),
        "group": CaGPRegressor(**scale).fit(X, y, group=group),
    }
    judged = {name: min(t["nll"] for t in model.choices_ if "nll" in t) for name, model in fits.items()}
    said = {name: -np.mean(model.log_predictive_density(new_X, new_y)) for name, model in fits.items()}
    unit = np.log(np.std(y, ddof=1))
    # By random rows the table looks far easier than new groups are; by groups it looks about as hard as it is.
    assert judged["random"] + unit < said["random"] - 2
    assert abs(judged["group"] + unit - said["group"]) < 0.6
    assert said["group"] < said["random"] - 1
    assert "Matern 1/2" in fits["group"].choice_
    assert "Matern 1/2" not in fits["random"].choice_
    covered = {name: float(model.calibration(new_X, new_y, [0.95]).coverage[0]) for name, model in fits.items()}
    assert covered["random"] < covered["group"]
    assert 0.93 < covered["group"] < 0.98


def trend(num_rows=400, seed=0):
    """A line in time beside waves of another input: trees follow it between rows and stop where they end."""
    rng = np.random.default_rng(seed)
    t, x = np.sort(rng.uniform(0, 10, num_rows)), rng.uniform(-2, 2, num_rows)
    y = 2.0 * t + 3.0 * (np.abs(x) < 1) + 0.2 * rng.normal(size=num_rows)
    return np.column_stack([t, x]), y


@pytest.mark.slow
def test_later_rows_judge_by_what_is_predicted_from_earlier_ones():
    X, y = trend()
    order = np.random.default_rng(3).permutation(len(y))
    known = order[X[order, 0] < 8]
    later = X[:, 0] >= 8
    judged = {}
    for name, choices in {"random": {}, "time": {"time": X[known, 0]}}.items():
        model = CaGPRegressor(mean="trees").fit(X[known], y[known], **choices)
        judged[name] = min(trial["nll"] for trial in model.choices_) + np.log(np.std(y[known], ddof=1))
        later_nll = -np.mean(model.log_predictive_density(X[later], y[later]))
        assert len(model.posteriors_[0].X) == len(known)  # rows that judged are predicted from as well
    # Trees follow the line between rows, where random rows lie; beyond the last row they do not.
    assert judged["random"] < later_nll - 1
    assert judged["time"] > judged["random"] + 0.5


@pytest.mark.slow
def test_the_choice_is_the_same_again_and_a_killed_fit_resumes(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "EXACT_ROWS", 100)
    X, y, group = grouped()
    choices = {"max_epochs": 4, "checkpoint_dir": tmp_path}
    first = CaGPRegressor(max_epochs=4).fit(X, y, group=group)
    trained = trials.HeldOutRows._trained

    trials_so_far = []

    def killed(self, *rest, **settings):
        result = trained(self, *rest, **settings)
        trials_so_far.append(result)
        if len(trials_so_far) > 3:
            raise RuntimeError("killed")
        return result

    monkeypatch.setattr(trials.HeldOutRows, "_trained", killed)
    with pytest.raises(RuntimeError, match="killed"):
        CaGPRegressor(**choices).fit(X, y, group=group)
    monkeypatch.setattr(trials.HeldOutRows, "_trained", trained)
    again = CaGPRegressor(**choices).fit(X, y, group=group)
    assert [t["model"] for t in again.choices_] == [t["model"] for t in first.choices_]
    np.testing.assert_array_equal(again.predict(X), first.predict(X))
    folders = {path.name for path in tmp_path.iterdir()}
    CaGPRegressor(**choices).fit(X, y)  # other rows judge: another fit
    assert {path.name for path in tmp_path.iterdir()} > folders


# ---- the command line ----


def test_the_command_line_hands_the_rule_to_the_fit(tmp_path, capsys):
    X, y, group = grouped(30, 5)
    path = tmp_path / "table.csv"
    pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "who": group, "y": y}).to_csv(path, index=False)
    out = ["--out", str(tmp_path / "m.cagp"), "--max-epochs", "3", "--json"]
    assert main(["fit", str(path), "--target", "y", "--split", "group:who", *out]) == 0
    record = json.loads(capsys.readouterr().out)
    assert "Models are validated on whole groups, of 27" in record["fit_report"]
    assert load(tmp_path / "m.cagp").fit_report_ == record["fit_report"]
    assert main(["fit", str(path), "--target", "y", "--split", "time:a", "--test-fraction", "0", *out]) == 0
    assert "Models are validated on the latest rows" in json.loads(capsys.readouterr().out)["fit_report"]
    command = ["compare", str(path), "--target", "y", "--split", "group:who", "--methods", "exact", "--max-epochs", "2"]
    assert main([*command, "--out", str(tmp_path / "c.png"), "--json", "--quiet"]) == 0
    assert "whole groups" in json.loads(capsys.readouterr().out)["methods"][0]["fit_report"]


def test_rows_without_a_target_need_no_group():
    X, y, group = grouped(10, 5)
    y[3] = np.nan
    named = pd.Series(group).astype(object)
    named[3] = None
    model = CaGPRegressor(max_epochs=2).fit(X, y, group=named)
    assert model.n_rows_ == 49
    assert "whole groups, of 10" in model.fit_report_
