"""Reports of pipelines and searches are on the columns that the user gave them."""

import numpy as np
import pandas as pd
import pytest
from report_models import KnownModel, read
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.dummy import DummyRegressor
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, RandomizedSearchCV
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler

from cagp import CaGPRegressor
from cagp.report import write_report
from cagp.report.columns import effects_of, importance_of
from cagp.report.page import Drawing, number
from cagp.report.subject import subject_of

pytestmark = pytest.mark.usefixtures("annotations_off", "no_figures")


@pytest.fixture
def no_figures(monkeypatch):
    """Reports without their figures, which take most of the time."""
    monkeypatch.setattr(Drawing, "__call__", lambda *_, **__: "")


def table(num_rows=160):
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"a": rng.uniform(-2, 2, num_rows), "kind": rng.choice(["u", "v", "w"], num_rows)})
    y = pd.Series(np.sin(2 * X["a"]) + 2 * (X["kind"] == "u"), name="yield") + 0.1 * rng.normal(size=num_rows)
    return X, y


def steps():
    encode = ColumnTransformer([("a", StandardScaler(), ["a"]), ("kind", OneHotEncoder(sparse_output=False), ["kind"])])
    return make_pipeline(encode, CaGPRegressor(method="exact", max_epochs=8))


def test_a_pipeline_is_reported_in_the_columns_it_takes(tmp_path):
    X, y = table()
    model = steps().fit(X[:120], y[:120])
    page = read(write_report(model, X[120:], y[120:], tmp_path / "r.html"))
    assert page.row("RMSE")[1] == number(np.sqrt(np.mean((y[120:] - model.predict(X[120:])) ** 2)))
    assert "from 2 inputs" in page.words
    assert {"a", "kind"} <= {row[0] for row in page.rows if row}
    subject = subject_of(model, X[120:], y[120:])
    assert subject.steps
    found = importance_of(subject)
    assert {column.name for column in found.columns} == {"a", "kind"}
    assert (found.rmse[:, 0] > 5 * found.rmse_error[:, 0]).all()
    effects = {effect.column.name: effect for effect in effects_of(subject, found.columns)}
    kind = effects["kind"]
    levels = dict(zip((kind.column.levels[int(k)] for k in kind.nodes), kind.mean[:, 0], strict=True))
    assert levels["u"] - levels["v"] == pytest.approx(2, abs=0.3)


def test_a_search_reports_on_what_it_found(tmp_path):
    X, y = table()
    grid = {"cagpregressor__kernel": ["rbf", "matern32"]}
    for search in (GridSearchCV(steps(), grid, cv=2), RandomizedSearchCV(steps(), grid, n_iter=1, cv=2)):
        search.fit(X[:120], y[:120])
        page = read(write_report(search, X[120:], y[120:], tmp_path / "r.html"))
        assert page.row("RMSE")[1] == number(np.sqrt(np.mean((y[120:] - search.predict(X[120:])) ** 2)))
        assert page.row("kernel")[1] == repr(search.best_params_["cagpregressor__kernel"])


def test_steps_of_nested_pipelines_come_in_their_order():
    model = KnownModel(lambda X: X[:, :1], None, ["x0", "x1"], ["y"])
    inner = Pipeline([("plus", FunctionTransformer(lambda X: X + 1)), ("same", "passthrough"), ("model", model)])
    outer = Pipeline([("twice", FunctionTransformer(lambda X: 2 * X)), ("inner", inner)])
    X, y = np.arange(6.0).reshape(3, 2), np.zeros(3)
    subject = subject_of(outer, X, y)
    np.testing.assert_array_equal(subject.predicted.mean()[:, 0], 2 * X[:, 0] + 1)
    np.testing.assert_array_equal(model.encoder_.table(subject.encoded_rows), 2 * X + 1)
    alone = subject_of(Pipeline([("model", model)]), X, y)
    assert (alone.model, alone.steps) == (subject.model, ()) == (model, ())


def test_others_are_refused_with_a_remedy(tmp_path):
    X, y = table(20)
    with pytest.raises(TypeError, match=r'TransformedTargetRegressor would need .* CaGPRegressor\(target="log"\)'):
        write_report(TransformedTargetRegressor(CaGPRegressor()), X, y, tmp_path / "r")
    with pytest.raises(TypeError, match="model is a DummyRegressor, expected a fitted regressor of cagp, a Pipeline"):
        write_report(make_pipeline(StandardScaler(), DummyRegressor()), X, y, tmp_path / "r")
    with pytest.raises(NotFittedError, match=r"this GridSearchCV has no best_estimator_ .* refit=True"):
        write_report(GridSearchCV(CaGPRegressor(), {}), X, y, tmp_path / "r")
