"""``cagp bench presets``: loss and validation NLL against time, for each way to train CaGP-Opt.

Rows, scaling and kernel are those of ``cagp bench run``; test rows are not used. All presets start from the same
hyperparameters and have the same time, not counting evaluations. Those of the paper also use its blocks and weights.
"""

from pathlib import Path
from typing import Any, NamedTuple

import torch
from matplotlib.figure import Figure
from torch import Tensor

from cagp import metrics, plots
from cagp.data import standardized
from cagp.training import PRESETS, Settings, fit
from cagp_bench.curves import Curve, curves
from cagp_bench.protocol import Blocks, load_table, new_method, rows_by_purpose
from cagp_bench.records import in_one_line, machine, show

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


def run(table: Path, max_time: str, num_rows: int | None, num_actions: int, out: Path, as_json: bool) -> int:
    """Train in every way, print a record for each and draw a picture; return 1 if any failed."""
    X, y = load_table(table, num_rows)
    records = [_measure(candidate, X, y, max_time, num_actions, table.stem) for candidate in CANDIDATES]
    fitted = [record for record in records if "error" not in record]
    if fitted:
        title = f"{table.stem}: {fitted[0]['n']:,} rows, {num_actions:,} actions"
        plots.write_figure(draw(fitted, title), out)
    show(
        records,
        {
            "preset": lambda r: r["preset"],
            "blocks": lambda r: r["blocks"],
            "dtype": lambda r: r["dtype"],
            "loss": lambda r: "failed" if "error" in r else f"{r['loss']:.3f}",
            "validation NLL": lambda r: f"{r['nll']:.3f}" if "nll" in r else "",
            "lowest": lambda r: f"{r['lowest_nll']:.3f}" if "lowest_nll" in r else "",
            "steps": lambda r: str(r.get("steps", "")),
            "fit, s": lambda r: f"{r['fit_s']:.0f}" if "fit_s" in r else "",
        },
        as_json,
    )
    if fitted and not as_json:
        print(f"Picture: {out}")
    return int(len(fitted) < len(records))


def _measure(candidate: Candidate, X: Tensor, y: Tensor, max_time: str, num_actions: int, table: str) -> dict[str, Any]:
    """A failure is a record too: ``error`` says why."""
    record = {**machine(), "table": table, "i": num_actions, "max_time": max_time, "preset": candidate.name}
    record |= {"blocks": candidate.blocks, "dtype": str(candidate.dtype).removeprefix("torch.")}
    try:
        return record | _train(candidate, X, y, max_time, num_actions)
    except Exception as error:
        return record | {"error": in_one_line(error)}


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
