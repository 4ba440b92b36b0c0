"""Regressors on tables of every type, and on rows that are odd."""

import numpy as np
import oracle
import pandas as pd
import pytest
import torch
from test_estimators import REGRESSORS, every_regressor, quick, table, used_by

from cagp import CaGPRegressor, ExactGPRegressor, SGPRRegressor, SVGPRegressor

# ---- types ----


@pytest.mark.slow
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
    same = quick().fit(X, np.asarray(make[kind](), dtype=np.float64)).predict(X, return_std=True)
    assert same[0].dtype == np.float64
    np.testing.assert_allclose(mean, same[0], rtol=1e-5, atol=1e-5)  # nothing but the last rounding differs
    np.testing.assert_allclose(std, same[1], rtol=1e-5)
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


@pytest.mark.thinned(3)
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


def test_rows_without_any_of_several_targets_are_left_out():
    X, y = table()
    Y = np.stack([y, -y], 1)
    Y[3] = np.nan
    model = quick().fit(X, Y)
    assert model.n_rows_ == 39
    assert model.target_rows_ == [39, 39]
    assert "Left out 1 of 40 rows, whose targets are all missing." in model.fit_report_
    Y[5:, 1] = Y[0, 1] = np.nan
    Y[1:5, 1] = [1.0, np.nan, np.nan, np.nan]
    with pytest.raises(ValueError, match="target 'y1' has 1 value, expected at least 2"):
        quick().fit(X, Y)


@pytest.mark.thinned(2)
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
    inputs, target = exact.posteriors_[0].X, (y - y.mean()) / y.std(ddof=1)

    def assert_exact(model, tolerance: float) -> None:
        """The answers are those of the exact GP with the model's hyperparameters, by the dense formula."""
        prior = model.posteriors_[0].prior
        dense = oracle.exact_posterior(prior, inputs, target, inputs)
        mean, std = model.predict(X, return_std=True)
        expected = y.std(ddof=1) * np.sqrt(dense.variance + oracle.noise_vector(prior.noise, 12))
        np.testing.assert_allclose(mean, y.mean() + y.std(ddof=1) * dense.mean, atol=tolerance)
        np.testing.assert_allclose(std, expected, atol=tolerance)

    assert_exact(exact, 1e-10)
    for method in ("opt", "cg", "local", "hybrid"):
        model = CaGPRegressor(method, **used_by(method, n_actions=500, n_neighbors=32), max_epochs=2).fit(X, y)
        assert np.isfinite(model.predict(X)).all()
        kind = model.predict(X, return_components=True)[1]
        np.testing.assert_allclose(kind["computational"], 0, atol=1e-8)
        assert_exact(model, 1e-10)
    assert_exact(SGPRRegressor(n_inducing=500, max_epochs=2).fit(X, y), 1e-4)  # a jitter makes the difference
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
