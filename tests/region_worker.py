"""What each process does in ``test_regions.py``: ``python region_worker.py FOLDER`` with torchrun's variables."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from cagp import CaGPRegressor, load
from cagp.data import open_chunks
from cagp.ranks import Ranks

SETTINGS: dict[str, Any] = {"method": "local", "n_neighbors": 12, "max_epochs": 40, "dtype": "float64"}


def table(num_rows: int = 1200, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """A rough function of two inputs with noise; the second input is in other units."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(size=(num_rows, 2)) * [1.0, 50.0]
    return X, 3 + np.sin(9 * X[:, 0]) * np.cos(0.12 * X[:, 1]) + 0.1 * rng.normal(size=num_rows)


def refused(function: Any) -> str:
    """The words of the error that the function raises."""
    try:
        function()
    except ValueError as error:
        return str(error)
    return ""


def main(folder: Path) -> None:
    """Fit, resume, save, load and predict; what was found, as a file for each process."""
    ranks = Ranks.here()
    (X, y), (test, _) = table(), table(60, seed=1)
    part = slice(ranks.rank, None, ranks.size)
    model = CaGPRegressor(**SETTINGS, shards=True).fit(X[part], y[part])
    found = {"means": np.stack(model.predict(test, return_std=True)), "report": model.fit_report_}
    found["function"] = model.predict(test, return_std=True, noise=False)[1]
    found["scaler"] = np.concatenate([values.numpy() for values in model.scaler_])
    found["rows"] = model.n_rows_
    path = model.save(folder / f"{ranks.size}.cagp")
    found["loaded"] = np.stack(load(path).predict(test, return_std=True))
    checkpoints = {**SETTINGS, "checkpoint_dir": folder / f"checkpoints-{ranks.size}", "shards": True}
    begun = CaGPRegressor(**checkpoints, max_time=1e-3).fit(X[part], y[part])
    found["begun"] = len(begun.fit_result_.steps)
    found["resumed"] = np.stack(CaGPRegressor(**checkpoints).fit(X[part], y[part]).predict(test, return_std=True))
    # A table in pieces is the whole table, of which each process reads its part.
    pieces = open_chunks((X, y), rows=100)
    found["pieces"] = CaGPRegressor(**SETTINGS, shards=True).fit(pieces).predict(test)
    frame = pd.DataFrame({"a": X[part, 0], "b": "text" if ranks.rank == 1 else 0.0})
    found["text in one part"] = refused(lambda: CaGPRegressor(**SETTINGS, shards=True).fit(frame, y[part]))
    np.save(folder / f"found-{ranks.size}-{ranks.rank}.npy", np.array(found, dtype=object), allow_pickle=True)
    ranks.leave()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
