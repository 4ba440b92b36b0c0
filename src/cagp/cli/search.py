"""``cagp search``: how many actions does a table need?"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from cagp.cli import options
from cagp.cli.words import UsageError
from cagp.kernel_registry import AUTO, CHOICES
from cagp.lazy import lazy_module

if TYPE_CHECKING:
    import numpy as np
    import torch
    from matplotlib import figure as figures

    from cagp import action_search, data, plots
    from cagp.action_search import trial as trials
    from cagp.cli import tables
else:
    np, torch, figures, plots = map(lazy_module, ("numpy", "torch", "matplotlib.figure", "cagp.plots"))
    action_search, data, tables = map(lazy_module, ("cagp.action_search", "cagp.data", "cagp.cli.tables"))
    trials = lazy_module("cagp.action_search.trial")

DEFAULT = (64, 128, 256, 512)

DESCRIPTION = """\
Fit CaGP-Opt to a table with several numbers of actions and learning rates, judge each fit on a tenth of the rows, and
recommend a number of actions. Errors are in standard deviations of the target. The same command continues a search that
was interrupted, and runs only what is missing."""

EPILOG = """\
examples:
  cagp search houses.csv --target price
  cagp search bike.npz --n-actions 64 128 256 --jobs 2 --out bike-search"""


def add_to(command: argparse.ArgumentParser) -> None:
    """The options of ``cagp search``."""
    command.description, command.epilog = DESCRIPTION, EPILOG
    options.add_table(command, test_fraction=None)
    command.add_argument(
        "--n-actions",
        type=options.positive,
        nargs="+",
        metavar="N",
        help="numbers to try (default: 64 128 256 512, as far as there are rows)",
    )
    command.add_argument(
        "--lr",
        type=options.rate,
        nargs="+",
        default=[0.1, 0.2],
        metavar="RATE",
        help="learning rates to try (default: 0.1 0.2)",
    )
    options.add_kernel(command)
    command.add_argument(
        "--steps", type=options.positive, default=300, metavar="N", help="steps of each fit (default: %(default)s)"
    )
    command.add_argument(
        "--max-time",
        type=options.duration,
        metavar="TIME",
        help='limit for each fit, e.g. "10min" (default: no limit)',
    )
    command.add_argument(
        "--seed", type=options.seed, default=0, metavar="N", help="random seed of the split (default: 0)"
    )
    command.add_argument(
        "--jobs",
        type=options.positive,
        default=1,
        metavar="N",
        help="fits that run at the same time (default: %(default)s)",
    )
    command.add_argument(
        "--out",
        type=Path,
        default=Path("cagp-search"),
        metavar="FOLDER",
        help="where trials and picture go; use one folder for each table (default: %(default)s)",
    )
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Search, print the table and its reading, write search.png; 1 if any trial failed."""
    X, y = _rows(arguments)
    result = action_search.search_num_actions(
        X,
        y,
        folder=arguments.out,
        num_actions=_numbers(arguments, len(y)),
        lrs=arguments.lr,
        kernel=CHOICES[0] if arguments.kernel == AUTO else arguments.kernel,
        seed=arguments.seed,
        num_steps=arguments.steps,
        max_time=arguments.max_time,
        dtype=torch.float32,
        jobs=arguments.jobs,
        progress=True,
    )
    print(result)
    if result.best is not None:
        figure = figures.Figure(figsize=(8, 5), layout="constrained")
        plots.quality_against_time(figure.subplots(), result.trials).set_title(
            f"How many actions does {Path(arguments.table).stem} need?", loc="left", fontweight="bold", parse_math=False
        )
        picture = arguments.out / "search.png"
        plots.write_figure(figure, picture)
        print(f"\nPicture: {picture}")
    return int(any(trial.error is not None for trial in result.trials))


def _numbers(arguments: argparse.Namespace, num_rows: int) -> list[int]:
    """The numbers of actions to try, none above the number of training rows."""
    most = len(trials.rows_of(num_rows, arguments.seed).train)
    if arguments.n_actions is None:
        return [number for number in DEFAULT if number <= most] or [most]
    for number in arguments.n_actions:
        if number > most:
            raise UsageError(
                f"--n-actions is {number:,}, expected at most {most:,}: the number of rows to train on, which are nine "
                f"in ten of the {num_rows:,} rows with a target."
            )
    return arguments.n_actions


def _rows(arguments: argparse.Namespace) -> "tuple[torch.Tensor, torch.Tensor]":
    """Encoded inputs and the target, without rows whose target is missing."""
    _, inputs, values = tables.read_columns(
        arguments.table, arguments.target, arguments.drop, categories=arguments.categories
    )
    if values.shape[1] != 1:
        raise UsageError("--target names several columns; cagp search takes one.")
    target = data.encode_target(values, "the target")
    kept = ~target.missing
    encoder, codes = data.Encoder.fit_codes(inputs, arguments.categories)
    encoder, codes = encoder.for_rows(codes, kept)
    matrix = encoder.expand(codes[kept])
    return torch.from_numpy(np.ascontiguousarray(matrix)), torch.from_numpy(target.values[kept])
