"""The regressors as scikit-learn's users meet them: its contract, its tools, types of data, and rows that are odd."""

import pickle
import warnings
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from cagp import CaGPRegressor, CGGPRegressor, ExactGPRegressor, SGPRRegressor, SVGPRegressor, load
from cagp.kernels import RBF, Linear, Matern32, Scale
from cagp.recipes import RECIPES

SMALL = {"n_actions": 8, "n_neighbors": 8, "n_inducing": 8}


def used_by(method: str, **options) -> dict:
    """Those of the options that the method uses; the others would be an error."""
    names = {option.name for option in RECIPES[method].options()}
    return {name: value for name, value in options.items() if name in names}


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


def quick(**choices) -> ExactGPRegressor:
    return ExactGPRegressor(max_epochs=2, **choices)


# ---- scikit-learn ----


@parametrize_with_checks([make(max_epochs=2) for name, make in REGRESSORS.items() if name != "exact"])
def test_scikit_learn_contract(estimator, check, annotations_off):
    with warnings.catch_warnings():
        # Some checks pass arrays to what was fitted to frames, some raise and catch what they look for.
        warnings.simplefilter("ignore")
        check(estimator)


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
    with pytest.raises(ValueError, match="column 'kind' has the level 'd'"):
        model.predict(frame.assign(kind="d"))


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"kernel": "cubic"}, "kernel is 'cubic', expected one of matern12"),
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
    monkeypatch.setattr("cagp.estimators.base.COVARIANCE_ROWS", 39)
    with pytest.raises(ValueError, match="the limit is 39 rows"):
        model.predict(X, return_cov=True)
    with pytest.raises(ValueError, match="the limit is 39 rows"):
        model.sample_y(X)


# ---- types ----


@pytest.mark.parametrize("regressor", [REGRESSORS["exact"], REGRESSORS["hybrid"]], ids=["exact", "hybrid"])
def test_every_kind_of_table_gives_the_same_answers(regressor):
    X, y = table(30)
    X = np.round(X * 8) / 8  # exact in float32 and as text
    Z = X[:7]
    model = regressor(max_epochs=2).fit(X, y)
    mean, std = model.predict(Z, return_std=True)
    assert isinstance(mean, np.ndarray)
    assert mean.dtype == std.dtype == np.float64
    read_only = X.copy()
    read_only.setflags(write=False)
    spread_out = np.empty((60, 4))
    spread_out[::2, ::2] = X
    for other in (
        X.tolist(),
        X.astype(np.float32),
        X.astype(object),
        np.asfortranarray(X),
        read_only,
        spread_out[::2, ::2],
        X[::-1].copy()[::-1],
        np.ma.array(X),
        pd.DataFrame(X),
        pd.DataFrame(X).astype("Float64"),
        pd.DataFrame(X).convert_dtypes(),
        torch.from_numpy(X),
        torch.from_numpy(X).to(torch.float16),
    ):
        twin = regressor(max_epochs=2).fit(other, y)
        again = twin.predict(other[:7], return_std=True)
        np.testing.assert_array_equal(np.asarray(again[0]), mean)
        np.testing.assert_array_equal(np.asarray(again[1]), std)
    for target in (y.tolist(), torch.from_numpy(y), pd.Series(y), y[::-1].copy()[::-1], y.astype(object)):
        np.testing.assert_array_equal(regressor(max_epochs=2).fit(X, target).predict(Z), model.predict(Z))


def test_numbers_that_are_not_floats():
    rng = np.random.default_rng(2)
    X = rng.integers(0, 2, size=(30, 3))
    y = rng.integers(0, 9, size=30)
    mean = quick().fit(X.astype(float), y.astype(float)).predict(X[:5].astype(float))
    np.testing.assert_array_equal(quick().fit(X.astype(bool), y.astype(np.int8)).predict(X[:5].astype(bool)), mean)
    np.testing.assert_array_equal(quick().fit(X.astype(np.uint8), y).predict(X[:5]), mean)
    boolean = quick().fit(X, y > 4).predict(X)
    assert boolean.dtype == np.float64
    assert np.isfinite(boolean).all()


def test_tensors_in_tensors_out():
    X, y = map(torch.from_numpy, table())
    model = quick().fit(X.requires_grad_(True), y)
    question = X[:3]
    answers = [
        model.predict(question),
        *model.predict(question, return_std=True),
        *model.predict(question, return_cov=True),
        model.predict(question, return_components=True)[1]["latent"],
        *model.predict_interval(question),
        model.predict_quantiles(question),
        model.sample_y(question, 4),
        model.log_predictive_density(question, y[:3]),
    ]
    assert all(isinstance(answer, torch.Tensor) and answer.dtype == torch.float64 for answer in answers)
    X = X.detach()
    np.testing.assert_array_equal(answers[0].numpy(), model.predict(X[:3].numpy()))
    model.fit(X, y.float())
    assert model.predict(X).dtype == torch.float32


@pytest.mark.parametrize("kind", ["array", "matrix", "series", "frame", "tensor"])
def test_float32_targets_give_float32_answers(kind):
    X, y = table()
    y = y.astype(np.float32)
    make = {
        "array": lambda: y,
        "matrix": lambda: np.stack([y, y + 1], 1),
        "series": lambda: pd.Series(y),
        "frame": lambda: pd.DataFrame({"a": y, "b": -y}),
        "tensor": lambda: torch.from_numpy(y),
    }
    model = quick().fit(X, make[kind]())
    mean, std = model.predict(X, return_std=True)
    assert mean.dtype == std.dtype == model.predict_quantiles(X).dtype == model.sample_y(X).dtype == np.float32
    assert model.predict(X, return_cov=True)[1].dtype == np.float64  # squares of units can leave float32's range
    mixed = pd.DataFrame({"a": y, "b": y.astype(np.float64)})
    assert quick().fit(X, mixed).predict(X).dtype == np.float64


def test_one_column_of_targets_stays_a_column():
    X, y = table()
    flat, column = quick().fit(X, y), quick().fit(X, y[:, None])
    Z = X[:5]
    mean, std = flat.predict(Z, return_std=True)
    assert mean.shape == std.shape == (5,)
    for answer, other in (
        (flat.predict(Z), column.predict(Z)),
        (std, column.predict(Z, return_std=True)[1]),
        (flat.predict_interval(Z)[0], column.predict_interval(Z)[0]),
        (flat.log_predictive_density(Z, y[:5]), column.log_predictive_density(Z, y[:5, None])),
        (flat.predict(Z, return_components=True)[1]["noise"], column.predict(Z, return_components=True)[1]["noise"]),
    ):
        np.testing.assert_array_equal(other, answer[:, None])
    np.testing.assert_array_equal(column.predict(Z, return_cov=True)[1], flat.predict(Z, return_cov=True)[1][..., None])
    assert column.predict_quantiles(Z, [0.1, 0.2, 0.3]).shape == (5, 1, 3)
    assert flat.predict_quantiles(Z, [0.1, 0.2, 0.3]).shape == (5, 3)
    assert column.sample_y(Z, 4).shape == (5, 1, 4)
    assert flat.sample_y(Z, 4).shape == (5, 4)
    # One row and one sample: no axis is mistaken for another.
    assert flat.predict(Z[:1], return_cov=True)[1].shape == (1, 1)
    assert flat.sample_y(Z[:1], 1).shape == flat.predict_quantiles(Z[:1], [0.5]).shape == (1, 1)


def test_names_of_targets():
    X, y = table()
    assert quick().fit(X, y).target_names_ == ("y",)
    assert quick().fit(X, pd.Series(y, name="depth")).target_names_ == ("depth",)
    assert quick().fit(X, np.stack([y, -y], 1)).target_names_ == ("y0", "y1")
    model = quick().fit(X, pd.DataFrame({"up": y, "down": -y}))
    assert model.target_names_ == ("up", "down")
    assert model.n_outputs_ == 2


# ---- rows that are odd ----


@every_regressor
def test_rows_without_target_are_left_out_and_reported(regressor):
    X, y = table(50)
    known = np.arange(50) % 5 > 0
    model = regressor(max_epochs=2).fit(X, np.where(known, y, np.nan))
    assert model.n_rows_ == 40
    assert model.fit_report_.startswith("Left out 10 of 50 rows, whose target is missing.")
    np.testing.assert_array_equal(model.predict(X), regressor(max_epochs=2).fit(X[known], y[known]).predict(X))
    noise = np.linspace(0.1, 0.2, 50)
    with_noise = regressor(max_epochs=2).fit(X, np.where(known, y, np.nan), sample_noise=noise).predict(X)
    twin = regressor(max_epochs=2).fit(X[known], y[known], sample_noise=noise[known])
    np.testing.assert_array_equal(with_noise, twin.predict(X))


def test_one_missing_target_of_several_leaves_the_row_out():
    X, y = table()
    Y = np.stack([y, -y], 1)
    Y[3, 1] = np.nan
    model = quick().fit(X, Y)
    assert model.n_rows_ == 39
    assert "Left out 1 of 40 rows" in model.fit_report_


def test_missing_inputs_are_named():
    X, y = table()
    frame = pd.DataFrame(X, columns=["left", "right"])
    frame.loc[4, "right"] = np.nan
    with pytest.raises(ValueError, match=r"column 'right' has 1 \(first at row 4\)"):
        quick().fit(frame, y)
    model = quick().fit(frame.fillna(0.0), y)
    with pytest.raises(ValueError, match=r"column 'right' has 1 \(first at row 4\)"):
        model.predict(frame)


@every_regressor
def test_few_odd_and_repeated_rows(regressor):
    X, y = table(12)
    repeated, constant = np.repeat(X[:4], 3, axis=0), np.column_stack([X, np.full(12, 7.0)])
    cases = {
        "two rows": (X[:2], y[:2]),
        "two equal rows": (X[[0, 0]], y[[0, 0]]),
        "three rows": (X[:3], y[:3]),
        "constant target": (X, np.full(12, -3.25)),
        "constant column": (constant, y),
        "nothing but constants": (np.ones((12, 2)), np.ones(12)),
        "duplicate rows": (repeated, y),
        "duplicate rows and targets": (repeated, np.repeat(y[:4], 3)),
        "no noise": (X, X[:, 0]),
    }
    for name, (inputs, target) in cases.items():
        epochs = 12 if regressor is ExactGPRegressor else 3  # L-BFGS goes far: to where a noise-free plane is singular
        model = regressor(max_epochs=epochs, random_state=1).fit(inputs, target)
        mean, std = model.predict(inputs, return_std=True)
        assert np.isfinite(mean).all(), name
        assert np.isfinite(std).all(), name
        assert (std > 0).all(), name
        if np.ptp(target) == 0:
            np.testing.assert_allclose(mean, target, rtol=1e-12, err_msg=name)
    for rows in (0, 1):
        with pytest.raises(ValueError, match=r"minimum of [12]"):
            regressor().fit(X[:rows], y[:rows])
    with pytest.raises(ValueError, match="n_samples=1 with a target"):
        regressor().fit(X, np.where(np.arange(12) == 5, y, np.nan))


def test_more_of_everything_than_there_are_rows():
    X, y = table(12)
    exact = ExactGPRegressor(max_epochs=2).fit(X, y)
    for method in ("opt", "cg", "local", "hybrid"):
        model = CaGPRegressor(method, **used_by(method, n_actions=500, n_neighbors=500), max_epochs=2).fit(X, y)
        assert np.isfinite(model.predict(X)).all()
        kind = model.predict(X, return_components=True)[1]
        np.testing.assert_allclose(kind["computational"], 0, atol=1e-8)
    for regressor in (SGPRRegressor, SVGPRegressor):
        assert np.isfinite(regressor(n_inducing=500, max_epochs=2).fit(X, y).predict(X)).all()
    assert exact.n_rows_ == 12


def test_what_is_infinitely_far_away_has_the_prior_answer():
    X, y = table()
    X = X * 1e-120
    far = np.full((2, 2), 1e149)
    for method in ("exact", "opt", "local", "hybrid", "cg"):
        for dtype in ("float32", "float64"):
            model = CaGPRegressor(method, **used_by(method, n_actions=8), max_epochs=2, dtype=dtype).fit(X, y)
            mean, std = model.predict(far, return_std=True)
            np.testing.assert_allclose(mean, y.mean(), rtol=1e-6)
            prior = model.posteriors_[0].prior
            variance = float(prior.kernel.outputscale + prior.noise.noise)
            np.testing.assert_allclose(std, y.std(ddof=1) * variance**0.5, rtol=1e-6)


# ---- parameters that steer a fit ----


@every_regressor
def test_the_same_random_state_gives_the_same_bits(regressor):
    X, y = table(60)
    first, second = (regressor(max_epochs=3, random_state=5).fit(X, y) for _ in range(2))
    np.testing.assert_array_equal(first.predict(X, return_std=True)[1], second.predict(X, return_std=True)[1])
    from_generator = [regressor(max_epochs=3, random_state=np.random.RandomState(5)).fit(X, y) for _ in range(2)]
    np.testing.assert_array_equal(from_generator[0].predict(X), from_generator[1].predict(X))


def test_random_state_matters_where_something_is_random():
    X, y = table(1500)
    seeds = [CaGPRegressor(method="local", max_epochs=2, random_state=seed).fit(X, y).predict(X) for seed in (0, 1)]
    assert not np.array_equal(*seeds)
    model = quick().fit(X[:20], y[:20])
    np.testing.assert_array_equal(model.sample_y(X[:3], 2, random_state=4), model.sample_y(X[:3], 2, random_state=4))
    assert not np.array_equal(model.sample_y(X[:3], 2, random_state=4), model.sample_y(X[:3], 2, random_state=5))


@every_regressor
def test_limits_of_epochs_and_time(regressor):
    X, y = table(30)
    assert len(regressor(max_epochs=4).fit(X, y).fit_result_.steps) <= 4
    model = regressor(max_time=1e-9).fit(X, y)
    assert len(model.fit_result_.steps) <= 1
    assert "time limit" in model.fit_report_


def calm_and_rough(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """A function of one input that varies ten times as much, noise included, beyond a half."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(size=(n, 1))
    return X, np.where(X[:, 0] > 0.5, 1.0, 0.1) * (np.sin(40 * X[:, 0]) + 0.3 * rng.normal(size=n))


@pytest.mark.parametrize("method", ["local", "hybrid", "auto"])
def test_error_bars_follow_the_neighbours_unless_one_scale_is_asked_for(method, tmp_path):
    X, y = calm_and_rough(2600)
    choices = {"method": method, **used_by(method, n_neighbors=16, n_actions=16), "max_epochs": 40}
    model = CaGPRegressor(**choices).fit(X, y)
    assert "Local scale: error bars follow the neighbours of each test point" in model.fit_report_
    calm, rough = np.array([[0.1], [0.2], [0.3]]), np.array([[0.7], [0.8], [0.9]])
    ratios = []
    for local_scale in ("auto", 1.0, None):
        fitted = CaGPRegressor(local_scale=local_scale, **choices).fit(X, y)
        ratios.append(
            fitted.predict(rough, return_std=True)[1].mean() / fitted.predict(calm, return_std=True)[1].mean()
        )
        assert ("Local scale" in fitted.fit_report_) == (local_scale == "auto")
    assert ratios[0] > 5
    assert 3 < ratios[1] <= ratios[0] + 1
    assert ratios[2] < 1.5
    for rows in (calm, rough):
        parts = model.predict(rows, return_components=True)[1]
        total = parts["noise"] + parts["latent"] + parts["computational"]
        np.testing.assert_allclose(total, model.predict(rows, return_std=True)[1] ** 2, rtol=1e-9)
        np.testing.assert_allclose(parts["noise"], model.noise_std(rows) ** 2, rtol=1e-9)
        assert (parts["computational"] >= 0).all()
    assert model.noise_std(rough).min() > model.noise_std_ > model.noise_std(calm).max()
    model.save(tmp_path / "model.cagp")
    again = load(tmp_path / "model.cagp")
    assert again.get_params()["local_scale"] == "auto"
    np.testing.assert_array_equal(again.predict(X, return_std=True), model.predict(X, return_std=True))


def test_each_target_has_a_local_scale_of_its_own():
    X, y = calm_and_rough(600)
    rng = np.random.default_rng(1)
    model = CaGPRegressor("local", n_neighbors=16, max_epochs=60)
    model.fit(X, np.column_stack([y, np.sin(9 * X[:, 0]) + 0.3 * rng.normal(size=600)]))
    varied, even = (posterior.local_scale for posterior in model.posteriors_)
    assert varied is not None
    assert even is None or even > varied
    assert model.fit_report_.count("each predicted from others") == 2


def test_an_epoch_of_minibatches_is_a_pass_over_the_rows():
    X, y = table(2500)
    model = CaGPRegressor(method="local", n_neighbors=4, max_epochs=2).fit(X, y)
    assert len(model.fit_result_.steps) == 5  # of 1,024 rows each


def test_many_rows_start_from_neighbours():
    X, y = table(2100)
    model = CaGPRegressor(method="opt", n_actions=16, n_neighbors=8, max_epochs=3).fit(X, y)
    assert "those that CaGP-Local learned in 6 steps" in model.fit_report_  # three passes over the rows
    assert len(model.fit_result_.steps) == 3
    assert "210 rows were held out to choose the step and the noise, which is" in model.fit_report_
    assert "predictions use the other 1,890." in model.fit_report_
    assert len(model.posteriors_[0].X) == 1890
    # Blocks are cut once, in units of these lengthscales.
    assert not any(step.events for step in model.fit_result_.steps)
    again = CaGPRegressor(method="opt", n_actions=16, n_neighbors=8, max_epochs=3, kernel=Matern32(X.shape[1]))
    assert "CaGP-Local" not in again.fit(X, y).fit_report_  # a kernel object starts where its owner put it
    single = CaGPRegressor(method="opt", n_actions=16, n_neighbors=8, max_epochs=3, dtype="float32").fit(X, y)
    np.testing.assert_allclose(single.lengthscales_, model.lengthscales_, rtol=1e-2)
    late = CaGPRegressor(method="opt", n_actions=16, max_time=1e-9).fit(X, y)
    assert len(late.fit_result_.steps) == 1


def test_held_out_rows_end_a_fit_that_no_longer_gains_and_set_a_noise_for_each_target():
    """Noise-free targets and few actions: the loss asks for more noise than predictions need."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, size=(2100, 1))
    y = np.column_stack([np.sin(5 * X[:, 0]), np.cos(4 * X[:, 0]) + 0.3 * rng.normal(size=2100)])
    known = np.column_stack([np.zeros(2100), np.full(2100, 0.01)])
    model = CaGPRegressor(method="opt", n_actions=16, n_neighbors=8, max_epochs=150)
    report = model.fit(X, y, sample_noise=known).fit_report_
    smooth, noisy = (float(word) for word in report.split("noise, which is ")[1].split(" times")[0].split(" and "))
    assert smooth < 0.75
    assert 0.7 < noisy < 1.5
    assert 0.25 < model.noise_std_[1] < 0.35
    assert len(model.fit_result_.steps) <= 150
    assert model.score(X, y) > 0.9


def test_verbose_shows_progress_and_report(capsys):
    X, y = table(30)
    model = CaGPRegressor(method="opt", n_actions=4, max_epochs=3, verbose=True).fit(X, y)
    shown = capsys.readouterr()
    assert model.fit_report_ in shown.out
    assert "3/3 steps" in shown.err
    quick().fit(X, y)
    assert capsys.readouterr() == ("", "")


@every_regressor
def test_warm_start_begins_where_the_last_fit_ended(regressor):
    X, y = table(40)
    model = regressor(max_epochs=6, warm_start=True).fit(X, y)
    noise, lengthscales, loss = model.noise_std_, model.lengthscales_, model.fit_result_.steps[0].loss
    model.set_params(max_epochs=1).fit(X, y)
    started = model.fit_result_.steps[0].hyperparameters
    np.testing.assert_allclose(started["kernel.kernel.lengthscale"], lengthscales, rtol=1e-12)
    np.testing.assert_allclose(np.sqrt(started["noise.noise"]) * y.std(ddof=1), noise, rtol=1e-9)
    assert model.fit_result_.steps[0].loss < loss
    cold = regressor(max_epochs=1).fit(X, y)
    assert cold.fit_result_.steps[0].loss == loss


def test_warm_start_needs_the_same_kernel_and_columns():
    X, y = table(30)
    start = quick().fit(X, y).fit_result_.steps[0].hyperparameters
    model = quick(warm_start=True).fit(X, y)
    for changed, inputs, target in (("rbf", X, y), ("matern32", X[:, :1], y), ("matern32", X, np.stack([y, -y], 1))):
        model.set_params(kernel=changed).fit(inputs, target)
        if inputs is X:
            begun = model.fit_result_.steps[0].hyperparameters
            np.testing.assert_allclose(begun["kernel.kernel.lengthscale"], start["kernel.kernel.lengthscale"])
        model.set_params(kernel="matern32").fit(X, y)


def test_a_kernel_object_starts_where_it_is_and_stays_so():
    X, y = table()
    kernel = Scale(RBF(2, [0.7, 1.3]), 0.9) + Linear(2)
    kernel.parts[0].kernel.raw_lengthscale.requires_grad_(False)
    before = {name: value.clone() for name, value in kernel.state_dict().items()}
    model = ExactGPRegressor(kernel, max_epochs=3, warm_start=True).fit(X, y)
    for name, value in kernel.state_dict().items():
        assert torch.equal(value, before[name]), name
    np.testing.assert_allclose(model.lengthscales_, [0.7, 1.3], rtol=1e-12)  # what is frozen is not learned
    np.testing.assert_allclose(model.fit(X, y).lengthscales_, [0.7, 1.3], rtol=1e-12)
    learned = model.posteriors_[0].prior.kernel.parts[1].variance
    assert not torch.equal(learned, kernel.parts[1].variance)
    assert np.isnan(ExactGPRegressor(Linear(2), max_epochs=1).fit(X, y).lengthscales_).all()


def test_the_report_names_columns_that_hardly_matter():
    generator = np.random.default_rng(3)
    table = pd.DataFrame(generator.normal(size=(80, 2)), columns=["depth", "colour"])
    y = np.sin(table["depth"]) + 0.01 * generator.normal(size=80)
    report = CaGPRegressor("exact", max_epochs=60).fit(table, y).fit_report_
    assert "1 of 2 inputs hardly matter" in report
    assert ": colour." in report
