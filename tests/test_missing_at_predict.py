"""Values that are missing in new rows, in columns that were complete at fit: averages over known values stand in."""

import numpy as np
import pandas as pd
import pytest
from sklearn.model_selection import cross_val_predict

import cagp
from cagp import CaGPRegressor, ExactGPRegressor
from cagp.cli import main
from cagp.data import Encoder

PROBABILITIES = (np.arange(12) + 0.5) / 12


def table(num_rows: int, seed: int):
    """Two inputs that matter, of which large values cancel, and one that does not."""
    rng = np.random.default_rng(seed)
    X = pd.DataFrame(rng.normal(size=(num_rows, 3)), columns=["a", "b", "none"])
    return X, (2 * X["a"] - X["b"] + np.sin(3 * X["b"]) + 0.2 * rng.normal(size=num_rows)).to_numpy()


@pytest.fixture(scope="module")
def model():
    return ExactGPRegressor(max_epochs=30).fit(*table(250, 0))


def covered(model, X, y) -> float:
    low, high = model.predict_interval(X)
    return float(((low < y) & (y < high)).mean())


@pytest.mark.thinned(2)
@pytest.mark.parametrize("gone", [["a"], ["b"], ["a", "b"], ["a", "b", "none"]], ids=", ".join)
def test_intervals_hold_where_columns_that_matter_are_missing(model, gone):
    X, y = table(1500, 1)
    assert 0.9 <= covered(model, X.assign(**dict.fromkeys(gone, np.nan)), y) <= 0.99
    # At the mean of the column, which is what a gap is filled with elsewhere, most rows lie outside.
    assert covered(model, X.assign(**dict.fromkeys(gone, 0.0)), y) < 0.6


def test_a_column_that_does_not_matter_changes_little(model):
    X, _ = table(200, 2)
    (mean, std), (other, wider) = (model.predict(Z, return_std=True) for Z in (X, X.assign(none=np.nan)))
    assert (np.abs(other - mean) < 0.5 * std).all()
    assert np.median(wider / std) < 1.2


@pytest.mark.parametrize("mean", ["zero", "trees"])
def test_the_answer_is_the_average_over_quantiles_with_their_spread(mean):
    X, y = table(250, 3)
    model = ExactGPRegressor(max_epochs=5, mean=mean).fit(X, y)
    new = table(6, 4)[0]
    known = np.quantile(X["a"], PROBABILITIES, method="inverted_cdf")
    found = [model.predict(new.assign(a=value), return_std=True) for value in known]
    means, stds = (np.stack(part) for part in zip(*found, strict=True))
    average, std = model.predict(new.assign(a=np.nan), return_std=True)
    np.testing.assert_allclose(average, means.mean(0), rtol=1e-9)
    np.testing.assert_allclose(std**2, (stds**2).mean(0) + means.var(0, ddof=1) * 13 / 12, rtol=1e-9)
    priors = np.stack([model.prior_mean(new.assign(a=value)) for value in known])
    np.testing.assert_allclose(model.prior_mean(new.assign(a=np.nan)), priors.mean(0), rtol=1e-9)
    assert (np.ptp(priors, 0) > 0).all() == (mean == "trees")


def test_other_rows_and_all_answers_agree(model):
    X, _ = table(40, 5)
    gaps = X.copy()
    gaps.loc[3, "a"] = gaps.loc[8, ["a", "b"]] = np.nan
    mean, std = model.predict(gaps, return_std=True)
    others = np.setdiff1d(np.arange(40), [3, 8])
    for found, whole in zip((mean, std), model.predict(X, return_std=True), strict=True):
        np.testing.assert_allclose(found[others], whole[others], rtol=1e-6)  # another number of rows rounds differently
    parts = model.predict(gaps, return_components=True)[1]
    np.testing.assert_allclose(parts["noise"] + parts["latent"] + parts["computational"], std**2, rtol=1e-6)
    covariance = model.predict(gaps, return_cov=True)[1]
    np.testing.assert_allclose(np.diagonal(covariance), std**2, rtol=1e-6)
    draws = model.sample_y(gaps, 4000)
    np.testing.assert_allclose(draws.mean(1), mean, atol=0.08 * std.max())
    np.testing.assert_allclose(draws.std(1), std, rtol=0.12)


def test_several_unknown_values_vary_independently_without_a_product():
    X, _ = table(500, 6)
    encoder = Encoder.fit(X)
    rows, numbers = encoder.stand_ins(encoder.codes(X.assign(a=np.nan, b=np.nan, none=np.nan)[:2]))
    np.testing.assert_array_equal(np.bincount(numbers), [48, 48])
    for name, values in zip(X, rows[:48].T, strict=True):
        expected = np.quantile(X[name], PROBABILITIES, method="inverted_cdf")
        np.testing.assert_array_equal(np.unique(values, return_counts=True), [expected, [4] * 12])
    np.testing.assert_allclose(np.corrcoef(rows[:48].T), np.eye(3), atol=0.35)
    np.testing.assert_array_equal(rows[:48], rows[48:])  # the same for every row: the answer is deterministic


def test_levels_dates_and_durations_have_stand_ins():
    rng = np.random.default_rng(7)
    days = rng.integers(0, 300, 150)
    X = pd.DataFrame(
        {
            "kind": rng.choice(["p", "q", "r"], 150),
            "one": "same",
            "day": pd.Timestamp("2024-01-01") + pd.to_timedelta(days, "D"),
            "age": pd.to_timedelta(rng.integers(0, 9, 150), "h"),
        }
    )
    model = ExactGPRegressor(max_epochs=5).fit(X, (X["kind"] == "q") * 1.0 + days / 100)
    new = X[:5]
    each = np.stack([model.predict(new.assign(kind=kind)) for kind in "pqr"])
    np.testing.assert_allclose(model.predict(new.assign(kind=None)), each.mean(0), rtol=1e-9)
    np.testing.assert_allclose(model.predict(new.assign(one=None)), model.predict(new), rtol=1e-9)  # no other is known
    for name in ("day", "age"):
        values = np.sort(X[name])[np.ceil(PROBABILITIES * 150).astype(int) - 1]
        each = np.stack([model.predict(new.assign(**{name: value})) for value in values])
        gaps = new.assign(**{name: new[name].where(new[name].isna())})
        np.testing.assert_allclose(model.predict(gaps), each.mean(0), rtol=1e-9)


def test_files_keep_the_stand_ins(model, tmp_path):
    gaps = table(9, 8)[0].assign(a=np.nan)
    path = model.save(tmp_path / "model.cagp")
    assert cagp.load(path).predict(gaps).tobytes() == model.predict(gaps).tobytes()


def test_folds_that_lack_the_only_gap_are_predicted():
    X, y = table(90, 9)
    X.loc[4, "a"] = np.nan
    assert np.isfinite(cross_val_predict(CaGPRegressor(max_epochs=3, mean="zero"), X, y, cv=3)).all()


def test_quantiles_of_many_rows_come_from_some_of_them():
    values = np.random.default_rng(10).normal(size=250_001)
    column = Encoder.fit(values[:, None]).state()["columns"][0]
    np.testing.assert_allclose(column["quantiles"], np.quantile(values, PROBABILITIES), atol=0.03)


def test_commands_count_the_gaps(model, tmp_path, capsys):
    X, y = table(20, 11)
    X.loc[[2, 5], "a"] = np.nan
    path = model.save(tmp_path / "model.cagp")
    X.assign(y=y).to_csv(tmp_path / "new.csv", index=False)
    out = tmp_path / "out.csv"
    assert main(["predict", str(path), str(tmp_path / "new.csv"), "--out", str(out)]) == 0
    words = "2 rows lack a value of column 'a', in which no training row lacked one"
    assert words in capsys.readouterr().err
    mean, std = model.predict(X, return_std=True)
    found = pd.read_csv(out)
    np.testing.assert_allclose(found["y_mean"], mean, rtol=1e-6)
    np.testing.assert_allclose(found["y_std"], std, rtol=1e-6)
    assert main(["evaluate", str(path), str(tmp_path / "new.csv")]) == 0
    assert words in capsys.readouterr().err
