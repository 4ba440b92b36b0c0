"""The encoder: against a plain oracle, the same in every container, and errors that name column, row and remedy."""

import datetime
import json
import re
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from cagp.data import MAX_LEVELS, Encoder, cells, encode_target

EPOCH = datetime.datetime(1970, 1, 1)
VALUES = {
    "number": st.floats(-1e100, 1e100),
    "whole": st.integers(-(2**53), 2**53),
    "bool": st.booleans(),
    "date": st.datetimes(datetime.datetime(1900, 1, 1), datetime.datetime(2100, 1, 1)),
    "span": st.timedeltas(datetime.timedelta(-(10**4)), datetime.timedelta(10**4)),
    "text": st.sampled_from(["a", "b", "ü", "", "B c", "=x"]),
}


@st.composite
def frames(draw):
    """Frames of 1 to 8 rows, with 1 to 6 columns of any kinds."""
    num_rows = draw(st.integers(1, 8))
    kinds = draw(st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=6))
    names = [f"{kind} {j}" for j, kind in enumerate(kinds)]
    cells = [draw(st.lists(VALUES[kind], min_size=num_rows, max_size=num_rows)) for kind in kinds]
    return pd.DataFrame(dict(zip(names, cells, strict=True)))


def oracle(frame: pd.DataFrame, like: pd.DataFrame) -> dict[str, list[float]]:
    """The encoded columns of a frame by their names, a cell at a time, with the levels of another."""
    columns = {}
    for name in frame.columns:
        cells = frame[name].tolist()
        if isinstance(cells[0], str):
            levels = sorted(set(like[name]))
            for level in levels[1:] if len(levels) == 2 else levels:
                columns[f"{name}={level}"] = [float(cell == level) for cell in cells]
        elif name.startswith("date"):
            spans = [cell.to_pydatetime() - EPOCH for cell in cells]
            columns[name] = [s.days + (s.seconds + s.microseconds / 1e6) / 86400 for s in spans]
        elif name.startswith("span"):
            columns[name] = [cell.to_pytimedelta() / datetime.timedelta(days=1) for cell in cells]
        else:
            columns[name] = [float(cell) for cell in cells]
    return columns


def levels_frame(**columns) -> pd.DataFrame:
    return pd.DataFrame(columns)


# ---- what it does ----


@given(frames())
def test_every_cell_is_that_of_the_oracle(frame):
    encoder = Encoder.fit(frame)
    expected = oracle(frame, frame)
    matrix = encoder.transform(frame)
    assert encoder.names_in == tuple(frame.columns)
    assert encoder.names_out == tuple(expected)
    assert matrix.dtype == np.float64
    np.testing.assert_allclose(matrix, np.array(list(expected.values())).T, rtol=1e-14, atol=1e-10)


@given(frames())
def test_fit_transform_gives_the_encoder_of_fit_and_its_matrix(frame):
    encoder, matrix = Encoder.fit_transform(frame)
    assert encoder.state() == Encoder.fit(frame).state()
    assert matrix.tobytes() == encoder.transform(frame).tobytes()


@given(frames())
def test_codes_are_one_column_for_each_column_and_expand_to_the_matrix(frame):
    encoder, codes = Encoder.fit_codes(frame)
    assert codes.tobytes() == encoder.codes(frame).tobytes()
    assert codes.shape == frame.shape
    places = [j for j, name in enumerate(frame.columns) if name.startswith("text")]
    assert encoder.categorical == tuple(places)
    for j in places:  # pandas numbers sorted levels in the same way
        np.testing.assert_array_equal(codes[:, j], pd.factorize(frame.iloc[:, j], sort=True)[0])
    assert encoder.expand(codes).tobytes() == encoder.transform(frame).tobytes()


@pytest.mark.parametrize("make", [np.asarray, pd.DataFrame], ids=["array", "frame"])
def test_fit_encodes_each_column_once(make, monkeypatch):
    calls, check = [], cells.check_values
    monkeypatch.setattr(cells, "check_values", lambda *a: calls.append(a) or check(*a))
    X = np.arange(6.0).reshape(3, 2)
    encoder, matrix = Encoder.fit_transform(make(X))
    assert len(calls) == 1
    np.testing.assert_array_equal(matrix, X)
    assert encoder.names_in == (None if make is np.asarray else ("0", "1"))


@given(frames(), st.randoms(use_true_random=False))
def test_rows_and_columns_in_another_order_are_the_same_rows(frame, random):
    encoder = Encoder.fit(frame)
    rows, columns = list(range(len(frame))), list(frame.columns)
    random.shuffle(rows)
    random.shuffle(columns)
    mixed = frame.iloc[rows][columns].assign(**{"not asked for": "?"})
    np.testing.assert_array_equal(encoder.transform(mixed), encoder.transform(frame)[rows])


@given(frames())
def test_a_state_through_json_gives_the_same_bits(frame):
    encoder = Encoder.fit(frame)
    again = Encoder.from_state(json.loads(json.dumps(encoder.state())))
    for name in ("names_in", "names_out", "text_names"):
        assert getattr(again, name) == getattr(encoder, name)
    assert again.state() == encoder.state()
    assert again.transform(frame).tobytes() == encoder.transform(frame).tobytes()


def test_an_unknown_kind_in_a_state_is_refused():
    state = Encoder.fit(pd.DataFrame({"a": [1.0]})).state()
    state["columns"][0]["kind"] = "smell"
    with pytest.raises(ValueError, match="does not have column 'a' as cagp stores it"):
        Encoder.from_state(state)


@pytest.mark.parametrize("dtype", ["int8", "uint16", "float16", "float32", "float64", "bool", "longdouble", ">f4"])
def test_arrays_of_numbers_pass(dtype):
    X = np.array([[0, 1], [1, 0], [1, 1]], dtype=dtype)
    encoder = Encoder.fit(X)
    assert encoder.names_in is None
    assert encoder.names_out == ("x0", "x1")
    np.testing.assert_array_equal(encoder.transform(X), [[0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])


@pytest.mark.parametrize(
    "X",
    [
        [[1, 2.5], [3, -4]],
        ((1, 2.5), (3, -4)),
        np.array([[1, 2.5], [3, -4]], dtype=object),
        np.array([[1, Decimal("2.5")], [np.float32(3), -4]], dtype=object),
        torch.tensor([[1, 2.5], [3, -4]], dtype=torch.bfloat16),
        torch.tensor([[1, 2.5], [3, -4]], requires_grad=True),
        np.array([[3.0, -4.0], [1.0, 2.5]])[::-1],
        pd.DataFrame([[1, 2.5], [3, -4]]),
        pa.table({"a": [1, 3], "b": [2.5, -4.0]}),
        np.array([(1, 2.5), (3, -4)], dtype=[("a", "i4"), ("b", "f8")]),
    ],
    ids=[
        "lists",
        "tuples",
        "objects",
        "mixed numbers",
        "bfloat16",
        "gradient",
        "reversed",
        "frame",
        "arrow",
        "records",
    ],
)
def test_every_container_gives_the_same_matrix(X):
    matrix = Encoder.fit(X).transform(X)
    np.testing.assert_array_equal(matrix, [[1.0, 2.5], [3.0, -4.0]])
    torch.from_numpy(matrix)  # warns of read-only memory, fails for negative strides


def test_read_only_arrays_come_back_writable_and_unchanged():
    X = np.eye(3)
    X.flags.writeable = False
    matrix = Encoder.fit(X).transform(X)
    matrix[0, 0] = 5.0
    assert X[0, 0] == 1.0


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (pd.Series([1, 2], dtype="Int64"), [1.0, 2.0]),
        (pd.Series([1.5, 2], dtype="Float32"), [1.5, 2.0]),
        (pd.Series([True, False], dtype="boolean"), [1.0, 0.0]),
        (pd.Series([True, False], dtype=object), [1.0, 0.0]),
        (pd.Series([Decimal("0.5"), Decimal(2)]), [0.5, 2.0]),
        (pd.Series(pd.arrays.SparseArray([0.0, 3.0])), [0.0, 3.0]),
        (pd.Series([1, 2], dtype=pd.ArrowDtype(pa.int32())), [1.0, 2.0]),
        (pd.Series([datetime.date(1970, 1, 2), datetime.date(1969, 12, 31)]), [1.0, -1.0]),
        (pd.Series(pd.to_datetime(["1970-01-02 12:00", "1969-12-31 18:00"])), [1.5, -0.25]),
        (pd.Series(pd.to_datetime(["1970-01-02 12:00", "1969-12-31 18:00"])).astype("datetime64[s]"), [1.5, -0.25]),
        (pd.Series(pd.to_datetime(["1970-01-02", "1970-01-03"])).dt.tz_localize("Etc/GMT-6"), [0.75, 1.75]),
        (pd.Series(pd.to_timedelta(["36h", "-6h"])), [1.5, -0.25]),
        (pd.Series(pd.to_timedelta(["36h", "-6h"]), dtype=pd.ArrowDtype(pa.duration("us"))), [1.5, -0.25]),
        (pd.Series(["b", "a"], dtype="string"), [1.0, 0.0]),
        (pd.Series(["b", "a"], dtype=object), [1.0, 0.0]),
        (pd.Series(["b", "a"], dtype=pd.ArrowDtype(pa.string())), [1.0, 0.0]),
        (pd.Series(["b", "a"], dtype=pd.CategoricalDtype(["z", "b", "a"])), [1.0, 0.0]),
        (pd.Series([7, 5]).astype("category"), [1.0, 0.0]),
        (pd.Series(["2", "10"]).astype("category"), [1.0, 0.0]),
        (pd.cut(pd.Series([1.5, 0.5]), [0, 1, 2]), [1.0, 0.0]),
    ],
)
def test_types_of_columns(values, expected):
    frame = pd.DataFrame({"a": values})
    matrix = Encoder.fit(frame).transform(frame)
    np.testing.assert_array_equal(matrix, np.array(expected)[:, None])


def test_dates_do_not_depend_on_their_unit():
    dates = pd.Series(pd.to_datetime(["1931-02-03 04:05:06", "2024-12-31 23:59:59", "1970-01-01 00:00:01"]))
    days = [
        Encoder.fit(f := pd.DataFrame({"t": dates.astype(f"datetime64[{unit}]")})).transform(f).tobytes()
        for unit in ("s", "ms", "us", "ns")
    ]
    assert len(set(days)) == 1


def test_arrays_of_dates_and_durations():
    X = np.array([["1970-01-02", "1970-01-01T12"]], dtype="datetime64[h]")
    np.testing.assert_array_equal(Encoder.fit(X).transform(X), [[1.0, 0.5]])
    np.testing.assert_array_equal(Encoder.fit(X - X[:, :1]).transform(X - X[:, :1]), [[0.0, -0.5]])


def test_levels_are_sorted_and_those_of_fit():
    frame = levels_frame(c=["red", "blue", "green", "red"], two=["x", "y", "x", "x"], one=["k"] * 4)
    encoder = Encoder.fit(frame)
    assert encoder.names_out == ("c=blue", "c=green", "c=red", "two=y", "one=k")
    assert encoder.text_names == ("c", "two", "one")
    part = encoder.transform(frame.iloc[[1]])
    np.testing.assert_array_equal(part, [[1.0, 0.0, 0.0, 1.0, 1.0]])


def test_levels_of_numbers_come_in_any_type():
    """A CSV column of codes may be read as integers, as floats or as text."""
    encoder = Encoder.fit(pd.DataFrame({"code": pd.Categorical([1, 2, 30])}))
    for values in ([30, 1], [30.0, 1.0], ["30", "1"], pd.Categorical([30, 1])):
        np.testing.assert_array_equal(encoder.transform(pd.DataFrame({"code": values})), [[0, 0, 1], [1, 0, 0]])


def test_most_levels():
    encoder = Encoder.fit(levels_frame(c=[f"v{j}" for j in range(MAX_LEVELS)]))
    assert len(encoder.names_out) == MAX_LEVELS


def test_names_of_any_type():
    frame = pd.DataFrame([[1.0, 2.0, 3.0]], columns=pd.Index([0, ("a", 1), "größe ☃"], dtype=object))
    encoder = Encoder.fit(frame)
    assert encoder.names_in == encoder.names_out == ("0", "('a', 1)", "größe ☃")
    np.testing.assert_array_equal(encoder.transform(frame.iloc[:, ::-1]), [[1.0, 2.0, 3.0]])


def test_what_is_not_a_frame_goes_by_position():
    frame = pd.DataFrame({"a": [1.0, 2.0], "b": [True, False]})
    np.testing.assert_array_equal(Encoder.fit(frame).transform(np.array([[5.0, 6.0]])), [[5.0, 6.0]])
    np.testing.assert_array_equal(Encoder.fit(np.eye(2)).transform(frame), [[1.0, 1.0], [2.0, 0.0]])


def test_text_for_dates_is_read_as_iso_8601():
    encoder = Encoder.fit(pd.DataFrame({"t": pd.to_datetime(["2024-01-01", "2024-01-02"])}))
    found = encoder.transform(pd.DataFrame({"t": ["1970-01-02", "1970-01-01T12:00:00"]}))
    np.testing.assert_array_equal(found, [[1.0], [0.5]])
    with pytest.raises(ValueError, match=r"column 't' holds '03/04/2024' at row 11, at fit it held dates"):
        encoder.transform(pd.DataFrame({"t": ["2024-01-01", "03/04/2024"]}), rows_from=10)


# ---- what it refuses, and how ----


@pytest.mark.parametrize("missing", [np.nan, None, pd.NA, pd.NaT])
def test_a_column_without_values_is_refused(missing):
    with pytest.raises(ValueError, match="column 'empty' has only missing values in the rows to learn from; drop it"):
        Encoder.fit(pd.DataFrame({"fine": [1.0, 2.0], "empty": pd.Series([missing] * 2, dtype=object)}))


def test_infinite_and_huge_inputs_are_told_apart():
    X = np.array([[1.0, np.inf, 1.0], [1.0, 2.0, -1e151], [1.0, -np.inf, 1e150]])
    for table in (X, pd.DataFrame(X, columns=["x0", "x1", "x2"]), torch.from_numpy(X)):
        with pytest.raises(ValueError, match=r"infinite values \(inf\): column 'x1' has 2 \(first at row 0\)") as error:
            Encoder.fit(table)
        assert "squares overflow: column 'x2' has 1 (first at row 1). Rescale" in str(error.value)
        assert "missing" not in str(error.value)
    with pytest.raises(ValueError, match=r"infinite values \(inf\): column 'big'"):
        Encoder.fit(pd.DataFrame({"big": [10**400, 1]}))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (
            ["1.5", "2"],
            "column 'q' holds numbers as text, e.g. '1.5': use pandas.to_numeric",
        ),
        (["a", 1], "column 'q' mixes values of the types int, str"),
        ([1.5, "a"], "column 'q' mixes values of the types float, str"),
        ([[1], [2]], "column 'q' holds values of type list"),
        ([{"a": 1}, None], "column 'q' holds values of type dict"),
        ([b"a", b"b"], "column 'q' holds values of type bytes"),
        ([1j, 2], "Complex data not supported: column 'q'"),
        (pd.period_range("2020", periods=2, freq="D"), "column 'q' holds periods"),
        (pd.interval_range(0, 2), "column 'q' holds values of type Interval"),
        (pd.Categorical([1, "1"]), "column 'q' has the level '1' in several types"),
    ],
)
def test_columns_that_cannot_be_encoded(values, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        Encoder.fit(pd.DataFrame({"fine": [1, 2], "q": values}))


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (
            [1.0, 2.0],
            ["3", "oops"],
            "'q' holds levels (text or categories), at fit it held numbers, 'oops' at row 8",
        ),
        ([1.0, 2.0], ["3", "4"], "at fit it held numbers, '3' at row 7"),
        ([1.0, 2.0], pd.to_datetime(["2020-01-01"] * 2), "column 'q' holds dates, at fit it held numbers"),
        (["a", "b"], pd.to_datetime(["2020-01-01"] * 2), "column 'q' holds dates, at fit it held levels"),
        (pd.to_datetime(["2020-01-01"] * 2), [1, 2], "column 'q' holds numbers, at fit it held dates"),
        (pd.to_timedelta(["1h"] * 2), [1, 2], "column 'q' holds numbers, at fit it held durations"),
        (["a", "b"], ["a", 1], "column 'q' mixes values of the types int, str"),
    ],
)
def test_columns_that_changed_their_type(before, after, said):
    encoder = Encoder.fit(pd.DataFrame({"q": before}))
    with pytest.raises(ValueError, match=re.escape(said)):
        encoder.transform(pd.DataFrame({"q": after}), rows_from=7)


def test_columns_that_are_absent_or_twice():
    encoder = Encoder.fit(pd.DataFrame({"a": [1], "b": [2], "c": [3]}))
    with pytest.raises(ValueError, match="no columns 'a', 'c', which fit had; its columns are 'b', 'd'"):
        encoder.transform(pd.DataFrame({"b": [1], "d": [1]}))
    with pytest.raises(ValueError, match="more than one column named 'u'"):
        Encoder.fit(pd.DataFrame([[1, 2, 3]], columns=["u", "v", "u"]))
    with pytest.raises(ValueError, match="more than one column named '1'"):
        Encoder.fit(pd.DataFrame([[1, 2]], columns=pd.Index([1, "1"], dtype=object)))
    with pytest.raises(ValueError, match="X has 2 features, but Encoder is expecting 3 features as input"):
        encoder.transform(np.zeros((1, 2)))
    with pytest.raises(ValueError, match="X has 2 features, but Encoder is expecting 3 features as input"):
        Encoder.fit(np.eye(3)).transform(pd.DataFrame({"a": [1], "b": [1]}))


@pytest.mark.parametrize("make", [np.asarray, pd.DataFrame], ids=["array", "frame"])
def test_nothing_to_encode(make):
    with pytest.raises(ValueError, match=r"0 feature\(s\) \(shape=\(3, 0\)\) while a minimum of 1 is required"):
        Encoder.fit(make(np.zeros((3, 0))))
    with pytest.raises(ValueError, match=r"0 sample\(s\) \(shape=\(0, 2\)\) while a minimum of 1 is required"):
        Encoder.fit(make(np.zeros((0, 2))))
    with pytest.raises(ValueError, match=r"0 sample\(s\)"):
        Encoder.fit(make(np.ones((3, 2)))).transform(make(np.zeros((0, 2))))


@pytest.mark.parametrize(
    ("X", "kind", "said"),
    [
        (sparse.csr_matrix(np.eye(2)), TypeError, r"sparse matrix.*X\.toarray\(\)"),
        (sparse.coo_array(np.eye(2)), TypeError, r"sparse matrix.*X\.toarray\(\)"),
        (torch.eye(2).to_sparse(), TypeError, r"sparse tensor.*X\.to_dense\(\)"),
        (np.zeros(3), ValueError, "Reshape your data"),
        (pd.Series([1.0]), ValueError, "Reshape your data"),
        (np.zeros((1, 1, 1)), ValueError, "Expected 2D array, got 3D"),
        ([[1, 2], [3]], ValueError, "rows of equal length"),
        (np.ones((2, 2)) * 1j, ValueError, "Complex data not supported"),
        (np.array([[1j, 2]], dtype=object), ValueError, "Complex data not supported: column x0"),
        (np.array([[1, {"a": 1}]], dtype=object), TypeError, "argument must be .* string.* number.*column x1 .* row 0"),
        (np.array([[1, "2"]], dtype=object), TypeError, "column x1 of X holds '2' at row 0.*DataFrame"),
        ([["a", "b"]], TypeError, "column x0 of X holds 'a' at row 0.*DataFrame"),
        ([[1.0, None], [2.0, None]], ValueError, "column 'x1' has only missing values"),
    ],
)
def test_arrays_that_cannot_be_encoded(X, kind, said):
    with pytest.raises(kind, match=said):
        Encoder.fit(X)


def test_masked_values_are_missing():
    codes = Encoder.fit_codes(np.ma.array([[1, 2], [3, 4]], mask=[[False, True], [False, False]]))[1]
    np.testing.assert_array_equal(codes, [[1, np.nan], [3, 4]])
    np.testing.assert_array_equal(encode_target(np.ma.array([1, 2], mask=[False, True])).missing, [False, True])


# ---- targets ----


@pytest.mark.parametrize(
    ("y", "names"),
    [
        ([1, None, 3.5], ("y",)),
        (np.array([1, np.nan, 3.5], dtype=np.float32), ("y",)),
        (np.array([[1], [np.nan], [3.5]]), ("y",)),
        (torch.tensor([1, torch.nan, 3.5]), ("y",)),
        (pd.Series([1, None, 3.5]), ("y",)),
        (pd.Series([1, pd.NA, 3.5], dtype="Float64", name="height"), ("height",)),
        (pd.Series([1, pd.NaT, 3.5], dtype=object, name=7), ("7",)),
        (pd.DataFrame({"height": [1, None, 3.5]}), ("height",)),
    ],
)
def test_one_target(y, names):
    target = encode_target(y)
    np.testing.assert_array_equal(target.values, [1.0, np.nan, 3.5])
    assert target.values.dtype == np.float64
    np.testing.assert_array_equal(target.missing, [False, True, False])
    assert target.names == names


def test_several_targets():
    values = np.array([[1.0, 0.0], [np.nan, 1.0], [3.0, np.nan], [4.0, 1.0]])
    for y, names in [(values, ("z0", "z1")), (pd.DataFrame(values, columns=["u", "v"]), ("u", "v"))]:
        target = encode_target(y, "z")
        np.testing.assert_array_equal(target.values, values)
        np.testing.assert_array_equal(target.missing, [False, True, True, False])
        assert not target.empty.any()
        assert target.names == names
    np.testing.assert_array_equal(encode_target([[1.0, np.nan], [np.nan, np.nan], [2.0, 3.0]]).empty, [0, 1, 0])
    booleans = encode_target(pd.DataFrame({"u": [True, None], "v": [1, 2]}))
    np.testing.assert_array_equal(booleans.values, [[1.0, 1.0], [np.nan, 2.0]])


@pytest.mark.parametrize(
    ("y", "said"),
    [
        (None, "requires y to be passed, but the target y is None"),
        ([1.0, -np.inf], r"Input y contains infinity or a value too large for dtype\('float64'\).*row 1"),
        ([1e151, 1.0], r"Input y contains infinity or a value too large for dtype\('float64'\).*row 0"),
        (pd.DataFrame({"a": [1.0, 2.0], "b": [np.inf, 1.0]}), "infinity.*column 'b' has 1"),
        ([np.nan, None], "Input y contains only NaN in column 'y'"),
        (["a", "b"], "column 'y', 'a' at row 0. This is regression"),
        (pd.Series(["1.5", "2"], name="h"), "column 'h', '1.5' at row 0. This is regression.*to_numeric"),
        (pd.Series(["a", "b"], dtype="category", name="h"), "column 'h'.*regression"),
        (pd.Series(pd.to_datetime(["2020-01-01"]), name="when"), r"dates in column 'when'.*Timedelta\(days=1\)"),
        (np.array([1], dtype="timedelta64[D]"), r"durations in column 'y'.*Timedelta\(days=1\)"),
        ([1j], "Complex data not supported: column 'y'"),
        ([], "minimum of 1"),
        (5.0, "y should be a 1d array"),
        (np.zeros((2, 2, 2)), "y should be a 1d array"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), "y has more than one column named 'a'"),
    ],
)
def test_targets_that_cannot_be_learned(y, said):
    with pytest.raises(ValueError, match=said):
        encode_target(y)


def test_sparse_targets():
    with pytest.raises(TypeError, match=r"sparse matrix.*y\.toarray\(\)"):
        encode_target(sparse.csr_matrix(np.eye(2)))
