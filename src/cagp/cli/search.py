"""``cagp search``: how many actions does a table need?"""

import argparse
from pathlib import Path

import torch
from matplotlib.figure import Figure

import cagp
from cagp import plots
from cagp.action_search.trial import KERNELS
from cagp.bench.generalization import load_table


def add_to(command: argparse.ArgumentParser) -> None:
    """The options of ``cagp search``."""
    command.description = (
        "Fit a table (.npz with X and y) with several numbers of actions and learning rates, judge each on a tenth of "
        "the rows, and recommend a number. Errors are in standard units. Calling it again goes on."
    )
    command.epilog = (
        "example:\n  cagp search table.npz --actions 64 128 256 512 --lr 0.1 0.2 --jobs 2 --out table-search"
    )
    command.add_argument("table", type=Path, help="an .npz file")
    command.add_argument(
        "--actions", type=int, nargs="+", default=[64, 128, 256, 512], help="numbers to try (default: 64 128 256 512)"
    )
    command.add_argument(
        "--lr", type=float, nargs="+", default=[0.1, 0.2], help="learning rates to try (default: 0.1 0.2)"
    )
    command.add_argument("--kernel", choices=KERNELS, default="matern32", help="(default: %(default)s)")
    command.add_argument("--steps", type=int, default=300, help="steps of each fit (default: %(default)s)")
    command.add_argument("--max-time", help='time for each fit, e.g. "10min" (default: no limit)')
    command.add_argument("--seed", type=int, default=0, help="of the split (default: %(default)s)")
    command.add_argument("--jobs", type=int, default=1, help="fits at a time (default: %(default)s)")
    command.add_argument(
        "--out",
        type=Path,
        default=Path("cagp-search"),
        help="folder for the trials and the picture; one for each table (default: %(default)s)",
    )
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Search, print the table and its reading, write search.png; 1 if any trial failed."""
    result = cagp.search_num_actions(
        *load_table(arguments.table),
        folder=arguments.out,
        num_actions=arguments.actions,
        lrs=arguments.lr,
        kernel=arguments.kernel,
        seed=arguments.seed,
        num_steps=arguments.steps,
        max_time=arguments.max_time,
        dtype=torch.float32,
        jobs=arguments.jobs,
        progress=True,
    )
    print(result)
    if result.best is not None:
        figure = Figure(figsize=(8, 5), layout="constrained")
        plots.quality_against_time(figure.subplots(), result.trials).set_title(
            f"How many actions does {arguments.table.stem} need?", loc="left", fontweight="bold"
        )
        picture = arguments.out / "search.png"
        figure.savefig(picture, dpi=150)
        print(f"\nPicture: {picture}")
    return int(any(trial.error is not None for trial in result.trials))
