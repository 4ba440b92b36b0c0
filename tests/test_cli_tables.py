"""From a table to predictions on the command line: files hold what Python would compute, and errors are lines."""

import io
import json
import re
import shlex
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import cagp
from cagp import load, metrics
from cagp.cli import app, compare, main
from cagp.cli.evaluate import Sample
from cagp.data import split
from cagp.report.targets import scores
from cagp.training.fitting import _Run

NUM_ROWS = 120


def houses(num_rows=NUM_ROWS, seed=0):
    """Numbers, levels, dates and an id whose zeros matter; two targets."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "id": [f"{i:03d}" for i in range(num_rows)],
            "area": rng.uniform(30, 200, num_rows),
            "city": rng.choice(["Bonn", "Kiel", "Ulm"], num_rows),
            "built": pd.Timestamp("2000-01-01") + pd.to_timedelta(rng.integers(0, 8000, num_rows), unit="D"),
        }
    )
    frame["price"] = 10 * frame["area"] + 300 * (frame["city"] == "Ulm") + 20 * rng.normal(size=num_rows)
    frame["rent"] = frame["price"] / 200 + rng.normal(size=num_rows)
    return frame


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A table, and models of one target and of two."""
    folder = tmp_path_factory.mktemp("houses")
    houses().to_csv(folder / "houses.csv", index=False)
    houses(40, seed=1).to_csv(folder / "new.csv", index=False)
    fit(folder, "price.cagp", "--target", "price", "--drop", "id", "rent")
    fit(folder, "both.cagp", "--target", "price", "rent", "--drop", "id", "--method", "local", "--n-neighbors", "8")
    return folder


def fit(folder, model, *more):
    assert (
        main(["fit", str(folder / "houses.csv"), "--out", str(folder / model), "--max-epochs", "3", "--quiet", *more])
        == 0
    )


@pytest.mark.parametrize(("words", "expected"), [((), "auto"), (("none",), None), (("4",), 4.0)])
def test_local_scale_is_passed_on(folder, words, expected):
    option = ("--local-scale", *words) if words else ()
    fit(folder, "scale.cagp", "--target", "price", "--drop", "id", "rent", "--method", "local", *option)
    model = load(folder / "scale.cagp")
    assert model.local_scale == expected
    assert expected == "auto" or model.posteriors_[0].local_scale == expected


@pytest.fixture
def new(folder):
    return pd.read_csv(folder / "new.csv", dtype={"id": str})


def usage_error(arguments, capsys):
    """The complaint about wrong usage, whether the parser or a command finds it."""
    try:
        code = main(arguments)
    except SystemExit as exit_:
        code = exit_.code
    assert code == 2
    return capsys.readouterr().err


# ---- help ----


def test_help_lists_every_command_and_every_example_can_be_parsed(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit):
        main(["--help"])
    text = capsys.readouterr().out
    names = [command.name for group in app.GROUPS.values() for command in group]
    assert names == ["fit", "predict", "evaluate", "info", "compare", "search", "demo", "bench"]
    for name in names:
        assert re.search(rf"^  {name} ", text, flags=re.MULTILINE)
        with pytest.raises(SystemExit):
            main([name, "--help"])
        own = capsys.readouterr().out
        assert "example" in own
        text += own
    for code in ("0 done", "1 failed", "2 wrong usage", "130 interrupted"):
        assert code in " ".join(text.split())
    examples = [line.split("cagp ", 1)[1] for line in text.splitlines() if re.match(r"  (\S+ \S+ \| )?cagp ", line)]
    assert len(examples) > 15
    for example in examples:
        words = shlex.split(re.split(r"[|>]", example)[0])
        assert callable(app._parser().parse_args(words).run), example


def test_the_commands_of_the_documentation_run_as_written(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parent.parent / "docs" / "command-line.md").read_text(encoding="utf-8")
    exec("\n".join(re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)), {})
    commands = re.findall(r"```sh\n(.*?)\n```", page, flags=re.DOTALL)
    assert len(commands) == 8
    for command in commands:
        words = shlex.split(command)
        if words[0] == "cat":
            stdin = io.TextIOWrapper(io.BytesIO(Path(words[1]).read_bytes()))
            monkeypatch.setattr("sys.stdin", stdin)
            words = words[3 : words.index("|", 3)]
        capsys.readouterr()
        assert main(words[1:]) == 0, command
        # The lines shown are those printed, but for numbers.
        shown = re.search(re.escape(command) + r"\n```\n\n```text\n(.*?)```", page, flags=re.DOTALL)
        printed = [_without_numbers(line) for line in capsys.readouterr().out.splitlines()]
        for line in shown[1].splitlines() if shown else []:
            assert line == "..." or _without_numbers(line) in printed, (command, line)
    assert Path("report.html").stat().st_size > 10_000
    assert list(pd.read_csv("predictions.csv").columns)[:2] == ["id", "price_mean"]


def _without_numbers(line):
    """The words of a line; machines differ in the last digits of numbers and in times."""
    return " ".join(re.sub(r"-?\d[\d,.:e+T-]*( (bytes|[kMG]B))?", "#", line).split())


# ---- fit ----


def test_fit_does_what_python_does_with_the_same_split(folder, tmp_path, capsys):
    out = tmp_path / "model.cagp"
    command = ["fit", str(folder / "houses.csv"), "--target", "price", "--drop", "id", "rent", "--test-fraction", "0.2"]
    assert main([*command, "--seed", "3", "--max-epochs", "3", "--out", str(out), "--json", "--quiet"]) == 0
    captured = capsys.readouterr()
    record = json.loads(captured.out)
    assert captured.err == ""

    frame = houses()
    rows = split(NUM_ROWS, 0.2, seed=3)
    train, test = (frame.iloc[np.sort(part.numpy())] for part in rows)
    inputs = ["area", "city", "built"]
    model = cagp.CaGPRegressor(max_epochs=3, random_state=3).fit(train[inputs], train["price"])
    mean, std = model.predict(test[inputs], return_std=True)
    loaded = cagp.load(out)
    np.testing.assert_allclose(loaded.predict(test[inputs]), mean, rtol=1e-12)
    assert (loaded.checkpoint_dir, loaded.verbose, loaded.max_memory) == (None, False, None)

    y = torch.tensor(test["price"].to_numpy())
    found, variance = torch.from_numpy(mean), torch.from_numpy(std**2)
    of = record["metrics"]["price"]["model"]
    assert of["nll"] == pytest.approx(metrics.nll(y, found, variance))
    assert of["rmse"] == pytest.approx(metrics.rmse(y, found))
    assert of["crps"] == pytest.approx(metrics.crps(y, found, variance))
    assert of["coverage"] == pytest.approx(metrics.coverage(y, found, variance))
    assert of["r2"] == pytest.approx(model.score(test[inputs], test["price"]))
    constant = record["metrics"]["price"]["constant"]
    assert constant["rmse"] == pytest.approx(float(np.sqrt(np.square(test["price"] - train["price"].mean()).mean())))
    assert (record["train_rows"], record["test_rows"], record["method"]) == (96, 24, "exact")
    assert record["bytes"] == out.stat().st_size
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.cagp"]


def test_fit_says_what_it_did_and_what_is_next(folder, tmp_path, capsys):
    frame = houses()
    frame.loc[[3, 7], "price"] = np.nan
    frame.loc[5, "city"] = "Rome"  # a level that one row has: it must be trained on
    table, out = tmp_path / "table.csv", tmp_path / "m.cagp"
    frame.drop(columns=["id", "rent"]).to_csv(table)  # with the index, as pandas does unless told
    report = tmp_path / "report.html"
    command = ["fit", str(table), "--target", "price", "--max-epochs", "2", "--out", str(out), "--report", str(report)]
    seed = next(s for s in range(50) if 5 - 1 in split(NUM_ROWS - 2, 0.1, s).test.tolist())  # row 5 is 4 without row 3
    assert main([*command, "--seed", str(seed)]) == 0
    captured = capsys.readouterr()
    for words in (
        "120 rows, 4 inputs (Unnamed: 0, area, city, built), target price.",
        "Left out 2 rows without a target.",
        "107 to train on, 11 to test on",
        "1 row drawn for testing is trained on",
        "Chose exact inference: 107 rows",
        "On 11 test rows, which were not trained on:",
        "lower is better; nats per row",
        "closer to 95 % is better",
        f"Saved {out} (",
        f"Wrote {report}.",
        f"Next: cagp predict {out} new.csv",
    ):
        assert words in captured.out
    assert "cagp: warning: the column 'Unnamed: 0'" in captured.err
    assert "--drop 'Unnamed: 0'" in captured.err
    assert report.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert main([*command[:-2], "--seed", str(seed), "--test-fraction", "0", "--store-float32", "--json"]) == 0
    captured = capsys.readouterr()
    record = json.loads(captured.out)
    assert (record["train_rows"], record["test_rows"], record["metrics"]) == (118, 0, None)
    assert "All are trained on." in captured.err


def test_the_target_of_an_npz_file_is_y_and_other_tables_are_asked_about(tmp_path, capsys, monkeypatch):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30, 2))
    np.savez(tmp_path / "one.npz", X=X, y=X[:, 0])
    np.savez(tmp_path / "two.npz", X=X, y=X)
    for name, targets in (("one", ["y"]), ("two", ["y0", "y1"])):
        command = ["fit", str(tmp_path / f"{name}.npz"), "--out", str(tmp_path / "m.cagp"), "--max-epochs", "2"]
        assert main([*command, "--json", "--quiet"]) == 0
        assert json.loads(capsys.readouterr().out)["targets"] == targets
    stdin = io.TextIOWrapper(io.BytesIO(b"a,b,c\n1,2,3\n"))
    monkeypatch.setattr("sys.stdin", stdin)
    assert usage_error(["fit", "-"], capsys) == (
        "cagp: say with --target what to predict; the columns of stdin are a, b, c.\n"
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--target", "prize"], "--target names 'prize', which the table does not have; its columns are id, area"),
        (["--target", "price", "--drop", "ID"], "--drop names 'ID'"),
        (["--target", "price", "--drop", "price"], "--drop names the target price"),
        (["--target", "price", "price"], "twice"),
        (
            ["--target", "price", "--method", "sgpr", "--n-actions", "4"],
            "--n-actions is for auto, opt, cg, hybrid; sgpr",
        ),
        (["--target", "price", "--n-inducing", "4"], "--n-inducing is for sgpr, svgp; auto"),
        (["--target", "price", "--max-time", "soon"], "--max-time"),
        (["--target", "price", "--max-memory", "much"], "--max-memory"),
        (["--target", "price", "--test-fraction", "1"], "--test-fraction"),
        (["--target", "price", "--n-actions", "0"], "--n-actions"),
        (["--target", "price", "--seed", "-1"], "--seed"),
        (["--target", "price", "--out", "houses.csv"], "a table by its name"),
        (["--target", "price", "--out", "nowhere/m.cagp"], "there is no folder nowhere"),
        (["--target", "price", "--report", "report.txt"], "end its name with .html"),
        (
            ["--target", "price", "--drop", "id", "--test-fraction", "0", "--report", "r.html"],
            "--report needs test rows",
        ),
    ],
)
def test_wrong_usage_of_fit_is_told_before_anything_is_done(options, words, folder, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert words in usage_error(["fit", str(folder / "houses.csv"), *options], capsys)
    assert list(tmp_path.iterdir()) == []


def test_bad_data_is_one_line_with_row_and_column_of_the_table(tmp_path, capsys):
    frame = houses().drop(columns="id")
    frame.loc[77, "area"] = np.nan
    frame.to_csv(tmp_path / "holes.csv", index=False)
    out = str(tmp_path / "m.cagp")
    assert main(["fit", str(tmp_path / "holes.csv"), "--target", "price", "--out", out]) == 1
    error = capsys.readouterr().err
    assert error.startswith("cagp: X has missing values (NaN): column 'area' has 1 (first at row 77).")
    assert error.count("\n") == 1
    (tmp_path / "broken.csv").write_text('a,b\n1,2\n3,"4\n')
    assert main(["fit", str(tmp_path / "broken.csv"), "--target", "b", "--out", out]) == 1
    assert "cagp: " in capsys.readouterr().err
    assert main(["fit", str(tmp_path / "missing.csv"), "--target", "b", "--out", out]) == 1
    assert "does not exist" in capsys.readouterr().err


def test_a_fit_that_was_interrupted_is_saved_and_goes_on(folder, tmp_path, capsys, monkeypatch):
    out = tmp_path / "m.cagp"
    command = ["fit", str(folder / "houses.csv"), "--target", "price", "--drop", "id", "--method", "opt"]
    command += ["--max-epochs", "8", "--n-actions", "9", "--out"]
    assert main([*command, str(tmp_path / "whole.cagp"), "--quiet"]) == 0
    attempt, calls = _Run._attempt, []

    def interrupted(self, bar):
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return attempt(self, bar)

    monkeypatch.setattr(_Run, "_attempt", interrupted)
    assert main([*command, str(out)]) == 130
    assert "--resume continues it" in capsys.readouterr().out
    assert len(cagp.load(out).fit_result_.steps) == 3
    assert "Run the same command with --resume" in usage_error([*command, str(out)], capsys)
    assert main([*command, str(out), "--resume", "--quiet"]) == 0
    inputs = houses(20, seed=2)[["area", "city", "built", "rent"]]
    whole = cagp.load(tmp_path / "whole.cagp")
    np.testing.assert_array_equal(cagp.load(out).predict(inputs), whole.predict(inputs))
    assert not (tmp_path / "m.cagp.checkpoints").exists()
    assert main([*command, str(out), "--resume"]) == 0
    assert "starting from scratch" in capsys.readouterr().out


# ---- predict ----


def test_predictions_are_those_of_python_in_the_order_of_the_rows(folder, new, tmp_path, capsys):
    model = cagp.load(folder / "price.cagp")
    mean, std = model.predict(
        new[["area", "city", "built"]].assign(built=pd.to_datetime(new["built"])), return_std=True
    )
    out = tmp_path / "predictions.csv"
    for pieces in ("7", "65536"):
        command = ["predict", str(folder / "price.cagp"), str(folder / "new.csv"), "--out", str(out)]
        assert main([*command, "--rows-at-a-time", pieces, "--level", "0.5"]) == 0
        assert f"Wrote {out}: 40 rows" in capsys.readouterr().out
        found = pd.read_csv(out)
        assert list(found.columns) == ["price_mean", "price_std", "price_lower", "price_upper"]
        np.testing.assert_allclose(found["price_mean"], mean, rtol=1e-12)
        np.testing.assert_allclose(found["price_std"], std, rtol=1e-9)
        np.testing.assert_allclose(found["price_upper"] - mean, 0.6744897501960817 * std, rtol=1e-9)
        np.testing.assert_allclose(found["price_lower"] + found["price_upper"], 2 * mean, rtol=1e-9)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["predictions.csv"]


def test_tables_come_and_go_in_every_format_with_columns_kept(folder, new, tmp_path, capsys, monkeypatch):
    model = cagp.load(folder / "both.cagp")
    inputs = new[["area", "city", "built"]].assign(built=pd.to_datetime(new["built"]))
    mean, std = model.predict(inputs, return_std=True)
    typed = new.assign(built=inputs["built"])
    typed.to_parquet(tmp_path / "new.parquet")
    out = tmp_path / "out.parquet"
    command = ["predict", str(folder / "both.cagp"), str(tmp_path / "new.parquet"), "--out", str(out)]
    assert main([*command, "--quantiles", "0.1", "0.5", "--keep", "all", "--rows-at-a-time", "16"]) == 0
    found = pd.read_parquet(out)
    results = ["price_q0.1", "price_q0.5", "rent_q0.1", "rent_q0.5"]
    assert list(found.columns) == [*typed.columns, *results]
    pd.testing.assert_frame_equal(found[list(typed.columns)], typed, check_dtype=False)
    np.testing.assert_allclose(found["rent_q0.5"], mean[:, 1], rtol=1e-12)
    np.testing.assert_allclose(found["price_q0.1"], mean[:, 0] - 1.2815515655446004 * std[:, 0], rtol=1e-9)

    capsys.readouterr()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO((folder / "new.csv").read_bytes())))
    command = ["predict", str(folder / "both.cagp"), "-", "--columns", "mean", "--keep", "id", "area", "--out", "-"]
    assert main([*command, "--rows-at-a-time", "16"]) == 0
    captured = capsys.readouterr()
    printed = pd.read_csv(io.StringIO(captured.out), dtype={"id": str})
    assert list(printed.columns) == ["id", "area", "price_mean", "rent_mean"]
    assert printed["id"].tolist() == new["id"].tolist()  # 007 is not 7
    np.testing.assert_array_equal(printed["area"], new["area"])
    np.testing.assert_allclose(printed[["price_mean", "rent_mean"]], mean, rtol=1e-12)


def test_a_model_of_an_array_takes_columns_by_position(tmp_path, capsys):
    X = np.random.default_rng(0).normal(size=(30, 2))
    model = cagp.ExactGPRegressor(max_epochs=2).fit(X, X[:, 0])
    model.save(tmp_path / "m.cagp")
    np.savez(tmp_path / "t.npz", X=X, y=X[:, 0])
    assert main(["predict", str(tmp_path / "m.cagp"), str(tmp_path / "t.npz"), "--out", "-"]) == 0
    found = pd.read_csv(io.StringIO(capsys.readouterr().out))
    np.testing.assert_allclose(found["y_mean"], model.predict(X), rtol=1e-9, atol=1e-12)
    assert main(["evaluate", str(tmp_path / "m.cagp"), str(tmp_path / "t.npz"), "--json", "--quiet"]) == 0
    of = json.loads(capsys.readouterr().out)["metrics"]["y"]["model"]
    assert of["r2"] == pytest.approx(model.score(X, X[:, 0]))


def test_an_error_in_a_late_row_names_it_and_leaves_the_old_file(folder, tmp_path, capsys):
    frame = houses(90, seed=3)
    out = tmp_path / "out.csv"
    out.write_text("an older result\n")
    command = ["predict", str(folder / "price.cagp"), str(tmp_path / "late.csv"), "--out", str(out)]
    for column, value, words in (
        ("area", np.nan, "column 'area' has 1 (first at row 83)"),
        ("area", "wide", "column 'area' holds levels (text or categories), at fit it held numbers, 'wide' at row 83"),
        ("city", "Rome", "column 'city' has the level 'Rome' (first at row 83)"),
        ("built", "soon", "column 'built' holds 'soon' at row 83"),
    ):
        wrong = frame.astype({column: object})
        wrong.loc[83, column] = value
        wrong.to_csv(tmp_path / "late.csv", index=False)
        assert main([*command, "--rows-at-a-time", "20"]) == 1
        error = capsys.readouterr().err
        assert words in error
        assert error.startswith("cagp: ")
        assert error.count("\n") == 1
        assert out.read_text() == "an older result\n"
        assert sorted(path.name for path in tmp_path.iterdir()) == ["late.csv", "out.csv"]
    frame.drop(columns=["area", "city"]).to_csv(tmp_path / "late.csv", index=False)
    assert main(command) == 1
    assert "lacks the columns 'area', 'city' that the model was fitted with" in capsys.readouterr().err


def test_wrong_usage_of_predict(folder, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model, table = str(folder / "price.cagp"), str(folder / "new.csv")
    assert "--out is the table itself" in usage_error(["predict", model, table, "--out", table], capsys)
    assert "--keep names 'ID'" in usage_error(["predict", model, table, "--keep", "ID"], capsys)
    assert "name the columns" in usage_error(["predict", model, "-", "--keep", "all"], capsys)
    assert "it is '1.5', expected a probability" in usage_error(["predict", model, table, "--level", "1.5"], capsys)
    houses(5).rename(columns={"id": "price_mean"}).to_csv("clash.csv", index=False)
    assert "also a column" in usage_error(["predict", model, "clash.csv", "--keep", "price_mean"], capsys)
    assert main(["predict", model, table, "--out", "out.xlsx"]) == 1
    assert "expected one of .csv" in capsys.readouterr().err
    assert main(["predict", table, table]) == 1
    assert "it is a text file, not a model of cagp" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["clash.csv"]


# ---- evaluate ----


def test_evaluate_measures_in_pieces_what_metrics_measure_at_once(folder, new, tmp_path, capsys):
    new.loc[:15, "price"] = np.nan  # all of the first piece
    new.loc[20, "rent"] = np.nan
    new.to_csv(tmp_path / "new.csv", index=False)
    known = new.dropna()
    model = cagp.load(folder / "both.cagp")
    inputs = known[["area", "city", "built"]].assign(built=pd.to_datetime(known["built"]))
    mean, std = model.predict(inputs, return_std=True)
    command = ["evaluate", str(folder / "both.cagp"), str(tmp_path / "new.csv"), "--rows-at-a-time", "8"]
    assert main([*command, "--json"]) == 0
    captured = capsys.readouterr()
    record = json.loads(captured.out)
    assert (record["rows"], record["rows_without_target"]) == (40, 17)
    assert "(17 rows without a target left out)" in captured.err
    for j, name in enumerate(("price", "rent")):
        expected = scores(known[name].to_numpy(), mean[:, j], std[:, j])
        assert record["metrics"][name]["model"] == pytest.approx(expected._asdict(), rel=1e-9)

    new["rent"] = new["rent"].astype(object)
    new.loc[33, "rent"] = "much"
    new.to_csv(tmp_path / "new.csv", index=False)
    assert main(command) == 1
    assert "the target 'rent' is 'much' at row 33, expected a number" in capsys.readouterr().err
    new.drop(columns="rent").to_csv(tmp_path / "new.csv", index=False)
    assert main(command) == 1
    assert "lacks the target 'rent'" in capsys.readouterr().err


def test_a_sample_of_a_stream_is_uniform_and_in_order():
    counts = np.zeros(40)
    for seed in range(100):
        sample = Sample(10, seed)
        for start in range(0, 40, 8):
            rows = pd.DataFrame({"row": np.arange(start, start + 8)})
            sample.add(rows, rows * 2)
        inputs, targets = sample.rows()
        assert inputs["row"].is_monotonic_increasing
        assert len(inputs) == 10
        assert (targets["row"] == 2 * inputs["row"]).all()
        counts[inputs["row"]] += 1
    assert abs(counts - 25).max() < 5 * np.sqrt(100 * 0.25 * 0.75)


# ---- info ----


def test_info_says_what_is_in_the_file(folder, capsys):
    path = folder / "both.cagp"
    assert main(["info", str(path), "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    model = cagp.load(path)
    train = houses().iloc[split(NUM_ROWS, 0.1, 0).train.numpy()]
    assert record["library_version"] == cagp.__version__
    assert (record["train_rows"], record["rows_held"], record["method"]) == (108, 108, "local")
    assert [column["kind"] for column in record["inputs"]] == ["number", "levels", "datetime"]
    area = record["encoded_inputs"][0]
    assert area["lengthscale"] == pytest.approx(model.lengthscales_[0] * train["area"].std())
    assert record["targets"][1]["noise_std"] == pytest.approx(model.noise_std_[1])
    assert main(["info", str(path)]) == 0
    text = capsys.readouterr().out
    for words in (
        "checksum verified",
        "CaGP-Local",
        "It holds all of them, as float64: share it as you would share these data.",
        "city: 3 levels (Bonn, Kiel, Ulm), a 0/1 input for each",
        "built: dates, as days since 1970",
        "Matern 3/2",
        model.fit_report_,
    ):
        assert words in text


def test_info_knows_inducing_points_and_damage(folder, tmp_path, capsys):
    out = tmp_path / "m.cagp"
    command = ["fit", str(folder / "houses.csv"), "--target", "price", "--drop", "id", "built", "--method", "sgpr"]
    assert main([*command, "--n-inducing", "12", "--max-epochs", "2", "--out", str(out), "--quiet"]) == 0
    assert main(["info", str(out)]) == 0
    assert "It holds 12 inducing points, and none of the rows." in capsys.readouterr().out
    content = bytearray(out.read_bytes())
    content[-20] ^= 1
    out.write_bytes(content)
    assert main(["info", str(out)]) == 1
    assert "its contents do not match its digest" in capsys.readouterr().err


# ---- compare ----


def test_compare_measures_each_method_and_a_failure_is_a_row(folder, tmp_path, capsys, monkeypatch):
    picture = tmp_path / "picture.png"
    command = ["compare", str(folder / "houses.csv"), "--target", "price", "--drop", "id", "rent", "--max-epochs", "2"]
    command += ["--methods", "exact", "opt", "sgpr", "--n-actions", "8", "--n-inducing", "8", "--out", str(picture)]
    regressor = compare.regressor

    def failing(method, arguments, **choices):
        if method == "opt":
            raise RuntimeError("no\nluck")
        return regressor(method, arguments, **choices)

    monkeypatch.setattr(compare, "regressor", failing)
    assert main([*command, "--json", "--quiet"]) == 1
    captured = capsys.readouterr()
    record = json.loads(captured.out)
    assert (record["train_rows"], record["test_rows"]) == (108, 12)
    by_name = {method["method"]: method for method in record["methods"]}
    assert by_name["opt"] == {"method": "opt", "error": "RuntimeError: no luck"}
    assert "opt failed: RuntimeError: no luck" in captured.err
    model = cagp.ExactGPRegressor(max_epochs=2)
    frame, rows = houses(), split(NUM_ROWS, 0.1, 0)
    train, test = (frame.iloc[np.sort(part.numpy())] for part in rows)
    inputs = ["area", "city", "built"]
    model.fit(train[inputs], train["price"])
    mean, std = model.predict(test[inputs], return_std=True)
    assert by_name["exact"]["nll"] == pytest.approx(scores(test["price"].to_numpy(), mean, std).nll)
    assert by_name["sgpr"]["fit_s"] > 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    monkeypatch.setattr(compare, "regressor", regressor)
    assert main([*command, "--quiet"]) == 0
    text = capsys.readouterr().out
    assert "95 % coverage" in text
    assert f"Picture: {picture}" in text


def test_wrong_usage_of_compare(folder, capsys):
    command = ["compare", str(folder / "houses.csv"), "--target", "price"]
    assert "compared on test rows" in usage_error([*command, "--test-fraction", "0"], capsys)
    assert "end its name with .png" in usage_error([*command, "--out", "picture.txt"], capsys)
    assert "invalid choice: 'best'" in usage_error([*command, "--methods", "best"], capsys)
    assert "--n-neighbors is for" in usage_error([*command, "--methods", "cg", "--n-neighbors", "3"], capsys)
    assert "--local-scale is for" in usage_error([*command, "--methods", "opt", "--local-scale", "3"], capsys)
    for wrong in ("0", "-1", "nan", "some"):
        assert "none or a positive number of neighbours" in usage_error([*command, f"--local-scale={wrong}"], capsys)


# ---- what goes wrong ----


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (ValueError("two\nlines"), 1, "cagp: two lines\n"),
        (TypeError("sparse"), 1, "cagp: sparse\n"),
        (MemoryError(), 1, "cagp: not enough memory: an allocation failed\n"),
        (RuntimeError("[enforce fail] can't allocate memory: 80 bytes"), 1, "cagp: not enough memory: [enforce"),
        (KeyboardInterrupt(), 130, "cagp: interrupted\n"),
    ],
)
def test_errors_are_one_line_and_a_code(error, code, line, monkeypatch, capsys):
    def failing(_):
        raise error

    monkeypatch.setattr("cagp.cli.info.run", failing)
    assert main(["info", "m.cagp"]) == code
    assert capsys.readouterr().err.startswith(line)


def test_a_mistake_of_ours_keeps_its_traceback(monkeypatch):
    monkeypatch.setattr("cagp.cli.info.run", lambda _: {}["key"])
    with pytest.raises(KeyError):
        main(["info", "m.cagp"])
    monkeypatch.setattr("cagp.cli.info.run", lambda _: next(iter(())))
    with pytest.raises(StopIteration):
        main(["info", "m.cagp"])


class Closed(io.StringIO):
    """A pipe that nobody reads."""

    def write(self, _):
        raise BrokenPipeError


def test_a_model_is_saved_even_if_nobody_reads_the_words(folder, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.stdout", Closed())
    command = ["fit", str(folder / "houses.csv"), "--target", "price", "--drop", "id", "--max-epochs", "1", "--out"]
    assert main([*command, str(tmp_path / "m.cagp")]) == 0
    assert cagp.load(tmp_path / "m.cagp").n_rows_ == 108


def test_warnings_are_one_plain_line(monkeypatch, capsys):
    def warning(_):
        warnings.warn("jitter\n was added", cagp.linalg.JitterWarning, stacklevel=1)
        return 0

    monkeypatch.setattr("cagp.cli.info.run", warning)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert main(["info", "m.cagp"]) == 0
    assert capsys.readouterr().err == "cagp: warning: jitter was added\n"
