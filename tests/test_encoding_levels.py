"""Missing values, unknown and many levels, codes: what the encoder makes of them, against plain pandas."""

import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

from cagp.data import MAX_LEVELS, Encoder, Standardizer

SEEDS = pytest.mark.parametrize("seed", range(30))


def two_frames(seed: int) -> list[pd.DataFrame]:
    """Rows to learn from, and others with values, levels and gaps of their own; the first may have none."""
    rng = np.random.default_rng(seed)
    parts = []
    for num_rows in (rng.integers(1, 80), 10):
        cells = {
            "number": rng.normal(size=num_rows).astype(object),
            "text": rng.choice(["a", "b", "c"], num_rows).astype(object),
            "two": rng.choice(["u", "v", "w"], num_rows, p=[0.5, 0.5, 0.0] if len(parts) == 0 else None).astype(object),
            "many": np.array([f"level {j}" for j in rng.integers(0, 40, num_rows)], dtype=object),
            "date": (pd.Timestamp("1990-01-01") + pd.to_timedelta(rng.integers(0, 9000, num_rows), "D")).date,
        }
        for values in cells.values():
            values[rng.random(num_rows) < rng.choice([0.0, 0.3])] = None
        parts.append(pd.DataFrame({name: pd.Series(values, dtype=object) for name, values in cells.items()}))
    parts[0].loc[len(parts[0])] = [0.5, "a", "u", "level 3", pd.Timestamp("2024-01-01").date()]  # not only gaps
    return parts


def oracle(new: pd.DataFrame, old: pd.DataFrame) -> pd.DataFrame:
    """The inputs for new rows, by pandas' own means, with the levels and gaps of the old ones."""
    columns = {}
    for name in old:
        known = old[name].dropna()
        if name == "number":
            columns[name] = new[name].astype(float)
        elif name == "date":
            columns[name] = (pd.to_datetime(new[name]) - pd.Timestamp("1970-01-01")) / pd.Timedelta(days=1)
        else:
            counts = known.value_counts()
            top = sorted(counts.index, key=lambda level: (-counts[level], level))[:MAX_LEVELS]
            dummies = pd.get_dummies(new[name]).reindex(columns=sorted(top), fill_value=False).astype(float)
            if len(counts) == 2:
                unknown = ~new[name].isin(counts.index)
                dummies = dummies.iloc[:, 1:].mask(unknown, 0.5)
            for level in dummies:
                columns[f"{name}={level}"] = dummies[level]
            if len(counts) > MAX_LEVELS:
                columns[f"{name}=other levels"] = (new[name].notna() & ~new[name].isin(top)).astype(float)
        if old[name].isna().any():
            columns[f"{name} is missing"] = new[name].isna().astype(float)
    return pd.DataFrame(columns)


@pytest.mark.thinned(24)
@SEEDS
def test_every_input_is_that_of_pandas(seed):
    old, new = two_frames(seed)
    encoder, codes = Encoder.fit_codes(old, categories=["many"])  # most of its levels may occur once
    for rows in (old, new):
        expected = oracle(rows, old)
        assert encoder.names_out == tuple(expected.columns)
        np.testing.assert_allclose(encoder.transform(rows), expected.to_numpy(), rtol=1e-14, atol=1e-10)
        gaps = {name: int(rows[name].isna().sum()) for name in old if old[name].notna().all()}
        assert encoder.num_missing(encoder.codes(rows)) == {name: n for name, n in gaps.items() if n}
    again = Encoder.from_state(json.loads(json.dumps(encoder.state())))
    assert again.codes(old).tobytes() == codes.tobytes()
    assert again.transform(old).tobytes() == encoder.expand(codes).tobytes()


@SEEDS
def test_an_encoder_for_some_rows_is_that_of_a_fit_to_them(seed):
    parts = two_frames(seed)
    frame = pd.concat(parts[::-1], ignore_index=True)
    rows = np.arange(len(parts[1]), len(frame))
    encoder, codes = Encoder.fit_codes(frame, ["many"], np.arange(len(frame)) >= len(parts[1]))
    expected = Encoder.fit(frame.iloc[rows], categories=["many"])
    assert encoder.state() == expected.state()
    assert codes.tobytes() == expected.codes(frame).tobytes()


@pytest.mark.parametrize(
    "values",
    [
        pd.Series([1, None, 3], dtype="Int64"),
        pd.Series([True, None, False], dtype="boolean"),
        pd.Series(["a", None, "b"], dtype="string"),
        pd.Series(["a", None, "b"], dtype="category"),
        pd.Series(pd.to_datetime(["2020-01-01", None, "2021-01-01"])),
        pd.Series(pd.to_timedelta(["1h", None, "2h"])),
        pd.Series([1.0, None, 2.0], dtype=pd.ArrowDtype(pa.float64())),
    ],
    ids=lambda values: str(values.dtype),
)
def test_missing_values_of_every_type(values):
    encoder, codes = Encoder.fit_codes(pd.DataFrame({"q": values}))
    np.testing.assert_array_equal(np.isnan(codes[:, 0]), [False, True, False])
    assert encoder.names_out[-1] == "q is missing"
    inputs = encoder.expand(codes)
    np.testing.assert_array_equal(inputs[:, 1], [0, 1, 0])
    complete = Encoder.fit(pd.DataFrame({"q": values.dropna()}))
    np.testing.assert_array_equal(inputs[[0, 2], :1], complete.transform(pd.DataFrame({"q": values.dropna()})))
    rows, numbers = complete.stand_ins(complete.codes(pd.DataFrame({"q": values})))
    assert not np.isnan(rows).any()
    assert set(rows[numbers == 1, 0]) == set(rows[numbers != 1, 0])  # both known values
    assert encoder.missing_words(codes)[0].startswith("Missing values: 'q' in 1 of 3 rows.")
    with pytest.raises(ValueError, match="column 'q' has only missing values"):
        Encoder.fit(pd.DataFrame({"q": values.iloc[[1, 1]]}))


def test_missing_values_of_arrays():
    X = np.array([[1.0, np.nan], [np.nan, 4.0], [3.0, 6.0]])
    encoder, codes = Encoder.fit_codes(X)
    assert encoder.names_out == ("x0", "x0 is missing", "x1", "x1 is missing")
    np.testing.assert_array_equal(codes, X)
    np.testing.assert_array_equal(encoder.expand(codes)[:, [1, 3]], np.isnan(X))
    with pytest.raises(ValueError, match="infinite values"):
        encoder.codes(np.array([[np.nan, np.inf]]))


def test_standard_units_of_missing_inputs():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(50, 4)) * [1.0, 100.0, 1e-3, 1.0] + [5.0, 0.0, 1.0, 2.0]
    X[rng.random(X.shape) < 0.3] = np.nan
    X[:, 2] = np.where(np.arange(50) == 7, 3.25, np.nan)  # one value
    X[:, 3] = 2.0  # constant, and complete
    scaler = Standardizer.fit(torch.from_numpy(X), torch.arange(50.0).double())
    np.testing.assert_allclose(scaler.input_mean, np.nanmean(X, 0), rtol=1e-14)
    np.testing.assert_allclose(scaler.input_std, [*np.nanstd(X[:, :2], 0, ddof=1), 1, 1], rtol=1e-13)
    found = scaler.inputs(torch.from_numpy(X)).numpy()
    np.testing.assert_array_equal(found[np.isnan(X)], 0.0)
    np.testing.assert_allclose(found[:, :2].mean(0), 0.0, atol=1e-14)
    with pytest.raises(ValueError, match="NaN or infinite"):
        Standardizer.fit(torch.tensor([[1.0], [np.inf]]), torch.ones(2))


def test_unknown_levels_have_a_code_of_their_own():
    encoder = Encoder.fit(pd.DataFrame({"c": ["x", "y", "z"], "two": ["p", "q", "q"], "one": ["k"] * 3}))
    new = pd.DataFrame({"c": ["y", "w"], "two": ["r", "p"], "one": ["m", "k"]})
    codes = encoder.codes(new)
    np.testing.assert_array_equal(codes, [[1, 2, 1], [3, 0, 0]])
    np.testing.assert_array_equal(encoder.expand(codes), [[0, 1, 0, 0.5, 0], [0, 0, 0, 0, 1]])
    assert encoder.num_unknown(codes) == {"c": 1, "two": 1, "one": 1}
    assert encoder.num_unknown(codes[:0]) == {}


def test_levels_of_numbers_are_found_in_every_spelling():
    encoder = Encoder.fit(pd.DataFrame({"code": [1, 2, 30, 7]}), categories=["code"])
    for values in ([30, 1], [30.0, 1.0], ["30", "1"], ["30.0", "1."], pd.Categorical([30, 1])):
        np.testing.assert_array_equal(encoder.codes(pd.DataFrame({"code": values}))[:, 0], [2, 0])
    np.testing.assert_array_equal(encoder.codes(pd.DataFrame({"code": ["007", "7"]}))[:, 0], [4, 3])


def test_codes_are_levels_where_the_user_says_so():
    frame = pd.DataFrame({"zip": [10115, 53111, 89073, None], "size": [1.0, 2.0, 3.0, 4.0]})
    encoder = Encoder.fit(frame, categories=("zip",))
    assert encoder.names_out == ("zip=10115", "zip=53111", "zip=89073", "zip is missing", "size")
    assert encoder.categorical == (0,)
    np.testing.assert_array_equal(encoder.transform(frame)[:, :4], np.eye(4))
    array = Encoder.fit(frame.to_numpy(), categories=[np.int64(0)])
    assert array.names_out == ("x0=10115", "x0=53111", "x0=89073", "x0 is missing", "x1")
    np.testing.assert_array_equal(array.transform(frame.to_numpy()), encoder.transform(frame))
    text = Encoder.fit(pd.DataFrame({"c": ["1.5", "007"]}), categories=["c"])
    assert text.names_out == ("c=1.5",)


@pytest.mark.parametrize(
    ("X", "categories", "said"),
    [
        (pd.DataFrame({"a": [1]}), ["b"], "categories names column 'b', which X does not have; its columns are 'a'"),
        (pd.DataFrame({"a": [1]}), "a", r"categories is 'a', expected a list of columns, e.g. \['a'\]"),
        (pd.DataFrame({"a": [1]}), None, "categories is None, expected a list"),
        (np.eye(2), ["x0"], "categories has 'x0', expected positions of columns from 0 to 1"),
        (np.eye(2), [2], "categories has 2, expected positions"),
        (np.eye(2), [True], "categories has True, expected positions"),
        (pd.DataFrame({"a": pd.to_datetime(["2024-01-01"])}), ["a"], "categories names column 'a', which holds dates"),
    ],
)
@pytest.mark.usefixtures("annotations_off")
def test_categories_that_are_not_columns(X, categories, said):
    with pytest.raises(ValueError, match=said):
        Encoder.fit(X, categories=categories)


def test_many_levels():
    levels = [f"v{j:02}" for j in range(30)]
    text = levels * 3 + levels[5:25]
    encoder, codes = Encoder.fit_codes(pd.DataFrame({"c": text}))
    assert encoder.names_out == (*(f"c={level}" for level in levels[5:25]), "c=other levels")
    np.testing.assert_array_equal(codes[:, 0], [levels.index(level) for level in text])
    inputs = encoder.expand(codes)
    np.testing.assert_array_equal(inputs.sum(1), 1)
    np.testing.assert_array_equal(inputs[:, -1], [level not in levels[5:25] for level in text])
    np.testing.assert_array_equal(encoder.transform(pd.DataFrame({"c": ["new"]})), [[*[0] * 20, 1]])
    ties = Encoder.fit(pd.DataFrame({"c": levels * 2}))
    assert ties.names_out[:-1] == tuple(f"c={level}" for level in levels[:20])


def test_identifiers_are_refused_unless_they_are_asked_for():
    names = [f"v{j}" for j in range(MAX_LEVELS + 1)]
    with pytest.raises(ValueError, match=r"column 'name' has 21 levels in 40 rows: it looks like an identifier.*Drop"):
        Encoder.fit(pd.DataFrame({"name": names + names[:19]}))
    assert len(Encoder.fit(pd.DataFrame({"name": names * 2})).names_out) == 21
    assert len(Encoder.fit(pd.DataFrame({"name": names[:20]})).names_out) == 20
    assert len(Encoder.fit(pd.DataFrame({"name": names}), categories=["name"]).names_out) == 21
    assert len(Encoder.fit(pd.DataFrame({"name": pd.Categorical(names)})).names_out) == 21
    with pytest.raises(ValueError, match=r"'n' holds text that mostly looks like numbers; '\?' at row 7 does not"):
        Encoder.fit(pd.DataFrame({"n": [*map(str, range(7)), "?", *map(str, range(7, 40))] * 9}))
