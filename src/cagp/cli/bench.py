"""``cagp bench``: speed, memory and quality, measured on this machine."""

import argparse
from pathlib import Path

from cagp.bench import engine as bench_engine
from cagp.bench import generalization as bench_generalization
from cagp.bench import local as bench_local
from cagp.bench import presets as bench_presets
from cagp.bench import step as bench_step
from cagp.cli.options import HelpFormatter


def add_to(command: argparse.ArgumentParser) -> None:
    """The suites of ``cagp bench`` and their options."""
    command.description = "Measure speed, memory and quality on this machine."
    command.epilog = "examples:\n  cagp bench engine\n  cagp bench step --json\n  cagp bench fit table.npz"
    suites = command.add_subparsers(required=True, metavar="suite")
    suite = suites.add_parser(
        "engine",
        help="kernel evaluations per second of every backend",
        description="Kernel evaluations per second of k(X, Z) W, forward and backward, for every backend installed.",
    )
    suite.add_argument("--json", action="store_true", help="print records for machines instead of a table")
    suite.add_argument("--repeats", type=int, default=3, help="take the best of this many runs (default: %(default)s)")
    suite.set_defaults(run=lambda arguments: bench_engine.run(arguments.repeats, arguments.json))
    suite = suites.add_parser(
        "step",
        help="time and peak memory of one CaGP-Opt training step",
        description="Time and peak memory of one training step (loss and gradient) at d = 20, i = 512.",
    )
    suite.add_argument("--json", action="store_true", help="print records for machines instead of a table")
    suite.add_argument("--repeats", type=int, default=3, help="take the best of this many runs (default: %(default)s)")
    suite.set_defaults(run=lambda arguments: bench_step.run(arguments.repeats, arguments.json))
    suite = suites.add_parser(
        "fit",
        help="error and error bars of CaGP-Opt on tables of your own",
        description="Fit CaGP-Opt to tables (.npz with X and y) by the paper's protocol: 90/10 splits by seed, Matern "
        "3/2, standardised by training rows; the step is chosen on validation rows. Errors are in standard units.",
        epilog="example:\n  cagp bench fit parkinsons.npz --seeds 0 1 2 3 4",
        formatter_class=HelpFormatter,
    )
    suite.add_argument("tables", type=Path, nargs="+", help="one or more .npz files")
    suite.add_argument("--seeds", type=int, nargs="+", default=[0], help="one split each (default: 0)")
    suite.add_argument("--actions", type=int, default=512, help="number of actions (default: %(default)s)")
    suite.add_argument("--steps", type=int, default=300, help="training steps (default: %(default)s)")
    suite.add_argument(
        "--blocks",
        choices=("spatial", "ordered"),
        default="spatial",
        help="blocks of nearby rows with equal weights, or the paper's: in the order of the rows, with random weights",
    )
    suite.add_argument(
        "--start",
        choices=("neighbours", "data", "paper"),
        default="neighbours",
        help="where hyperparameters start: at those of a short fit of CaGP-Local, at values read off the data, or at "
        "the paper's (default: %(default)s)",
    )
    suite.add_argument("--json", action="store_true", help="print records for machines instead of a table")
    suite.set_defaults(run=_bench_fit)
    suite = suites.add_parser(
        "presets",
        help="loss and validation NLL against time, for each preset of training",
        description="Train CaGP-Opt on a table (.npz with X and y) with each preset and with a slow learning rate, for "
        "the same time each; print a table and draw loss and validation NLL against time.",
        epilog="example:\n  cagp bench presets bike.npz --max-time 2min --rows 3000 --actions 128",
        formatter_class=HelpFormatter,
    )
    suite.add_argument("table", type=Path, help="an .npz file")
    suite.add_argument("--max-time", default="2min", help="time for each, e.g. 90s, 2min (default: %(default)s)")
    suite.add_argument("--rows", type=int, help="take this many rows, at random (default: all)")
    suite.add_argument("--actions", type=int, default=512, help="number of actions (default: %(default)s)")
    suite.add_argument("--out", type=Path, default=Path("presets.png"), help="the picture (default: %(default)s)")
    suite.add_argument("--json", action="store_true", help="print records for machines instead of a table")
    suite.set_defaults(run=lambda a: bench_presets.run(a.table, a.max_time, a.rows, a.actions, a.out, a.json))
    suite = suites.add_parser(
        "local",
        help="speed of CaGP-Local; with tables, its error and error bars beside the hybrid and GPBoost",
        description="Without tables: rows per second of predictions and training steps, compiled and in torch. With "
        "tables (.npz with X and y): the paper's protocol (90/10 splits by seed, Matern 3/2, standardised by training "
        "rows) with fixed settings, each run in a process of its own. Errors are in standard units.",
        epilog="examples:\n  cagp bench local\n  cagp bench local bike.npz protein.npz --seeds 0 1 2 3 4 --json",
        formatter_class=HelpFormatter,
    )
    suite.add_argument("tables", type=Path, nargs="*", help=".npz files; none to measure speed")
    suite.add_argument("--seeds", type=int, nargs="+", default=[0], help="one split each (default: 0)")
    suite.add_argument("--neighbours", type=int, default=32, help="in training (default: %(default)s)")
    suite.add_argument(
        "--actions", type=int, default=bench_local.NUM_ACTIONS, help="of hybrid and opt (default: %(default)s)"
    )
    suite.add_argument(
        "--methods",
        nargs="+",
        choices=bench_local.METHODS,
        default=["local", "local-scale", "hybrid", "gpboost"],
        help="local-scale is local with error bars that follow the neighbours, opt is CaGP-Opt, gpboost GPBoost's "
        "Vecchia with 20 neighbours (default: local local-scale hybrid gpboost)",
    )
    suite.add_argument(
        "--objective",
        choices=["loo", "ordered"],
        default="loo",
        help="what local and hybrid learn from: each row predicted from its nearest others, or from those before it in "
        "a random order, as GPBoost does (default: %(default)s)",
    )
    suite.add_argument("--rows", type=int, help="take this many rows of each table, at random (default: all)")
    suite.add_argument("--max-time", default="1h", help="a run that takes longer is killed (default: %(default)s)")
    suite.add_argument("--repeats", type=int, default=3, help="speed: the best of this many (default: %(default)s)")
    suite.add_argument("--json", action="store_true", help="print records for machines instead of a table")
    suite.set_defaults(run=_bench_local)


def _bench_fit(arguments: argparse.Namespace) -> int:
    choices = (arguments.actions, arguments.steps, arguments.blocks, arguments.start)
    return bench_generalization.run(
        arguments.tables, arguments.seeds, bench_generalization.Choices(*choices), arguments.json
    )


def _bench_local(arguments: argparse.Namespace) -> int:
    """Speed where there are no tables, else every method on every table with every seed."""
    if not arguments.tables:
        return bench_local.run_speed(arguments.repeats, arguments.json)
    choices = (arguments.neighbours, arguments.actions, arguments.rows, arguments.objective)
    runs = [
        bench_local.Run(str(table), method, seed, *choices)
        for table in arguments.tables
        for seed in arguments.seeds
        for method in arguments.methods
    ]
    return bench_local.run_quality(runs, arguments.max_time, arguments.json)
