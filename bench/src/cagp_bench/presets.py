"""``cagp bench presets``: loss and validation NLL against time, for each way to train CaGP-Opt.

Rows, scaling and kernel are those of ``cagp bench run``; test rows are not used. All presets start from the same
hyperparameters and have the same time, not counting evaluations. Those of the paper also use its blocks and weights.
"""

import argparse
from pathlib import Path
from typing import Any, NamedTuple

import torch
from matplotlib.figure import Figure
from torch import Tensor

from cagp import metrics, plots
from cagp.data import standardized
from cagp.training import PRESETS, Settings, fit
from cagp_bench.curves import Curve, curves
from cagp_bench.options import add_actions, add_rows, duration, table_path
from cagp_bench.protocol import Blocks, load_table, new_method, rows_by_purpose
from cagp_bench.records import FAILED, attempt, cell, machine, show

EVALUATE_EVERY = 5
SEED = 0


class Candidate(NamedTuple):
    """A way to train."""

    name: str
    settings: Settings
    blocks: Blocks = "spatial"
    dtype: torch.dtype = torch.float32


CANDIDATES = (
    Candidate("default", PRESETS["default"]),
    Candidate("rate 0.01", PRESETS["default"].with_changes(lr=0.01)),
    Candidate("paper-adam", PRESETS["paper-adam"], blocks="ordered"),
    Candidate("paper-lbfgs", PRESETS["paper-lbfgs"], blocks="ordered", dtype=torch.float64),
)


COLUMNS = {
    "preset": cell("preset"),
    "blocks": cell("blocks"),
    "dtype": cell("dtype"),
    "loss": cell("loss", "{:.3f}", FAILED),
    "validation NLL": cell("nll", "{:.3f}"),
    "lowest": cell("lowest_nll", "{:.3f}"),
    "steps": cell("steps"),
    "fit, s": cell("fit_s", "{:.0f}"),
}


def add_to(suite: argparse.ArgumentParser) -> None:
    """The options of ``cagp bench presets``."""
    suite.description = (
        "Train CaGP-Opt on a table (.npz with X and y) with each preset and with a slow learning rate, for the same "
        "time each. Print a table and draw loss and validation NLL against time."
    )
    suite.epilog = "example:\n  cagp bench presets bike.npz --max-time 2min --rows 3000 --n-actions 128"
    suite.add_argument("table", type=table_path, metavar="TABLE", help="an .npz file")
    suite.add_argument(
        "--max-time",
        type=duration,
        default="2min",
        metavar="TIME",
        help="for each preset, e.g. 90s (default: %(default)s)",
    )
    add_rows(suite)
    add_actions(suite)
    suite.add_argument(
        "--out", type=Path, default=Path("presets.png"), metavar="FILE", help="the picture (default: %(default)s)"
    )
    suite.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Train in every way, print a record for each and draw a picture; return 1 if any failed."""
    X, y = load_table(arguments.table, arguments.rows)
    name, num_actions = arguments.table.stem, arguments.n_actions
    records = [_measure(candidate, X, y, arguments.max_time, num_actions, name) for candidate in CANDIDATES]
    fitted = [record for record in records if "error" not in record]
    if fitted:
        title = f"{name}: {fitted[0]['n']:,} rows, {num_actions:,} actions"
        plots.write_figure(draw(fitted, title), arguments.out)
    failed = show(records, COLUMNS, arguments.json)
    if fitted and not arguments.json:
        print(f"Picture: {arguments.out}")
    return failed


def _measure(candidate: Candidate, X: Tensor, y: Tensor, max_time: str, num_actions: int, table: str) -> dict[str, Any]:
    record = {**machine(), "table": table, "i": num_actions, "max_time": max_time, "preset": candidate.name}
    record |= {"blocks": candidate.blocks, "dtype": str(candidate.dtype).removeprefix("torch.")}
    return record | attempt(lambda: _train(candidate, X, y, max_time, num_actions))


def _train(candidate: Candidate, X: Tensor, y: Tensor, max_time: str, num_actions: int) -> dict[str, Any]:
    rows = rows_by_purpose(len(y), SEED)
    (X, y), (X_validation, y_validation) = standardized(X, y, rows.train, rows.validation, dtype=candidate.dtype)
    method = new_method(X, y, num_actions, candidate.blocks, "data", SEED)

    def nll() -> float:
        return metrics.nll(y_validation, *method.condition(X, y).predict(X_validation, noise=True))

    settings = candidate.settings.with_changes(max_time=max_time, evaluate_every=EVALUATE_EVERY)
    result = fit(method, X, y, settings=settings, evaluate=lambda: {"nll": nll()})
    if not result.steps:
        raise ArithmeticError(result.reason)
    evaluated = [(s.seconds, v) for s in result.steps if s.evaluation and (v := s.evaluation["nll"]) is not None]
    evaluated = evaluated or [(result.seconds, nll())]
    return {
        "n": len(y),
        "d": X.shape[1],
        "loss": result.best_value,
        "nll": evaluated[-1][1],
        "lowest_nll": min(value for _, value in evaluated),
        "steps": len(result.steps),
        "fit_s": result.seconds,
        "failures": len(result.failures),
        "reason": result.reason,
        "losses": [(step.seconds, step.loss) for step in result.steps],
        "nlls": evaluated,
    }


def draw(records: list[dict[str, Any]], title: str) -> Figure:
    """Loss and validation NLL against the seconds of training, in two panels with a line for each record."""
    figure = Figure(figsize=(14, 5), layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", fontsize=14, fontweight="bold", color=plots.INK)
    left, right = figure.subplots(1, 2)
    for ax, name, label in ((left, "losses", "loss"), (right, "nlls", "validation NLL")):
        lines = [Curve(r["preset"], *(list(column) for column in zip(*r[name], strict=True))) for r in records]
        curves(ax, lines, f"{label} (nats per row)")
    return figure
