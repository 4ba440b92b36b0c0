"""The plots show the numbers they are given: what is drawn is read back and compared with counting."""

from io import BytesIO

import matplotlib
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from scipy.stats import binom, norm

from cagp import plots


@pytest.fixture
def ax():
    return Figure(figsize=(4, 3), layout="constrained").subplots()


@pytest.fixture(autouse=True)
def global_state_untouched():
    before = dict(matplotlib.rcParams)
    yield
    assert dict(matplotlib.rcParams) == before


def predictions(num_rows: int):
    rng = np.random.default_rng(0)
    mean, std = rng.normal(size=num_rows), rng.uniform(0.2, 0.6, num_rows)
    return mean + 1.4 * std * rng.normal(size=num_rows), mean, std


def line(ax, label):
    return next(line for line in ax.lines if line.get_label() == label)


def test_a_calibration_curve_counts_rows(ax):
    y, mean, std = predictions(400)
    assert plots.calibration_curve(ax, y, mean, std) is ax
    levels, observed = line(ax, "observed").get_data()
    counted = [np.mean(np.abs(y - mean) <= norm.ppf(0.5 + level / 2) * std) for level in levels[1:-1]]
    np.testing.assert_allclose(observed[1:-1], counted, atol=1e-12)
    error = 100 * np.mean(np.abs(np.array(counted) - levels[1:-1]))
    assert f"{error:.1f} %" in ax.texts[0].get_text()


def test_the_chance_band_of_a_calibration_curve_holds_19_right_curves_in_20(ax):
    rng = np.random.default_rng(1)
    y, zeros = rng.normal(size=200), np.zeros(200)
    plots.calibration_curve(ax, y, zeros, zeros + 1)
    band = next(c for c in ax.collections if isinstance(c, PolyCollection)).get_paths()[0]
    levels = np.arange(1, 20) / 20
    ends = [band.vertices[np.isclose(band.vertices[:, 0], level), 1] for level in levels]
    low, high = (np.array([end(values) for values in ends]) for end in (np.min, np.max))
    limits, inside = norm.ppf(0.5 + levels / 2), []
    for _ in range(2000):
        observed = np.mean(np.abs(rng.normal(size=200))[:, None] <= limits, axis=0)
        inside.append(bool(((low <= observed) & (observed <= high)).all()))
    assert 0.93 < np.mean(inside) < 0.98


def test_a_pit_histogram_counts_rows(ax):
    y, mean, std = predictions(150)
    plots.pit_histogram(ax, y, mean, std)
    assert len(ax.patches) == 15 + 1  # bars, and the band
    heights = [bar.get_height() for bar in ax.patches[:15]]
    pit = norm.cdf((y - mean) / std)
    counted = [np.sum((pit >= k / 15) & (pit < (k + 1) / 15)) for k in range(15)]
    np.testing.assert_allclose(heights, np.array(counted) / 10)
    band = ax.patches[15].get_bbox()
    assert [band.y0, band.y1] == pytest.approx(binom.ppf([0.025, 0.975], 150, 1 / 15) / 10)


def test_few_rows_are_points_inside_and_outside_of_their_intervals(ax):
    y, mean, std = predictions(80)
    plots.predicted_against_actual(ax, y, mean, std, "a $ b $ c")
    outside = np.abs(y - mean) > norm.ppf(0.975) * std
    np.testing.assert_array_equal(line(ax, "outside").get_data(), (mean[outside], y[outside]))
    assert len(line(ax, "inside").get_xdata()) == (~outside).sum()
    assert ax.get_xlabel() == "predicted a $ b $ c"
    ax.figure.savefig(BytesIO(), format="svg")  # "$ b $" is no formula


def test_many_rows_are_a_density_that_holds_them_all(ax):
    y, mean, std = predictions(2000)
    plots.predicted_against_actual(ax, y, mean, std)
    cells = next(c for c in ax.collections if isinstance(c, PolyCollection))
    assert np.sum(cells.get_array()) == 2000
    centre, upper = line(ax, "95 % intervals").get_data()
    first = np.argsort(mean)[:100]
    assert centre[0] == pytest.approx(mean[first].mean())
    assert upper[0] - centre[0] == pytest.approx(norm.ppf(0.975) * np.sqrt(np.mean(std[first] ** 2)))


def test_a_learning_curve_leaves_out_what_is_not_finite_and_shows_the_end(ax):
    seconds, losses = np.arange(60.0), np.exp(-np.arange(60.0) / 5) * 1000
    losses[10] = np.nan
    plots.learning_curve(ax, seconds, losses)
    assert len(ax.lines[0].get_xdata()) == 59
    low, high = ax.get_ylim()
    assert low < losses[-1] < losses[3] < high < losses[0]


def test_a_noisy_learning_curve_has_its_median(ax):
    losses = np.random.default_rng(0).normal(size=100)
    plots.learning_curve(ax, np.arange(100.0), losses)
    seconds, medians = line(ax, "median of 5 steps").get_data()
    assert list(seconds) == list(range(2, 98))
    assert medians[10] == np.median(losses[10:15])


def test_a_learning_curve_of_nothing_is_an_error(ax):
    with pytest.raises(ValueError, match="no step has a finite loss"):
        plots.learning_curve(ax, np.arange(3.0), np.full(3, np.nan))


def test_shares_of_the_variance_add_up(ax):
    rng = np.random.default_rng(0)
    noise, latent, computational = rng.uniform(size=(3, 35))
    parts = plots.variance_parts(noise, latent, computational)
    plots.variance_shares(ax, parts)
    total = noise.sum() + latent.sum() + computational.sum()
    widths = [bar.get_width() for bar in ax.patches]
    assert widths == pytest.approx([100 * part.sum() / total for part in (noise, latent, computational)])

    ax = plots.variance_by_certainty(Figure().subplots(), parts)
    bars = np.array([bar.get_height() for bar in ax.patches]).reshape(3, 10)
    np.testing.assert_allclose(bars.sum(0), 100)
    sums = noise + latent + computational
    least = np.argsort(sums)[-3:]  # 35 rows in ten groups: five of four, then five of three
    assert bars[2, -1] == pytest.approx(100 * np.mean(computational[least] / sums[least]))


def test_an_unknown_computational_part_is_not_separated():
    parts = plots.variance_parts(np.ones(3), np.ones(3), None)
    assert [part.name for part in parts] == ["noise", "data and computation"]


def test_relevance_is_sorted_and_cut(ax):
    names = [f"input $ {k} $" for k in range(30)]
    plots.relevance(ax, names, np.arange(1.0, 31.0)[::-1], top=4)
    assert [bar.get_width() for bar in ax.patches] == pytest.approx([1, 1 / 2, 1 / 3, 1 / 4])
    assert [label.get_text() for label in ax.get_yticklabels()] == [f"input $ {k} $" for k in (29, 28, 27, 26)]
    ax.figure.savefig(BytesIO(), format="svg")


def test_an_effect_has_its_band(ax):
    x, mean, std = np.linspace(0, 1, 5), np.arange(5.0), np.linspace(0.1, 0.5, 5)
    plots.effect(ax, x, mean, std, np.array([0.2, 0.7]), "x")
    corners = ax.collections[0].get_paths()[0].vertices
    for k in range(5):
        ends = corners[np.isclose(corners[:, 0], x[k]), 1]
        assert [ends.min(), ends.max()] == pytest.approx([mean[k] - 1.959964 * std[k], mean[k] + 1.959964 * std[k]])
    np.testing.assert_array_equal(ax.lines[1].get_xdata()[::3], [0.2, 0.7])


def test_an_effect_of_categories_has_an_interval_for_each(ax):
    plots.category_effect(ax, ["a", "b"], np.array([1.0, 2.0]), np.array([0.5, 1.0]), "kind")
    ends = [segment[:, 1] for segment in ax.collections[0].get_segments()]
    np.testing.assert_allclose(ends, [[1 - 0.979982, 1 + 0.979982], [2 - 1.959964, 2 + 1.959964]], atol=1e-6)
    assert [label.get_text() for label in ax.get_xticklabels()] == ["a", "b"]


def test_the_fit_in_one_input_has_both_bands_and_the_points(ax):
    x = np.linspace(0, 1, 4)
    points = np.array([0.1, 0.2]), np.array([3.0, 4.0])
    plots.fit_in_one_input(ax, x, np.ones(4), np.full(4, 0.1), np.full(4, 0.5), points, "x")
    np.testing.assert_array_equal(line(ax, "test rows").get_data(), points)
    np.testing.assert_allclose(line(ax, "95 % of observations").get_ydata(), 1 + 1.959964 * 0.5, atol=1e-6)


def test_a_surface_meets_its_values_at_the_nodes(ax):
    x, y = np.linspace(0, 2, 6), np.linspace(-1, 1, 5)
    values = np.sin(x)[None, :] + y[:, None] ** 2
    plots.surface(ax, x, y, values, "label", points=(np.array([0.5]), np.array([0.5])), names=("a", "b"))
    image = np.asarray(ax.images[0].get_array())
    corners = image[0, 0], image[0, -1], image[-1, 0], image[-1, -1]
    assert corners == pytest.approx([values[0, 0], values[0, -1], values[-1, 0], values[-1, -1]])
    assert ax.images[0].get_extent() == pytest.approx([0, 2, -1, 1])
    assert values.min() <= image.min() <= image.max() <= values.max()


@pytest.mark.thinned(2)
@pytest.mark.parametrize("unit", [1 / 86_400, 1 / 1440, 1 / 24, 1.0, 30.0, 365.0])
def test_dates_have_a_few_ticks_whatever_their_range(ax, unit):
    for times in (1.5, 2.1, 3, 3.9, 4.5, 7, 11, 25, 50):
        start = 19_800.3
        ax.clear()
        ax.plot(start + unit * np.linspace(0, times, 31), np.zeros(31))
        ax.set_xlim(start, start + unit * times)
        plots.date_axis(ax)
        ax.figure.savefig(BytesIO(), format="svg")  # a warning is an error here
        shown = [t for t in ax.get_xticks() if start <= t <= start + unit * times]
        assert 1 <= len(shown) <= 7, times
        assert [label.get_text() for label in ax.get_xticklabels()] != []


@given(name=st.text(max_size=80), length=st.integers(4, 40))
def test_shortened_names_are_short_and_printable(name, length):
    short = plots.shortened(name, length)
    assert len(short) == min(len(name), length)
    assert not any(ord(c) < 32 or 127 <= ord(c) < 160 for c in short)
    if len(name) > length:
        assert "…" in short


def test_percent_is_honest_about_small_shares():
    assert [plots.percent(v) for v in (0.0, 0.5, 0.0005, 1e-9)] == ["0.0 %", "50.0 %", "0.050 %", "< 0.001 %"]
