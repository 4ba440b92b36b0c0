"""Rows that are copies of others: found cheaply, told, and counted once on request."""

import json
import warnings

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cagp import CaGPRegressor, limits
from cagp.cli import main
from cagp.data import open_chunks
from cagp.data.splits import distinct_rows
from cagp.estimators import CopiesWarning


@given(st.lists(st.lists(st.sampled_from([0.0, 1.0, -1.5, np.nan, 1e300]), min_size=2, max_size=2), min_size=1))
def test_distinct_rows_are_the_first_of_each_kind(rows):
    """Against the first place of each row in a dictionary; missing values are equal."""
    places = {}
    for place, row in enumerate(rows):
        places.setdefault(tuple("missing" if np.isnan(value) else value for value in row), place)
    np.testing.assert_array_equal(distinct_rows(np.array(rows)), list(places.values()))


def table(num_rows=300, times=3, seed=0):
    """Every row stands ``times`` times."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(size=(num_rows // times, 2)).repeat(times, axis=0)
    y = (np.sin(6 * X[:, 0]) + X[:, 1]) + rng.normal(size=num_rows // times).repeat(times) * 0.3
    order = rng.permutation(len(y))
    return X[order], y[order]


@pytest.mark.slow
def test_many_copies_are_a_warning_and_a_line_of_the_report(tmp_path):
    X, y = table()
    with pytest.warns(CopiesWarning, match=r"200 of 300 rows \(67 %\) are copies of others") as found:
        model = CaGPRegressor(max_epochs=2).fit(X, y)
    assert len(found) == 1
    assert str(found[0].message) in model.fit_report_.splitlines()
    assert 'use copies="once"' in model.fit_report_
    new_X, new_y = table(seed=1)
    page = model.report(new_X, new_y, tmp_path / "report.html").read_text()
    assert "200 of 300 rows (67\u00a0%) are copies of others" in page
    assert model.n_rows_ == 300


def test_few_copies_and_other_targets_are_not():
    X, y = table(60, 1)
    some = np.r_[np.arange(60), np.arange(5)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = CaGPRegressor("exact", max_epochs=2).fit(X[some], y[some])
        assert "copies" not in model.fit_report_
        repeated = CaGPRegressor("exact", max_epochs=2).fit(np.tile(X, (3, 1)), np.r_[y, y + 1, y + 2])
        assert "copies" not in repeated.fit_report_
        noise = np.linspace(0.1, 0.2, 180)
        known = CaGPRegressor("exact", max_epochs=2).fit(np.tile(X, (3, 1)), np.tile(y, 3), noise)
        assert "copies" not in known.fit_report_
        once = CaGPRegressor("exact", max_epochs=2, copies="once").fit(X[some], y[some])
        assert "5 of 65 rows (8 %) are copies of others, inputs and targets alike; each row is counted once." in (
            once.fit_report_
        )


@pytest.mark.slow
@pytest.mark.parametrize("exact_rows", [2000, 50])
def test_once_is_the_fit_of_the_distinct_rows(exact_rows, monkeypatch):
    """To the bit: the scales, the choice and the predictions; with text, missing values, noise and groups."""
    monkeypatch.setattr(limits, "EXACT_ROWS", exact_rows)
    X, y = table(240)
    frame = pd.DataFrame({"a": X[:, 0], "b": np.where(X[:, 1] < 0.1, np.nan, X[:, 1]), "c": np.where(y > 0, "u", "v")})
    first = np.flatnonzero(~frame.assign(y=y).duplicated().to_numpy())
    assert len(first) == 80
    noise, group = 0.01 + X[:, 0] ** 2, (10 * X[:, 0]).astype(int)
    for known, rule in ((None, {}), (noise, {"group": group})):
        once = CaGPRegressor(max_epochs=3, copies="once").fit(frame, y, known, **rule)
        few = {name: values[first] for name, values in rule.items()}
        alone = CaGPRegressor(max_epochs=3).fit(
            frame.iloc[first], y[first], None if known is None else known[first], **few
        )
        assert once.n_rows_ == alone.n_rows_ == 80
        assert [t["model"] for t in once.choices_] == [t["model"] for t in alone.choices_]
        np.testing.assert_array_equal(once.predict(frame, return_std=True), alone.predict(frame, return_std=True))


def test_partly_missing_targets():
    X, y = table()
    both = np.stack([y, np.where(X[:, 0] < 0.2, np.nan, -y)], 1)
    model = CaGPRegressor("exact", max_epochs=2, copies="once").fit(X, both)
    assert model.target_rows_ == [100, int((X[:, 0] >= 0.2).sum()) // 3]


def test_all_rows_are_one():
    X, y = np.ones((80, 2)), np.ones(80)
    with pytest.warns(CopiesWarning):
        CaGPRegressor("exact", max_epochs=1, copies="once").fit(X, y)


def test_what_is_refused():
    X, y = table(30)
    with pytest.raises(ValueError, match=r'copies is \'never\', expected "keep" or "once"\.'):
        CaGPRegressor(copies="never").fit(X, y)
    pieces = open_chunks([pd.DataFrame({"a": X[:, 0], "y": y})], "y")
    with pytest.raises(ValueError, match='copies is "once", which needs the table in memory'):
        CaGPRegressor("local", copies="once").fit(pieces)


@pytest.mark.slow
def test_the_command_line(tmp_path, capsys):
    X, y = table()
    path, out = tmp_path / "table.csv", str(tmp_path / "m.cagp")
    pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "y": y}).to_csv(path, index=False)
    command = ["fit", str(path), "--target", "y", "--max-epochs", "2", "--out", out, "--test-fraction", "0", "--json"]
    assert main(command) == 0
    shown = capsys.readouterr()
    assert "cagp: warning: 200 of 300 rows (67 %) are copies of others" in shown.err
    assert json.loads(shown.out)["train_rows"] == 300
    assert main([*command, "--copies", "once"]) == 0
    shown = capsys.readouterr()
    assert "warning" not in shown.err
    assert json.loads(shown.out)["train_rows"] == 100
