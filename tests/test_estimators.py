"""The regressors as scikit-learn's users meet them: its contract, its tools, and errors that name what is wrong."""

import pickle
import warnings
from functools import partial

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from cagp import CaGPRegressor, CGGPRegressor, ExactGPRegressor, SGPRRegressor, SVGPRegressor
from cagp.estimators import Units, base
from cagp.estimators.target_kinds import Fit, Prepared
from cagp.estimators.units import TrainingRows
from cagp.kernels import RBF, Scale
from cagp.ranks import Ranks
from cagp.recipes.table import RECIPES, Recipe
from cagp.recipes.task import Task

SMALL = {"n_actions": 8, "n_neighbors": 8, "n_inducing": 8}


def used_by(method: str, **options) -> dict:
    """Those of the options that the method uses; the others would be an error."""
    return {name: value for name, value in options.items() if name in RECIPES[method].values}


def small(method: str):
    """A regressor of this method that is quick on a few rows."""
    return partial(CaGPRegressor, method=method, **used_by(method, **SMALL))


REGRESSORS = {
    **{method: small(method) for method in ("auto", "exact", "opt", "cg", "local", "hybrid")},
    "ExactGP": ExactGPRegressor,
    "SGPR": partial(SGPRRegressor, n_inducing=8),
    "SVGP": partial(SVGPRegressor, n_inducing=8),
    "CGGP": CGGPRegressor,
}
every_regressor = pytest.mark.parametrize("regressor", REGRESSORS.values(), ids=REGRESSORS)


def table(num_rows: int = 40, num_columns: int = 2, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """A smooth function of a few inputs, with noise."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(num_rows, num_columns))
    return X, np.sin(X.sum(1)) + 0.1 * rng.normal(size=num_rows)


def task_of(model, recipe: Recipe, units: Units, rows: TrainingRows) -> Task:
    """The task that a fit of the model trains the recipe on."""
    fit = Fit(model, model.random_state, Ranks.alone(), began=0.0)
    return base.task_of(fit, Prepared(units, rows, recipe, rows.num_rows))


def quick(**choices) -> ExactGPRegressor:
    return ExactGPRegressor(max_epochs=2, **choices)


# ---- scikit-learn ----


@pytest.mark.thinned(11)
@parametrize_with_checks([make(max_epochs=2) for name, make in REGRESSORS.items() if name != "exact"])
def test_scikit_learn_contract(estimator, check, annotations_off):
    with warnings.catch_warnings():
        # Some checks pass arrays to what was fitted to frames, some raise and catch what they look for.
        warnings.simplefilter("ignore")
        check(estimator)


@pytest.mark.thinned(3)
@every_regressor
def test_clone_and_pickle(regressor):
    X, y = table()
    model = regressor(max_epochs=2, random_state=3).fit(X, y)
    twin = clone(model)
    assert twin.get_params() == model.get_params()
    with pytest.raises(NotFittedError):
        twin.predict(X)
    mean, std = model.predict(X, return_std=True)
    for other in (pickle.loads(pickle.dumps(model)), twin.fit(X, y)):
        again = other.predict(X, return_std=True)
        np.testing.assert_array_equal(again[0], mean)
        np.testing.assert_array_equal(again[1], std)


def test_pipelines_searches_and_cross_validation():
    X, y = table(60)
    frame = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "c": np.where(X[:, 0] > 0, "up", "down")})
    columns = ColumnTransformer([("numbers", StandardScaler(), ["a", "b"]), ("text", OneHotEncoder(), ["c"])])
    by_hand = columns.fit_transform(frame)
    pipeline = make_pipeline(columns, quick()).fit(frame, y)
    np.testing.assert_array_equal(pipeline.predict(frame), quick().fit(by_hand, y).predict(by_hand))

    named = make_pipeline(StandardScaler().set_output(transform="pandas"), quick()).fit(frame[["a", "b"]], y)
    assert named[-1].feature_names_in_.tolist() == ["a", "b"]
    assert named.predict(frame[["a", "b"]]).shape == (60,)

    grid = {"n_neighbors": np.array([1, 16]), "kernel": ["rbf", "matern32"]}  # numbers of numpy are numbers
    search = GridSearchCV(CaGPRegressor(method="local", max_epochs=3), grid, cv=3).fit(X, y)
    assert search.best_params_["n_neighbors"] == 16
    assert search.best_score_ > 0.8

    folds = [(np.arange(30), np.arange(30, 60)), (np.arange(30, 60), np.arange(30))]
    across = cross_val_predict(quick(), X, y, cv=folds)
    for train, test in folds:
        np.testing.assert_array_equal(across[test], quick().fit(X[train], y[train]).predict(X[test]))


def test_frames_are_checked_by_name():
    X, y = table()
    frame = pd.DataFrame(X, columns=["left", "right"])
    model = quick().fit(frame, y)
    assert model.feature_names_in_.tolist() == model.feature_names_out_.tolist() == ["left", "right"]
    assert model.n_features_in_ == 2
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(frame[["right", "left"]])
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(frame.rename(columns={"left": "Left"}))
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        np.testing.assert_array_equal(model.predict(X), model.predict(frame))
    model.fit(X, y)
    with pytest.raises(ValueError, match="3 features, but ExactGPRegressor is expecting 2"):
        model.predict(np.ones((4, 3)))
    with pytest.raises(ValueError, match="Reshape your data"):
        model.predict(np.ones(2))
    assert not hasattr(model, "feature_names_in_")


def test_text_and_categories_become_inputs():
    rng = np.random.default_rng(1)
    frame = pd.DataFrame({"size": rng.normal(size=60), "kind": rng.choice(["a", "b", "c"], 60)})
    frame["flag"] = pd.Categorical(rng.choice(["no", "yes"], 60))
    y = frame["size"] + 2.0 * (frame["kind"] == "b") - (frame["flag"] == "yes")
    model = ExactGPRegressor(max_epochs=20).fit(frame, y)
    assert model.feature_names_out_.tolist() == ["size", "kind=a", "kind=b", "kind=c", "flag=yes"]
    assert model.lengthscales_.shape == (5,)
    assert model.score(frame, y) > 0.95
    with pytest.raises(ValueError, match="column 'kind' holds dates, at fit it held levels"):
        model.predict(frame.assign(kind=pd.Timestamp("2024-01-01")))


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"kernel": "cubic"}, "kernel is 'cubic', expected \"auto\", one of matern12"),
        ({"kernel": 3}, "kernel is a int"),
        ({"dtype": "float16"}, "dtype is 'float16'"),
        ({"device": "abacus"}, "device is 'abacus'"),
        ({"max_epochs": 0}, "max_epochs is 0"),
        ({"max_epochs": "many"}, "max_epochs is 'many'"),
        ({"max_time": "soon"}, "max_time is 'soon'"),
        ({"max_memory": "lots"}, "'lots'"),
        ({"method": "best"}, "method is 'best'"),
        ({"n_actions": 0}, 'n_actions is 0, expected a positive integer .or "auto"'),
        ({"n_actions": 2.5}, "n_actions is 2.5"),
        ({"n_neighbors": True}, "n_neighbors is True"),
        ({"local_scale": 0}, 'local_scale is 0, expected "auto", None or a positive number'),
        ({"local_scale": True}, "local_scale is True"),
        ({"local_scale": "never"}, "local_scale is 'never'"),
        ({"random_state": "today"}, "today"),
    ],
)
def test_wrong_parameters_are_named(choices, message, annotations_off):
    X, y = table()
    with pytest.raises(ValueError, match=message):
        CaGPRegressor(**choices).fit(X, y)


def test_wrong_arguments_are_named(annotations_off):
    X, y = table()
    with pytest.raises(ValueError, match="n_inducing is 0"):
        SGPRRegressor(n_inducing=0).fit(X, y)
    model = quick().fit(X, y)
    for wrong in (0, 1, -0.5, 95):
        with pytest.raises(ValueError, match="level is"):
            model.predict_interval(X, level=wrong)
        with pytest.raises(ValueError, match="quantiles are"):
            model.predict_quantiles(X, [0.5, wrong])
    with pytest.raises(ValueError, match="At most one of"):
        model.predict(X, return_std=True, return_cov=True)
    with pytest.raises(ValueError, match="40 rows and 1 target"):
        model.log_predictive_density(X, y[:-1])
    with pytest.raises(ValueError, match="2 missing values"):
        model.calibration(X, np.where(np.arange(40) < 2, np.nan, y))
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        model.fit(X, y[:-1])
    for noise in (-np.ones(40), np.full(40, np.nan), np.ones(39), np.ones((40, 2))):
        with pytest.raises(ValueError, match="sample_noise has"):
            model.fit(X, y, sample_noise=noise)
    kernel = Scale(RBF(3))
    with pytest.raises(ValueError, match="3"):
        quick(kernel=kernel).fit(X, y)


def test_joint_answers_of_many_rows_are_refused(monkeypatch):
    X, y = table()
    model = quick().fit(X, y)
    monkeypatch.setattr("cagp.estimators.fitted_model.COVARIANCE_ROWS", 39)
    with pytest.raises(ValueError, match="the limit is 39 rows"):
        model.predict(X, return_cov=True)
    with pytest.raises(ValueError, match="the limit is 39 rows"):
        model.sample_y(X)
