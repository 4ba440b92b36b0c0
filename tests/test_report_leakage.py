"""What the report says about the rows it is on: others, training rows, copies, shared groups, or not known."""

import re

import numpy as np
import pandas as pd
import pytest

from cagp import CaGPRegressor
from cagp.report import write_report


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"a": rng.normal(size=160), "kind": rng.choice(["x", "y", "z"], 160)})
    return X, pd.Series(np.sin(X["a"]) + 0.1 * rng.normal(size=160), name="target")


@pytest.fixture(scope="module")
def model(data):
    X, y = data
    return CaGPRegressor("local", n_neighbors=8, max_epochs=2).fit(X[:120], y[:120])


def words_of(path):
    """The text of the page, without its figures."""
    page = re.sub(r"<style>.*?</style>|<svg.*?</svg>", "", path.read_text(), flags=re.DOTALL)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", "", page))


def report(model, X, y, folder, **more):
    return words_of(write_report(model, X, y, folder / "report.html", **more))


def test_other_rows_are_called_others(model, data, tmp_path):
    X, y = data
    page = report(model, X[120:], y[120:], tmp_path)
    assert "trained on 120 rows and is tested on 40 other rows." in page
    assert "Warning" not in page


@pytest.mark.slow
def test_training_rows_are_not_called_others(model, data, tmp_path):
    X, y = data
    page = report(model, X[:120], y[:120], tmp_path)
    assert "is tested on 120 rows that were used in training." in page
    assert "Warning. These rows, or copies of them, were used in training." in page
    assert "other row" not in page


@pytest.mark.slow
def test_copies_and_same_inputs_are_counted(model, data, tmp_path):
    X, y = data
    rows = [*range(5), *range(120, 160)]
    copied = y.iloc[rows].copy()
    page = report(model, X.iloc[rows], copied, tmp_path)
    assert "Warning. 5 of 45 test rows (11.1 %) are training rows or copies of them." in page
    copied.iloc[:5] += 1.0
    page = report(model, X.iloc[rows], copied, tmp_path)
    assert "Warning" not in page  # few, and their targets differ
    assert "5 of 45 test rows (11.1 %) have the inputs of a training row with another target." in page


def test_it_says_where_nothing_is_known(data, tmp_path):
    X, y = data
    model = CaGPRegressor("svgp", n_inducing=20, max_epochs=1).fit(X[:120], y[:120])
    page = report(model, X[:120], y[:120], tmp_path)
    assert "is tested on 120 rows. It keeps no training rows, so this page cannot tell" in page


def test_shared_groups_are_named(model, data, tmp_path):
    X, y = data
    page = report(model, X[120:], y[120:], tmp_path, shared_groups={"<b>patient</b>": 0.87, "day": 0.01})
    assert "87 % of the test rows have a value of &lt;b&gt;patient&lt;/b&gt; that training rows" in page
    assert "value of day" not in page
