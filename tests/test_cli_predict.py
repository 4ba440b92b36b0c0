"""``cagp predict``, ``evaluate``, ``info`` and ``compare``: their numbers are those of Python."""

import io
import json

import numpy as np
import pandas as pd
import pytest
import torch
from cli_problems import NUM_ROWS, houses, usage_error

import cagp
from cagp import metrics
from cagp.cli import compare, main
from cagp.cli.evaluate import with_some_of
from cagp.data import split


@pytest.fixture
def new(folder):
    return pd.read_csv(folder / "new.csv", dtype={"id": str})


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
        np.testing.assert_allclose(found["price_mean"], mean, rtol=0, atol=1e-12 * np.abs(mean).max())
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
        ("area", np.inf, "column 'area' has 1 (first at row 83)"),
        ("area", "wide", "column 'area' holds levels (text or categories), at fit it held numbers, 'wide' at row 83"),
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
    new.loc[21:22, ["price", "rent"]] = np.nan
    new.to_csv(tmp_path / "new.csv", index=False)
    model = cagp.load(folder / "both.cagp")
    inputs = new[["area", "city", "built"]].assign(built=pd.to_datetime(new["built"]))
    mean, std = model.predict(inputs, return_std=True)
    command = ["evaluate", str(folder / "both.cagp"), str(tmp_path / "new.csv"), "--rows-at-a-time", "8"]
    assert main([*command, "--json"]) == 0
    captured = capsys.readouterr()
    record = json.loads(captured.out)
    assert (record["rows"], record["rows_without_target"]) == (40, 2)
    assert "(2 rows without a target left out)" in captured.err
    for j, name in enumerate(("price", "rent")):
        known = new[name].notna().to_numpy()  # a row counts for the targets it has
        assert known.sum() == {"price": 22, "rent": 37}[name]
        expected = metrics.scores(*map(torch.tensor, (new[name].to_numpy()[known], mean[known, j], std[known, j] ** 2)))
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
        sample, random = pd.DataFrame(), np.random.default_rng(seed)
        for start in range(0, 40, 8):
            rows = pd.DataFrame({"row": np.arange(start, start + 8)})
            sample = with_some_of(sample, rows, 10, random)
        drawn = sample["row"]
        assert drawn.is_monotonic_increasing
        assert len(drawn) == 10
        counts[drawn] += 1
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
    estimator = compare.estimator

    def failing(method, arguments, **choices):
        if method == "opt":
            raise RuntimeError("no\nluck")
        return estimator(method, arguments, **choices)

    monkeypatch.setattr(compare, "estimator", failing)
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
    expected = metrics.scores(*map(torch.tensor, (test["price"].to_numpy(dtype=float), mean, std**2)))
    assert by_name["exact"]["nll"] == pytest.approx(expected.nll)
    assert by_name["sgpr"]["fit_s"] > 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    monkeypatch.setattr(compare, "estimator", estimator)
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
