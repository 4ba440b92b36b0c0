"""Random tables as files through ``cagp fit`` and ``cagp predict``: predictions of all rows, or one line that says why.

CAGP_FUZZ=2000 sets the number of tables, CAGP_FUZZ_FROM the seed of the first.
"""

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from random_tables import random_table

from cagp.cli import main
from cagp.data import read_table

NUM_TABLES, FIRST = int(os.environ.get("CAGP_FUZZ", "60")), int(os.environ.get("CAGP_FUZZ_FROM", "0"))
BATCH = 10
METHODS = ["auto", "exact", "local", "opt", "hybrid", "sgpr", "svgp"]


def written(table: pd.DataFrame, folder: Path, parquet: bool) -> Path:
    """The table as a file; as CSV where Parquet cannot hold what is in it."""
    if parquet:
        try:
            table.to_parquet(folder / "table.parquet", index=False)
            return folder / "table.parquet"
        except Exception:  # nested and mixed cells, repeated names: pandas and pyarrow have an error for each
            (folder / "table.parquet").unlink(missing_ok=True)
    table.to_csv(folder / "table.csv", index=False)
    return folder / "table.csv"


@pytest.mark.thinned(2)
@pytest.mark.parametrize("first", range(FIRST, FIRST + NUM_TABLES, BATCH))
def test_random_files(first, tmp_path, capsys):
    for seed in range(first, min(first + BATCH, FIRST + NUM_TABLES)):
        folder = tmp_path / str(seed)
        folder.mkdir()
        made = random_table(seed)
        try:
            check(made, seed, folder, capsys)
        except BaseException as error:
            error.add_note(f"seed {seed}: {made.inputs.shape} {made.kinds}")
            raise


def check(made, seed: int, folder: Path, capsys) -> None:
    if np.ndim(made.target) not in (1, 2) or len(made.target) != len(made.inputs):
        return  # no columns of a file
    target = pd.DataFrame(made.target).set_axis(made.inputs.index[: len(made.target)])
    names = ["the target", "another"][: max(1, target.shape[1])]  # none in the table where there are no targets at all
    table = pd.concat([made.inputs, target.set_axis(names[: target.shape[1]], axis=1)], axis=1)
    path, model, out = written(table, folder, bool(seed % 2)), folder / "m.cagp", folder / "out.csv"
    method = METHODS[seed % len(METHODS)]
    command = ["fit", str(path), "--target", *names, "--method", method, "--max-epochs", "2", "--out", str(model)]
    code = main([*command, "--quiet"])
    words = capsys.readouterr().err
    assert code in (0, 1, 2)
    assert model.exists() == (code == 0)
    if code:
        assert len(lines := errors(words)) == 1, words
        assert len(lines[0]) > 30  # says something
        return
    code = main(["predict", str(model), str(path), "--out", str(out), "--quiet"])
    words = capsys.readouterr().err
    assert out.exists() == (code == 0)
    if code:  # rows without a target were left out of fit, with whatever their inputs hold; test rows with their gaps
        assert len(errors(words)) == 1, words
        assert pd.isna(read_table(path)).any(axis=None), words
        return
    predictions = pd.read_csv(out)
    assert len(predictions) == len(read_table(path))
    assert np.isfinite(predictions.to_numpy()).all()


def errors(words: str) -> list[str]:
    """Lines on stderr that are not warnings."""
    return [line for line in words.splitlines() if line and not line.startswith("cagp: warning:")]
