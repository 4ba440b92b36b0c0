"""What the report says about errors and error bars: found where planted, and not where chance explains them."""

import re
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from report_models import KnownModel, plain, read
from scipy.stats import binom, norm

from cagp import metrics, plots
from cagp.metrics import Calibration
from cagp.report import write_report
from cagp.report.page import Drawing, number, with_error
from cagp.report.subject import subject_of
from cagp.report.targets import (
    AS_IT_SHOULD,
    OTHERS,
    equal_bins,
    groups_of,
    neighbour_correlation,
    places_of,
    residuals_of,
    targets_of,
    verdict_on,
)

LEVELS = np.arange(1, 20) / 20


@pytest.fixture
def no_figures(monkeypatch):
    """Reports without their figures, which take most of the time."""
    monkeypatch.setattr(Drawing, "__call__", lambda *_, **__: "")


def parts(model, X, y):
    """The only target and the columns of a report."""
    subject = subject_of(model, X, y)
    (target,) = targets_of(subject)
    return target, subject.columns


# ---- the headline and the calibration curve ----


def test_the_band_holds_at_all_levels_together_19_times_in_20():
    rng = np.random.default_rng(0)
    low, high = plots.coverage_band(LEVELS, 2000)
    inside = [((found >= low) & (found <= high)).all() for found in coverages(rng, 2000, 3000)]
    assert np.mean(inside) == pytest.approx(0.95, abs=0.012)


def coverages(rng, num_rows, repeats):
    """The coverage at 19 levels of right predictions, several times."""
    needed = np.sort(rng.random((repeats, num_rows)), axis=1)
    return [np.searchsorted(row, LEVELS, side="right") / num_rows for row in needed]


def test_the_verdict_follows_the_whole_curve():
    def of(coverage, num_rows=2000):
        coverage = np.asarray(coverage)
        return verdict_on(Calibration(LEVELS, coverage, float(np.abs(coverage - LEVELS).mean())), num_rows)

    assert of(LEVELS) == (True, AS_IT_SHOULD)
    assert of(LEVELS + 0.01, 200).is_right
    hill = LEVELS + 0.56 * LEVELS * (0.95 - LEVELS)
    wrong = of(hill)
    assert not wrong.is_right
    assert wrong.words.startswith(f"{AS_IT_SHOULD}, but the 45 % intervals contain 57.6 %, so")
    assert wrong.words.endswith("too wide in the middle")
    narrow = of(LEVELS * 0.9)
    assert narrow.words == "the intervals are too narrow"
    assert of(np.minimum(LEVELS * 1.045, 0.999)).words == "the intervals are too wide"
    mixed = of(hill - 0.04 * LEVELS**4)
    assert mixed.words.startswith("the intervals are too narrow. But the 45 % intervals contain 57")
    assert "heavier tails" in mixed.words
    slight = LEVELS.copy()
    slight[-1] = 0.935
    assert of(slight).words == "the intervals are slightly too narrow"
    assert not of(np.where(LEVELS == 0.9, 0.87, LEVELS), 20_000).is_right


@pytest.mark.parametrize("scale", [0.8, 1.0, 1.3])
@pytest.mark.usefixtures("no_figures")
def test_headline_table_and_curve_agree(tmp_path, scale):
    model, X, _ = plain(3000, noise=0.4 * scale, latent=lambda X: np.full(len(X), 0.3 * scale))
    y = model.predict(X) + 0.5 * np.random.default_rng(1).normal(size=3000)
    page = read(write_report(model, X, y, tmp_path / "r.html"))
    found = metrics.calibration(*metrics.scaled(y, *model.predict(X, return_std=True))[:3])
    low, high = plots.coverage_band(found.levels, 3000)
    stays = bool(((found.coverage >= low) & (found.coverage <= high)).all())
    assert stays == (scale == 1.0)
    assert ("Here the curve stays in the band" in page.words) == stays
    assert ("Here the curve leaves the band" in page.words) != stays
    words = {0.8: "the intervals are too narrow.", 1.0: f"{AS_IT_SHOULD}.", 1.3: "the intervals are too wide."}
    assert [key for key, sentence in words.items() if f"of the actual values: {sentence}" in page.words] == [scale]
    assert [key for key, sentence in words.items() if f"Here: {sentence}" in page.words] == [scale]


def test_expected_coverage_is_the_band_at_one_level():
    model, X, y = plain(2000)
    low, high = parts(model, X, y)[0].expected_coverage
    tail = norm.sf(2.812)
    assert (low, high) == (binom.ppf(tail, 2000, 0.95) / 2000, binom.ppf(1 - tail, 2000, 0.95) / 2000)


def test_heavy_tails_are_recognised():
    model, X, _ = plain(4000)
    rng = np.random.default_rng(2)
    y = model.predict(X) + np.where(rng.random(4000) < 0.15, 1.4, 0.25) * rng.normal(size=4000)
    target, _ = parts(model, X, y)
    assert "heavier tails" in target.verdict.words or "too wide in the middle" in target.verdict.words


# ---- groups ----


def mixed(num_rows=4000, seed=0, spread=(0.5, 0.5)):
    """A table whose error bars suit all rows, unless ``spread`` of the noise differs between the levels A and B."""
    rng = np.random.default_rng(seed)
    X = pd.DataFrame({"x": rng.normal(size=num_rows), "z": rng.normal(size=num_rows)})
    X["level"] = rng.choice(["A", "B", None, "rare"], num_rows, p=[0.5, 0.4, 0.0995, 0.0005])
    model = KnownModel(lambda X: X[["x"]].to_numpy(), list(X), ["x", "z", "level=A"], ["y"])
    scale = np.where(X["level"] == "A", *spread)
    return model, X, X["x"].to_numpy() + scale * rng.normal(size=num_rows)


def test_groups_are_those_of_brute_force():
    model, X, y = mixed()
    target, columns = parts(model, X, y)
    inside = target.inside
    np.testing.assert_array_equal(inside, np.abs(y - X["x"]) <= norm.ppf(0.975) * 0.5)
    binned, ((_, by_level),), _ = groups_of(target, columns)
    names = {group.Index: group for group in by_level.itertuples()}
    assert set(names) >= {"A", "B", "(missing)"}
    assert (X["level"] == "rare").sum() < 5
    assert names[OTHERS].num_rows == (X["level"] == "rare").sum()
    chosen = (X["level"] == "A").to_numpy()
    error, group = (y - X["x"].to_numpy())[chosen], names["A"]
    assert group.rmse == pytest.approx(np.sqrt(np.mean(error**2)))
    assert group.bias == pytest.approx(error.mean())
    assert group.bias_error == pytest.approx(error.std(ddof=1) / np.sqrt(chosen.sum()))
    assert group.coverage == inside[chosen].mean()
    # The standard deviation is constant, so there are no groups by it.
    assert [name for name, _ in binned] == ["prediction"]
    num_groups = 5 + len(names)
    tail = 0.025 / num_groups
    expected = binom.ppf([tail, 1 - tail], chosen.sum(), 0.95) / chosen.sum()
    np.testing.assert_allclose((group.low, group.high), expected)


def test_groups_with_wrong_error_bars_are_found_and_others_rarely():
    model, X, y = mixed(spread=(0.7, 0.3))
    target, columns = parts(model, X, y)
    _, ((_, by_level),), _ = groups_of(target, columns)
    off = {group.Index: group.coverage < 0.95 for group in by_level.itertuples() if group.is_beyond}
    assert off == {"A": True, "B": False, "(missing)": False}
    alarms = 0
    for seed in range(60):
        model, X, y = mixed(600, seed)
        target, columns = parts(model, X, y)
        alarms += bool(groups_of(target, columns).beyond)
    assert alarms <= 7  # 5 % of 60 are expected


@pytest.mark.usefixtures("no_figures")
def test_the_page_names_the_groups(tmp_path):
    model, X, y = mixed(spread=(0.7, 0.3))
    page = read(write_report(model, X, y, tmp_path / "r.html"))
    assert "level A:" in page.words
    row = next(row for row in page.rows if row[:1] == ["A"])
    error = (y - X["x"])[X["level"] == "A"].to_numpy()
    rmse = np.sqrt(np.mean(error**2))
    standard_error = np.std(error**2, ddof=1) / np.sqrt(len(error)) / (2 * rmse)
    assert row[1:3] == [f"{len(error):,}", with_error(rmse, standard_error)]
    assert row[4] == f"{100 * np.mean(np.abs(error) <= norm.ppf(0.975) * 0.5):.1f}\xa0%\xa0↓"


# ---- residuals ----


def test_bins_share_the_rows_and_keep_equal_values_together():
    values = np.array([np.nan, *np.repeat([1.0, 2.0, 3.0], 20), *np.linspace(4, 9, 40)])
    bins = equal_bins(values, 5)
    assert sorted(np.concatenate(bins).tolist()) == list(range(1, 101))
    for value in (1.0, 2.0, 3.0):
        assert sum((values[rows] == value).any() for rows in bins) == 1
    assert all(values[a].max() < values[b].min() for a, b in pairwise(bins))
    assert equal_bins(np.full(3, np.nan), 4) == []


def test_a_pattern_in_the_residuals_is_found_and_chance_is_not():
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, 2000)
    noise = rng.normal(size=2000)
    error = noise + 1.5 * np.maximum(x - 0.5, 0)
    model = KnownModel(lambda X: X, None, ["x0"], ["y"])
    target, _ = parts(model, x[:, None], x + error)
    (found,) = residuals_of(target, [])
    assert found.flagged[-1]
    assert not any(found.flagged[: len(found.flagged) // 2])
    assert found.mean[-1] == pytest.approx(error[found.bins[-1]].mean())
    right = (replace(target, y=x + rng.normal(size=2000)) for _ in range(200))
    alarms = sum(any(residuals_of(other, [])[0].flagged) for other in right)
    assert alarms <= 20  # 10 are expected


@pytest.mark.usefixtures("no_figures")
def test_the_page_says_where_predictions_are_too_low(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 1, (2000, 3))
    model = KnownModel(lambda X: 3 * X[:, :1] + X[:, 1:2], None, ["x0", "x1", "x2"], ["y"])
    y = model.predict(X) + np.where(X[:, 1] > 0.9, 0.8, 0.0) + 0.5 * rng.normal(size=2000)
    words = read(write_report(model, X, y, tmp_path / "r.html")).words
    assert "farthest off where x1 lies between 0.9" in words
    higher = re.findall(r"actual values are ([\d.]+) higher than predicted", words)
    assert float(higher[0]) == pytest.approx(0.8, abs=0.1)
    y = model.predict(X) + 0.5 * rng.normal(size=2000)
    assert "No mean of the 64 bins differs" in read(write_report(model, X, y, tmp_path / "r.html")).words


# ---- the worst rows ----


@pytest.mark.usefixtures("no_figures")
def test_the_worst_rows_are_listed_with_their_labels(tmp_path):
    model, X, y = plain(300, latent=lambda X: np.where(X[:, 0] > 0, 3.0, 0.1))
    y[np.argmax(X[:, 0] > 0)] += 20
    page = read(write_report(model, X, y, tmp_path / "r.html"))
    mean, std = model.predict(X, return_std=True)
    for worst in (int(np.abs(y - mean).argmax()), int(np.abs((y - mean) / std).argmax())):
        row = next(row for row in page.rows if row[:1] == [str(worst)])
        z = (y[worst] - mean[worst]) / std[worst]
        assert row[1:] == [number(y[worst]), number(mean[worst]), f"{z:+.1f}".replace("-", "−")]
        low, high = (mean[worst] + sign * norm.ppf(0.975) * std[worst] for sign in (-1, 1))
        assert f"95\xa0% interval {number(low)} to {number(high)}" in page.words
    frame = pd.DataFrame(X, columns=["a", "b", "c"], index=[f"id-{k}" for k in range(300)])
    model.function, function = lambda X: function(X.to_numpy()), model.function
    model.latent = lambda X: np.full(len(X), 0.3)
    y[np.abs(y) > 15] = np.nan  # left out: labels still are those of the table
    page = read(write_report(model, frame, y, tmp_path / "r.html", max_rows=200))
    labels = [row[0] for row in page.rows if row[:1] and row[0].startswith("id-")]
    assert len(labels) in (5, 10)  # the largest errors of one kind, or of each
    numbers = [int(label[3:]) for label in labels]
    error = np.abs(y - model.predict(frame))
    tested = [int(label[3:]) for label in subject_of(model, frame, y, 200).X.index]
    assert error[numbers].max() == error[tested].max()


# ---- maps ----


def table_at(lon, lat, names):
    return pd.DataFrame({names[0]: lon, "height": np.arange(len(lon)) * 1.0, names[1]: lat})


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (("lon", "lat"), True),
        (("Longitude", "LATITUDE"), True),
        (("start_lng", "start_lat"), True),
        (("pickupLongitude", "pickupLatitude"), True),
        (("long", "lat"), True),
        (("start_lon", "end_lat"), False),
        (("x", "y"), False),
        (("salon", "flat"), False),
        (("belong", "late"), False),
    ],
)
def test_longitude_and_latitude_are_recognised_by_name(names, found):
    rng = np.random.default_rng(0)
    X = table_at(rng.uniform(5, 15, 40), rng.uniform(45, 55, 40), names)
    model = KnownModel(lambda X: X.iloc[:, :1].to_numpy(), list(X), list(X), ["y"])
    places = places_of(subject_of(model, X, np.zeros(40)).columns)
    assert (places is not None) == found
    if places is not None:
        assert (places.longitude.name, places.latitude.name) == names
    wrong = X.assign(**{names[1]: X[names[1]] * 1000})  # metres, say
    assert places_of(subject_of(model, wrong, np.zeros(40)).columns) is None


def test_errors_that_neighbours_share_are_found():
    rng = np.random.default_rng(0)
    lon, lat = rng.uniform(0, 10, 800), rng.uniform(40, 50, 800)
    noise = rng.normal(size=800)
    correlation, limit = neighbour_correlation(lon, lat, noise + 2 * np.sin(lon) * np.cos(lat))
    assert correlation > 0.4 > 3 * limit
    found = [neighbour_correlation(lon, lat, rng.normal(size=800)) for _ in range(60)]
    assert sum(correlation > limit for correlation, limit in found) <= 9  # 3 are expected
    assert neighbour_correlation(lon[:10], lat[:10], noise[:10]) is None


def test_a_degree_is_as_wide_as_it_is_there():
    assert plots.degree_shape(np.array([59.0, 61.0])) == pytest.approx(2)
    assert plots.degree_shape(np.array([-5.0, 5.0])) == pytest.approx(1)


@pytest.mark.slow
@pytest.mark.parametrize("num_rows", [300, 900])
def test_a_report_has_a_map_beside_other_columns(tmp_path, num_rows):
    """In hexagons and row by row, with a row whose place is missing."""
    rng = np.random.default_rng(0)
    X = table_at(rng.uniform(5, 15, num_rows), rng.uniform(45, 55, num_rows), ("lon", "lat"))
    X.loc[3, "lon"] = np.nan
    model = KnownModel(lambda X: np.nan_to_num(X[["lon"]].to_numpy()), list(X), list(X), ["y"])
    y = X["lon"].fillna(0) + np.sin(X["lat"]).to_numpy() + 0.1 * rng.normal(size=num_rows)
    page = read(write_report(model, X, y, tmp_path / "r.html"))
    assert "#map" in {link["href"] for link in page.all("a")}
    assert "neighbouring rows share" in page.words
    assert any(picture["aria-label"].startswith("Map of mean errors") for picture in page.all("svg"))
