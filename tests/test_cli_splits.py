"""``--split`` in fit, evaluate and compare: the rows that are tested, what is printed, and what is refused."""

import json

import numpy as np
import pandas as pd
import pytest
from cli_problems import usage_error

from cagp.cli import main
from cagp.data import split
from cagp.estimators import load

NUM_ROWS = 150


def visits():
    """Some visits of each of 25 patients, in any order; the target depends on the patient."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"patient": rng.permutation(np.repeat(np.arange(25), 6)), "dose": rng.uniform(0, 9, NUM_ROWS)})
    frame["day"] = pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 90, NUM_ROWS), unit="D")
    frame["ward"] = rng.choice(["A", "B"], NUM_ROWS)
    frame["score"] = np.sin(frame["dose"]) + rng.normal(size=25)[frame["patient"]] + 0.1 * rng.normal(size=NUM_ROWS)
    return frame


@pytest.fixture
def path(tmp_path):
    visits().to_csv(tmp_path / "visits.csv", index=False)
    return tmp_path / "visits.csv"


def fit(path, *more, columns=("--target", "score")):
    out = str(path.parent / "model.cagp")
    return main(["fit", str(path), *columns, "--out", out, "--method", "exact", "--max-epochs", "3", *more])


def trained_on(path, column):
    """The values of an input in the training rows of the model."""
    model = load(path.parent / "model.cagp")
    place = list(model.feature_names_out_).index(column)
    scaler = model.scaler_
    return model.posteriors_[0].X[:, place].numpy() * float(scaler.input_std[place]) + float(scaler.input_mean[place])


def test_the_latest_rows_are_tested(path, capsys):
    assert fit(path, "--split", "time:day", "--test-fraction", "0.2", "--json") == 0
    shown = capsys.readouterr()
    record = json.loads(shown.out)
    days = (visits()["day"] - pd.Timestamp("1970-01-01")).dt.days
    assert record["split"] == "time:day"
    assert "day" in record["inputs"]
    assert trained_on(path, "day").max() + 0.5 < days[days > trained_on(path, "day").max() + 0.5].min()
    assert record["test_rows"] == int((days > trained_on(path, "day").max() + 0.5).sum())
    assert abs(record["test_rows"] - 30) <= days.value_counts().max()
    assert "to test on: the latest by day, which is also an input." in shown.err


def test_whole_groups_are_tested_and_their_column_is_no_input(path, capsys):
    assert fit(path, "--split", "group:patient", "--test-fraction", "0.2", "--seed", "3") == 0
    shown = capsys.readouterr().out
    assert "3 inputs (dose, day, ward)" in shown
    assert "120 to train on, 30 to test on: other groups of patient (seed 3), which is not an input." in shown
    frame = visits()
    rows = split(NUM_ROWS, 0.2, 3, group=frame["patient"])
    trained = trained_on(path, "dose")
    np.testing.assert_allclose(trained, frame["dose"].iloc[rows.train.numpy()], rtol=1e-12)
    assert not set(frame["patient"].iloc[rows.train.numpy()]) & set(frame["patient"].iloc[rows.test.numpy()])


@pytest.mark.parametrize("rule", ["random", "time:day", "group:patient"])
def test_evaluate_measures_the_rows_that_fit_held_out(rule, path, capsys):
    options = ["--split", rule, "--test-fraction", "0.3", "--seed", "5"]
    assert fit(path, *options, "--json", "--quiet") == 0
    held_out = json.loads(capsys.readouterr().out)
    assert main(["evaluate", str(path.parent / "model.cagp"), str(path), *options, "--json", "--quiet"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["rows"] == held_out["test_rows"]
    for name, score in held_out["metrics"]["score"]["model"].items():
        assert found["metrics"]["score"]["model"][name] == pytest.approx(score, rel=1e-9), name
    assert found["split"] == rule
    assert found["rows_with_inputs_of_training_rows"] == 0


def test_evaluate_warns_on_training_rows(path, capsys):
    assert fit(path, "--quiet") == 0
    capsys.readouterr()
    assert main(["evaluate", str(path.parent / "model.cagp"), str(path), "--rows-at-a-time", "40"]) == 0
    warning = capsys.readouterr().err
    assert "cagp: warning: Nearly all of these rows, or copies of them, were used in training." in warning
    assert main(["evaluate", str(path.parent / "model.cagp"), str(path), "--split", "random"]) == 0
    shown = capsys.readouterr()
    assert "on 15 rows of" in shown.out
    assert "that --split random holds out" in shown.out
    assert "warning" not in shown.err


def test_compare_follows_the_split(path, capsys):
    picture = str(path.parent / "compare.png")
    options = ["--split", "group:patient", "--methods", "exact", "--max-epochs", "2", "--out", picture]
    assert main(["compare", str(path), "--target", "score", *options, "--json"]) == 0
    shown = capsys.readouterr()
    record = json.loads(shown.out)
    assert (record["train_rows"], record["test_rows"], record["split"]) == (138, 12, "group:patient")
    assert "other groups of patient (seed 0), which is not an input." in shown.err


def test_a_dropped_column_of_groups_gives_a_warning_for_random_rows_alone(path, capsys):
    for rule, expected in (("random", True), ("group:patient", False), ("time:day", False)):
        assert fit(path, "--split", rule, "--drop", "patient", "--quiet") == 0
        shown = capsys.readouterr().err
        words = "100 % of the test rows have a value of patient that training rows have, too."
        assert (words in shown and "--split group:patient" in shown) == expected
        assert expected or "warning" not in shown


def test_copies_of_rows_give_a_warning_and_a_report_with_one(path, capsys):
    frame = visits()
    pd.concat([frame, frame[:60]]).to_csv(path, index=False)
    report = path.parent / "report.html"
    assert fit(path, "--quiet", "--report", str(report)) == 0
    assert "test rows (" in (warning := capsys.readouterr().err)
    assert "are training rows or copies of them" in warning
    assert "are training rows or copies of them" in report.read_text()


def test_rows_with_levels_that_no_training_row_has_are_tested(path, capsys):
    frame = visits()
    newest = split(NUM_ROWS, 0.04, time=frame["day"]).test.numpy()
    frame.loc[newest, "ward"] = "new"
    frame.to_csv(path, index=False)
    assert fit(path, "--split", "time:day", "--test-fraction", "0.2", "--json") == 0
    record = json.loads(capsys.readouterr().out)
    assert record["train_rows"] + record["test_rows"] == NUM_ROWS
    model = load(path.parent / "model.cagp")
    assert "ward=new" not in model.feature_names_out_
    std = model.predict(frame.drop(columns="score"), return_std=True)[1]
    assert std[newest].mean() > std[np.setdiff1d(np.arange(NUM_ROWS), newest)].mean()


def test_columns_of_npz_tables_have_names(tmp_path, capsys):
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.normal(size=60), np.repeat(np.arange(20), 3)])
    np.savez(tmp_path / "table.npz", X=X, y=X[:, 0])
    assert fit(tmp_path / "table.npz", "--split", "group:x1", columns=()) == 0
    assert "1 input (x0), target y. 54 to train on, 6 to test on: other groups of x1" in capsys.readouterr().out


def test_what_cannot_be_split_is_refused(path, capsys):
    table = str(path)
    start = ["fit", table, "--target", "score", "--out", str(path.parent / "m.cagp")]
    assert "--split names 'doctor', which the table does not have" in usage_error(
        [*start, "--split", "group:doctor"], capsys
    )
    assert "--split names the target score" in usage_error([*start, "--split", "time:score"], capsys)
    for wrong in ("time", "group:", "dose", "time day"):
        assert f"it is {wrong!r}, expected" in usage_error([*start, "--split", wrong], capsys)
    frame = visits()
    frame.loc[[4, 9], "day"] = pd.NaT
    frame.to_csv(path, index=False)
    assert main([*start, "--split", "time:day", "--drop", "day"]) == 1
    assert "column 'day' is missing in 2 of 150 rows (first at row 4)" in capsys.readouterr().err
    assert main([*start, "--split", "time:ward", "--drop", "day"]) == 1
    assert "column 'ward' holds text or categories" in capsys.readouterr().err


def test_evaluate_refuses_half_of_a_split(path, capsys):
    start = ["evaluate", "model.cagp", str(path)]
    assert "give --split, too" in usage_error([*start, "--seed", "1"], capsys)
    assert "give --split, too" in usage_error([*start, "--test-fraction", "0.1"], capsys)
    assert "--test-fraction is 0" in usage_error([*start, "--split", "random", "--test-fraction", "0"], capsys)
