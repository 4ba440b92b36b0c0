"""Random tables through fit, predict, save and load: an answer that is finite, or an error that names the column.

CAGP_FUZZ=2000 sets the number of tables, CAGP_FUZZ_FROM the seed of the first.
"""

import os
import warnings

import numpy as np
import pandas as pd
import pytest
from random_tables import RandomTable, random_table
from test_estimators import REGRESSORS

import cagp

pytestmark = pytest.mark.filterwarnings("ignore:.* are copies of others:UserWarning")
"""Random tables of few values may have many copies of a row: that is said, and right."""

NUM_TABLES, FIRST = int(os.environ.get("CAGP_FUZZ", "150")), int(os.environ.get("CAGP_FUZZ_FROM", "0"))
BATCH = 10
METHODS = ["exact", "local", "opt", "hybrid", "cg", "SGPR", "SVGP"]


@pytest.mark.thinned(2)
@pytest.mark.parametrize("first", range(FIRST, FIRST + NUM_TABLES, BATCH))
def test_random_tables(first, tmp_path):
    for seed in range(first, min(first + BATCH, FIRST + NUM_TABLES)):
        table = random_table(seed)
        try:
            check(table, seed, tmp_path / "model.cagp")
        except BaseException as error:
            error.add_note(f"seed {seed}: {table.inputs.shape} {table.kinds}, troubles {table.troubles}")
            raise


def check(table: RandomTable, seed: int, path) -> None:
    X, rng = table.inputs, np.random.default_rng(seed)
    name, kernel = METHODS[seed % len(METHODS)], rng.choice(["matern12", "matern32", "matern52", "rbf"])
    model = REGRESSORS[name](max_epochs=2, kernel=str(kernel))
    before = X.copy(deep=True)
    if table.troubles:
        with pytest.raises((ValueError, TypeError)) as caught:
            model.fit(X, table.target)
        assert any(words in str(caught.value) for words in table.troubles), caught.value
        return
    model.fit(X, table.target)
    pd.testing.assert_frame_equal(X, before)

    rows = rng.integers(0, len(X), 5)
    Z = X.iloc[rows]
    mean, std = model.predict(Z, return_std=True)
    assert np.isfinite(mean).all(), mean
    assert np.isfinite(std).all(), std
    assert (std > 0).all(), std
    assert np.isfinite(model.predict_quantiles(Z)).all()
    loaded = cagp.load(model.save(path))
    for one, other in zip(loaded.predict(Z, return_std=True), (mean, std), strict=True):
        np.testing.assert_array_equal(one, other)
    check_new_rows(model, Z, rng)


def check_new_rows(model, Z: pd.DataFrame, rng: np.random.Generator) -> None:
    """A cell is spoiled, or stretched to what fit has never seen."""
    place = int(rng.integers(Z.shape[1]))
    name, values = Z.columns[place], Z.iloc[:, place]
    if pd.api.types.is_float_dtype(values.dtype) and rng.random() < 0.5:
        far = Z.assign(**{name: 1e5}) if isinstance(name, str) and name.isidentifier() else Z
        mean, std = model.predict(far, return_std=True)
        assert np.isfinite(mean).all()
        assert np.isfinite(std).all()
        return
    spoiled = Z.astype(object)
    spoiled.isetitem(place, pd.Series([None, *values.iloc[1:]], dtype=object).set_axis(Z.index))
    column = model.encoder_.state()["columns"][place]
    if column["kind"] == "levels":
        unknown = Z.astype(object)
        unknown.isetitem(place, pd.Series(["never seen"] * len(Z), dtype=object).set_axis(Z.index))
        mean, std = model.predict(unknown, return_std=True)
        assert np.isfinite(mean).all()
        assert (std > 0).all()
    mean, std = model.predict(spoiled, return_std=True)
    assert np.isfinite(mean).all()
    assert (std > 0).all()


def test_the_same_seed_is_the_same_table():
    for seed in range(5):
        one, other = random_table(seed), random_table(seed)
        assert one.kinds == other.kinds
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pd.testing.assert_frame_equal(one.inputs, other.inputs)


def test_tables_are_neither_all_good_nor_all_bad():
    tables = [random_table(seed) for seed in range(300)]
    share = np.mean([not table.troubles for table in tables])
    assert 0.4 < share < 0.8
    assert len({kind for table in tables for kind in table.kinds}) > 60
