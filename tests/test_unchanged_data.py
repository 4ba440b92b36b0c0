"""Data that are never changed silently: large integers, time zones, cells that spreadsheets would run, many columns."""

import datetime
import os
import signal
import subprocess
import sys
import time
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
import torch

import cagp
from cagp.cli import main
from cagp.cli.predict import is_formula
from cagp.data import Encoder, read_table, split
from cagp.kernels import Matern32, Scale
from cagp.methods.base import idle_inputs

LARGE = 2**53
CANNOT_HOLD = r"integers? that float64 cannot hold \(first {} at row {}\): beyond 2\*\*53"


# ---- integers ----


@pytest.mark.parametrize(
    "table",
    [
        pd.DataFrame({"x0": [1, LARGE, LARGE + 1]}),
        pd.DataFrame({"x0": [1, LARGE, LARGE + 1]}, dtype="uint64"),
        pd.DataFrame({"x0": pd.array([1, None, LARGE + 1], dtype="Int64")}),
        pd.DataFrame({"x0": pd.Series([1, LARGE, LARGE + 1], dtype=object)}),
        pd.DataFrame({"x0": [Decimal(1), Decimal(2), Decimal(LARGE + 1)]}),
        np.array([[1], [LARGE], [LARGE + 1]]),
        torch.tensor([[1], [LARGE], [LARGE + 1]]),
        [[1], [LARGE], [LARGE + 1]],
    ],
    ids=["int64", "uint64", "Int64", "object", "decimal", "array", "tensor", "list"],
)
def test_integers_that_float64_would_merge_are_an_error(table):
    with pytest.raises(ValueError, match=f"column 'x0' has 1 {CANNOT_HOLD.format(LARGE + 1, 2)}"):
        Encoder.fit(table)
    encoder = Encoder.fit(pd.DataFrame({"x0": [1.0, 2.0]}))
    with pytest.raises(ValueError, match="cannot hold"):
        encoder.codes(table)


@pytest.mark.parametrize("value", [LARGE, -LARGE, 2 * LARGE, 2**62, -(2**63), 10**22])
def test_integers_that_float64_holds_stay_what_they_are(value):
    encoder = Encoder.fit(pd.DataFrame({"x": [0, 1, value]}))
    assert int(encoder.codes(pd.DataFrame({"x": [value]}))[0, 0]) == value


@pytest.mark.parametrize("value", [2**63 - 1, -(2**63) + 1, 10**18 + 1])
def test_the_ends_of_int64_are_refused(value):
    with pytest.raises(ValueError, match=CANNOT_HOLD.format(value, 0)):
        Encoder.fit(np.array([[value]]))


def test_targets_are_no_exception():
    with pytest.raises(ValueError, match="column 'y' has 2 integers that float64 cannot hold"):
        cagp.CaGPRegressor().fit(np.arange(4.0)[:, None], [1, 2, LARGE + 1, LARGE + 3])


def test_codes_stay_distinct():
    ids = [LARGE, LARGE + 1, LARGE + 2]
    encoder = Encoder.fit(pd.DataFrame({"id": ids}), categories=["id"])
    np.testing.assert_array_equal(encoder.codes(pd.DataFrame({"id": ids}))[:, 0], [0, 1, 2])
    np.testing.assert_array_equal(encoder.codes(pd.DataFrame({"id": [str(LARGE + 1)]}))[:, 0], [1])
    with pytest.raises(ValueError, match=r"column 'id' holds codes as floating-point numbers from 2\*\*53 on"):
        encoder.codes(pd.DataFrame({"id": [LARGE + 1, None]}))  # pandas makes this float64
    rows = split(4, 0.5, group=[LARGE, LARGE + 1, LARGE + 2, LARGE + 3])
    assert len(rows.test) == 2
    with pytest.raises(ValueError, match="cannot hold"):
        split(3, 0.5, time=[LARGE, LARGE + 1, LARGE + 2])


def test_a_csv_file_with_large_integers_and_gaps_says_that_they_are_rounded(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(f"id,x\n{LARGE + 1},1\n,2\n{LARGE + 3},3\n")
    with pytest.warns(UserWarning, match=r"column 'id' has integers of 2\*\*53 and more, and missing values"):
        read_table(path)
    assert read_table(path, ["id"])["id"].tolist()[::2] == [str(LARGE + 1), str(LARGE + 3)]
    path.write_text(f"id,x\n{LARGE + 1}.5,1\n,2\n0.5,3\n")
    read_table(path)  # no warning: not whole numbers


# ---- time zones ----

PARIS = pd.date_range("2024-03-30 12:00", periods=3, freq="D", tz="Europe/Paris")  # the clock changes on the 31st
FORMS = {
    "dates with": PARIS,
    "text with": ["2024-03-30T12:00:00+01:00", "2024-03-31T12:00:00+02:00", "2024-04-01T10:00:00Z"],
    "objects with": pd.Series(list(PARIS.to_pydatetime()), dtype=object),
    "dates without": PARIS.tz_localize(None),
    "text without": ["2024-03-30T12:00:00", "2024-03-31 12:00", "2024-04-01 12:00"],
    "days without": ["2024-03-30", "2024-03-31", "2024-04-01"],
    "day objects without": pd.Series([datetime.date(2024, 3, day) for day in (29, 30, 31)], dtype=object),
}


@pytest.mark.parametrize("later", FORMS)
@pytest.mark.parametrize("first", FORMS)
def test_dates_have_a_time_zone_at_fit_and_later_or_never(first, later):
    encoder = Encoder.fit(pd.DataFrame({"when": FORMS[first]}))
    encoder = Encoder.from_state(encoder.state())
    table = pd.DataFrame({"when": FORMS[later]})
    if ("without" in first) != ("without" in later):
        now, before = (f"dates {'without' if 'without' in form else 'with'} a time zone" for form in (later, first))
        with pytest.raises(ValueError, match=f"column 'when' holds {now}, at fit it held {before}; "):
            encoder.codes(table)
        return
    codes = encoder.codes(table)[:, 0]
    if "with " in f"{later} ":  # instants: two days of 23 and 24 hours
        assert np.diff(codes) * 24 == pytest.approx([23, 24])


def test_another_time_zone_is_the_same_instant():
    encoder = Encoder.fit(pd.DataFrame({"when": PARIS}))
    tokyo = pd.DataFrame({"when": PARIS.tz_convert("Asia/Tokyo")})
    np.testing.assert_array_equal(encoder.codes(tokyo), encoder.codes(pd.DataFrame({"when": PARIS})))


def test_a_column_of_dates_of_both_sorts_is_an_error():
    mixed = pd.DataFrame({"when": ["2024-03-30T12:00:00Z", "2024-03-31T12:00:00"]})
    with pytest.raises(ValueError, match="column 'when' mixes dates with a time zone and dates without one"):
        Encoder.fit(mixed)
    with pytest.raises(ValueError, match="mixes dates with a time zone"):
        split(2, 0.5, time=mixed["when"])
    both = pd.Series([PARIS[0].to_pydatetime(), datetime.datetime(2024, 3, 31)], dtype=object)
    with pytest.raises(ValueError, match="mixes dates with a time zone"):
        Encoder.fit(pd.DataFrame({"when": both}))


def test_a_state_without_a_time_zone_is_refused():
    state = Encoder.fit(pd.DataFrame({"when": PARIS})).state()
    for zone in ("", "somewhere"):
        state["columns"][0]["time_zone"] = zone
        with pytest.raises(ValueError, match="does not have column 'when' as cagp stores it"):
            Encoder.from_state(state)


# ---- spreadsheets ----


@pytest.mark.parametrize(
    "cell", ["=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", "\r=1", "=x", "-x", "+4 170"]
)
def test_text_that_a_spreadsheet_would_run(cell):
    assert is_formula(cell)


@pytest.mark.parametrize(
    "cell", ["-1.5", "+2", "-1,5", "-1e-3", " =1", "a=b", "-", "+", "", "x-y", -1.5, None, np.nan, "'=1"]
)
def test_numbers_and_other_text_are_no_formulas(cell):
    assert not is_formula(cell)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "m.cagp"
    x = np.linspace(0, 1, 30)
    cagp.CaGPRegressor(method="exact", max_epochs=2).fit(pd.DataFrame({"x": x}), pd.Series(x, name="y")).save(path)
    return path


def test_kept_cells_do_not_run_in_a_spreadsheet(model, tmp_path, capsys):
    table, out = tmp_path / "new.csv", tmp_path / "out.csv"
    table.write_text('x,name,code\n0.1,=1+1,-1.5\n0.2,Ada,007\n0.3,"@a, b",-\n')
    command = ["predict", str(model), str(table), "--keep", "name", "code", "--columns", "mean", "--quiet"]
    assert main([*command, "--out", str(out)]) == 0
    found = pd.read_csv(out, dtype=str)
    assert found["name"].tolist() == ["'=1+1", "Ada", "'@a, b"]
    assert found["code"].tolist() == ["-1.5", "007", "-"]
    assert "2 cells of column 'name' would run as formulas in a spreadsheet" in capsys.readouterr().err
    assert main([*command, "--out", str(out), "--keep-formulas"]) == 0
    assert pd.read_csv(out, dtype=str)["name"].tolist() == ["=1+1", "Ada", "@a, b"]
    assert capsys.readouterr().err == ""
    parquet = tmp_path / "out.parquet"
    assert main([*command, "--out", str(parquet)]) == 0
    assert pd.read_parquet(parquet)["name"].tolist() == ["=1+1", "Ada", "@a, b"]


# ---- many columns ----


def test_idle_inputs_are_the_same_in_tiles(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(20, 7, generator=generator, dtype=torch.float64)
    y = X[:, 0]
    ell = torch.tensor([0.5, 1.0, 3.0, 30.0, 60.0, 300.0, 1e4], dtype=torch.float64)
    kernel = Scale(Matern32(7, ell), 1.3)
    low, high = X.amin(0), X.amax(0)
    distance = (high - low) / ell
    s = 3**0.5 * distance
    change = 2 * 1.3 * (1 - (1 + s) * torch.exp(-s))
    expected = (change < 0.01 * y.var(correction=0)).nonzero()[:, 0].tolist()
    assert 0 < len(expected) < 7
    assert idle_inputs(kernel, X, y) == expected
    monkeypatch.setattr("cagp.methods.base.IDLE_ELEMENTS", 14)
    assert idle_inputs(kernel, X, y) == expected


def test_time_grows_no_faster_than_the_square_of_the_number_of_columns():
    """Ten times as many columns as a cube of would take 3,000 pairs of points of 3,000 columns: a minute."""
    X = torch.randn(10, 3000, dtype=torch.float64)
    start = time.process_time()
    idle_inputs(Matern32(3000, 50.0), X, X[:, 0])
    assert time.process_time() - start < 5


# ---- interrupts ----


@pytest.mark.thinned(2)
@pytest.mark.skipif(os.name != "posix", reason="sends the signal of Ctrl-C")
@pytest.mark.parametrize("module", ["cagp.cli.app", "argparse", "cagp.estimators", "torch"])
def test_an_interrupt_during_an_import_ends_with_one_line(module, model, tmp_path):
    """A module sends the signal as soon as it is looked for."""
    table = tmp_path / "new.csv"
    table.write_text("x\n0.1\n")
    program = f"""
import os, signal, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)
from cagp.cli import main
sys.modules.pop({module!r}, None)
sys.meta_path.insert(0, Finder())
sys.argv = ["cagp", "predict", {str(model)!r}, {str(table)!r}, "--out", {str(tmp_path / "o.csv")!r}]
sys.exit(main())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (130, "cagp: interrupted\n"), done.stderr
    assert signal.SIGINT == 2
