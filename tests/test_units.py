"""The user's units: tables are encoded once, answers are scaled back in one place, and shapes and types are kept."""

import numpy as np
import pandas as pd
import pytest
import torch

from cagp import CaGPRegressor, ExactGPRegressor
from cagp.data import Encoder
from cagp.estimators import EncodedTable, Units


def frame(num_rows: int = 50) -> tuple[pd.DataFrame, pd.Series]:
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"size": rng.normal(size=num_rows), "kind": rng.choice(["a", "b", "c"], num_rows)})
    return X, X["size"] * 3 + (X["kind"] == "a") + 0.1 * rng.normal(size=num_rows)


def test_training_rows_are_encoded_once(monkeypatch):
    X, y = frame()
    encoded = []
    codes = Encoder.codes

    def watch(self, table, *arguments):
        encoded.append(len(table))
        return codes(self, table, *arguments)

    monkeypatch.setattr(Encoder, "codes", watch)
    model = ExactGPRegressor(max_epochs=2).fit(X, y)
    assert encoded in ([], [len(X)])
    encoded.clear()
    model.predict(X[:5], return_std=True)
    assert encoded == [5]


def test_an_encoded_table_is_as_good_as_the_table():
    X, y = frame()
    table = EncodedTable(*Encoder.fit_codes(X))
    direct, encoded = (ExactGPRegressor(max_epochs=3).fit(rows, y) for rows in (X, table))
    assert encoded.n_features_in_ == direct.n_features_in_ == 2
    assert encoded.feature_names_in_.tolist() == direct.feature_names_in_.tolist()
    rows = np.arange(7)
    for left, right in ((direct, encoded), (encoded, direct)):
        for part in zip(
            left.predict(X.iloc[rows], return_std=True), right.predict(table.take(rows), return_std=True), strict=True
        ):
            np.testing.assert_array_equal(*part)


def test_every_quantity_scales_in_its_own_way():
    rng = np.random.default_rng(1)
    y = rng.normal(size=(30, 2)) * [2.0, 5.0] + [10.0, -3.0]
    units, rows = Units.learn(rng.normal(size=(30, 1)), y, None)
    np.testing.assert_allclose(units.scaler.target_std, y.std(0, ddof=1))
    standard = (y - y.mean(0)) / y.std(0, ddof=1)
    np.testing.assert_allclose(units.restore(standard), y)
    np.testing.assert_allclose(units.rescale(np.ones((1, 2))), [y.std(0, ddof=1)])
    np.testing.assert_allclose(units.rescale(np.ones((1, 2)), 2), [y.var(0, ddof=1)])
    joint = units.rescale(np.ones((3, 3, 2)), 2)
    np.testing.assert_allclose(joint, np.broadcast_to(y.var(0, ddof=1), (3, 3, 2)))
    assert rows.num_missing == 0


@pytest.mark.parametrize("method", ["exact", "local"])
def test_answers_without_noise(method):
    rng = np.random.default_rng(2)
    X = rng.uniform(size=(60, 1))
    y = np.stack([np.sin(6 * X[:, 0]), 5 * X[:, 0]], 1) + 0.2 * rng.normal(size=(60, 2))
    model = CaGPRegressor(method, max_epochs=10).fit(X, y)
    Z = rng.uniform(size=(9, 1))
    mean, std = model.predict(Z, return_std=True)
    same, latent = model.predict(Z, return_std=True, noise=False)
    np.testing.assert_array_equal(mean, same)
    np.testing.assert_allclose(latent**2 + model.noise_std(Z) ** 2, std**2, rtol=1e-9)
    covariance = model.predict(Z, return_cov=True, noise=False)[1]
    assert covariance.shape == (9, 9, 2)
    if method == "exact":
        np.testing.assert_allclose(covariance[np.arange(9), np.arange(9)], latent**2, rtol=1e-6)
    lower, upper = model.predict_interval(Z, 0.9, noise=False)
    np.testing.assert_allclose((upper - lower) / 2 / 1.6448536269514722, latent, rtol=1e-9)
    np.testing.assert_allclose(model.predict_quantiles(Z, 0.5, noise=False), mean, rtol=1e-9)
    wide, narrow = (model.sample_y(Z, 4000, noise=noise).std(-1) for noise in (True, False))
    assert (wide > narrow).all()
    known = model.sample_y(Z, 4000, sample_noise=np.full(9, 25.0)).std(-1)
    np.testing.assert_allclose(known, np.sqrt(std**2 + 25.0), rtol=0.1)
    with pytest.raises(ValueError, match="noise=False"):
        model.predict(Z, return_std=True, noise=False, sample_noise=np.ones(9))


def test_one_quantile_and_wrong_levels(annotations_off):
    X, y = frame()
    model = ExactGPRegressor(max_epochs=2).fit(X, y)
    one = model.predict_quantiles(X, 0.9)
    assert one.shape == (50,)
    np.testing.assert_array_equal(one, model.predict_quantiles(X, [0.9])[:, 0])
    with pytest.raises(ValueError, match=r"level is \[0.5, 0.9\], expected one probability"):
        model.predict_interval(X, level=[0.5, 0.9])
    for wrong in ([], [[0.5]], 1.5):
        with pytest.raises(ValueError, match="quantiles are"):
            model.predict_quantiles(X, wrong)


def test_weights_are_refused_with_a_hint():
    X, y = frame()
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'sample_weight'.*sample_noise"):
        ExactGPRegressor().fit(X, y, sample_weight=np.ones(50))
    with pytest.raises(TypeError, match="unexpected keyword argument 'weights'"):
        ExactGPRegressor().fit(X, y, weights=np.ones(50))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there():
    X, y = frame()
    with pytest.raises(ValueError, match="device is 'cuda', which this computer or this build of torch does not have"):
        ExactGPRegressor(device="cuda").fit(X, y)


@pytest.mark.parametrize(
    ("choices", "holds"),
    [
        ({"method": "exact"}, True),
        ({"method": "opt", "n_actions": 5}, True),
        ({"method": "cg", "n_actions": 5}, True),
        ({"method": "local", "n_neighbors": 4, "local_scale": None}, True),
        ({"method": "local", "n_neighbors": 4, "local_scale": 2.0}, False),
        ({"method": "sgpr", "n_inducing": 5}, False),
        ({"method": "svgp", "n_inducing": 5}, False),
    ],
)
def test_a_fitted_model_says_what_it_guarantees(choices, holds):
    """The sentence, and whether it is true: the latent variance against the exact one at the same hyperparameters."""
    X, y = frame(80)
    model = CaGPRegressor(**choices, max_epochs=5).fit(X, y)
    assert ("is never below" in model.guarantee_) == holds
    assert model.guarantee_ in model.fit_report_
    if "local_scale" in choices and not holds:
        assert "local_scale=None" in model.guarantee_
