"""Saved models whose rows are in a file beside them."""

import shutil

import numpy as np
import pytest

import cagp
from cagp import CaGPRegressor
from cagp.data import open_chunks
from cagp.saved_summary import saved_summary

RNG = np.random.default_rng(0)
X = RNG.uniform(size=(400, 2))
Y = np.stack([np.sin(6 * X[:, 0]), X[:, 1] ** 2], 1) + 0.1 * RNG.normal(size=(400, 2))


@pytest.fixture(scope="module", params=["memory", "pieces", "opt"])
def model(request):
    settings = {"method": "opt", "n_actions": 20} if request.param == "opt" else {"method": "local"}
    regressor = CaGPRegressor(**settings, max_epochs=3, mean="zero")
    return regressor.fit(open_chunks((X, Y))) if request.param == "pieces" else regressor.fit(X, Y)


@pytest.mark.slow
def test_predictions_are_the_same(model, tmp_path):
    inside = model.save(tmp_path / "inside.cagp")
    path = model.save(tmp_path / "model.cagp", rows="beside")
    rows = tmp_path / "model.cagp.rows"
    assert path.stat().st_size < 0.5 * inside.stat().st_size + 20_000
    loaded = cagp.load(path)
    for one, other in zip(loaded.predict(X, return_std=True), model.predict(X, return_std=True), strict=True):
        np.testing.assert_array_equal(one, other)
    # A model that was loaded can be saved to the same place, with rows in either way.
    for where in ("beside", "inside"):
        cagp.load(path).save(path, rows=where)
        assert rows.exists() == (where == "beside")
        np.testing.assert_array_equal(cagp.load(path).predict(X), model.predict(X))
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))  # it still has its rows


def test_a_loaded_model_does_not_change_its_files(model, tmp_path):
    path = model.save(tmp_path / "model.cagp", rows="beside")
    before = (tmp_path / "model.cagp.rows").read_bytes()
    loaded = cagp.load(path)
    loaded.posteriors_[0].X.zero_()
    assert (tmp_path / "model.cagp.rows").read_bytes() == before
    np.testing.assert_array_equal(cagp.load(path).predict(X), model.predict(X))


def test_rows_that_are_missing_or_not_the_right_ones(model, tmp_path):
    path, rows = model.save(tmp_path / "model.cagp", rows="beside"), tmp_path / "model.cagp.rows"
    content = rows.read_bytes()
    for damage in (content[:-1], content[:-40] + bytes(40), content[:10], b""):
        rows.write_bytes(damage)
        with pytest.raises(ValueError, match=r"model\.cagp\.rows cannot be read"):
            cagp.load(path)
    other = CaGPRegressor(method="local", max_epochs=1, mean="zero").fit(X[:300], Y[:300])
    other.save(tmp_path / "other.cagp", rows="beside")
    shutil.copy(tmp_path / "other.cagp.rows", rows)
    with pytest.raises(ValueError, match=r"model\.cagp\.rows is of another model"):
        cagp.load(path)
    rows.unlink()
    with pytest.raises(FileNotFoundError, match=r"model\.cagp\.rows does not exist"):
        cagp.load(path)
    with pytest.raises(ValueError, match='expected "inside"'):
        model.save(path, rows="elsewhere")


def test_a_summary_needs_the_model_alone(model, tmp_path):
    path = model.save(tmp_path / "model.cagp", rows="beside")
    (tmp_path / "model.cagp.rows").unlink()
    found, inside = saved_summary(path), saved_summary(model.save(tmp_path / "inside.cagp"))
    assert found["rows_beside"]
    assert found["rows_held"] == inside["rows_held"]
