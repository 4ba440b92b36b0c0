"""``cagp bench small``: what is measured, and what is refused."""

import json

import pytest

from cagp.cli import main


@pytest.mark.slow
def test_records_of_cross_validation_and_of_one_fit(capsys):
    command = ["bench", "small", "--rows", "60", "--folds", "2", "3", "--many-rows", "200", "--json"]
    assert main(command) == 0
    records = json.loads(capsys.readouterr().out)
    assert [(record["what"], record["rows"]) for record in records] == [
        ("cross_val_predict, cv=2", 60),
        ("cross_val_predict, cv=3", 60),
        ("a local fit", 200),
    ]
    assert all(record["cpu_seconds"] > 0 and record["seconds"] > 0 for record in records)
    assert all(0 < record["rmse_to_truth"] < 3 for record in records)


@pytest.mark.parametrize(
    ("options", "message"),
    [(["--rows", "20"], "with 5 folds, expected 2 folds or more"), (["--structure", "x"], "--structure is 'x'")],
)
def test_what_is_refused(options, message, capsys):
    assert main(["bench", "small", *options]) == 1
    assert message in capsys.readouterr().err
