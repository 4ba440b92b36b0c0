"""Means over the splits of a table, and paired differences to the default, with their standard errors."""

import math
from textwrap import fill
from typing import Any, NamedTuple

import numpy as np

from cagp.metrics import METRICS
from cagp.text_tables import table_of_text

REFERENCE = "default"
COMPARED = ("nll", "rmse", "crps")
"""What is judged: lower is better in each."""

SHOWN = (*COMPARED, "coverage", "seconds", "cpu_s", "peak_bytes")


class Mean(NamedTuple):
    """A mean over splits; its standard error is None for one split."""

    value: float
    error: float | None
    num: int


class Line(NamedTuple):
    """What a method achieved on a table."""

    table: str
    method: str
    means: dict[str, Mean]  # by the names of ``SHOWN``; empty where every run failed
    differences: dict[str, Mean]  # from the reference, on the splits that both have; by the names of ``COMPARED``
    num_failed: int

    def as_record(self) -> dict[str, Any]:
        """The same as plain values."""
        plain = {name: {key: mean._asdict() for key, mean in getattr(self, name).items()} for name in self._fields[2:4]}
        return {**self._asdict(), **plain}


def mean_of(values: list[float]) -> Mean:
    """The mean of some splits and its standard error."""
    found = np.asarray(values, dtype=np.float64)
    error = float(found.std(ddof=1) / len(found) ** 0.5) if len(found) > 1 else None
    return Mean(float(found.mean()), error, len(found))


def summarize(records: list[dict[str, Any]]) -> list[Line]:
    """A line for each table and method, in the order of the records."""
    runs: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for record in records:
        runs.setdefault((table_name(record), record["method"]), []).append(record)
    tables = dict.fromkeys(table for table, _ in runs)
    return [_line(table, method, group, runs) for t in tables for (table, method), group in runs.items() if table == t]


def table_name(record: dict[str, Any]) -> str:
    """The name of the table, with the number of rows that were drawn from it."""
    rows = record.get("rows")
    return record["table"] if rows is None else f"{record['table']}:{rows}"


def _line(table: str, method: str, group: list[dict[str, Any]], runs: dict[tuple[str, str], list]) -> Line:
    found = {record["seed"]: _values(record) for record in group if "error" not in record}
    reference = {r["seed"]: _values(r) for r in runs.get((table, REFERENCE), []) if "error" not in r}
    common = [seed for seed in found if seed in reference and method != REFERENCE]
    means = {key: mean_of([values[key] for values in found.values()]) for key in SHOWN} if found else {}
    differences = {k: mean_of([found[s][k] - reference[s][k] for s in common]) for k in COMPARED} if common else {}
    return Line(table, method, means, differences, sum("error" in record for record in group))


def _values(record: dict[str, Any]) -> dict[str, float]:
    found = {"cpu_s": math.nan, **record, "seconds": record["fit_s"] + record["predict_s"]}  # older files have none
    return {key: float(found[key]) for key in SHOWN}


# ---- as text ----


def summary_text(lines: list[Line], width: int) -> str:
    """Two tables, of means and of differences, and a sentence on each metric."""
    cells = {
        "table": [line.table for line in lines],
        "method": [line.method for line in lines],
        "splits": [_splits(line) for line in lines],
        **{METRICS[key].label: [_cell(line.means, key) for line in lines] for key in (*COMPARED, "coverage")},
        "fit + predict, s": [_cell(line.means, "seconds") for line in lines],
        "CPU, s": [_cell(line.means, "cpu_s") for line in lines],
        "MB": [_cell(line.means, "peak_bytes") for line in lines],
    }
    parts = [table_of_text(cells, width, num_keys=2)]
    others = [line for line in lines if line.differences]
    if others:
        cells = {
            "table": [line.table for line in others],
            f"minus {REFERENCE}": [line.method for line in others],
            **{METRICS[key].label: [_cell(line.differences, key, "+") for line in others] for key in COMPARED},
        }
        parts += [
            table_of_text(cells, width, num_keys=2),
            "\n".join(fill(verdict, width) for verdict in verdicts(lines)),
        ]
    return "\n\n".join(parts)


def verdicts(lines: list[Line]) -> list[str]:
    """For each metric, on how many tables the reference is the best or level, and where it is behind."""
    tables = dict.fromkeys(line.table for line in lines if line.differences)
    sentences = []
    for key in COMPARED:
        behind = {}
        for line in lines:
            if line.differences and is_behind(line.differences[key]):
                behind.setdefault(line.table, []).append(line.method)
        listed = "; ".join(f"{table} ({', '.join(methods)})" for table, methods in behind.items())
        sentences.append(
            f"{METRICS[key].label}: {REFERENCE} is best or level (within one standard error) on "
            f"{len(tables) - len(behind)} of {len(tables)} tables" + (f"; behind on {listed}." if behind else ".")
        )
    return sentences


def is_behind(difference: Mean) -> bool:
    """Whether another method is better than the reference by more than one standard error."""
    return difference.value < -(difference.error or 0.0)


def _splits(line: Line) -> str:
    num = line.means["nll"].num if line.means else 0
    return str(num) if not line.num_failed else f"{num} of {num + line.num_failed}"


def _cell(means: dict[str, Mean], key: str, sign: str = "") -> str:
    """A mean and its standard error, both to the second digit of the error."""
    if key not in means:
        return "failed" if key == "nll" else ""
    value, error, _ = means[key]
    if key == "peak_bytes":
        return f"{value / 1e6:,.0f}"
    if key in ("seconds", "cpu_s"):
        return "" if math.isnan(value) else f"{value:,.1f}"
    if key == "coverage":
        return f"{100 * value:.1f} %" if error is None else f"{100 * value:.1f} ± {100 * error:.1f} %"
    if error is None:
        return format(value, f"{sign}.4g")
    digits = min(max(1 - math.floor(math.log10(error)), 0), 9) if error > 0 else 4
    return f"{value:{sign}.{digits}f} ± {error:.{digits}f}"
