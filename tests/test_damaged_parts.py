"""A damaged part of a table is an error that names its file, and nothing is half written: in one process and in two."""

import os

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from processes import run_together

from cagp.cli import main
from cagp.data import table_files

RNG = np.random.default_rng(0)
N = 300
FRAME = pd.DataFrame({"a": RNG.uniform(size=N), "b": RNG.uniform(size=N)})
FRAME["y"] = np.sin(9 * FRAME["a"]) + 0.1 * RNG.normal(size=N)
FIT = ("--target", "y", "--method", "local", "--max-epochs", "2", "--quiet")
BAD = "part-1.parquet"


def truncated(path):
    path.write_bytes(path.read_bytes()[:-30])


def damaged_inside(path):
    """The file says what it holds, and pages of it are wrong: only reading them tells."""
    content = bytearray(path.read_bytes())
    start = pq.ParquetFile(path).metadata.row_group(0).column(0).dictionary_page_offset or 4
    content[start : start + 200] = bytes(200)
    path.write_bytes(bytes(content))


def no_parquet(path):
    path.write_text("a,b,y\n1,2,3\n")


def no_bytes(path):
    path.write_bytes(b"")


def no_rows(path):
    FRAME.iloc[:0].to_parquet(path)


def other_columns(path):
    FRAME.iloc[100:200].rename(columns={"b": "c"}).to_parquet(path)


def text_for_numbers(path):
    FRAME.iloc[100:200].assign(b="high").to_parquet(path)


DAMAGES = {
    truncated: "part-1.parquet cannot be read as a Parquet file",
    damaged_inside: "part-1.parquet cannot be read as a Parquet file",
    no_parquet: "part-1.parquet cannot be read as a Parquet file",
    no_bytes: "part-1.parquet is empty (0 bytes)",
    no_rows: "part-1.parquet has no rows",
    other_columns: "part-1.parquet has",
    text_for_numbers: "'b'",
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Three parts, and a model of them."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "parts").mkdir()
    for number, rows in enumerate(np.array_split(np.arange(N), 3)):
        FRAME.iloc[rows].to_parquet(tmp_path / "parts" / f"part-{number}.parquet")
    FRAME.to_parquet(tmp_path / "whole.parquet")
    assert main(["fit", "whole.parquet", *FIT, "--out", "ready.cagp"]) == 0
    return tmp_path


def left_behind(folder):
    """What commands have written, besides what was there."""
    return sorted(path.name for path in folder.iterdir() if path.name not in ("parts", "whole.parquet", "ready.cagp"))


def answer(words, size, capsys):
    """Exit codes, and what was printed."""
    if size == 1:
        capsys.readouterr()
        return [main(words)], capsys.readouterr().err
    ended = run_together(size, ["-m", "cagp", *words], 100)
    return [process.code for process in ended], "".join(process.output for process in ended)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("table", ["parts", "parts/*.parquet"])
@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_a_damaged_part_is_named_and_nothing_is_written(folder, capsys, damage, table):
    damage(folder / "parts" / BAD)
    for words in (["fit", table, *FIT], ["predict", "ready.cagp", table, "--out", "p.parquet", "--quiet"]):
        codes, printed = answer(words, 1, capsys)
        assert codes == [1], printed
        assert DAMAGES[damage] in printed
        assert len(printed.splitlines()) == 1
        assert left_behind(folder) == []


@pytest.mark.parametrize("damage", [truncated, damaged_inside, no_bytes], ids=lambda damage: damage.__name__)
def test_so_is_a_single_damaged_file(folder, capsys, damage):
    path = folder / "parts" / BAD
    damage(path)
    for words in (["fit", str(path), *FIT], ["predict", "ready.cagp", str(path), "--out", "p.csv", "--quiet"]):
        codes, printed = answer(words, 1, capsys)
        assert codes == [1], printed
        assert DAMAGES[damage] in printed
        assert left_behind(folder) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["fit", "parts", *FIT],
        ["fit", "parts", *FIT, "--shards"],
        ["predict", "ready.cagp", "parts", "--out", "p.csv", "--quiet"],
    ],
    ids=["fit", "fit in regions", "predict"],
)
def test_two_processes_end_together(folder, capsys, words):
    damaged_inside(folder / "parts" / BAD)
    codes, printed = answer(words, 2, capsys)
    assert codes == [1, 1], printed
    assert DAMAGES[damaged_inside] in printed
    assert "Traceback" not in printed
    assert left_behind(folder) == []


@pytest.mark.parametrize("command", ["fit", "predict"])
def test_a_part_that_vanishes_while_the_table_is_read(folder, capsys, monkeypatch, command):
    read = table_files._parquet_pieces

    def vanishing(path, *arguments):
        if os.path.basename(path) == "part-0.parquet" and (folder / "parts" / BAD).exists():
            (folder / "parts" / BAD).unlink()
        return read(path, *arguments)

    monkeypatch.setattr(table_files, "_parquet_pieces", vanishing)
    words = {"fit": ["fit", "parts", *FIT], "predict": ["predict", "ready.cagp", "parts", "--out", "p.csv", "--quiet"]}
    codes, printed = answer(words[command], 1, capsys)
    assert codes == [1], printed
    assert BAD in printed
    assert left_behind(folder) == []
