"""``cagp bench structures``: generated tables have the truth that they state, and are scored against it."""

import json

import numpy as np
import pytest
from scipy import stats
from scipy.spatial import cKDTree

from cagp import CaGPRegressor
from cagp.cli import main
from cagp_bench import structure_quality, structures
from cagp_bench.contenders import Answers
from cagp_bench.structure_quality import Run, measure
from cagp_bench.structures import STRUCTURES, TEST_ROWS, sample

EVERY = pytest.mark.parametrize("name", list(STRUCTURES))


@pytest.mark.thinned(12)
@EVERY
def test_targets_are_the_function_and_noise_of_the_stated_density(name):
    found = sample(STRUCTURES[name], 1000, 0)
    assert len(found.X) == len(found.y) == 1000 + TEST_ROWS
    assert all(np.isfinite(values).all() for values in found)
    error, std = found.y - found.f, np.sqrt(found.variance)
    law = stats.t(3, scale=0.2) if name == "heavy-tails" else stats.norm(scale=std)
    assert found.log_density == pytest.approx(law.logpdf(error), rel=1e-9)
    assert np.broadcast_to(law.var(), len(std)) == pytest.approx(found.variance, rel=1e-9)
    # New rows: the probability transform of their errors is uniform.
    assert stats.kstest(law.cdf(error)[-TEST_ROWS:], "uniform").pvalue > 1e-3
    assert found.gaussian_log_density == pytest.approx(stats.norm.logpdf(found.y, found.f, std), rel=1e-9)


@EVERY
def test_a_seed_gives_the_same_table_and_another_seed_another(name):
    first, again, other = (sample(STRUCTURES[name], 50, seed) for seed in (0, 0, 1))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not np.array_equal(first.y, other.y)


def test_the_gap_of_the_best_gaussian_is_that_of_heavy_tails_alone():
    """∫ t(y) log t(y) / N(y) for 3 degrees of freedom, by quadrature."""
    law = stats.t(3, scale=0.2)
    gap = law.expect(lambda y: law.logpdf(y) - stats.norm.logpdf(y, scale=law.std()), lb=-200, ub=200, limit=500)
    found = sample(STRUCTURES["heavy-tails"], 200_000, 0)
    assert np.mean(found.log_density - found.gaussian_log_density) == pytest.approx(gap, rel=0.1)


def parts(name, num_rows=3000):
    found = sample(STRUCTURES[name], num_rows, 0)
    return found, found.X[:num_rows], found.X[num_rows:]


def test_forecasts_are_beyond_the_data():
    _, train, test = parts("forecast")
    assert train.max() < test.min()


def test_repeats_are_places_with_new_noise():
    found, train, test = parts("repeats")
    places = np.unique(train, axis=0)
    assert len(places) <= 400
    assert len(np.unique(np.concatenate([places, test]), axis=0)) <= 400
    assert len(np.unique(found.y)) == len(found.y)


def test_copies_are_whole_rows_of_the_training_part_alone():
    found, train, test = parts("copies")
    rows, counts = np.unique(np.column_stack([train, found.y[:3000]]), axis=0, return_counts=True)
    assert len(rows) == 1000
    assert set(counts) == {3}
    assert len(np.unique(np.concatenate([rows[:, :3], test]), axis=0)) == 1000 + TEST_ROWS


def test_steps_are_few_levels():
    assert len(np.unique(parts("steps")[0].f.round(9))) < 12


@pytest.mark.parametrize(("name", "reach"), [("rough", 0.1), ("smooth", 1.2)])
def test_a_surface_is_as_rough_as_it_says(name, reach, monkeypatch):
    """E (f(x) - f(z))² = 2 - 2k(x, z), with Matérn 1/2 of lengthscale 0.3 and RBF of lengthscale 1.5."""
    monkeypatch.setattr(structures, "TEST_ROWS", 100)
    found, expected = [], []
    for seed in range(40):
        draw = sample(STRUCTURES[name], 200, seed)
        pairs = cKDTree(draw.X).query_pairs(reach, output_type="ndarray")
        distance = np.linalg.norm(draw.X[pairs[:, 0]] - draw.X[pairs[:, 1]], axis=1)
        covariance = np.exp(-distance / 0.3) if name == "rough" else np.exp(-0.5 * (distance / 1.5) ** 2)
        found += ((draw.f[pairs[:, 0]] - draw.f[pairs[:, 1]]) ** 2).tolist()
        expected += (2 - 2 * covariance).tolist()
    assert np.mean(found) == pytest.approx(np.mean(expected), rel=0.1)


def test_the_climate_has_weather_that_neighbours_in_time_and_space_share():
    found = sample(STRUCTURES["climate"], 4000, 0)
    place, month = found.X[:, :2], np.round(12 * found.X[:, 3]).astype(int)
    design = np.column_stack([np.ones(len(place)), place, found.X[:, 2:], found.X[:, [0]] * found.X[:, 4:]])
    weather = found.f - design @ np.linalg.lstsq(design, found.f, rcond=None)[0]
    assert 1.0 < weather.std() < 2.0  # what a climate that is linear in these columns leaves
    same, next_month = [], []
    for when in np.unique(month)[:-1]:
        now, later = np.flatnonzero(month == when), np.flatnonzero(month == when + 1)
        for others, products in ((now, same), (later, next_month)):
            distance = np.linalg.norm(place[now][:, None] - place[others], axis=2)
            close = (distance > 0) & (distance < 2)
            products += (weather[now][:, None] * weather[others])[close].tolist()
    assert np.mean(same) > 0.8 * weather.var()
    assert abs(np.mean(next_month)) < 0.2 * weather.var()


# ---- scores ----


def test_the_truth_is_zero_nats_above_the_truth(monkeypatch):
    truth = sample(STRUCTURES["heteroscedastic"], 100, 5)

    def oracle(name, X, y, X_test, y_test, seed):
        assert (len(X), name, seed) == (100, "default", 5)
        test = type(truth)(*(values[-TEST_ROWS:] for values in truth))
        assert np.array_equal(y_test, test.y)
        return Answers(test.f, np.sqrt(test.variance), test.log_density, None, 1.0, 1.0, {"fitted": "oracle"})

    monkeypatch.setattr(structure_quality, "answers_of", oracle)
    record = measure(Run("heteroscedastic", "default", 5, 100))
    assert record["rmse_to_truth"] == record["nats_above_truth"] == record["best_gaussian_above_truth"] == 0
    assert record["coverage"] == pytest.approx(0.95, abs=0.015)
    assert record["noise_std"] == pytest.approx(
        np.sqrt(np.mean(truth.variance[-TEST_ROWS:])) / truth.y[:100].std(ddof=1)
    )


def test_a_wrong_scale_costs_its_divergence(monkeypatch):
    """Twice the standard deviation: log 2 - 1/2 + 1/8 nats; a shift by one standard deviation: 1/2."""
    truth = sample(STRUCTURES["product"], 100, 0)
    f, std = truth.f[-TEST_ROWS:], np.sqrt(truth.variance[-TEST_ROWS:])
    for mean, spread, nats in ((f, 2 * std, np.log(2) - 0.375), (f + std, std, 0.5)):

        def oracle(name, X, y, X_test, y_test, seed, mean=mean, spread=spread):
            return Answers(mean, spread, stats.norm.logpdf(y_test, mean, spread), None, 1.0, 1.0, {})

        monkeypatch.setattr(structure_quality, "answers_of", oracle)
        assert measure(Run("product", "default", 0, 100))["nats_above_truth"] == pytest.approx(nats, abs=0.05)


def test_the_default_learns_and_says_what_it_chose():
    record = measure(Run("heteroscedastic", "default", 0, 200))
    assert "error" not in record
    assert (record["n"], record["d"], record["num_test"]) == (200, 2, TEST_ROWS)
    assert record["rmse_to_truth"] < 0.5
    assert 0 < record["nats_above_truth"] < 3
    assert record["fitted"] == "exact"
    assert "exact inference" in record["choice"]
    json.dumps(record)


# ---- the command ----


def test_every_structure_is_a_row_with_what_would_be_right(monkeypatch, capsys):
    def recorded(run, max_time):
        error = {"error": "killed"} if run.structure == "rough" else {"nats_above_truth": 0.25, "fit_s": 2.0}
        return {**run._asdict(), "choice": "Chose local: it is better.", "choices": ["local 0.2"], **error}

    monkeypatch.setattr(structure_quality, "measure_alone", recorded)
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["bench", "structures", "--seeds", "3", "--rows", "500"]) == 1
    printed = capsys.readouterr()
    assert "bench: 1/13 additive, seed 3, default: 0.250 nats above the truth, 2.0 s" in printed.err
    assert "failed: killed" in printed.out
    assert max(map(len, printed.out.splitlines())) <= 80
    shown = " ".join(printed.out.split())
    for structure in STRUCTURES.values():
        assert f"{structure.name}: {structure.words}. right: {structure.expected}." in shown
    assert "default, seed 3: Chose local: it is better. local 0.2" in shown


def test_some_structures_and_methods_can_be_chosen(monkeypatch, capsys):
    monkeypatch.setattr(structure_quality, "measure_alone", lambda run, _: {**run._asdict(), "error": "no"})
    command = ["bench", "structures", "--only", "steps", "--methods", "default", "lightgbm", "--json"]
    assert main([*command, "--rows", "700"]) == 1
    found = [(r["structure"], r["method"], r["rows"]) for r in json.loads(capsys.readouterr().out)]
    assert found == [("steps", "default", 700), ("steps", "lightgbm", 700)]
    assert main(["bench", "structures", "--only", "stairs"]) == 1
    assert "--only names 'stairs', expected some of additive" in capsys.readouterr().err
    assert main(["bench", "structures", "--rows", "3"]) == 1


@pytest.mark.slow
def test_a_run_has_a_process_of_its_own_and_a_time_limit(capsys):
    assert main(["bench", "structures", "--only", "copies", "--rows", "60", "--json", "--max-time", "0.01s"]) == 1
    (record,) = json.loads(capsys.readouterr().out)
    assert record["error"] == "killed at the time limit (0.01s)"
    assert main(["bench", "structures", "--only", "copies", "--rows", "60", "--json"]) == 0
    (record,) = json.loads(capsys.readouterr().out)
    assert record["expected"] == STRUCTURES["copies"].expected
    assert record["n"] == 60


@pytest.mark.slow
def test_error_bars_hold_for_new_rows_when_copies_count_once():
    """The structure "copies": every training row three times, test rows new."""
    num_rows = 1200
    found = sample(STRUCTURES["copies"], num_rows, 0)
    model = CaGPRegressor(copies="once").fit(found.X[:num_rows], found.y[:num_rows])
    coverage = float(model.calibration(found.X[num_rows:], found.y[num_rows:], [0.95]).coverage[0])
    assert 0.93 < coverage < 0.97
    error = np.sqrt(np.mean((model.predict(found.X[num_rows:]) - found.f[num_rows:]) ** 2))
    assert error < 0.2
