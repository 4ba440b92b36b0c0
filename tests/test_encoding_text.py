"""Dates and numbers that tables hold as text: which formats are read, and what is refused."""

import re

import numpy as np
import pandas as pd
import pytest

from cagp.column_kinds import DATETIME, DECIMAL_COMMA, NUMBER
from cagp.data import Encoder, encode_target
from cagp.data.cells import DATE_FORMATS

DATES = pd.Series(pd.to_datetime(["2024-03-31", "1969-12-05", "2001-11-09", "2001-02-28"]))
DAYS = ((DATES - pd.Timestamp("1970-01-01")) / pd.Timedelta(days=1)).to_numpy()
STRPTIME = {"day": "%d", "month": "%m", "year": "%Y"}


def strptime(form: str) -> str:
    return re.sub("day|month|year", lambda found: STRPTIME[found[0]], form)


def fitted(values) -> tuple[Encoder, np.ndarray, dict]:
    encoder, codes = Encoder.fit_codes(pd.DataFrame({"q": values}))
    return encoder, codes[:, 0], encoder.state()["columns"][0]


@pytest.mark.parametrize("form", ["year-month-day", *DATE_FORMATS])
def test_every_format_of_dates(form):
    texts = DATES.dt.strftime(strptime(form))
    encoder, days, column = fitted(texts)
    np.testing.assert_array_equal(days, DAYS)
    assert (column["kind"], column["format"]) == (DATETIME, "" if form == "year-month-day" else form)
    again = Encoder.from_state(encoder.state())
    for same in (texts, DATES, DATES.dt.strftime("%Y-%m-%d"), texts.astype("string")):
        np.testing.assert_array_equal(again.codes(pd.DataFrame({"q": same}))[:, 0], DAYS)
    typed = encoder.typed(pd.DataFrame({"q": texts, "other": 1}))
    np.testing.assert_array_equal(typed["q"].to_numpy(), DATES.to_numpy())


@pytest.mark.parametrize("form", DATE_FORMATS)
@pytest.mark.parametrize(("written", "hours"), [(" 9:30", 9.5), (" 21:00:18", 21.005), ("T06:00:00.5", 6 + 0.5 / 3600)])
def test_dates_with_times(form, written, hours):
    texts = DATES.dt.strftime(strptime(form))
    texts[1] += written
    np.testing.assert_allclose(fitted(texts)[1], DAYS + np.array([0, hours / 24, 0, 0]), rtol=0, atol=1e-9)


def test_days_and_months_of_one_digit():
    np.testing.assert_array_equal(fitted(["31.3.2024", "5.12.1969"])[1], DAYS[:2])


def test_dates_that_can_be_read_in_two_ways():
    with pytest.raises(
        ValueError, match=r"column 'q' holds dates like '03/04/2024', which can be read as day/month"
    ) as e:
        fitted(["03/04/2024", "12/12/2024"])
    assert "and as month/day/year" in str(e.value)
    assert "dayfirst=True" in str(e.value)
    assert fitted(["03/04/2024", "13/12/2024"])[2]["format"] == "day/month/year"
    assert fitted(["03/04/2024", "12/13/2024"])[2]["format"] == "month/day/year"
    assert fitted(["03.04.2024", "12.12.2024"])[2]["format"] == "day.month.year"  # points mean days first
    assert fitted(["13/12/2024", "12/13/2024"])[2]["kind"] == "levels"  # no format reads both


def test_the_format_of_fit_decides():
    encoder = fitted(["03/04/2024", "31/12/2024"])[0]
    found = encoder.codes(pd.DataFrame({"q": ["03/04/2024", "2024-04-03", None][:2]}))
    assert found[0, 0] == found[1, 0] == (pd.Timestamp("2024-04-03") - pd.Timestamp(0)).days
    with pytest.raises(ValueError, match=r"holds '12/31/2024' at row 8, at fit it held dates as day/month/year; write"):
        encoder.codes(pd.DataFrame({"q": ["03/04/2024", "12/31/2024"]}), rows_from=7)


def test_text_that_is_not_all_dates_stays_text():
    assert fitted(["2024-03-31", "unknown"])[2]["kind"] == "levels"
    assert fitted(pd.Categorical(["2024-03-31", "2024-04-30"]))[2]["kind"] == "levels"
    many = [*pd.date_range("2024-01-01", periods=30).strftime("%d.%m.%Y"), "soon"]
    with pytest.raises(ValueError, match=r"text that mostly looks like dates; 'soon' at row 30 does not\. Correct"):
        fitted(many)


@pytest.mark.parametrize(
    ("texts", "numbers"),
    [
        (["3,14", "-0,5"], [3.14, -0.5]),
        (["3,14", "2"], [3.14, 2.0]),
        (["1,234", "0,234"], [1.234, 0.234]),  # no thousands begin with a zero
        (["1,234", "1234,5"], [1.234, 1234.5]),
        ([" 1,5e3 ", "+,5"], [1500.0, 0.5]),
        (["12,", "3,0"], [12.0, 3.0]),
    ],
)
def test_decimal_commas(texts, numbers):
    encoder, codes, column = fitted(texts)
    np.testing.assert_array_equal(codes, numbers)
    assert (column["kind"], column["format"]) == (NUMBER, DECIMAL_COMMA)
    assert encoder.text_names == ("q",)  # a piece of a file must not be read in another way
    again = Encoder.from_state(encoder.state())
    np.testing.assert_array_equal(again.codes(pd.DataFrame({"q": numbers}))[:, 0], numbers)
    np.testing.assert_array_equal(again.codes(pd.DataFrame({"q": ["1,234"]})), [[1.234]])
    with pytest.raises(
        ValueError, match=r"column 'q' holds '3.14' at row 1, at fit it held numbers with decimal commas"
    ):
        again.codes(pd.DataFrame({"q": ["3,14", "3.14"]}))
    typed = encoder.typed(pd.DataFrame({"q": texts}))
    np.testing.assert_array_equal(typed["q"], numbers)
    np.testing.assert_array_equal(encode_target(pd.Series(texts)).values, numbers)


@pytest.mark.parametrize("texts", [["1,234", "5,678"], ["1,234", "17"], ["1,234,567", "1,234"], ["1,234.5", "2.5"]])
def test_commas_that_may_separate_thousands(texts):
    with pytest.raises(
        ValueError, match=r"column 'q' holds numbers with commas that may separate thousands, e\.g\. '1"
    ):
        fitted(texts)
    with pytest.raises(ValueError, match="may separate thousands"):
        encode_target(pd.Series(texts))
    chosen = Encoder.fit(pd.DataFrame({"q": texts}), categories=["q"])
    assert chosen.state()["columns"][0]["levels"] == sorted(texts)


def test_commas_in_other_text():
    assert fitted(["3,14", "pi"])[2]["kind"] == "levels"
    assert fitted(["a,b", "c"])[2]["kind"] == "levels"
    assert fitted(pd.Categorical(["3,14", "2,71"]))[2]["kind"] == "levels"


def test_numbers_missing_from_text():
    encoder, codes, column = fitted(["3,14", None, "2,5"])
    np.testing.assert_array_equal(codes, [3.14, np.nan, 2.5])
    assert column["missing"]
    assert encoder.names_out == ("q", "q is missing")
    np.testing.assert_array_equal(fitted(["31.03.2024", None, "05.12.1969"])[1], [DAYS[0], np.nan, DAYS[1]])
