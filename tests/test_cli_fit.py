"""``cagp fit`` and the help: files hold what Python would compute, and wrong usage is told first."""

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
from cli_problems import NUM_ROWS, fit, houses, usage_error

import cagp
from cagp import load, metrics
from cagp.cli import app, main
from cagp.data import split
from cagp.training.fitting import _Run


@pytest.mark.parametrize(("words", "expected"), [((), "auto"), (("none",), None), (("4",), 4.0)])
def test_local_scale_is_passed_on(folder, words, expected):
    option = ("--local-scale", *words) if words else ()
    fit(folder, "scale.cagp", "--target", "price", "--drop", "id", "rent", "--method", "local", *option)
    model = load(folder / "scale.cagp")
    assert model.local_scale == expected
    assert expected == "auto" or model.posteriors_[0].local_scale == expected


# ---- help ----


def test_help_lists_every_command_and_every_example_can_be_parsed(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit):
        main(["--help"])
    text = capsys.readouterr().out
    names = [*app.COMMANDS, *app.PLUGINS]
    assert names == ["fit", "predict", "evaluate", "info", "compare", "bench", "reproduce"]
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
        assert app._parsed(words).command == words[0], example


@pytest.mark.slow
def test_the_commands_of_the_documentation_run_as_written(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parent.parent / "docs" / "command-line.md").read_text(encoding="utf-8")
    exec("\n".join(re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)), {})
    commands = re.findall(r"```sh\n(.*?)\n```", page, flags=re.DOTALL)
    assert len(commands) == 13
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


@pytest.mark.slow
def test_fit_says_what_it_did_and_what_is_next(folder, tmp_path, capsys):
    frame = houses()
    frame.loc[[3, 7], "price"] = np.nan
    frame.loc[5, "city"] = "Rome"  # a level that one row has, which is tested on
    frame.loc[5 + 1, "area"] = np.nan  # no other row lacks it
    table, out = tmp_path / "table.csv", tmp_path / "m.cagp"
    frame.drop(columns=["id", "rent"]).to_csv(table)  # with the index, as pandas does unless told
    report = tmp_path / "report.html"
    command = ["fit", str(table), "--target", "price", "--max-epochs", "2", "--out", str(out), "--report", str(report)]
    rows = {5 - 1, 6 - 1}  # without row 3
    seed = next(s for s in range(500) if rows <= set(split(NUM_ROWS - 2, 0.1, s).test.tolist()))
    assert main([*command, "--seed", str(seed)]) == 0
    captured = capsys.readouterr()
    for words in (
        "120 rows, 4 inputs (Unnamed: 0, area, city, built), target price.",
        "Left out 2 rows without a target.",
        "106 to train on, 12 to test on",
        "Chose exact inference: 106 rows",
        "On 12 test rows, which were not trained on:",
        "lower is better; nats per row",
        "closer to 95 % is better",
        f"Saved {out} (",
        f"Wrote {report}.",
        f"Next: cagp predict {out} new.csv",
    ):
        assert words in captured.out
    assert "cagp: warning: the column 'Unnamed: 0'" in captured.err
    assert "1 row lacks a value of column 'area', in which no training row lacked one" in captured.err
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
        (["--target", "price", "--out", "nowhere/m.cagp"], "the folder nowhere does not exist"),
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
    frame.loc[77, "area"] = np.inf
    frame.to_csv(tmp_path / "holes.csv", index=False)
    out = str(tmp_path / "m.cagp")
    assert main(["fit", str(tmp_path / "holes.csv"), "--target", "price", "--out", out]) == 1
    error = capsys.readouterr().err
    assert error.startswith("cagp: X has infinite values (inf): column 'area' has 1 (first at row 77).")
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
