"""Tables in pieces: what is read, and that encoder and scales are those of the whole table."""

import numpy as np
import pandas as pd
import pytest
import torch
from random_tables import random_table

from cagp.data import Encoder, Standardizer, open_chunks, read_table, stream_table
from cagp.data.column_values import MixedKindsError, quantile_stride
from cagp.data.encoding import EncoderScan
from cagp.data.tables import table_rows
from cagp.data.transforms import ColumnMoments

RNG = np.random.default_rng(0)
FRAME = pd.DataFrame({"a": RNG.normal(size=50), "kind": RNG.choice(["x", "y", "z"], 50), "y": RNG.normal(size=50)})


def parts_of(folder, frame=FRAME, count=3, ending="parquet"):
    """The frame as a folder of files."""
    folder.mkdir(exist_ok=True)
    for number, part in enumerate(np.array_split(np.arange(len(frame)), count)):
        name = folder / f"part-{number:03d}.{ending}"
        if ending == "parquet":
            frame.iloc[part].to_parquet(name)
        else:
            frame.iloc[part].to_csv(name, index=False)
    return folder


def joined(chunks):
    """Inputs and targets of all pieces."""
    read = list(chunks.read())
    assert [chunk.rows_from for chunk in read] == np.cumsum([0, *(len(chunk.inputs) for chunk in read[:-1])]).tolist()
    if isinstance(read[0].inputs, pd.DataFrame):
        return pd.concat([chunk.inputs for chunk in read]), pd.concat([chunk.targets for chunk in read])
    return np.concatenate([chunk.inputs for chunk in read]), np.concatenate([chunk.targets for chunk in read])


# ---- files ----


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_a_folder_and_a_pattern_are_one_table(tmp_path, ending):
    folder = parts_of(tmp_path / "parts", ending=ending)
    (folder / "_SUCCESS").touch()
    (folder / ".hidden").touch()
    for path in (folder, f"{folder}/part-*.{ending}"):
        pd.testing.assert_frame_equal(read_table(path), FRAME)
        pieces = list(stream_table(path, rows=7))
        pd.testing.assert_frame_equal(pd.concat([piece.frame for piece in pieces]), FRAME)
        assert [piece.rows_from for piece in pieces] == np.cumsum([0, *(len(p.frame) for p in pieces[:-1])]).tolist()
        fractions = [piece.fraction for piece in pieces]
        assert fractions == sorted(fractions)
        assert fractions[-1] == pytest.approx(1)
    assert table_rows(folder) == (50 if ending == "parquet" else None)


def test_folders_that_are_not_one_table(tmp_path):
    folder = parts_of(tmp_path / "parts")
    (folder / "other.csv").write_text("a\n1\n")
    with pytest.raises(ValueError, match=r"files of several formats.*other\.csv"):
        read_table(folder)
    (folder / "other.csv").unlink()
    FRAME.drop(columns="a").to_parquet(folder / "part-004.parquet")
    with pytest.raises(ValueError, match=r"part-004\.parquet has the columns 'kind', 'y'"):
        read_table(folder)
    (folder / "part-004.parquet").unlink()
    parts_of(folder / "year=2024")
    with pytest.raises(ValueError, match="has folders inside"):
        read_table(folder)


def test_a_damaged_part_is_named(tmp_path):
    folder = parts_of(tmp_path / "parts")
    part = folder / "part-001.parquet"
    part.write_bytes(part.read_bytes()[:-20])
    with pytest.raises(ValueError, match=r"part-001\.parquet cannot be read as a Parquet file"):
        open_chunks(folder, "y")  # the number of rows is at the end of each file
    whole = FRAME.iloc[:100]
    whole.to_parquet(part, compression=None)
    content = bytearray(part.read_bytes())
    content[4:60] = bytes(56)  # the footer is whole, the first page is not
    part.write_bytes(content)
    with pytest.raises(ValueError, match=r"part-001\.parquet cannot be read as a Parquet file"):
        list(open_chunks(folder, "y").read())


def test_arrays_on_disk(tmp_path):
    X, y = RNG.normal(size=(20, 2)), RNG.normal(size=20)
    np.save(tmp_path / "X.npy", X)
    np.save(tmp_path / "y.npy", y)
    for source in ((X, y), (tmp_path / "X.npy", tmp_path / "y.npy")):
        chunks = open_chunks(source, rows=7)
        assert chunks.num_rows == 20
        inputs, targets = joined(chunks)
        np.testing.assert_array_equal(inputs, X)
        np.testing.assert_array_equal(targets, y)
    np.testing.assert_array_equal(read_table(tmp_path / "X.npy").to_numpy(), X)
    with pytest.raises(ValueError, match="differ in their number of rows"):
        open_chunks((X, y[:5]))
    with pytest.raises(ValueError, match="have no names"):
        open_chunks((X, y), target="y")
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match=r"objects\.npy cannot be read"):
        open_chunks((tmp_path / "objects.npy", y))


# ---- what a program makes ----


def test_pieces_of_a_program():
    halves = [FRAME.iloc[:20], FRAME.iloc[20:]]
    for source in (halves, lambda: iter(halves)):
        inputs, targets = joined(open_chunks(source, "y"))
        pd.testing.assert_frame_equal(inputs, FRAME[["a", "kind"]])
        pd.testing.assert_series_equal(targets, FRAME["y"])
    X, y = RNG.normal(size=(20, 2)), RNG.normal(size=20)
    inputs, targets = joined(open_chunks([(X[:5], y[:5]), (X[5:], y[5:])]))
    np.testing.assert_array_equal(inputs, X)
    np.testing.assert_array_equal(targets, y)


def test_sources_that_cannot_be_read_again_or_at_all(tmp_path):
    with pytest.raises(TypeError, match=r"can be read once.*open_chunks\(make_pieces\)"):
        open_chunks(iter([FRAME]), "y")
    with pytest.raises(ValueError, match="stdin can be read once"):
        open_chunks("-", "y")
    with pytest.raises(TypeError, match="the source is a int"):
        open_chunks(3)
    with pytest.raises(TypeError, match="a piece is a list"):
        list(open_chunks([[1, 2]]).read())
    with pytest.raises(ValueError, match=r"has parts of \[2, 1\] rows"):
        list(open_chunks([(np.ones((2, 1)), np.ones(1))]).read())
    with pytest.raises(ValueError, match="no column 'price'"):
        open_chunks(parts_of(tmp_path / "parts"), "price")
    with pytest.raises(ValueError, match="say with target"):
        open_chunks(parts_of(tmp_path / "parts"))


# ---- the encoder ----


def scanned(frame, pieces, categories=(), kept=None):
    scan = EncoderScan(categories)
    for part in np.array_split(np.arange(len(frame)), pieces):
        scan.add(frame.iloc[part], None if kept is None else kept[part], int(part[0]))
    encoder, own = scan.encoder(), frame if kept is None else frame.loc[kept]
    return encoder.with_quantiles(encoder.codes(own)[:: quantile_stride(len(own))])


@pytest.mark.slow
def test_the_encoder_is_that_of_the_whole_table():
    compared = 0
    for seed in range(300):
        table = random_table(seed)
        frame = table.inputs
        try:
            whole = Encoder.fit(frame)
        except (ValueError, TypeError):
            continue
        found = scanned(frame, min(3, len(frame)))
        assert found.state() == whole.state(), table.kinds
        np.testing.assert_array_equal(found.transform(frame), whole.transform(frame))
        compared += 1
    assert compared > 100


def test_errors_of_text_are_those_of_the_whole_table():
    for column in (
        ["1.5", "2"] * 20,
        [str(number) for number in range(40)],
        [f"id{number}" for number in range(40)],
        [f"{number}" for number in range(39)] + ["n/a"],
        ["01/02/2024"] * 30,
        ["1,000"] * 30,
    ):
        frame = pd.DataFrame({"c": pd.Series(column, dtype=object)})
        with pytest.raises(ValueError) as whole:  # noqa: PT011
            Encoder.fit(frame)
        with pytest.raises(ValueError) as parts:  # noqa: PT011
            scanned(frame, 4)
        assert str(parts.value) == str(whole.value)


def test_rows_without_a_target_decide_no_levels():
    frame = pd.DataFrame({"c": ["a", "b", "c", "a"] * 10, "n": [1.0, 2.0, np.nan, 4.0] * 10})
    kept = np.array([True, True, False, True] * 10)
    assert scanned(frame, 3, kept=kept).state() == Encoder.fit(frame[kept]).state()


def test_many_levels_and_categories():
    codes = np.minimum(np.random.default_rng(1).geometric(0.05, 3000), 60)
    frame = pd.DataFrame({"code": codes, "word": np.char.add("w", codes.astype(str))})
    for categories in ((), ("code",)):
        whole = Encoder.fit(frame, categories)
        assert scanned(frame, 7, categories).state() == whole.state()


def test_dates_beyond_the_number_of_values_that_are_kept(monkeypatch):
    monkeypatch.setattr("cagp.data.column_values.MOST_VALUES", 20)
    days = pd.date_range("2020-01-01", periods=200).strftime("%d.%m.%Y").astype(object)
    frame = pd.DataFrame({"day": pd.Series(days)})
    assert scanned(frame, 5).state() == Encoder.fit(frame).state()
    words = pd.DataFrame({"c": [f"w{number % 30}" for number in range(400)]})
    with pytest.raises(ValueError, match="more than 20 levels"):
        scanned(words, 4)


def test_a_column_of_two_kinds():
    scan = EncoderScan()
    scan.add(pd.DataFrame({"c": [1, 2]}))
    with pytest.raises(MixedKindsError, match=r"column 'c' holds levels .* from row 2 on, and numbers before"):
        scan.add(pd.DataFrame({"c": ["a", "b"]}), rows_from=2)
    with pytest.raises(ValueError, match="rows from 2 on have the columns 'd'"):
        scan.add(pd.DataFrame({"d": [1.0]}), rows_from=2)


# ---- scales ----


def moments(X, pieces):
    """The statistics of a matrix in pieces."""
    parts = [ColumnMoments.of(part) for part in X.tensor_split(pieces) if len(part)]
    total = parts[0]
    for part in parts[1:]:
        total = total.joined(part)
    return total


@pytest.mark.parametrize("pieces", [1, 2, 7, 40])
def test_scales_are_those_of_the_whole_table(pieces):
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(400, 8, dtype=torch.float64, generator=generator)
    X[:, 1] += 1e9  # a large offset
    X[:, 2] *= 1e-200  # squares underflow
    X[:, 3] *= 1e149  # and overflow
    X[:, 4] = 0.1  # constant
    X[:, 5] = torch.arange(400) ** 3.0  # sorted: every piece differs
    X[::3, 6] = torch.nan
    X[:399, 7] = torch.nan
    y = X[:, :1].clone()
    whole = Standardizer.fit(X, y)
    found = Standardizer.from_moments(moments(X, pieces), moments(y, pieces))
    size = X.nan_to_num(0).abs().amax(0)
    rounding = 0 if pieces == 1 else 8 * torch.finfo(torch.float64).eps
    assert bool(((found.input_mean - whole.input_mean).abs() <= rounding * size).all())
    assert bool(((found.input_std - whole.input_std).abs() <= rounding * torch.maximum(size, whole.input_std)).all())
    assert bool(((found.target_std - whole.target_std).abs() <= rounding * size[:1]).all())
