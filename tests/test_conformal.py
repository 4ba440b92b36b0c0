"""Conformal intervals: their coverage on new rows, and the rank they are computed from."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import cagp
from cagp import CaGPRegressor
from cagp.cli import main


def heavy_tails(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """A smooth function with noise of two degrees of freedom: no normal distribution fits it."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, size=(n, 2))
    return X, np.sin(2 * X[:, 0]) + 0.5 * X[:, 1] + 0.2 * rng.standard_t(2, size=n)


def coverage(ends, y) -> float:
    return float(((ends[0] <= y) & (y <= ends[1])).mean())


@pytest.mark.slow
@pytest.mark.parametrize("method", ["local", "hybrid", "exact"])
def test_intervals_hold_what_they_promise_where_normal_ones_do_not(method):
    size = 1500 if method == "local" else 600
    X, y = heavy_tails(size, 0)
    model = CaGPRegressor(method, max_epochs=15, random_state=1).fit(X, y)
    X_new, y_new = heavy_tails(5000, 1)
    for level in (0.5, 0.9, 0.95):
        found = coverage(model.predict_interval(X_new, level, method="conformal"), y_new)
        # Two sources of chance: the new rows, and the rows that the factor was computed from.
        error = np.sqrt(level * (1 - level) * (1 / 5000 + 1 / size))
        assert abs(found - level) < 3 * error
    assert coverage(model.predict_interval(X_new, 0.5), y_new) > 0.57  # normal intervals promise 50 %


@pytest.mark.slow
@pytest.mark.parametrize("method", ["opt", "sgpr"])
def test_other_methods_take_calibration_rows(method):
    X, y = heavy_tails(600, 0)
    model = CaGPRegressor(method, max_epochs=10).fit(X, y)
    with pytest.raises(
        ValueError, match=rf'"{method}" does not have them: "local", "hybrid" and "exact" do.*calibration'
    ):
        model.predict_interval(X, method="conformal")
    X_new, y_new = heavy_tails(5000, 1)
    rows = heavy_tails(1000, 2)
    for level in (0.5, 0.9, 0.95):
        found = coverage(model.predict_interval(X_new, level, method="conformal", calibration=rows), y_new)
        assert abs(found - level) < 3 * np.sqrt(level * (1 - level) * (1 / 5000 + 1 / 1000))


@pytest.mark.slow
def test_the_factor_has_the_rank_that_the_guarantee_needs():
    """With m exchangeable calibration rows, the coverage is a beta variable whose mean is at least the level."""
    X, y = heavy_tails(80, 0)
    model = CaGPRegressor("exact", max_epochs=5).fit(X, y)
    X_new, y_new = heavy_tails(4000, 1)
    found = []
    for seed in range(150):
        rows = heavy_tails(19, 100 + seed)
        found.append(coverage(model.predict_interval(X_new, 0.8, method="conformal", calibration=rows), y_new))
    expected = stats.beta(16, 4)  # the 16th of 19 scores
    assert np.mean(found) == pytest.approx(0.8, abs=4 * expected.std() / np.sqrt(150))
    assert stats.kstest(found, expected.cdf).pvalue > 1e-3


def test_scores_are_those_of_rows_predicted_without_their_target():
    X, y = heavy_tails(120, 0)
    model = CaGPRegressor("exact", max_epochs=10).fit(X, y)
    (scores,) = model.fitted.left_out_scores
    assert len(scores) == 120
    level = 0.9
    rank = int(np.ceil(level * 121))
    low, high = model.predict_interval(X[:3], level, method="conformal")
    mean, std = model.predict(X[:3], return_std=True)
    np.testing.assert_allclose(high - mean, np.sort(scores)[rank - 1] * std, rtol=1e-9)
    np.testing.assert_allclose(mean - low, np.sort(scores)[rank - 1] * std, rtol=1e-9)


def test_several_targets_known_noise_and_files(tmp_path):
    X, y = heavy_tails(400, 0)
    rng = np.random.default_rng(3)
    Y = np.stack([y, 100 + 10 * X[:, 0] + rng.normal(size=400)], 1)
    noise = np.full((400, 2), [0.01, 0.5])
    model = CaGPRegressor("local", max_epochs=10).fit(X, Y, sample_noise=noise)
    ends = model.predict_interval(X, 0.9, sample_noise=noise, method="conformal")
    mean, std = model.predict(X, return_std=True, sample_noise=noise)
    factors = (ends[1] - mean) / std
    np.testing.assert_allclose(factors, np.tile(factors[0], (400, 1)), rtol=1e-9)
    assert abs(factors[0, 0] / factors[0, 1] - 1) > 0.05  # each target has its own
    model.save(tmp_path / "model.cagp")
    again = cagp.load(tmp_path / "model.cagp").predict_interval(X, 0.9, sample_noise=noise, method="conformal")
    np.testing.assert_array_equal(again, ends)
    model.fit(X[:200], Y[:200])
    assert not np.array_equal(model.predict_interval(X, 0.9, method="conformal")[1], ends[1])


def test_log_targets_have_intervals_on_the_scale_of_the_fit():
    X, y = heavy_tails(500, 0)
    model = CaGPRegressor("local", max_epochs=10, target="identity").fit(X, y)
    log = CaGPRegressor("local", max_epochs=10, target="log").fit(X, np.exp(y))
    ends = log.predict_interval(X[:20], 0.9, method="conformal")
    expected = np.exp(model.predict_interval(X[:20], 0.9, method="conformal"))
    np.testing.assert_allclose(ends, expected, rtol=1e-6)


def test_what_makes_no_conformal_interval_is_an_error():
    X, y = heavy_tails(40, 0)
    model = CaGPRegressor("exact", max_epochs=3).fit(X, y)
    with pytest.raises(ValueError, match="needs at least 99 rows; y has 40"):
        model.predict_interval(X, 0.99, method="conformal")
    with pytest.raises(ValueError, match="conformal intervals are of new observations"):
        model.predict_interval(X, method="conformal", noise=False)
    with pytest.raises(ValueError, match="method is 'jackknife', expected"):
        model.predict_interval(X, method="jackknife")
    with pytest.raises(ValueError, match="calibration is for"):
        model.predict_interval(X, calibration=(X, y))
    with pytest.raises(ValueError, match=r"calibration is a ndarray, expected \(X, y\)"):
        model.predict_interval(X, method="conformal", calibration=X)


def test_the_command_line_writes_the_same_intervals(tmp_path, capsys):
    X, y = heavy_tails(200, 0)
    frame = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "y": y})
    frame.to_csv(tmp_path / "t.csv", index=False)
    model = CaGPRegressor("local", max_epochs=3).fit(frame[["a", "b"]], frame["y"])
    model.save(tmp_path / "m.cagp")
    command = ["predict", str(tmp_path / "m.cagp"), str(tmp_path / "t.csv"), "--out", str(tmp_path / "p.csv")]
    assert main([*command, "--interval", "conformal", "--level", "0.9", "--rows-at-a-time", "64"]) == 0
    written = pd.read_csv(tmp_path / "p.csv")
    low, high = model.predict_interval(frame[["a", "b"]], 0.9, method="conformal")
    np.testing.assert_allclose(written["y_lower"], low, rtol=1e-9)
    np.testing.assert_allclose(written["y_upper"], high, rtol=1e-9)
    CaGPRegressor("sgpr", max_epochs=2).fit(frame[["a", "b"]], frame["y"]).save(tmp_path / "m.cagp")
    assert main([*command, "--interval", "conformal"]) == 1
    assert '"sgpr" does not have them' in capsys.readouterr().err
