"""Importance and effects of columns are those of functions that are known, whatever the columns hold."""

import numpy as np
import pandas as pd
import pytest
from report_models import STRANGE_NAMES, KnownModel, plain, read, strange
from scipy.stats import norm

from cagp.report import columns, write_report
from cagp.report.columns import effects_of, importance_of
from cagp.report.page import Drawing, with_error
from cagp.report.subject import MISSING, sample, subject_of, with_values


def last_effects(model, X, y):
    """The effects of the last columns by name, in their order, or a surface."""
    subject = subject_of(model, X, y)
    found = effects_of(subject, subject.columns[-6:])
    return {effect.column.name: effect for effect in found} if isinstance(found, list) else found


def correlated(num_rows=800, seed=0):
    """Three inputs of which two are nearly the same, so that most combinations of their values do not occur."""
    rng = np.random.default_rng(seed)
    a = rng.normal(size=num_rows)
    return np.stack([a, a + 0.1 * rng.normal(size=num_rows), rng.normal(size=num_rows)], 1)


# ---- effects of numbers ----


def test_effects_of_a_linear_function_have_its_slopes_though_inputs_are_correlated():
    X = correlated()
    slopes = np.array([2.0, -1.0, 0.5])
    model = KnownModel(lambda X: (X @ slopes)[:, None], None, ["x0", "x1", "x2"], ["y"])
    for name, slope in zip(("x0", "x1", "x2"), slopes, strict=True):
        effect = last_effects(model, X, np.zeros(len(X)))[name]
        np.testing.assert_allclose(np.diff(effect.mean[:, 0]) / np.diff(effect.nodes), slope, rtol=1e-9)
        ends = np.quantile(X[:, effect.column.place], [0.01, 0.99])
        np.testing.assert_allclose(effect.nodes[[0, -1]], ends, atol=0.3)  # of the 500 rows that were drawn


def test_effects_of_an_additive_function_are_its_parts_up_to_a_constant():
    X = correlated()
    parts = [np.sin, np.square, lambda x: np.abs(x) / 2]

    def function(X):
        return sum(part(X[:, j]) for j, part in enumerate(parts))[:, None]

    model = KnownModel(function, None, ["x0", "x1", "x2"], ["y"])
    for effect, part in zip(last_effects(model, X, np.zeros(len(X))).values(), parts, strict=True):
        difference = effect.mean[:, 0] - part(effect.nodes)
        np.testing.assert_allclose(difference, difference[0], atol=1e-9)


def test_an_effect_uses_no_combination_of_inputs_that_does_not_occur():
    X = correlated()

    def function(X):  # enormous where the first two inputs differ by more than they do in any row
        return (X[:, 0] + np.where(np.abs(X[:, 0] - X[:, 1]) > 1.5, 1e6, 0))[:, None]

    effect = last_effects(KnownModel(function, None, ["x0", "x1", "x2"], ["y"]), X, np.zeros(len(X)))["x0"]
    np.testing.assert_allclose(np.diff(effect.mean[:, 0]), np.diff(effect.nodes), rtol=1e-9)


def test_an_effect_has_mean_zero_and_the_standard_deviation_of_rows_nearby():
    model, X, y = plain(latent=lambda X: 0.1 + 0.05 * np.abs(X[:, 1]))
    effects = last_effects(model, X, y)
    for j, effect in enumerate(effects.values()):
        inside = X[(X[:, j] >= effect.nodes[0]) & (X[:, j] <= effect.nodes[-1]), j]
        assert np.interp(inside, effect.nodes, effect.mean[:, 0]).mean() == pytest.approx(0, abs=0.01)
    np.testing.assert_allclose(effects["x1"].std[:, 0], 0.1 + 0.05 * np.abs(effects["x1"].nodes), rtol=1e-9)
    assert model.num_asked <= 3 * 2 * 500


def test_numbers_with_few_values_and_with_gaps():
    rng = np.random.default_rng(0)
    X = np.stack([rng.integers(0, 3, 400), rng.random(400) < 0.004, rng.normal(size=400)], 1).astype(float)
    X[7, 1] = 1.0
    X[rng.random(400) < 0.2, 2] = np.nan

    def function(X):
        return (X[:, 0] ** 2 + 5 * X[:, 1] + np.nan_to_num(X[:, 2], nan=9.0))[:, None]

    effects = last_effects(KnownModel(function, None, ["x0", "x1", "x2"], ["y"]), X, np.zeros(400))
    assert list(effects["x0"].nodes) == [0, 1, 2]
    np.testing.assert_allclose(np.diff(effects["x0"].mean[:, 0]), [1, 3])
    np.testing.assert_allclose(np.diff(effects["x1"].mean[:, 0]), 5)  # though hardly a row has the value 1
    np.testing.assert_allclose(np.diff(effects["x2"].mean[:, 0]), np.diff(effects["x2"].nodes), rtol=1e-9)


# ---- dates, durations, levels ----


def test_effects_of_categories_and_dates():
    effects = last_effects(*strange())
    colour, days = effects["colour"], effects["day"]
    levels = dict(zip((colour.column.levels[int(k)] for k in colour.nodes), colour.mean[:, 0], strict=True))
    assert levels["red"] - levels["blue & co"] == pytest.approx(1)
    assert levels["</td><b>green"] == pytest.approx(levels["blue & co"])
    assert days.column.kind == "date"
    np.testing.assert_allclose(np.diff(days.mean[:, 0]) / np.diff(days.nodes), 1 / 365, rtol=1e-6)


def test_levels_are_compared_where_they_occur():
    rng = np.random.default_rng(0)
    place = rng.choice(["north", "middle", "south"], 900)
    height = rng.normal(size=900) + np.select([place == "north", place == "middle"], [4.0, 2.0], 0.0)
    X = pd.DataFrame({"place": place, "height": height})

    def function(X):
        level = X["place"].map({"north": 3.0, "middle": 1.0, "south": 0.0}).to_numpy(float)
        absurd = (X["place"] == "south") & (X["height"] > 5.5)  # no row is like this
        return (level + X["height"].to_numpy() + np.where(absurd, 1000, 0))[:, None]

    effect = last_effects(KnownModel(function, list(X), ["p", "h"], ["y"]), X, np.zeros(900))["place"]
    found = dict(zip((effect.column.levels[int(k)] for k in effect.nodes), effect.mean[:, 0], strict=True))
    assert found["middle"] - found["south"] == pytest.approx(1, abs=0.1)
    assert found["north"] - found["middle"] == pytest.approx(2, abs=0.1)
    # If all rows had all levels, these combinations would decide.
    assert function(X.assign(place="north")).mean() - function(X.assign(place="south")).mean() < -10


def test_missing_values_are_a_level_and_keep_their_type():
    rng = np.random.default_rng(0)
    X = pd.DataFrame(
        {
            "kind": pd.Categorical(rng.choice(["u", "v"], 200)),
            "flag": pd.array(rng.choice([True, False], 200), dtype="boolean"),
            "size": pd.array(rng.integers(0, 9, 200), dtype="Int64"),
            "day": pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 99, 200), unit="D"),
        }
    )
    X.iloc[:30] = None
    dtypes = list(X.dtypes)

    def function(table):
        assert list(table.dtypes) == dtypes
        return (
            table["kind"].isna() * 2.0 + (table["kind"] == "v") + table["flag"].fillna(False).astype(float)
        ).to_numpy(float)[:, None]

    model = KnownModel(function, list(X), list(X), ["y"])
    kind = last_effects(model, X, np.zeros(200))["kind"]
    levels = dict(zip((kind.column.levels[int(k)] for k in kind.nodes), kind.mean[:, 0], strict=True))
    assert levels[MISSING] - levels["u"] == pytest.approx(2)
    assert levels["v"] - levels["u"] == pytest.approx(1)
    subject = subject_of(model, X, np.zeros(200))
    found = importance_of(subject)
    assert {column.name for column in found.columns[:2]} == {"kind", "flag"}
    columns = {column.name: column for column in subject.columns}
    assert columns["day"].shown(0) == columns["size"].shown(0) == "missing"
    assert columns["kind"].shown(0) == MISSING
    assert columns["day"].shown(50) == f"{X['day'][50]:%Y-%m-%d}"


def test_durations_are_drawn_in_days():
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"wait": pd.to_timedelta(rng.uniform(0, 9, 50), unit="D"), "on": rng.random(50) > 0.5})

    def function(X):
        return (X["wait"] / pd.Timedelta(days=1) + X.get("on", 0)).to_numpy()[:, None]

    model = KnownModel(function, list(X.columns), ["wait", "on"], ["y"])
    effects = last_effects(model, X, function(X))
    wait, on = effects["wait"], effects["on"]
    assert wait.column.label == "wait (days)"
    np.testing.assert_allclose(np.diff(wait.mean[:, 0]), np.diff(wait.nodes), rtol=1e-9)
    assert [on.column.levels[int(k)] for k in on.nodes] == ["False", "True"]
    assert on.mean[1, 0] - on.mean[0, 0] == pytest.approx(1)
    alone = X[["wait"]]
    model = KnownModel(function, ["wait"], ["wait"], ["y"])
    wait = last_effects(model, alone, function(alone))["wait"]
    np.testing.assert_allclose(wait.mean[:, 0], wait.nodes, rtol=1e-9)


def test_two_inputs_are_a_map():
    model, X, y = plain(num_inputs=2)
    found = last_effects(model, X, y)
    east, north = found.nodes
    assert (east[0], north[-1]) == (X[:, 0].min(), X[:, 1].max())
    assert found.mean[10, 30, 0] == pytest.approx(np.sin(east[30]) + north[10] ** 2)
    np.testing.assert_allclose(found.std, 0.3)


def test_one_input_is_the_fit_itself():
    model, X, y = plain(num_inputs=1)
    (effect,) = last_effects(model, X, y).values()
    assert effect.is_alone
    np.testing.assert_allclose(effect.mean[:, 0], np.sin(effect.nodes))
    np.testing.assert_allclose(effect.observation_std, 0.5)


# ---- importance ----


def test_importance_is_that_of_brute_force():
    model, X, y = plain(300)
    subject = subject_of(model, X, y)
    found = importance_of(subject)
    rng = np.random.default_rng(0)
    shuffles = [rng.permutation(300) for _ in range(5)]

    def errors(X):
        mean, std = model.predict(X, return_std=True)
        return (y - mean) ** 2, -norm.logpdf(y, mean, std)

    square, nll = errors(X)
    for k, column in enumerate(found.columns):
        shuffled = []
        for order in shuffles:
            changed = X.copy()
            changed[:, column.place] = X[order, column.place]
            shuffled.append(errors(changed))
        mse = np.mean([part[0] for part in shuffled])
        assert found.rmse[k, 0] == pytest.approx(np.sqrt(mse) - np.sqrt(square.mean()))
        per_row = np.mean([part[1] for part in shuffled], axis=0) - nll
        assert found.nll[k, 0] == pytest.approx(per_row.mean())
        assert found.nll_error[k, 0] == pytest.approx(per_row.std(ddof=1) / np.sqrt(300))
    assert list(np.argsort(-found.rmse[:, 0])) == [0, 1, 2]


def test_standard_errors_are_the_spread_over_other_rows():
    found = []
    for seed in range(60):
        model, X, y = plain(200, seed=seed)
        subject = subject_of(model, X, y)
        found.append(importance_of(subject))
    ordered = [f for f in found if f.columns[-1].place == 0]  # the sine matters least
    increase = np.array([f.rmse[-1, 0] for f in ordered])
    claimed = np.array([f.rmse_error[-1, 0] for f in ordered])
    assert len(ordered) > 50
    assert increase.std(ddof=1) == pytest.approx(np.sqrt(np.mean(claimed**2)), rel=0.35)


def test_a_column_without_effect_has_no_importance_and_its_twin_shares_it():
    X = correlated(400)
    model = KnownModel(lambda X: (X[:, 0] + X[:, 1])[:, None] / 2, None, ["x0", "x1", "x2"], ["y"])
    y = X[:, 0]
    subject = subject_of(model, X, y)
    found = importance_of(subject)
    by_place = {column.place: k for k, column in enumerate(found.columns)}
    assert found.rmse[by_place[2], 0] == pytest.approx(0, abs=1e-12)
    assert found.rmse_error[by_place[2], 0] == pytest.approx(0, abs=1e-12)
    assert found.rmse[by_place[0], 0] == pytest.approx(found.rmse[by_place[1], 0], rel=0.1)
    # Shuffled together they would cost √2 times the standard deviation; alone half as much.
    assert found.rmse[by_place[0], 0] == pytest.approx(np.sqrt(2) / 2, rel=0.15)


def test_of_many_columns_those_that_change_predictions_most_are_measured(monkeypatch):
    monkeypatch.setattr(columns, "MAX_COLUMNS", 3)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(150, 40))
    weights = np.zeros(40)
    weights[[4, 17, 30, 31]] = [3.0, 2.0, 1.0, 0.1]
    model = KnownModel(lambda X: (X @ weights)[:, None], None, [f"x{j}" for j in range(40)], ["y"])
    subject = subject_of(model, X, X @ weights)
    found = importance_of(subject)
    assert [column.place for column in found.columns] == [4, 17, 30]
    assert len(found.not_measured) == 37
    assert model.num_asked <= 10_000 + 150 + 150 + 3 * 5 * 150


def test_the_number_of_predictions_does_not_grow_with_the_table():
    model, X, y = plain(5000, num_inputs=30)
    subject = subject_of(model, X, y)
    importance_of(subject)
    effects_of(subject, subject.columns)
    assert model.num_asked <= 50_000
    assert len(sample(5000, 200)) == 200


@pytest.mark.usefixtures("no_figures")
def test_the_page_has_the_numbers_and_names_what_was_not_measured(tmp_path, monkeypatch):
    model, X, y = plain(200)
    subject = subject_of(model, X, y)
    found = importance_of(subject)
    page = read(write_report(model, X, y, tmp_path / "r.html"))
    cells = next(row for row in page.rows if row[:1] == [found.columns[0].name] and len(row) == 3)
    assert cells[1] == with_error(found.rmse[0, 0], found.rmse_error[0, 0])
    assert cells[2] == with_error(found.nll[0, 0], found.nll_error[0, 0])
    monkeypatch.setattr(columns, "MAX_COLUMNS", 2)
    assert "Not measured" in read(write_report(model, X, y, tmp_path / "r.html")).words


@pytest.fixture
def no_figures(monkeypatch):
    """Reports without their figures, which take most of the time."""
    monkeypatch.setattr(Drawing, "__call__", lambda *_, **__: "")


@pytest.mark.parametrize(
    ("value", "error", "words"),
    [(1.23456, 0.0234, "1.235 ±\xa00.023"), (-0.0001, 0.2, "0.00 ±\xa00.20"), (1234.5, 33.0, "1,234 ±\xa033")],
)
def test_numbers_are_rounded_to_their_error(value, error, words):
    assert with_error(value, error) == words


def test_a_replaced_column_leaves_the_table_alone():
    _, X, _ = strange()
    changed = with_values(X, 0, X.iloc[::-1, 0].array)
    np.testing.assert_array_equal(changed.iloc[:, 0], X.iloc[::-1, 0])
    pd.testing.assert_frame_equal(changed.iloc[:, 1:], X.iloc[:, 1:])
    assert list(changed.columns) == [*STRANGE_NAMES, "colour", "day"]
    array = np.arange(12.0).reshape(4, 3)
    with_values(pd.DataFrame(array), 1, np.zeros(4))
    assert array[0, 1] == 1
