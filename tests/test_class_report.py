"""The page on a classifier, and what else users of classes meet: weights, trees of several classes."""

import re

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import average_precision_score, roc_auc_score

from cagp import CaGPClassifier, load
from cagp.class_metrics import class_scores
from cagp.report import write_class_report
from cagp.trees import fit_trees


def frame(num_rows: int = 260, num_classes: int = 2) -> tuple[pd.DataFrame, pd.Series]:
    rng = np.random.default_rng(num_classes)
    X = pd.DataFrame({"size": rng.normal(size=num_rows), "dust": rng.normal(size=num_rows)})
    X["place"] = np.where(rng.random(num_rows) < 0.5, "north", "south")
    cuts = [0.0] if num_classes == 2 else [-0.6, 0.6]
    codes = np.digitize(X["size"] + 0.3 * rng.normal(size=num_rows), cuts)
    return X, pd.Series(np.array(["<low>", "mid", "high"])[codes], name="level")


@pytest.mark.parametrize("num_classes", [2, 3])
def test_the_page_has_the_scores_the_curves_and_the_worst_rows(num_classes, tmp_path):
    X, y = frame(num_classes=num_classes)
    model = CaGPClassifier("local", n_neighbors=20, mean="zero", max_epochs=15).fit(X[:200], y[:200])
    path = model.report(X[200:], y[200:].where(X.index[200:] != 210), tmp_path / "new" / "report.html")
    page = path.read_text(encoding="utf-8")
    kept = [row for row in range(200, 260) if row != 210]
    p = model.predict_proba(X.iloc[kept])
    codes = np.searchsorted(model.classes_, y.iloc[kept])
    found = class_scores(codes, p)
    assert f"On 59 test rows, {100 * (1 - found.error):.1f}" in page.replace("\N{NO-BREAK SPACE}", " ")
    assert "1 row without a label was left out" in re.sub(r"\s+", " ", page)
    for value in (found.log_loss, found.brier):
        assert f"{value:.4f}"[:5] in page
    assert f"{roc_auc_score(codes == 1, p[:, 1]):.4f}" in page
    assert f"{average_precision_score(codes == 1, p[:, 1]):.4f}" in page
    wrong = [row for row, best in zip(kept, p.argmax(1), strict=True) if model.classes_[best] != y[row]]
    worst = min(wrong, key=lambda row: p[kept.index(row), codes[kept.index(row)]])
    section = page[page.index('id="worst"') : page.index('id="importance"')]
    assert re.findall(r"<bdi>(\d+)</bdi>", section)[0] == str(worst)
    assert "<low>" not in page  # names are escaped
    assert "&lt;low&gt;" in page
    important = page[page.index('id="importance"') : page.index('id="relevance"')]
    assert re.findall(r'scope="row"><bdi>(\w+)</bdi>', important)[0] == "size"
    assert "<script" not in page


def test_reports_that_cannot_be_written(tmp_path):
    X, y = frame(120)
    model = CaGPClassifier("local", n_neighbors=10, mean="zero", max_epochs=2).fit(X[:80], y[:80])
    with pytest.raises(ValueError, match=r"is the folder"):
        model.report(X[80:], y[80:], tmp_path)
    with pytest.raises(ValueError, match=r"labels that fit has not seen .first 'other'"):
        model.report(X[80:], ["other"] * 40, tmp_path / "a.html")
    with pytest.raises(ValueError, match=r"no row with all of its targets or labels"):
        model.report(X[80:], [None] * 40, tmp_path / "a.html")
    with pytest.raises(ValueError, match=r"y_test has 39 rows and 1 column\(s\), expected 40"):
        write_class_report(model, X[80:], y[80:119], tmp_path / "a.html")
    assert not list(tmp_path.iterdir())


def test_class_weights_move_probabilities_as_copies_of_rows_would():
    X, y = frame(300)
    options = {"method": "local", "n_neighbors": 16, "mean": "zero", "max_epochs": 20}
    plain = CaGPClassifier(**options).fit(X, y)
    heavy = CaGPClassifier(**options, class_weight={"mid": 20.0}).fit(X, y)
    place = list(plain.classes_).index("mid")
    assert heavy.predict_proba(X)[:, place].mean() > plain.predict_proba(X)[:, place].mean() + 0.05
    far = X.assign(size=1e6, dust=1e6)[:1]
    count = (y == "mid").sum()
    share = 20 * count / (20 * count + len(y) - count)
    log_odds = heavy.offsets_[0] if place == 1 else -heavy.offsets_[0]
    assert log_odds == pytest.approx(np.log(share / (1 - share)))
    balanced = CaGPClassifier(**options, class_weight="balanced").fit(X, y)
    assert balanced.offsets_ == pytest.approx([0.0], abs=1e-9)
    np.testing.assert_allclose(balanced.predict_proba(far), 0.5, atol=1e-6)


def test_weights_are_saved_with_the_model(tmp_path):
    X, y = frame(120, 3)
    model = CaGPClassifier("local", n_neighbors=10, mean="zero", max_epochs=3, class_weight="balanced").fit(X, y)
    again = load(model.save(tmp_path / "model.cagp"))
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    assert again.get_params()["class_weight"] == "balanced"


@pytest.mark.parametrize(
    ("class_weight", "words"),
    [
        ("even", 'expected None, "balanced" or a dict'),
        ({"huge": 2.0}, "a weight for 'huge', which is no class"),
        ({"mid": 0.0}, "expected positive numbers"),
    ],
)
def test_wrong_class_weights(class_weight, words):
    X, y = frame(60)
    with pytest.raises(ValueError, match=words):
        CaGPClassifier("local", class_weight=class_weight).fit(X, y)


def test_trees_of_several_classes_are_stored_one_by_one(tmp_path):
    X, y = frame(400, 3)
    inputs, codes = X[["size", "dust"]].to_numpy(), np.unique(y, return_inverse=True)[1]
    indicators = (codes[:, None] == np.arange(3)).astype(float)
    found = fit_trees(inputs, indicators, objective="multiclass")
    assert found.trees.num_targets == 3
    p = np.exp(found.mean) / np.exp(found.mean).sum(1, keepdims=True)
    shares = np.broadcast_to(indicators.mean(0), p.shape)
    assert class_scores(codes, p).log_loss < 0.6 * class_scores(codes, shares).log_loss
    assert (found.trees.mean(inputs).argmax(1) == codes).mean() > 0.85
    model = CaGPClassifier("local", n_neighbors=16, mean="trees", max_epochs=5).fit(X, y)
    again = load(model.save(tmp_path / "model.cagp"))
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    assert (model.predict(X) == y).mean() > 0.85
