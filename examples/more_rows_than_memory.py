"""A table in many files: fitted in pieces, its rows on disk, and predicted from file to file."""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd

import cagp
from cagp.data import TableWriter, open_chunks, stream_table

rng = np.random.default_rng(0)


def places(n: int) -> pd.DataFrame:
    """A rough function of two inputs, with noise of 0.1."""
    a, b = rng.uniform(size=(2, n))
    return pd.DataFrame({"a": a, "b": b, "y": np.sin(20 * a) * np.cos(15 * b) + 0.1 * rng.normal(size=n)})


with TemporaryDirectory() as name:
    folder = Path(name)
    (folder / "parts").mkdir()
    for number in range(4):
        places(5_000).to_parquet(folder / "parts" / f"part-{number:03d}.parquet")

    # The table is read three times, a piece at a time; memory does not hold it.
    table = open_chunks(folder / "parts" / "*.parquet", target="y")
    model = cagp.CaGPRegressor(method="local", max_epochs=5, max_memory="4GB").fit(table)
    print(next(line for line in model.fit_report_.splitlines() if line.startswith("Planned peak")))

    # Two files: the model, and its rows, which stay on disk when the model is loaded.
    model.save(folder / "model.cagp", rows="beside")
    model = cagp.load(folder / "model.cagp")

    new = places(3_000)
    new.drop(columns="y").to_parquet(folder / "new.parquet")
    with TableWriter(folder / "predictions.parquet") as writer:
        for chunk in stream_table(folder / "new.parquet", rows=1_000):
            mean, std = model.predict(chunk.frame, return_std=True)
            writer.write(chunk.frame.assign(mean=mean, std=std))

    found = pd.read_parquet(folder / "predictions.parquet")
    error = np.sqrt(np.mean((found["mean"] - new["y"]) ** 2))
    inside = np.mean(np.abs(found["mean"] - new["y"]) < 1.96 * found["std"])
    print(f"{len(found):,} rows predicted: RMSE {error:.3f} with noise 0.1; {inside:.0%} inside 95 % intervals")
