"""Parameters of the regressors that steer a fit."""

import numpy as np
import pandas as pd
import pytest
import torch
from test_estimators import every_regressor, quick, table, used_by

from cagp import CaGPRegressor, ExactGPRegressor, load
from cagp.kernels import RBF, Linear, Matern32, Scale


@pytest.mark.thinned(2)
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


@pytest.mark.thinned(7)
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.thinned(3)
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
    cold = regressor(max_epochs=6).fit(X, y)
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
