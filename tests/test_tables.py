"""Tables in files: what was written is read, whole and in pieces; errors name the file, the line and the remedy."""

import gzip
import io
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cagp.data import Encoder, TableWriter, read_table, stream_table, table_files, table_size
from cagp.files import UNFINISHED

FORMATS = ["t.csv", "t.csv.gz", "t.parquet"]
FRAME = pd.DataFrame(
    {
        "a": [0.1, -1e-300, 3.0, 1 / 3, 5.0, 6.0, 7.0],
        "n": [1, 2, 3, 4, 5, 6, 2**53],
        "größe": ["x", "ü, y", 'q"q', "z\nz", "x", "x", "x"],
        "b": [True, False] * 3 + [True],
    }
)


def put(directory: Path, name: str, content: str | bytes) -> Path:
    path = directory / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def write(path: Path, *frames: pd.DataFrame) -> None:
    with TableWriter(path) as writer:
        for frame in frames:
            writer.write(frame)


def joined(chunks) -> pd.DataFrame:
    return pd.concat([chunk.frame for chunk in chunks])


# ---- what was written is read ----


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("rows", [1, 3, 100])
def test_pieces_written_are_the_table_read(tmp_path, name, rows):
    path = tmp_path / name
    with TableWriter(path) as writer:
        for start in range(0, len(FRAME), rows):
            writer.write(FRAME.iloc[start : start + rows])
    pd.testing.assert_frame_equal(read_table(path), FRAME)
    pd.testing.assert_frame_equal(read_table(str(path)), FRAME)
    assert os.listdir(tmp_path) == [name]
    assert table_size(path) == path.stat().st_size


@pytest.mark.parametrize("name", FORMATS)
def test_pieces_read_are_the_table(tmp_path, name):
    path = tmp_path / name
    with TableWriter(path) as writer:
        writer.write(FRAME)
    chunks = list(stream_table(path, rows=3))
    pd.testing.assert_frame_equal(joined(chunks), FRAME)
    assert [len(chunk.frame) for chunk in chunks] == [3, 3, 1]
    assert [chunk.rows_from for chunk in chunks] == [0, 3, 6]
    fractions = [chunk.fraction for chunk in chunks]
    assert fractions == sorted(fractions)
    assert fractions[0] > 0
    assert fractions[-1] == 1.0


def test_the_fraction_follows_a_long_file(tmp_path):
    for name in ("t.csv", "t.csv.gz"):
        with TableWriter(tmp_path / name) as writer:
            writer.write(pd.DataFrame({"a": np.random.default_rng(0).normal(size=100_000)}))
        fractions = [chunk.fraction for chunk in stream_table(tmp_path / name, rows=10_000)]
        # The parser reads ahead by up to 256 kB of text, of the 2 MB there are.
        np.testing.assert_allclose(fractions, np.arange(1, 11) / 10, atol=0.2)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=30))
def test_csv_keeps_every_bit_of_a_float(tmp_path, values):
    path = tmp_path / "t.csv"
    with TableWriter(path) as writer:
        writer.write(pd.DataFrame({"a": values, "b": "text"}))
    assert read_table(path)["a"].to_numpy(np.float64).tobytes() == np.array(values).tobytes()
    assert joined(stream_table(path, rows=4))["a"].to_numpy(np.float64).tobytes() == np.array(values).tobytes()


def test_csv_keeps_every_bit_of_many_floats(tmp_path):
    bits = np.random.default_rng(1).integers(0, 2**64, 20_000, dtype=np.uint64).view(np.float64)
    values = bits[np.isfinite(bits)]
    with TableWriter(tmp_path / "t.csv") as writer:
        writer.write(pd.DataFrame({"a": values}))
    assert read_table(tmp_path / "t.csv")["a"].to_numpy().tobytes() == values.tobytes()


def test_missing_values_survive(tmp_path):
    frame = pd.DataFrame({"a": [1.5, np.nan, np.nan], "b": ["x", None, "y"]})
    for name in FORMATS:
        with TableWriter(tmp_path / name) as writer:
            writer.write(frame)
        np.testing.assert_array_equal(read_table(tmp_path / name).isna(), frame.isna())


# ---- CSV ----


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.csv", "a,b c\n1,2.5\n3,4\n"),
        ("t.CSV", "a , b c\r\n1,2.5\r\n3,4"),
        ("t.csv", "\n\na;b c\n1;2.5\n3;4\n"),
        ("t.txt", "a\tb c\n1\t2.5\n3\t4\n"),
        ("t.tsv", "a\tb c\n1\t2.5\n3\t4\n"),
        ("t.csv", b"\xef\xbb\xbfa,b c\n1,2.5\n3,4\n"),
        ("t.csv", '"a","b c"\n1,2.5\n3,4\n'),
        ("t.csv.gz", gzip.compress(b"a,b c\n1,2.5\n3,4\n", mtime=0)),
        ("t.tsv.gz", gzip.compress(b"a\tb c\n1\t2.5\n3\t4\n", mtime=0)),
    ],
)
def test_ways_to_write_a_csv(tmp_path, name, content):
    path = put(tmp_path, name, content)
    expected = pd.DataFrame({"a": [1, 3], "b c": [2.5, 4.0]})
    pd.testing.assert_frame_equal(read_table(path), expected)
    pd.testing.assert_frame_equal(joined(stream_table(path)), expected)


def test_names_may_contain_separators_and_lines(tmp_path):
    path = put(tmp_path, "t.csv", '"a, b; c","d\ne"\n1,2\n')
    assert list(read_table(path).columns) == ["a, b; c", "d\ne"]
    assert list(read_table(put(tmp_path, "t.tsv", "a,b\n1\n")).columns) == ["a,b"]
    assert list(read_table(put(tmp_path, "t.csv", ",a\n0,1\n")).columns) == ["Unnamed: 0", "a"]  # as pandas names it
    assert list(read_table(put(tmp_path, "t.csv", "0,1\n0.5,1\n")).columns) == ["0", "1"]


def test_iso_dates_become_dates_unless_they_are_text(tmp_path):
    content = "t,u,v,w\n2024-03-31,2024-03-31T12:00:00Z,2024-03-31,2024-03-31T12:00Z\n"
    content += ",2024-03-31 18:00+02:00,soon,2024-03-31T12:00\n"
    path = put(tmp_path, "t.csv", content)
    frame = read_table(path)
    assert frame["t"][0] == pd.Timestamp("2024-03-31")
    assert pd.isna(frame["t"][1])
    assert frame["u"].tolist() == [pd.Timestamp("2024-03-31 12:00Z"), pd.Timestamp("2024-03-31 16:00Z")]
    assert frame["w"][0] == "2024-03-31T12:00Z"  # with and without a time zone: for the encoder to refuse
    assert frame["v"].tolist() == ["2024-03-31", "soon"]
    assert read_table(path, text=["t", "absent"])["t"][0] == "2024-03-31"


def test_an_encoder_reads_a_stream_whose_types_change(tmp_path):
    """Codes, numbers, dates and booleans whose type depends on which rows are together."""
    lines = ["code,x,t,b,y", "007,1,2020-01-01,True,1", "x,2,2020-01-02,False,2", "007,3.5,2020-01-03,True,3"]
    path = put(tmp_path, "t.csv", "\n".join(lines))
    whole = read_table(path)
    encoder = Encoder.fit(whole.drop(columns="y"))
    chunks = stream_table(path, rows=1, text=encoder.text_names)
    found = [encoder.transform(chunk.frame, chunk.rows_from) for chunk in chunks]
    np.testing.assert_array_equal(np.concatenate(found), encoder.transform(whole))
    np.testing.assert_array_equal(encoder.transform(whole)[:, 0], [0.0, 1.0, 0.0])


def test_a_stream_that_turns_to_text_is_told_by_row(tmp_path):
    path = put(tmp_path, "t.csv", "x\n1\n2\n3\n4\noops\n6\n")
    encoder = Encoder.fit(pd.DataFrame({"x": [1.0, 2.0]}))
    _, second, third = stream_table(path, rows=2)
    np.testing.assert_array_equal(encoder.transform(second.frame, second.rows_from), [[3.0], [4.0]])
    with pytest.raises(ValueError, match=r"'x' holds levels .*, at fit it held numbers, 'oops' at row 4"):
        encoder.transform(third.frame, third.rows_from)


def test_whole_columns_have_one_type(tmp_path):
    path = put(tmp_path, "t.csv", "a\n" + "1\n" * 300_000 + "x\n")
    assert set(read_table(path)["a"]) == {"1", "x"}


def test_standard_input_and_output(monkeypatch, capsys):
    content = "a,b\n0.1,ü\n0.2,v\n0.30000000000000004,w\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content.encode())))
    assert table_size("-") is None
    with TableWriter("-") as writer:
        for chunk in stream_table("-", rows=2):
            assert chunk.fraction is None
            writer.write(chunk.frame)
    assert capsys.readouterr().out == content


def test_standard_input_stays_open(monkeypatch):
    stdin = io.TextIOWrapper(io.BytesIO(b"a\n1\n"))
    monkeypatch.setattr(sys, "stdin", stdin)
    assert read_table("-")["a"].tolist() == [1]
    assert not stdin.closed
    assert not stdin.buffer.closed
    with pytest.raises(ValueError, match="- is empty"):
        read_table("-")


@pytest.mark.parametrize("read", [read_table, lambda path: list(stream_table(path, rows=2))], ids=["whole", "pieces"])
@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("t.csv", "", r"t\.csv is empty"),
        ("t.csv", "\n \n", r"t\.csv is empty, expected a line with the column names"),
        ("t.csv", "a,b\n", r"t\.csv has no rows"),
        ("t.csv", "a,b\n\n\n", r"t\.csv has no rows"),
        ("t.csv", "a,b,a\n1,2,3\n", r"first line of .*t\.csv has more than one column named 'a'"),
        (
            "t.csv",
            "a,b\n1,2\n3,4\n1,2,3\n",
            r"t\.csv is not a well-formed CSV file: Expected 2 fields in line 4, saw 3",
        ),
        ("t.csv", '"a\nz",b\n1,2\n1,2,3\n', "Expected 2 fields in line 4, saw 3"),
        ("t.csv", "a,b\n1,2,5\n3,4,6\n", "from line 2 on, rows have more fields than the first line has names"),
        ("t.csv", 'a,b\n1,2\n3,"4\n5,6\n', "EOF inside string starting at line 3"),
        ("t.csv", "1.5,2\n3,4\n", r"only numbers in its first line \(1.5, 2\).*add a line"),
        ("t.csv", "a,b\n1,h\xe9\n".encode("latin1"), r"t\.csv is not UTF-8: it has the byte 0xe9.*iconv"),
        ("t.csv", b"a,\xff\n1,2\n", r"t\.csv is not UTF-8"),
        ("t.csv.gz", b"a,b\n1,2\n", r"t\.csv\.gz is not a complete gzip file"),
        ("t.csv.gz", gzip.compress(b"a,b\n1,2\n" * 99, mtime=0)[:-9], r"t\.csv\.gz is not a complete gzip file"),
        ("t.parquet", b"PAR1 not really", r"t\.parquet cannot be read as a Parquet file"),
        ("t.npz", b"PK not really", r"t\.npz cannot be read as an NPZ file"),
        ("t.xlsx", "a", r"t\.xlsx cannot be read: the ending of its name is '\.xlsx', expected one of \.csv, .*\.npz"),
        ("t", "a", r"the ending of its name is '', expected one of \.csv, .*\.npz"),
    ],
)
def test_files_that_cannot_be_read(tmp_path, read, name, content, said):
    with pytest.raises(ValueError, match=said):
        read(put(tmp_path, name, content))


def test_paths_that_cannot_be_read(tmp_path):
    for function in (read_table, stream_table, table_size):  # a stream too says so at once
        with pytest.raises(FileNotFoundError, match=r"none\.csv does not exist"):
            function(tmp_path / "none.csv")
        with pytest.raises(FileNotFoundError, match="has no tables: the folder has no files"):
            function(tmp_path)
        with pytest.raises(FileNotFoundError, match=r"none-\*\.csv has no tables: no file matches"):
            function(tmp_path / "none-*.csv")
    with pytest.raises(ValueError, match="rows is 0"):
        stream_table(put(tmp_path, "t.csv", "a\n1\n"), rows=0)


def test_wide_tables_come_in_pieces_of_fewer_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(table_files, "CHUNK_CELLS", 12)
    for name in FORMATS:
        with TableWriter(tmp_path / name) as writer:
            writer.write(FRAME)
        assert [len(chunk.frame) for chunk in stream_table(tmp_path / name)] == [3, 3, 1]


# ---- Parquet ----


def test_an_index_of_pandas_is_left_out(tmp_path):
    frame = pd.DataFrame({"a": [1, 2, 3]}, index=pd.Index(["u", "v", "w"], name="id"))
    frame.to_parquet(tmp_path / "t.parquet")
    for found in (read_table(tmp_path / "t.parquet"), joined(stream_table(tmp_path / "t.parquet", rows=2))):
        pd.testing.assert_frame_equal(found, frame.reset_index(drop=True))


def test_parquet_types(tmp_path):
    frame = pd.DataFrame(
        {"c": pd.Categorical(["u", "v", "u"]), "t": pd.to_datetime(["2020-01-01"] * 3), "x": [1, 2, 3]}
    )
    frame.to_parquet(tmp_path / "t.parquet")
    encoder = Encoder.fit(frame)
    found = [encoder.transform(chunk.frame) for chunk in stream_table(tmp_path / "t.parquet", rows=1)]
    np.testing.assert_array_equal(np.concatenate(found), encoder.transform(frame))


def test_parquet_errors(tmp_path):
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table([[1], [2]], names=["a", "a"]), path)
    with pytest.raises(ValueError, match=r"t\.parquet has more than one column named 'a'"):
        read_table(path)
    pq.write_table(pa.table({"a": pa.array([], pa.float64())}), path)
    with pytest.raises(ValueError, match=r"t\.parquet has no rows"):
        list(stream_table(path))
    pq.write_table(pa.table({"a": np.random.default_rng(0).normal(size=10_000)}), path)
    content = bytearray(path.read_bytes())
    content[4:60_000] = bytes(59_996)
    put(tmp_path, "t.parquet", bytes(content))
    with pytest.raises(ValueError, match=r"t\.parquet cannot be read as a Parquet file"):
        read_table(path)


# ---- NPZ ----

X = np.arange(10.0).reshape(5, 2)
Y = np.arange(5)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["<f4", ">f8", "<i2"])
def test_npz_columns(tmp_path, save, order, dtype):
    path = tmp_path / "t.npz"
    save(path, X=np.asarray(X, dtype=dtype, order=order), y=Y, place=np.array(list("abcde")), mask=np.ones((5, 3)), k=3)
    frame = read_table(path)
    assert list(frame.columns) == ["x0", "x1", "y", "place"]
    np.testing.assert_array_equal(frame[["x0", "x1"]], X)
    np.testing.assert_array_equal(frame["y"], Y)
    assert "".join(frame["place"]) == "abcde"
    chunks = list(stream_table(path, rows=2))
    pd.testing.assert_frame_equal(joined(chunks), frame)
    assert [chunk.fraction for chunk in chunks] == [0.4, 0.8, 1.0]


@pytest.mark.parametrize(
    ("arrays", "names"),
    [
        ({"X": X, "names": ["u", "v"]}, ["u", "v"]),
        ({"X": X, "y": Y, "names": ["u", "v"]}, ["u", "v", "y"]),
        ({"X": X, "y": Y, "names": ["u", "v", "w"]}, ["u", "v", "w"]),
        ({"X": X, "y": X, "names": ["u", "v"]}, ["u", "v", "y0", "y1"]),
        ({"X": X, "y": X[:, :1]}, ["x0", "x1", "y"]),
        ({"X": X[:, 0], "y": Y}, ["x0", "y"]),
        ({"b": Y, "a": Y, "names": np.array(list("abcde"))}, ["b", "a", "names"]),
    ],
)
def test_npz_names(tmp_path, arrays, names):
    np.savez(tmp_path / "t.npz", **arrays)
    assert list(read_table(tmp_path / "t.npz").columns) == names


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"X": X, "y": Y[:4]}, "differ in their number of rows: X has 5, y has 4"),
        ({"X": X, "extra": Y[:3]}, "X has 5, extra has 3"),
        ({"X": X.astype(object)}, "array 'X' holds Python objects, which are not loaded because that can run code"),
        ({"X": X, "names": ["u"]}, "names has 1 entries, expected 2"),
        ({"X": X, "names": ["u", "u"]}, "more than one column named 'u'"),
        ({"X": X, "x1": Y}, "more than one column named 'x1'"),
        ({"X": X[:0]}, "has no rows"),
        ({"X": X[None]}, r"X has shape \(1, 5, 2\), expected rows and columns"),
        ({"X": np.float64(3)}, r"X has shape \(\), expected rows and columns"),
        ({"k": 3}, "has no table: expected an array X"),
    ],
)
def test_npz_errors(tmp_path, arrays, said):
    np.savez(tmp_path / "t.npz", **arrays)
    with pytest.raises(ValueError, match=rf"t\.npz.*{said}"):
        read_table(tmp_path / "t.npz")


def test_npz_arrays_that_end_early(tmp_path):
    np.save(tmp_path / "X.npy", X)
    with zipfile.ZipFile(tmp_path / "t.npz", "w") as file:
        file.writestr("X.npy", (tmp_path / "X.npy").read_bytes()[:-8])
    with pytest.raises(ValueError, match=r"t\.npz cannot be read as an NPZ file: array 'X' ends early"):
        read_table(tmp_path / "t.npz")
    with zipfile.ZipFile(tmp_path / "t.npz", "w") as file:
        file.writestr("X.npy", b"no magic here")
    with pytest.raises(ValueError, match=r"t\.npz cannot be read as an NPZ file.*magic"):
        read_table(tmp_path / "t.npz")


# ---- writing ----


@pytest.mark.parametrize("name", FORMATS)
def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path, name):
    path = tmp_path / name
    with TableWriter(path) as writer:
        writer.write(FRAME)
    before = path.read_bytes()

    def interrupted():
        with TableWriter(path) as writer:
            writer.write(FRAME.iloc[:2])
            assert [UNFINISHED.fullmatch(left) is None for left in sorted(os.listdir(tmp_path))] == [False, True]
            assert path.read_bytes() == before
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    with pytest.raises(ValueError, match="columns 'a', 'n', the first one had 'a', 'n', 'größe', 'b'"):
        write(path, FRAME, FRAME[["a", "n"]])
    with pytest.raises(ValueError, match="is not written: there were no rows"):
        write(path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == [name]


@pytest.mark.parametrize("name", FORMATS)
def test_columns_keep_the_order_of_the_first_frame(tmp_path, name):
    put(tmp_path, f"{name}.part", "a file of the user")
    with TableWriter(tmp_path / name) as writer:
        writer.write(FRAME)
        writer.write(FRAME[FRAME.columns[::-1]])
    pd.testing.assert_frame_equal(read_table(tmp_path / name), pd.concat([FRAME, FRAME], ignore_index=True))
    assert (tmp_path / f"{name}.part").read_text() == "a file of the user"


def test_parquet_keeps_the_types_of_the_first_frame(tmp_path):
    with pytest.raises(ValueError, match=r"t\.parquet cannot take these rows.*column a.*astype\(float\)"):
        write(tmp_path / "t.parquet", pd.DataFrame({"a": [1]}), pd.DataFrame({"a": [1.5]}))
    assert os.listdir(tmp_path) == []


def test_paths_that_cannot_be_written(tmp_path):
    with pytest.raises(
        ValueError, match=r"t\.npz cannot be written.*'\.npz', expected one of \.csv, \.csv\.gz, \.parquet"
    ):
        TableWriter(tmp_path / "t.npz")
    with pytest.raises(FileNotFoundError, match=r"the folder .*none does not exist; create it"):
        TableWriter(tmp_path / "none" / "t.csv")
    (tmp_path / "d.csv").mkdir()
    with pytest.raises(IsADirectoryError, match=r"d\.csv is a folder"):
        TableWriter(tmp_path / "d.csv")
    with pytest.raises(ValueError, match="more than one column named 'a'"):
        write(tmp_path / "t.csv", pd.DataFrame([[1, 2]], columns=["a", "a"]))
    with pytest.raises(ValueError, match="has no columns"):
        write(tmp_path / "t.csv", pd.DataFrame(index=[0]))


# ---- memory ----

MEASURE = """
import sys
from cagp.data import stream_table

def peak():
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1]) / 1024

for path in sys.argv[2:]:
    next(stream_table(path, rows=100))
before = peak()
for path in sys.argv[2:]:
    print(sum(len(chunk.frame) for chunk in stream_table(path, rows=int(sys.argv[1]))), peak() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak of memory is read from /proc")
def test_a_stream_holds_a_piece_at_a_time(tmp_path):
    """Tables of 64 MB in memory, in pieces of 2 MB: the peak is that of pieces, not of the tables."""
    block = np.random.default_rng(0).integers(0, 1000, (10_000, 20)) / 8
    frame = pd.DataFrame(block, columns=[f"c{j}" for j in range(20)])
    names, rows = frame.to_csv(index=False, lineterminator="\n").split("\n", 1)
    paths = [put(tmp_path, "t.csv", f"{names}\n{rows * 40}"), tmp_path / "t.npz", tmp_path / "t.parquet"]
    np.savez(paths[1], X=np.tile(block, (40, 1)))
    write(paths[2], *[frame] * 40)
    run = subprocess.run(
        [sys.executable, "-W", "ignore::ResourceWarning", "-c", MEASURE, "12500", *paths],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    for line in run.stdout.splitlines():
        num_rows, megabytes = line.split()
        assert num_rows == "400000"
        assert float(megabytes) < 40
    assert len(run.stdout.splitlines()) == 3


@pytest.mark.parametrize("rows", [None, 1])
def test_separators_at_the_end_of_lines_are_no_column(tmp_path, rows):
    path = tmp_path / "t.csv"
    path.write_text("a,b\n\n1,2,\n3,4,\n5,6\n")
    frames = [read_table(path)] if rows is None else [chunk.frame for chunk in stream_table(path, rows)]
    assert pd.concat(frames).to_numpy().tolist() == [[1, 2], [3, 4], [5, 6]]
    assert list(frames[0].columns) == ["a", "b"]
    path.write_text("a,b\n1,2,\n3,4,7\n")
    with pytest.raises(ValueError, match="rows have more fields than the first line has names"):
        list(stream_table(path, 10))
