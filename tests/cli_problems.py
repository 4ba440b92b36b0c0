"""A table of houses, and commands to run on it."""

import numpy as np
import pandas as pd

from cagp.cli import main

NUM_ROWS = 120


def houses(num_rows=NUM_ROWS, seed=0):
    """Numbers, levels, dates and an id whose zeros matter; two targets."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "id": [f"{i:03d}" for i in range(num_rows)],
            "area": rng.uniform(30, 200, num_rows),
            "city": rng.choice(["Bonn", "Kiel", "Ulm"], num_rows),
            "built": pd.Timestamp("2000-01-01") + pd.to_timedelta(rng.integers(0, 8000, num_rows), unit="D"),
        }
    )
    frame["price"] = 10 * frame["area"] + 300 * (frame["city"] == "Ulm") + 20 * rng.normal(size=num_rows)
    frame["rent"] = frame["price"] / 200 + rng.normal(size=num_rows)
    return frame


def fit(folder, model, *more):
    assert (
        main(["fit", str(folder / "houses.csv"), "--out", str(folder / model), "--max-epochs", "3", "--quiet", *more])
        == 0
    )


def usage_error(arguments, capsys):
    """The complaint about wrong usage, whether the parser or a command finds it."""
    try:
        code = main(arguments)
    except SystemExit as exit_:
        code = exit_.code
    assert code == 2
    return capsys.readouterr().err
