"""The classifier as scikit-learn's users meet it: its contract, probabilities, labels of any type, files, bad input."""

import pickle
import re
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.calibration import calibration_curve
from sklearn.exceptions import NotFittedError
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process import kernels as sklearn_kernels
from sklearn.metrics import accuracy_score, brier_score_loss
from sklearn.metrics import log_loss as sklearn_log_loss
from sklearn.utils.estimator_checks import parametrize_with_checks

from cagp import CaGPClassifier, load
from cagp.class_metrics import class_scores, reliability
from cagp.estimators.target_kinds import Labels
from cagp.kernels import RBF, Scale
from cagp.recipes.table import methods_for
from cagp.saved_summary import saved_summary
from cagp.storage import load_state, save_state

OPTIONS = {
    "exact": {},
    "local": {"n_neighbors": 8},
    "hybrid": {"n_neighbors": 8, "n_actions": 8},
    "opt": {"n_actions": 16},
    "cg": {"n_actions": 8},
}


def table(num_rows: int = 80, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(num_rows, 2))
    f = 3 * np.sin(1.5 * X[:, 0]) + 2 * X[:, 1]
    return X, np.where(rng.random(num_rows) < 1 / (1 + np.exp(-f)), "yes", "no")


def three_classes(num_rows: int = 80) -> tuple[np.ndarray, np.ndarray]:
    X, _ = table(num_rows)
    return X, np.digitize(X[:, 0] + 0.3 * np.random.default_rng(1).normal(size=num_rows), [-0.5, 0.5])


def quick(method: str = "local", **choices) -> CaGPClassifier:
    return CaGPClassifier(method, max_epochs=3, **OPTIONS[method], **choices)


@pytest.mark.thinned(26)
@parametrize_with_checks([quick("local")])
def test_scikit_learn_contract(estimator, check, annotations_off):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(estimator)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("method", OPTIONS)
def test_every_method_learns_and_is_saved_to_the_bit(method, tmp_path):
    X, y = table(160)
    model = CaGPClassifier(method, max_epochs=20, **OPTIONS[method]).fit(X[:100], y[:100])
    assert model.method_ == method
    found = model.scores(X[100:], y[100:])
    share = max((y[:100] == "yes").mean(), (y[:100] == "no").mean())
    assert found.log_loss < 0.75 * -(share * np.log(share) + (1 - share) * np.log(1 - share))
    path = model.save(tmp_path / "model.cagp")
    again = load(path)
    assert isinstance(again, CaGPClassifier)
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    assert again.fit_report_ == model.fit_report_
    summary = saved_summary(path)
    assert summary["classes"] == ["no", "yes"]
    assert summary["guarantee"] == model.guarantee_
    assert "Given the sites" in model.guarantee_


def test_auto_is_exact_for_few_rows():
    X, y = table(60)
    assert CaGPClassifier(max_epochs=2).fit(X, y).method_ == "exact"
    assert methods_for("classes") == ("auto", "exact", "opt", "cg", "local", "hybrid")


def test_at_its_own_hyperparameters_scikit_learn_agrees():
    X, y = table(120)
    kernel = Scale(RBF(2, torch.tensor([1.2, 0.8])), 3.0)
    model = CaGPClassifier("exact", kernel=kernel, max_epochs=1).fit(X, y)
    (part,) = model.kernel_parts_
    standard = (X - X.mean(0)) / X.std(0)
    theirs = sklearn_kernels.ConstantKernel(part["outputscale"]) * sklearn_kernels.RBF(model.lengthscales_)
    known = GaussianProcessClassifier(theirs, optimizer=None).fit(standard, y)
    # Theirs has no offset and is Laplace's approximation, ours is variational.
    np.testing.assert_allclose(model.predict_proba(X)[:, 1], known.predict_proba(standard)[:, 1], atol=0.06)


def test_probabilities_sum_to_one_and_agree_with_decisions():
    for X, y in (table(), three_classes()):
        model = quick().fit(X, y)
        p, log_p, decision = model.predict_proba(X), model.predict_log_proba(X), model.decision_function(X)
        np.testing.assert_allclose(p.sum(1), 1, rtol=1e-12)
        np.testing.assert_allclose(np.log(p), log_p, atol=1e-12)
        np.testing.assert_array_equal(model.predict(X), model.classes_[p.argmax(1)])
        odds = np.log(p / (1 - p))
        np.testing.assert_allclose(decision, odds[:, 1] if p.shape[1] == 2 else odds, rtol=1e-6, atol=1e-6)
        far = model.predict_proba(1e6 + np.zeros((1, 2)))
        assert far.max() < 0.8  # far from all rows nothing is known


def test_labels_of_any_type_come_back():
    X, _ = table(60)
    codes = (X[:, 0] > 0).astype(int)
    for classes in (
        np.array(["a", "b"]),
        np.array(["no way", "yes"], dtype=object),
        np.array([False, True]),
        np.array([-3, 7]),
        np.array([0.5, 1.5]).round(0),
    ):
        y = classes[codes]
        model = quick().fit(X, y)
        assert model.predict(X).dtype == y.dtype
        np.testing.assert_array_equal(model.classes_, np.unique(y))
        labels = Labels(model.classes_, "y")
        np.testing.assert_array_equal(Labels.from_state(labels.state()).classes, model.classes_)
        assert (model.predict(X) == y).mean() > 0.8
    frame = pd.DataFrame({"size": X[:, 0], "shop": np.where(X[:, 1] > 0, "north", None)})
    label = pd.Series(np.where(codes == 1, "big", "small"), dtype="category")
    model = quick().fit(frame, label)  # text, missing values, categories
    assert (model.predict(frame) == label).mean() > 0.8
    assert list(model.feature_names_in_) == ["size", "shop"]
    unseen = model.predict_proba(frame.assign(shop="south"))
    assert np.isfinite(unseen).all()
    np.testing.assert_array_equal(quick().fit(torch.from_numpy(X), torch.from_numpy(codes)).classes_, [0, 1])


def test_clone_pickle_and_random_state():
    X, y = table()
    model = quick(random_state=3).fit(X, y)
    twin = clone(model)
    with pytest.raises(NotFittedError):
        twin.predict(X)
    for other in (pickle.loads(pickle.dumps(model)), twin.fit(X, y)):
        np.testing.assert_array_equal(other.predict_proba(X), model.predict_proba(X))


def test_trees_in_the_mean(tmp_path):
    X, y = table(300)
    model = quick(mean="trees").fit(X, y)
    assert model.trees_ is not None
    assert model.offsets_ == [0.0]
    assert "boosted trees" in model.fit_report_
    again = load(model.save(tmp_path / "trees.cagp"))
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    # The prior mean is the log odds of the trees: far from all rows their probability is damped, with the same sign.
    p, log_odds = model.predict_proba(X)[:, 1], model.trees_.mean(model.fitted.points(X).inputs)[:, 0]
    assert np.corrcoef(np.log(p / (1 - p)), log_odds)[0, 1] > 0.95


def test_a_killed_fit_resumes(tmp_path):
    X, y = table()
    whole = quick().fit(X, y)
    first = quick(checkpoint_dir=tmp_path).fit(X, y)
    assert any(tmp_path.rglob("checkpoint*"))
    resumed = quick(checkpoint_dir=tmp_path).fit(X, y)
    for model in (first, resumed):
        np.testing.assert_array_equal(model.predict_proba(X), whole.predict_proba(X))


def test_a_time_limit_is_kept():
    X, y = table(400)
    model = CaGPClassifier("local", max_time=1.0).fit(X, y)
    assert len(model.fit_result_.steps) < 100 or model.fit_result_.seconds < 1.0
    assert np.isfinite(model.predict_proba(X)).all()


# --- bad input ---


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (lambda y: np.full(len(y), "yes"), "one class, 'yes', in all 80 rows"),
        (lambda y: np.where(np.arange(len(y)) == 3, None, y), "1 labels are missing .first in row 3."),
        (lambda y: np.where(np.arange(len(y)) == 5, np.nan, (y == "yes").astype(float)), "Input y contains NaN"),
        (lambda y: np.linspace(0, 1, len(y)), "Unknown label type"),
        (
            lambda y: np.array([1 if v == "yes" else v for v in y], dtype=object),
            "labels of types that cannot be sorted",
        ),
        (lambda y: y[:-1], "inconsistent numbers of samples"),
        (lambda y: None, "requires y to be passed"),
    ],
)
def test_labels_that_cannot_be_learned(labels, words):
    X, y = table()
    with pytest.raises((ValueError, TypeError), match=words):
        quick().fit(X, labels(y))


def test_wrong_parameters_and_labels_at_scoring():
    X, y = table()
    for choices, words in (
        ({"method": "svgp"}, "expected one of auto, exact, opt, cg, local, hybrid"),
        ({"likelihood": "poisson"}, "expected one of logit, probit"),
        ({"method": "exact", "n_neighbors": 8}, "does not use it"),
        ({"n_neighbors": 0}, "expected a positive integer"),
        ({"mean": "forest"}, "mean is"),
    ):
        with pytest.raises(ValueError, match=words):
            CaGPClassifier(**choices).fit(X, y)
    with pytest.raises(TypeError, match="sample_weight"):
        quick().fit(X, y, sample_weight=np.ones(len(y)))
    model = quick().fit(X, y)
    with pytest.raises(ValueError, match=r"1 labels that fit has not seen .first 'maybe' in row 0"):
        model.scores(X[:2], ["maybe", "yes"])


def test_damaged_labels_in_a_file_are_refused(tmp_path):
    X, y = table(60)
    path = quick().fit(X, y).save(tmp_path / "model.cagp")
    assert load_state(path, "cagp model", 1, tensors=False)["likelihood"]["labels"]["classes"]["values"] == [
        "no",
        "yes",
    ]
    for values in (
        {"dtype": "str", "values": ["no"]},
        {"dtype": "str", "values": ["no", "no"]},
        {"dtype": "object", "values": [1, 2]},
        {"dtype": "int8", "values": [1, 1000]},
        {"dtype": "str", "values": ["a", "b", "c"]},
        {"offsets": [float("inf")]},
        {"offsets": []},
        {"name": "probit"},
        {"labels": None},
    ):
        state = load_state(path, "cagp model", 1)
        change = values if "dtype" not in values else {"labels": {"classes": values, "target": "y"}}
        state["likelihood"] = {**state["likelihood"], **change}
        broken = tmp_path / "broken.cagp"
        save_state(broken, state, "cagp model", 1)
        with pytest.raises(ValueError, match=r"broken\.cagp"):
            load(broken)


# --- scores ---


def test_scores_are_those_of_scikit_learn():
    rng = np.random.default_rng(4)
    p = rng.random((400, 1))
    p = np.concatenate([1 - p, p], axis=1)
    codes = (rng.random(400) < p[:, 1] ** 2).astype(int)
    found = class_scores(codes, p)
    assert found.log_loss == pytest.approx(sklearn_log_loss(codes, p))
    assert found.error == pytest.approx(1 - accuracy_score(codes, p.argmax(1)))
    assert found.brier == pytest.approx(2 * brier_score_loss(codes, p[:, 1]))
    observed, predicted = calibration_curve(codes, p[:, 1], n_bins=15)
    bins = reliability(codes, p)
    np.testing.assert_allclose(bins.observed, observed)
    np.testing.assert_allclose(bins.predicted, predicted)
    assert found.calibration_error == pytest.approx(np.abs(observed - predicted) @ bins.count / 400)
    many = rng.dirichlet([1, 1, 1], 300)
    truth = rng.integers(0, 3, 300)
    assert class_scores(truth, many).log_loss == pytest.approx(sklearn_log_loss(truth, many))


def test_auto_compares_prior_means_on_held_out_rows(monkeypatch):
    monkeypatch.setattr("cagp.recipes.train.COMPARED_FROM", 300)
    monkeypatch.setattr("cagp.recipes.train.COMPARED_ROWS", 350)
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(400, 6))
    steps = (X[:, 0] > 0.5) ^ (X[:, 1] > 0.3)  # a jump that trees find, and smooth functions do not
    model = quick().fit(X, np.where(rng.random(400) < 0.95, steps, ~steps))
    assert "35 held-out rows" in model.choice_
    assert model.choice_ in model.fit_report_
    losses = [float(text) for text in re.findall(r"is (0\.\d+) with zero, (0\.\d+) with", model.choice_)[0]]
    assert (model.trees_ is not None) == (losses[1] < losses[0])
    assert quick(mean="zero").fit(X, steps).choice_ is None
