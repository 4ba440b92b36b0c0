"""Random tables of everything people keep in tables, each with what a regressor must make of it.

``random_table(seed)`` is the same table for the same seed. A part that cannot be learned from is listed in
``troubles``, by the words that an error has to contain; a table without troubles must be fitted.
"""

import datetime
from collections.abc import Callable
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

Maker = Callable[[np.random.Generator, int], Any]
NAMES = ["a", "b", "Größe", "价格", "two words", "", "x=1", "'quoted'", "🙂", "target", "a.b", "NaN", "0", "x" * 60]


class RandomTable(NamedTuple):
    """Inputs and targets, and what is wrong with them."""

    inputs: pd.DataFrame
    target: Any
    troubles: tuple[str, ...]  # an error must contain one of these; none: there must be no error
    kinds: tuple[str, ...]  # of the columns and the target, for messages


def _some(values: pd.Series, rng: np.random.Generator, value: Any) -> pd.Series:
    """The values with ``value`` in some of the cells, at least one."""
    where = rng.random(len(values)) < 0.2
    if len(where):
        where[rng.integers(len(where))] = True
    return values.mask(where, value)


def _objects(values: list[Any]) -> pd.Series:
    """A column of Python objects, nested ones as they are."""
    column = pd.Series([None] * len(values), dtype=object)
    for row, value in enumerate(values):
        column.iat[row] = value
    return column


def _normal(rng: np.random.Generator, n: int) -> pd.Series:
    return pd.Series(rng.normal(size=n) * 10.0 ** rng.uniform(-3, 3) + 10.0 ** rng.uniform(-3, 6))


def _commas(rng: np.random.Generator, n: int) -> pd.Series:
    return pd.Series([f"{v:.2f}".replace(".", ",") for v in 100 * rng.normal(size=n)], dtype=object)


def _dates(rng: np.random.Generator, n: int) -> pd.Series:
    return pd.Series(pd.Timestamp("2020-02-29") + pd.to_timedelta(rng.integers(0, 10**6, n), unit="min"))


def _text(rng: np.random.Generator, n: int) -> pd.Series:
    return pd.Series(rng.choice(["red", "grün", "", "1", "None", "nan"], n), dtype=object)


FINE: dict[str, Maker] = {
    "floats": _normal,
    "float32": lambda rng, n: _normal(rng, n).astype(np.float32),
    "float16": lambda rng, n: pd.Series(rng.normal(size=n).astype(np.float16)),
    "whole numbers": lambda rng, n: pd.Series(rng.integers(-(10**9), 10**9, n)),
    "small whole numbers": lambda rng, n: pd.Series(rng.integers(0, 3, n).astype(np.int8)),
    "large whole numbers": lambda rng, n: pd.Series(2**11 * rng.integers(2**51, 2**52, n, dtype=np.uint64)),
    "booleans": lambda rng, n: pd.Series(rng.random(n) < 0.5),
    "constant": lambda rng, n: pd.Series(np.full(n, rng.choice([0.0, 1.0, -1e140, 1e-320, 0.1]))),
    "almost constant": lambda rng, n: pd.Series(1.0 + 1e-15 * rng.normal(size=n)),
    "huge": lambda rng, n: pd.Series(1e149 * rng.uniform(-1, 1, n)),
    "tiny": lambda rng, n: pd.Series(1e-300 * rng.normal(size=n)),
    "smaller than tiny": lambda rng, n: pd.Series(1e-320 * rng.normal(size=n)),
    "of every size": lambda rng, n: pd.Series(10.0 ** rng.uniform(-300, 140, n) * rng.choice([-1, 1], n)),
    "one outlier": lambda rng, n: pd.Series(np.where(np.arange(n) == 0, 1e140, rng.normal(size=n))),
    "few values": lambda rng, n: pd.Series(rng.choice([0.5, 1.5], n)),
    "text": lambda rng, n: pd.Series(["letters", *_text(rng, n)][:n] if n else [], dtype=object),
    "string dtype": lambda rng, n: pd.Series(rng.choice(["up", "down"], n), dtype="string"),
    "one word": lambda rng, n: pd.Series(["same"] * n, dtype=object),
    "categories": lambda rng, n: pd.Series(pd.Categorical(rng.choice(["low", "high"], n), ["low", "mid", "high"])),
    "ordered categories": lambda rng, n: pd.Series(pd.Categorical(rng.integers(0, 4, n), range(9), ordered=True)),
    "dates": _dates,
    "dates with zone": lambda rng, n: _dates(rng, n).dt.tz_localize("UTC").dt.tz_convert("Asia/Kolkata"),
    "calendar days": lambda rng, n: _objects([datetime.date(2024, 1, 1 + int(day)) for day in rng.integers(0, 30, n)]),
    "durations": lambda rng, n: pd.Series(pd.to_timedelta(rng.normal(size=n), unit="h")),
    "nullable whole numbers": lambda rng, n: pd.Series(rng.integers(0, 99, n), dtype="Int64"),
    "nullable floats": lambda rng, n: _normal(rng, n).astype("Float64"),
    "nullable booleans": lambda rng, n: pd.Series(rng.random(n) < 0.5, dtype="boolean"),
    "numbers as objects": lambda rng, n: _objects([float(v) if v > 0 else int(v) for v in rng.normal(size=n) * 9]),
    "decimals": lambda rng, n: _objects([Decimal(int(v)) / 7 for v in rng.integers(-99, 99, n)]),
    "sparse": lambda rng, n: pd.Series(pd.arrays.SparseArray(rng.integers(0, 2, n).astype(float))),
    "arrow": lambda rng, n: pd.Series(rng.normal(size=n), dtype="double[pyarrow]"),
    "missing numbers": lambda rng, n: _some(_normal(rng, n), rng, np.nan),
    "missing text": lambda rng, n: _some(pd.Series(rng.choice(["p", "q"], n), dtype=object), rng, None),
    "missing nullable": lambda rng, n: _some(pd.Series(rng.integers(0, 9, n), dtype="Int64"), rng, pd.NA),
    "missing dates": lambda rng, n: _some(_dates(rng, n), rng, pd.NaT),
    "missing durations": lambda rng, n: _some(pd.Series(pd.to_timedelta(rng.normal(size=n), unit="h")), rng, pd.NaT),
    "many levels": lambda rng, n: pd.Series([f"level {j}" for j in rng.integers(0, 22, n)], dtype=object),
    "many categories": lambda rng, n: pd.Series(pd.Categorical(rng.integers(0, 500, n))),
    "dates with points": lambda rng, n: _dates(rng, n).dt.strftime("%d.%m.%Y").astype(object),
    "dates and times as text": lambda rng, n: _dates(rng, n).dt.strftime("%Y/%m/%d %H:%M").astype(object),
    "ISO dates as text": lambda rng, n: _some(_dates(rng, n).dt.strftime("%Y-%m-%d").astype(object), rng, None),
    "decimal commas": lambda rng, n: _commas(rng, n),
    "missing decimal commas": lambda rng, n: _some(_commas(rng, n), rng, None),
}
TROUBLED: dict[str, Maker] = {
    "infinite": lambda rng, n: _some(_normal(rng, n), rng, rng.choice([np.inf, -np.inf])),
    "too large": lambda rng, n: _some(_normal(rng, n), rng, 1e200),
    "endless whole numbers": lambda rng, n: _objects([10 ** int(v) for v in rng.integers(400, 500, n)]),
    "whole numbers that merge": lambda rng, n: pd.Series(1 + 2 * rng.integers(2**61, 2**62, n, dtype=np.uint64)),
    "nothing": lambda rng, n: pd.Series([np.nan] * n, dtype=float),
    "nothing at all": lambda rng, n: pd.Series([None] * n, dtype=object),
    "missing categories": lambda rng, n: pd.Series(pd.Categorical([None] * n, ["known"])),
    "dates with slashes": lambda rng, n: pd.Series([f"{1 + j % 12:02}/0{1 + j % 9}/2024" for j in range(n)]),
    "thousands": lambda rng, n: pd.Series([f"{j},{j}" for j in rng.integers(100, 999, n)], dtype=object),
    "words and numbers": lambda rng, n: _objects([["x", 1, 2.5][i % 3] for i in range(n)]),
    "dates and numbers": lambda rng, n: _objects([[pd.Timestamp("2024-01-01"), 3][i % 2] for i in range(n)]),
    "lists": lambda rng, n: _objects([[1, 2]] * n),
    "dicts": lambda rng, n: _objects([{"k": i} for i in range(n)]),
    "arrays": lambda rng, n: _objects([np.arange(3)] * n),
    "sets": lambda rng, n: _objects([{i} for i in range(n)]),
    "bytes": lambda rng, n: _objects([b"raw"] * n),
    "complex": lambda rng, n: pd.Series(rng.normal(size=n) + 1j),
    "periods": lambda rng, n: pd.Series(pd.period_range("2024-01", periods=n, freq="M")),
    "intervals": lambda rng, n: pd.Series(pd.interval_range(0, periods=max(n, 1)).to_numpy()[:n]),
    "identifiers": lambda rng, n: pd.Series([f"id{i}" for i in range(n)], dtype=object),  # troubled from 21 rows
    "numbers as text": lambda rng, n: pd.Series([f"{v:.2f}" for v in rng.normal(size=n)], dtype=object),
    "functions": lambda rng, n: _objects([len] * n),
}
TARGETS: dict[str, Maker] = {
    **{name: FINE[name] for name in ("floats", "float32", "whole numbers", "booleans", "constant", "huge", "tiny")},
    **{name: FINE[name] for name in ("almost constant", "one outlier", "of every size", "nullable floats", "decimals")},
    "array": lambda rng, n: rng.normal(size=n),
    "list": lambda rng, n: rng.normal(size=n).tolist(),
    "column": lambda rng, n: rng.normal(size=(n, 1)),
    "several": lambda rng, n: pd.DataFrame({"first": rng.normal(size=n), "second": 1e9 * rng.normal(size=n)}),
}
TROUBLED_TARGETS: dict[str, Maker] = {
    name: TROUBLED[name]
    for name in (
        "infinite",
        "too large",
        "nothing",
        "nothing at all",
        "words and numbers",
        "lists",
        "complex",
        "periods",
    )
} | {
    "text": lambda rng, n: pd.Series(["yes"] * n, dtype=object),
    "categories": lambda rng, n: pd.Series(pd.Categorical(["yes"] * n)),
    "dates": _dates,
    "durations": FINE["durations"],
    "too short": lambda rng, n: rng.normal(size=max(n - 1, 0)),
    "a cube": lambda rng, n: rng.normal(size=(n, 2, 2)),
}


def random_table(seed: int) -> RandomTable:
    """The table of a seed."""
    rng = np.random.default_rng(seed)
    n = int(rng.choice([0, 1, 2, 3, 7, 25, 60], p=[0.03, 0.04, 0.08, 0.1, 0.2, 0.3, 0.25]))
    width = int(rng.choice([0, 1, 2, 3, 5], p=[0.02, 0.23, 0.25, 0.3, 0.2]))
    names = list(rng.choice(NAMES, width, replace=False))
    share = rng.choice([0.0, 0.15, 0.5], p=[0.5, 0.4, 0.1])  # of the columns that are troubled
    troubled_places, kinds, columns = [], [], []
    for place in range(width):
        troubled = rng.random() < share
        kind = str(rng.choice(list(TROUBLED if troubled else FINE)))
        columns.append((TROUBLED if troubled else FINE)[kind](rng, n).reset_index(drop=True))
        kinds.append(kind)
        if troubled and not (kind == "identifiers" and n <= 20):
            troubled_places.append(place)
    frame = pd.concat(columns, axis=1) if columns else pd.DataFrame(index=range(n))
    frame.columns = range(width) if rng.random() < 0.05 else [str(name) for name in names]
    troubles = [repr(str(frame.columns[place])) for place in troubled_places]
    if width >= 2 and rng.random() < 0.05:
        frame.columns = [*frame.columns[:-1], frame.columns[0]]
        troubles.append("more than one column")
    if n and not troubles and rng.random() < 0.1:  # the same rows again and again
        frame = frame.iloc[rng.integers(0, min(n, 3), n)].reset_index(drop=True)
    if rng.random() < 0.2:
        frame.index = pd.Index(rng.permutation(np.arange(n) // 2))
    if not (n and width):
        troubles = ["minimum of 1"]

    troubled = rng.random() < 0.1
    kind = str(rng.choice(list(TROUBLED_TARGETS if troubled else TARGETS)))
    target = (TROUBLED_TARGETS if troubled else TARGETS)[kind](rng, n)
    kinds.append(f"target: {kind}")
    if troubled:
        troubles += ["y ", "'y'", "inconsistent", "target"]
    missing = not troubled and isinstance(target, pd.Series) and n and rng.random() < 0.2
    if missing:
        kinds.append("some targets missing")
        target = _some(target.astype(object), rng, None)
    usable = n if not missing else int(target.notna().sum())
    kept = frame[target.notna().to_numpy()] if missing else frame
    troubles += [repr(str(name)) for j, name in enumerate(kept) if n and kept.iloc[:, j].isna().all()]
    if usable < 2:
        troubles += ["minimum of", "nothing to learn from", "1 row"]
    return RandomTable(frame, target, tuple(troubles), tuple(kinds))
