"""Test rows that were trained on are found and counted: copies, the same inputs, and no others."""

import numpy as np
import pytest
import torch

from cagp import CaGPRegressor, load
from cagp.data import split
from cagp.data.splits import NEAR, RowIndex
from cagp.estimators.overlap import KnownRows, Overlap, overlap_with


def same_by_comparison(rows, others, tolerance):
    """Every pair of rows, one by one."""
    distance = np.abs(rows[:, None] - others)
    return (distance <= tolerance * np.maximum(1, np.abs(rows[:, None]))).all(2).any(1)


@pytest.mark.parametrize("d", [1, 4])
def test_the_index_finds_what_a_comparison_of_all_pairs_finds(d):
    rng = np.random.default_rng(d)
    rows = np.concatenate([rng.normal(size=(300, d)), rng.integers(0, 3, (300, d)), 1e5 * rng.normal(size=(50, d))])
    asked = np.concatenate(
        [
            rows[::3] * (1 + 0.5e-7 * rng.uniform(-1, 1, (217, d))),
            rows[::3] * (1 + 3e-7 * rng.choice([-1, 1], (217, d))),
            rng.normal(size=(100, d)),
            rng.integers(0, 4, (100, d)),
        ]
    )
    found = RowIndex(rows).holds(asked)
    np.testing.assert_array_equal(found, same_by_comparison(asked, rows, NEAR))
    assert found[:217].all()
    assert 0.2 < found.mean() < 0.9


def test_many_copies_of_a_row_are_one_row():
    rows = np.tile(np.arange(12.0).reshape(4, 3), (5000, 1))
    index = RowIndex(rows)
    assert index._tree.n == 4
    assert index.holds(np.array([[0.0, 1.0, 2.0], [0.0, 1.0, 3.0]])).tolist() == [True, False]


def table(num_rows=240, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(num_rows, 3))
    return X, np.sin(X[:, 0]) + 0.1 * rng.normal(size=num_rows)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("method", ["exact", "local", "hybrid", "opt", "cg", "cggp"])
def test_rows_that_a_model_keeps_are_recognised(method, tmp_path):
    X, y = table()
    model = CaGPRegressor(method, max_epochs=2).fit(X[:200], y[:200])
    keeps_targets = method in ("exact", "local", "hybrid")
    asked, targets = np.concatenate([X[:30], X[200:]]), np.concatenate([y[:20], y[20:30] + 1, y[200:]])
    found = overlap_with(model.fitted, asked, targets[:, None])
    assert found == Overlap(70, 30, 20 if keeps_targets else None, 1.0)
    assert found.is_large
    assert not found.is_training
    whole = overlap_with(model.fitted, X[:200], y[:200, None])
    assert whole.num_same_inputs == 200
    assert whole.is_training
    assert whole.words().startswith("These rows" if keeps_targets else "Nearly all of these rows")
    others = overlap_with(model.fitted, X[200:], y[200:, None])
    assert others.num_same_inputs == 0
    assert others.words() == ""
    assert not others.is_large
    model.save(tmp_path / "model.cagp", dtype="float32")
    assert overlap_with(load(tmp_path / "model.cagp").fitted, asked, targets[:, None]) == found


def test_targets_of_an_exact_model_are_those_of_fit():
    """They are computed from its weights, with known noise and several targets."""
    X, y = table(80)
    y = np.stack([y, 5 - 3 * y**2], 1)
    noise = np.random.default_rng(1).uniform(0, 0.3, y.shape)
    model = CaGPRegressor("exact", max_epochs=3).fit(X, y, sample_noise=noise)
    assert overlap_with(model.fitted, X, y) == Overlap(80, 80, 80, 1.0)
    assert overlap_with(model.fitted, X, y + np.array([0.0, 0.01])) == Overlap(80, 80, 0, 1.0)


def test_inducing_points_are_not_rows():
    X, y = table()
    model = CaGPRegressor("sgpr", n_inducing=200, max_epochs=2).fit(X[:200], y[:200])
    assert overlap_with(model.fitted, X[:200], y[:200, None]) == Overlap(200, None, None, 0.0)
    assert KnownRows.of_model(model.fitted) is None


def test_counts_of_pieces_add_up():
    X, y = table()
    known = KnownRows.of_table(X[:200], y[:200, None])
    whole = known.overlap(X[150:], y[150:, None])
    assert known.overlap(X[150:180], y[150:180, None]).plus(known.overlap(X[180:], y[180:, None])) == whole
    assert (whole.num_same_inputs, whole.num_copies) == (50, 50)


def test_words_say_how_many_and_what_to_do():
    assert "12 of 100 test rows (12.0 %) are training rows or copies of them" in Overlap(100, 12, 12, 1.0).words()
    both = Overlap(100, 42, 2, 1.0)
    assert "40 of 100 test rows (40.0 %) have the inputs of a training row with another target" in both.words()
    assert both.is_large
    assert not Overlap(100, 19, 2, 1.0).is_large
    assert Overlap(100, 19, 5, 1.0).is_large
    assert "1 of 100 test rows (1.0 %) has the inputs" in Overlap(100, 1, 0, 1.0).words()
    part = Overlap(1000, 310, None, 0.33)
    assert part.is_training
    assert "Nearly all" in part.words()
    assert "(of the 33 % that the model keeps)" in part._replace(num_same_inputs=200).words()


def test_the_copies_of_a_real_table_are_found(real_data):
    """A tenth of KEGGu, drawn at random; 45,033 of its 63,608 rows are copies of others."""
    X, y = real_data("keggu", 20_000)
    X, y = X.numpy(), y.numpy()
    rows = split(len(y), 0.1, 0)
    train, test = rows.train.numpy(), rows.test.numpy()
    found = KnownRows.of_table(X[train], y[train, None]).overlap(X[test], y[test, None])
    seen = {row.tobytes() for row in np.column_stack([X, y])[train]}
    copies = sum(row.tobytes() in seen for row in np.column_stack([X, y])[test])
    assert found.num_copies == copies > 0.3 * len(test)
    assert found.num_same_inputs >= copies
    assert found.is_large


def test_nothing_is_written_to_what_a_model_holds():
    X, y = table(60)
    model = CaGPRegressor("local", max_epochs=1, n_neighbors=8).fit(X, y)
    before = model.posteriors_[0].X.clone()
    overlap_with(model.fitted, X, y[:, None])
    assert torch.equal(model.posteriors_[0].X, before)
