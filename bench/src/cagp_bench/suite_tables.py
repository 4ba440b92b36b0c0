"""Tables and plots of a suite, made from its records alone.

Learning rates: of an entry's settings, the line shows those with the lowest mean validation NLL over the seeds. Runs
without validation rows have one setting. The columns "by test rows" show what the paper's protocol would show: the
settings and the epoch with the lowest mean test NLL.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from cagp import plots
from cagp.files import replacing
from cagp_bench.curves import Curve, curves
from cagp_bench.grids import Grid
from cagp_bench.suites import PUBLISHED
from cagp_bench.summaries import Mean, mean_of

Record = dict[str, Any]

MISSING = "–"
SCORES = {
    "nll": "NLL",
    "rmse": "RMSE",
    "crps": "CRPS",
    "coverage_error": "coverage error 95 %",
    "coverage_error_50": "coverage error 50 %",
    "width": "95 % width",
    "noise": "noise",
}


class Chosen(NamedTuple):
    """The runs of one line, and how many settings there were to choose from."""

    runs: list[Record]  # of all seeds
    num_settings: int
    num_failed: int


class ByTest(NamedTuple):
    """What the test rows would have chosen."""

    lr: float | None
    epoch: int
    nll: Mean
    rmse: Mean


def suite_grid(records: Sequence[Record], expected: Sequence[tuple[str, str]] = ()) -> Grid:
    """A line for each table, entry and noise floor, in the order of the records.

    Args:
        expected: tables and labels that should be there; those without a record are lines of missing cells.
    """
    lines = dict.fromkeys((record["table"], record["label"], _floor(record)) for record in records)
    known = {(table, label) for table, label, _ in lines}
    lines |= dict.fromkeys((table, label, None) for table, label in expected if (table, label) not in known)
    tables = list(dict.fromkeys(table for table, _, _ in lines))
    ordered = sorted(lines, key=lambda line: tables.index(line[0]))
    found = [_line(records, *line) for line in ordered]
    columns = {name: [line.get(name, MISSING) for line in found] for name in _COLUMNS}
    used = {name: cells for name, cells in columns.items() if any(cell not in (MISSING, "") for cell in cells)}
    return Grid(used, num_keys=2)


def _floor(record: Record) -> float | None:
    return record["settings"].get("noise_floor") if record.get("protocol") == "gp" else None


_COLUMNS = (
    "table",
    "method",
    "noise floor",
    "n",
    "seeds",
    "lr",
    "epoch",
    *SCORES.values(),
    "fit, s",
    "predict, s",
    "MB",
    "NLL by test rows",
    "RMSE by test rows",
    "lr, epoch by test rows",
    "NLL in the paper",
    "RMSE in the paper",
)


def _line(records: Sequence[Record], table: str, label: str, floor: float | None) -> dict[str, str]:
    runs = [r for r in records if (r["table"], r["label"], _floor(r)) == (table, label, floor)]
    about = {"table": table, "method": label, "noise floor": MISSING if floor is None else f"{floor:g}"}
    published = PUBLISHED.get(table, {}).get(label)
    if published is not None:
        about |= {"NLL in the paper": f"{published.nll:.3f}", "RMSE in the paper": f"{published.rmse:.3f}"}
    if not runs:
        return about
    chosen = choose(runs)
    good = chosen.runs
    if not good:
        return {**about, "NLL": "failed", "seeds": f"0 of {chosen.num_failed}"}
    total = f" of {len(good) + chosen.num_failed}" if chosen.num_failed else ""
    line = {
        **about,
        "n": f"{good[0]['n']:,}",
        "seeds": f"{len(good)}{total}",
        "lr": _rate(good[0]),
        "epoch": "/".join(dict.fromkeys(str(run.get("epoch", MISSING)) for run in good)),
        **{name: _cell(mean_of(values)) for key, name in SCORES.items() if (values := _values(good, key))},
        "fit, s": f"{mean_of([run['fit_s'] for run in good]).value:,.1f}",
        "predict, s": f"{mean_of([run['predict_s'] for run in good]).value:,.2f}",
        "MB": f"{max(run['peak_bytes'] for run in good) / 1e6:,.0f}",
    }
    best = by_test_rows(runs)
    if best is not None:
        line |= {"NLL by test rows": _cell(best.nll), "RMSE by test rows": _cell(best.rmse)}
        line["lr, epoch by test rows"] = f"{MISSING if best.lr is None else format(best.lr, 'g')}, {best.epoch}"
    return line


def _values(runs: list[Record], key: str) -> list[float]:
    return [run[key] for run in runs if isinstance(run.get(key), int | float)]


def _rate(run: Record) -> str:
    settings = run["settings"] if run.get("protocol") == "gp" else {}
    rate = settings.get("lr")
    return MISSING if "lr" not in settings else "ours" if rate is None else f"{rate:g}"


def _cell(mean: Mean) -> str:
    """Four digits of a mean, and its standard error."""
    return f"{mean.value:.4g}" if mean.error is None else f"{mean.value:.4g} ± {mean.error:.2g}"


# ---- choices ----


def choose(runs: Sequence[Record]) -> Chosen:
    """The settings with the lowest mean validation NLL over the seeds, among those with the most runs that worked."""
    groups = _by_settings(runs)
    good = {name: [run for run in group if "error" not in run] for name, group in groups.items()}
    failed = {name: len(groups[name]) - len(group) for name, group in good.items()}
    most = max(map(len, good.values()))
    if most == 0:
        return Chosen([], len(groups), sum(failed.values()))

    def cost(name: str) -> float:
        values = [run.get("validation_nll") for run in good[name]]
        return float(np.mean([value for value in values if value is not None])) if None not in values else 0.0

    best = min((name for name, group in good.items() if len(group) == most), key=cost)
    return Chosen(good[best], len(groups), failed[best])


def by_test_rows(runs: Sequence[Record]) -> ByTest | None:
    """The settings and the epoch with the lowest mean test NLL over the seeds; None without evaluations.

    Only epochs that all seeds of these settings have are compared.
    """
    best = None
    good = [run for run in runs if "error" not in run and run.get("trajectory")]
    groups = _by_settings(good)
    most = max(map(len, groups.values()), default=0)
    for group in groups.values():
        if len(group) < most:
            continue
        curves = [{point["epoch"]: point for point in run["trajectory"]} for run in group]
        for epoch in set.intersection(*map(set, curves)):
            points = [curve[epoch] for curve in curves]
            if any(point["test_nll"] is None or point["test_rmse"] is None for point in points):
                continue
            nll = mean_of([point["test_nll"] for point in points])
            if best is None or (nll.value, epoch) < (best.nll.value, best.epoch):
                rmse = mean_of([point["test_rmse"] for point in points])
                best = ByTest(group[0]["settings"].get("lr"), epoch, nll, rmse)
    return best


def _by_settings(runs: Sequence[Record]) -> dict[str, list[Record]]:
    groups: dict[str, list[Record]] = {}
    for run in runs:
        groups.setdefault(json.dumps(run["settings"], sort_keys=True), []).append(run)
    return groups


# ---- files ----


def write_tables(records: Sequence[Record], tasks: Sequence[Any], name: str, out: Path) -> list[Path]:
    """Write the table of a suite as text, Markdown, LaTeX and CSV, and a plot of its learning curves for each table."""
    expected = [(Path(task.table.partition(":")[2] or task.table).stem, task.label) for task in tasks]
    paths = suite_grid(records, expected).write(out / name)
    for table in dict.fromkeys(record["table"] for record in records):
        figure = curves_figure([record for record in records if record["table"] == table], table)
        if figure is not None:
            path = out / f"{name}-{table}.png"
            with replacing(path) as file:
                figure.savefig(file, format="png", dpi=120)
            paths.append(path)
    return paths


def curves_figure(records: Sequence[Record], table: str) -> Figure | None:
    """Test NLL against the seconds of training for the chosen settings of each entry, of the first seed and floor."""
    lines = []
    for label in dict.fromkeys(record["label"] for record in records):
        runs = [record for record in records if record["label"] == label]
        runs = [run for run in runs if _floor(run) == _floor(runs[0])]
        chosen = choose(runs).runs
        points = [p for p in (chosen[0].get("trajectory") or [] if chosen else []) if p["test_nll"] is not None]
        if points:
            seconds = [max(point["seconds"], 1e-3) for point in points]
            lines.append(Curve(label, seconds, [point["test_nll"] for point in points]))
    if not lines:
        return None
    figure = Figure(figsize=(9, 5), layout="constrained")
    figure.suptitle(f"Learning curves on {table}", x=0.01, ha="left", fontsize=14, fontweight="bold", color=plots.INK)
    curves(figure.subplots(), lines, "test NLL (nats per row)")
    return figure
