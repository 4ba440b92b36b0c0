"""``cagp bench``: speed, memory and quality, measured on this machine."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from cagp.cli.console import HelpFormatter, UsageError
from cagp.cli.options import add, positive, rate
from cagp.cli.plugins import table_path
from cagp.kernel_registry import CHOICES
from cagp.lazy import lazy_module
from cagp_bench.choices import CLASSIFIERS, CONTENDERS, NUM_ACTIONS, PREDICTED, SCALED, UNLIMITED
from cagp_bench.cli import likelihoods as likelihood_options
from cagp_bench.cli import suites as suite_options

if TYPE_CHECKING:
    from cagp_bench import (
        class_quality,
        cluster,
        engine,
        far_blocks,
        local_speed,
        minibatches,
        neighbour_speed,
        predict_speed,
        presets,
        scale,
        small_tables,
        step,
        structure_quality,
        table_on_disk,
        table_quality,
    )
else:
    engine, step, presets = map(lazy_module, ("cagp_bench.engine", "cagp_bench.step", "cagp_bench.presets"))
    local_speed, table_quality = map(lazy_module, ("cagp_bench.local_speed", "cagp_bench.table_quality"))
    structure_quality, scale = map(lazy_module, ("cagp_bench.structure_quality", "cagp_bench.scale"))
    cluster, small_tables = map(lazy_module, ("cagp_bench.cluster", "cagp_bench.small_tables"))
    table_on_disk, predict_speed = map(lazy_module, ("cagp_bench.table_on_disk", "cagp_bench.predict_speed"))
    far_blocks, class_quality = map(lazy_module, ("cagp_bench.far_blocks", "cagp_bench.class_quality"))
    minibatches, neighbour_speed = map(lazy_module, ("cagp_bench.minibatches", "cagp_bench.neighbour_speed"))


def add_to(command: argparse.ArgumentParser) -> None:
    """The suites of ``cagp bench`` and their options."""
    command.description = "Measure speed, memory and quality on this machine."
    command.epilog = "examples:\n  cagp bench engine\n  cagp bench step --json\n  cagp bench run smoke"
    suites = command.add_subparsers(required=True, metavar="SUITE")
    _add_engine(_suite(suites, "engine", "kernel evaluations per second of every backend"))
    _add_step(_suite(suites, "step", "time and peak memory of a training step of CaGP-Opt"))
    _add_scale(_suite(suites, "scale", "time and memory of a minibatch step at growing numbers of rows"))
    _add_predict(_suite(suites, "predict", "rows per second that each method predicts, with error bars"))
    _add_cluster(_suite(suites, "cluster", "what a fit on many machines costs, modelled from what is measured here"))
    _add_disk(_suite(suites, "disk", "a generated table in files, fitted in pieces: quality, time and memory"))
    suite_options.add_run(
        _suite(suites, "run", "suites: tables, methods, seeds and learning rates, with records that resume")
    )
    page = suites.add_parser("results", help="a page of results from records", formatter_class=HelpFormatter)
    suite_options.add_results(page)
    _add_minibatches(_suite(suites, "minibatches", "CaGP-Opt in minibatches of your tables: which sizes"))
    _add_far_blocks(_suite(suites, "far-blocks", "how many rows of your tables the kernel of CaGP-Opt does not reach"))
    _add_presets(_suite(suites, "presets", "loss and validation NLL against time, for each training preset"))
    _add_local(_suite(suites, "local", "speed of CaGP-Local"))
    _add_neighbours(_suite(suites, "neighbours", "time and memory to index rows and to find the nearest ones"))
    _add_tables(_suite(suites, "tables", "the default regressor beside boosted trees and GPBoost on your tables"))
    likelihood_options.add_counts(_suite(suites, "counts", "regressors for counts beside boosted trees on your tables"))
    likelihood_options.add_outliers(_suite(suites, "outliers", "regressors for tables whose targets have gross errors"))
    _add_classes(_suite(suites, "classes", "the classifier beside boosted trees on your tables"))
    _add_structures(_suite(suites, "structures", "what the default regressor chooses on data with known structure"))
    _add_small(_suite(suites, "small", "time to cross-validate a small table, beside one local fit of a large one"))


def _suite(suites: "argparse._SubParsersAction[argparse.ArgumentParser]", name: str, words: str):
    suite = suites.add_parser(name, help=words, formatter_class=HelpFormatter)
    suite.add_argument("--json", action="store_true", help="print JSON records instead of a table")
    add(suite, "--data-dir")
    return suite


def _add_repeats(suite: argparse.ArgumentParser) -> None:
    suite.add_argument(
        "--repeats", type=int, default=3, metavar="N", help="time each call N times, take the best (default: 3)"
    )


def _add_actions(suite: argparse.ArgumentParser, words: str = "number of actions") -> None:
    suite.add_argument(
        "--n-actions", type=int, default=NUM_ACTIONS, metavar="N", help=f"{words} (default: %(default)s)"
    )


def _add_seeds(suite: argparse.ArgumentParser) -> None:
    suite.add_argument(
        "--seeds", type=int, nargs="+", default=[0], metavar="SEED", help="one split per seed (default: 0)"
    )


def _add_engine(suite: argparse.ArgumentParser) -> None:
    suite.description = (
        "Kernel evaluations per second of k(X, Z) W, forward and backward, for every backend that is installed."
    )
    _add_repeats(suite)
    suite.set_defaults(run=lambda arguments: engine.run(arguments.repeats, arguments.json))


def _add_step(suite: argparse.ArgumentParser) -> None:
    suite.description = "Time and peak memory of a training step (loss and gradient) with 20 inputs and 512 actions."
    _add_repeats(suite)
    suite.set_defaults(run=lambda arguments: step.run(arguments.repeats, arguments.json))


def _add_scale(suite: argparse.ArgumentParser) -> None:
    suite.description = (
        "Time and peak memory of one minibatch step (1,024 rows, objective and gradient) of local and opt on generated "
        "tables with 3 columns, each in a process of its own. The time should not depend on the number of rows."
    )
    suite.epilog = "example:\n  cagp bench scale --rows 10000 100000 1000000 --json"
    suite.add_argument(
        "--rows",
        type=positive,
        nargs="+",
        default=[10_000, 100_000, 1_000_000],
        metavar="N",
        help="numbers of rows (default: 10000 100000 1000000)",
    )
    suite.add_argument(
        "--methods", nargs="+", choices=SCALED, default=list(SCALED), help="what takes the step (default: all)"
    )
    _add_actions(suite, "actions of opt")
    suite.set_defaults(run=lambda a: scale.run(a.rows, a.methods, a.n_actions, a.json))


def _add_predict(suite: argparse.ArgumentParser) -> None:
    suite.description = (
        "Fit each method to a generated table with 3 columns, and count the rows that it predicts in a second, with "
        "standard deviations; each in a process of its own. exact has at most 2,000 training rows, cg 4,000."
    )
    suite.epilog = "example:\n  cagp bench predict --methods local opt --test-rows 100000"
    suite.add_argument(
        "--rows", type=positive, default=100_000, metavar="N", help="training rows (default: %(default)s)"
    )
    suite.add_argument(
        "--test-rows", type=positive, default=1_000_000, metavar="N", help="rows to predict (default: %(default)s)"
    )
    suite.add_argument(
        "--methods", nargs="+", choices=PREDICTED, default=list(PREDICTED), metavar="METHOD", help="default: all"
    )
    suite.add_argument("--fit-time", default="30s", metavar="TIME", help="max_time of each fit (default: %(default)s)")
    suite.add_argument(
        "--seconds",
        type=float,
        default=60.0,
        metavar="S",
        help="predictions end after these: the rate is then that of the rows so far (default: %(default)s)",
    )
    _add_max_time(suite)
    _add_records(suite)
    suite.set_defaults(
        run=lambda a: predict_speed.run(
            a.rows, a.test_rows, a.methods, a.fit_time, a.seconds, a.max_time, a.records, a.json
        )
    )


def _add_records(suite: argparse.ArgumentParser) -> None:
    suite.add_argument("--records", type=Path, metavar="FILE", help="append a JSON line for each run to FILE")


def _add_cluster(suite: argparse.ArgumentParser) -> None:
    suite.description = (
        "Measure what reading, a tree, a training step and a sum over processes cost on this machine, in processor "
        "time of one thread, and model a fit of CaGP-Local in regions on many machines; see docs/scaling.md."
    )
    suite.epilog = "example:\n  cagp bench cluster --rows 1000000000 --machines 64"
    suite.add_argument(
        "--rows", type=positive, default=1_000_000_000, metavar="N", help="rows of the model (default: %(default)s)"
    )
    suite.add_argument(
        "--machines", type=positive, default=64, metavar="M", help="machines of the model (default: %(default)s)"
    )
    suite.add_argument(
        "--network", type=rate, default=1.25, metavar="GB", help="gigabytes a second (default: %(default)s)"
    )
    suite.add_argument(
        "--measured-rows", type=positive, default=1_000_000, metavar="N", help="to measure with (default: %(default)s)"
    )
    suite.set_defaults(run=lambda a: cluster.run(a.rows, a.machines, a.network, a.measured_rows, a.json))


def _add_disk(suite: argparse.ArgumentParser) -> None:
    suite.description = (
        "Generate a table with 3 columns in Parquet files, fit CaGP-Local to it in pieces, and predict new rows. "
        "Function and noise are known. The files stay in the folder, for the next run."
    )
    suite.epilog = "example:\n  cagp bench disk --rows 100000000 --folder big --max-memory 12GB"
    suite.add_argument("--rows", type=positive, default=1_000_000, metavar="N", help="rows (default: %(default)s)")
    suite.add_argument(
        "--test-rows", type=positive, default=100_000, metavar="N", help="new rows to predict (default: %(default)s)"
    )
    suite.add_argument("--folder", type=Path, required=True, metavar="DIR", help="for the files: 16 bytes a row")
    suite.add_argument("--max-memory", default="4GB", metavar="SIZE", help="of the fit (default: %(default)s)")
    _add_max_time(suite)
    suite.set_defaults(run=lambda a: table_on_disk.run(a.rows, a.test_rows, a.folder, a.max_memory, a.max_time, a.json))


def _add_minibatches(suite: argparse.ArgumentParser) -> None:
    suite.description = (
        "Validation scores of CaGP-Opt on tables (.npz with X and y) with every combination of numbers of actions, of "
        "rows with weight in a block, and of rows of a step. Each is trained for the same processor time."
    )
    suite.epilog = "example:\n  cagp bench minibatches terrain.npz --rows 30000 --support 8 16 32"
    suite.add_argument("tables", type=table_path, nargs="+", metavar="TABLE", help=".npz files")
    _add_seeds(suite)
    many = {"type": int, "nargs": "+", "metavar": "N"}
    suite.add_argument("--n-actions", **many, default=[NUM_ACTIONS], help="numbers of actions (default: 512)")
    suite.add_argument("--support", **many, default=[32], help="rows with weight in a block; 0: all (default: 32)")
    suite.add_argument("--batch", **many, default=[1024], help="rows of a step; 0: all (default: 1024)")
    suite.add_argument("--seconds", type=float, default=20.0, metavar="S", help="for each (default: %(default)s)")
    suite.add_argument("--rows", type=int, metavar="N", help="use N random rows of each table (default: all)")
    suite.set_defaults(run=_run_minibatches)


def _add_far_blocks(suite: argparse.ArgumentParser) -> None:
    suite.description = (
        "Kernel evaluations in a step of CaGP-Opt on tables (.npz with X and y; 1,024 rows, 32 rows with weight in a "
        "block), and how many are left without pairs of blocks farther apart than the kernel reaches: where it is "
        "below round-off of float32. Products with the compiled kernels leave these pairs out. Distances are in "
        "lengthscales: those of CaGP-Local (0 steps), or of CaGP-Opt after some steps."
    )
    suite.epilog = "example:\n  cagp bench far-blocks terrain.npz --kernels matern32 rbf --steps 0 100"
    suite.add_argument("tables", type=table_path, nargs="+", metavar="TABLE", help=".npz files")
    suite.add_argument("--kernels", nargs="+", choices=CHOICES, default=[CHOICES[0]], help="(default: %(default)s)")
    many = {"type": int, "nargs": "+", "metavar": "N"}
    suite.add_argument("--n-actions", **many, default=[NUM_ACTIONS], help="numbers of actions (default: 512)")
    suite.add_argument("--steps", **many, default=[0, 100], help="steps of CaGP-Opt before counting (default: 0 100)")
    suite.add_argument("--rows", type=int, metavar="N", help="use N random rows of each table (default: all)")
    suite.set_defaults(run=_run_far_blocks)


def _add_presets(suite: argparse.ArgumentParser) -> None:
    suite.description = (
        "Train CaGP-Opt on a table (.npz with X and y) with each preset and with a slow learning rate, for the same "
        "time each. Print a table and draw loss and validation NLL against time."
    )
    suite.epilog = "example:\n  cagp bench presets bike.npz --max-time 2min --rows 3000 --n-actions 128"
    suite.add_argument("table", type=table_path, metavar="TABLE", help="an .npz file")
    suite.add_argument(
        "--max-time", default="2min", metavar="TIME", help="for each preset, e.g. 90s (default: %(default)s)"
    )
    suite.add_argument("--rows", type=int, metavar="N", help="use N random rows of the table (default: all)")
    _add_actions(suite)
    suite.add_argument(
        "--out", type=Path, default=Path("presets.png"), metavar="FILE", help="the picture (default: %(default)s)"
    )
    suite.set_defaults(run=lambda a: presets.run(a.table, a.max_time, a.rows, a.n_actions, a.out, a.json))


def _add_local(suite: argparse.ArgumentParser) -> None:
    suite.description = (
        "Rows per second of predictions and training steps of CaGP-Local, compiled and in torch. Its quality on tables "
        "is a suite: cagp bench run local."
    )
    _add_repeats(suite)
    suite.set_defaults(run=lambda arguments: local_speed.run(arguments.repeats, arguments.json))


def _add_neighbours(suite: argparse.ArgumentParser) -> None:
    suite.description = (
        "Index generated rows, or those of tables (.npz with X, standardised), and find the rows nearest to test "
        "points beside random rows; each run in a process of its own."
    )
    suite.epilog = (
        "examples:\n  cagp bench neighbours --rows 1000000\n  cagp bench neighbours bike.npz --methods tree scan"
    )
    suite.add_argument(
        "tables", type=table_path, nargs="*", metavar="TABLE", help=".npz files; none for generated rows"
    )
    suite.add_argument("--rows", type=int, nargs="+", metavar="N", help="rows (default: 100000, of tables all of them)")
    suite.add_argument("--columns", type=int, default=3, metavar="D", help="generated columns (default: %(default)s)")
    suite.add_argument(
        "--data",
        nargs="+",
        choices=("uniform", "clustered"),
        default=["uniform"],
        help="how generated rows lie (default: uniform)",
    )
    suite.add_argument(
        "--methods",
        nargs="+",
        choices=("tree", "scipy", "scan"),
        default=["tree", "scipy"],
        metavar="METHOD",
        help="any of tree (the compiled k-d tree), scipy (SciPy's tree), scan (compare with every row); default: tree "
        "scipy",
    )
    suite.add_argument(
        "--n-neighbors", type=int, default=64, metavar="K", help="neighbours of a test point (default: %(default)s)"
    )
    suite.add_argument(
        "--points", type=int, default=100_000, metavar="N", help="number of test points (default: %(default)s)"
    )
    suite.add_argument("--threads", type=int, nargs="+", default=[1], metavar="N", help="threads (default: 1)")
    suite.set_defaults(run=_run_neighbours)


def _add_tables(suite: argparse.ArgumentParser) -> None:
    suite.description = (
        "Fit the default regressor and others to tables: 90/10 splits by seed, each run in a process of its own. Print "
        "means over the splits and paired differences to the default, with standard errors. Errors are in standard "
        "deviations of the training targets."
    )
    suite.epilog = (
        "examples:\n  cagp bench tables bike.npz protein.npz --seeds 0 1 2 3 4 --records runs.jsonl\n"
        "  cagp bench tables houses.csv --target price --methods default lightgbm\n"
        "  cagp bench tables --records runs.jsonl"
    )
    suite.add_argument(
        "tables", type=table_path, nargs="*", metavar="TABLE", help="NPZ, CSV or Parquet files; none to show --records"
    )
    suite.add_argument(
        "--target", default="y", metavar="COLUMN", help="the column to predict, in every table (default: %(default)s)"
    )
    _add_seeds(suite)
    _add_contenders(suite, ["default", "lightgbm", "catboost", "gpboost"])
    suite.add_argument("--rows", type=int, metavar="N", help="use N random rows of each table (default: all)")
    suite.add_argument(
        "--fit-time",
        metavar="TIME",
        help=f"how long a fit may take, e.g. 10min (default: any time); {', '.join(UNLIMITED)} have no such limit",
    )
    _add_max_time(suite)
    suite.add_argument(
        "--records",
        type=Path,
        metavar="FILE",
        help="append a JSON line for each run to FILE; runs that it has already are not repeated",
    )
    suite.set_defaults(run=_run_tables)


def _add_structures(suite: argparse.ArgumentParser) -> None:
    suite.description = (
        "Generate data whose function and noise are known, fit the default regressor, and print what it chose, what "
        "would be right, its error and how far its density is from the true one."
    )
    suite.epilog = "example:\n  cagp bench structures --only additive steps --methods default local"
    suite.add_argument("--rows", type=int, default=6000, metavar="N", help="training rows (default: %(default)s)")
    _add_seeds(suite)
    _add_contenders(suite, ["default"])
    suite.add_argument("--only", nargs="+", metavar="NAME", help="names of structures (default: all)")
    _add_max_time(suite)
    suite.set_defaults(run=lambda a: structure_quality.run_all(a.only, a.rows, a.seeds, a.methods, a.max_time, a.json))


def _add_classes(suite: argparse.ArgumentParser) -> None:
    suite.description = (
        "Fit classifiers to 90 % of the rows of each table and score the probabilities of the others: log loss, "
        "share of wrong classes, Brier score, calibration error, processor seconds. Each run has a process of its own."
    )
    suite.epilog = (
        "examples:\n  OMP_NUM_THREADS=1 cagp bench classes magic.npz --methods local trees lightgbm\n"
        "  cagp bench classes protein.npz --above-median --validation --seeds 100 --n-neighbors 32 64\n"
        "  cagp bench classes ocean_atlas.npz --above-median --rows 1111112 --fit-time 8min"
    )
    suite.add_argument("tables", nargs="+", type=table_path, metavar="TABLE", help="files of inputs and labels")
    suite.add_argument("--target", default="y", metavar="COLUMN", help="the labels (default: %(default)s)")
    suite.add_argument(
        "--methods",
        nargs="+",
        choices=CLASSIFIERS,
        default=["local", "trees", "lightgbm"],
        metavar="METHOD",
        help=f"any of {', '.join(CLASSIFIERS)} (default: local trees lightgbm)",
    )
    _add_seeds(suite)
    suite.add_argument("--rows", type=positive, metavar="N", help="use N random rows of each table (default: all)")
    suite.add_argument(
        "--above-median", action="store_true", help="the classes are whether the target, a number, is above its median"
    )
    suite.add_argument(
        "--validation", action="store_true", help="put the test rows away, and score a tenth of the training rows"
    )
    suite.add_argument(
        "--n-neighbors",
        type=positive,
        nargs="+",
        metavar="K",
        help="neighbours in training of the contenders of this package, a run for each (default: theirs)",
    )
    suite.add_argument(
        "--fit-time", metavar="TIME", help="max_time of the contenders of this package, e.g. 8min (default: none)"
    )
    _add_max_time(suite)
    suite.add_argument(
        "--records", type=Path, metavar="FILE", help="a file of JSON lines: runs in it are not repeated, others added"
    )
    suite.set_defaults(run=_classes)


def _classes(arguments: argparse.Namespace) -> int:
    runs = [
        class_quality.Run(
            str(table),
            arguments.target,
            arguments.rows,
            arguments.above_median,
            arguments.validation,
            method,
            seed,
            count if method in class_quality.OWN else None,
            arguments.fit_time if method in class_quality.OWN else None,
        )
        for table in arguments.tables
        for seed in arguments.seeds
        for method in arguments.methods
        for count in (arguments.n_neighbors or [None])
    ]
    return class_quality.run_all(list(dict.fromkeys(runs)), arguments.max_time, arguments.records, arguments.json)


def _add_small(suite: argparse.ArgumentParser) -> None:
    suite.description = (
        "Cross-validate the default regressor on a small generated table, and fit nearest rows to a large one, in one "
        "process: processor seconds of both."
    )
    suite.epilog = "example:\n  OMP_NUM_THREADS=1 cagp bench small --folds 3 5"
    suite.add_argument(
        "--structure", default="product", metavar="NAME", help="of cagp bench structures (default: %(default)s)"
    )
    suite.add_argument("--rows", type=positive, default=3000, metavar="N", help="rows (default: %(default)s)")
    suite.add_argument(
        "--folds", type=positive, nargs="+", default=[3, 5], metavar="K", help="numbers of folds (default: 3 5)"
    )
    suite.add_argument(
        "--many-rows", type=positive, default=300_000, metavar="N", help="rows of the local fit (default: %(default)s)"
    )
    suite.set_defaults(run=lambda a: small_tables.run(a.structure, a.rows, a.folds, a.many_rows, a.json))


def _add_contenders(suite: argparse.ArgumentParser, chosen: list[str]) -> None:
    listed = "; ".join(f"{name}: {contender.words}" for name, contender in CONTENDERS.items())
    suite.add_argument(
        "--methods",
        nargs="+",
        choices=CONTENDERS,
        default=chosen,
        metavar="METHOD",
        help=f"any of {listed} (default: {' '.join(chosen)})",
    )


def _add_max_time(suite: argparse.ArgumentParser) -> None:
    suite.add_argument(
        "--max-time", default="1h", metavar="TIME", help="a run that takes longer is killed (default: %(default)s)"
    )


def _run_tables(arguments: argparse.Namespace) -> int:
    """Every method on every table with every seed; without tables, what was recorded."""
    if not arguments.tables and arguments.records is None:
        raise UsageError("name tables to fit, or --records FILE to show what was measured.")
    runs = [
        table_quality.Run(str(table), arguments.target, arguments.rows, method, seed, limit)
        for table in arguments.tables
        for seed in arguments.seeds
        for method in arguments.methods
        for limit in [arguments.fit_time if CONTENDERS[method].takes_limit else None]
    ]
    return table_quality.run_all(runs, arguments.max_time, arguments.records, arguments.json)


def _run_neighbours(arguments: argparse.Namespace) -> int:
    """Every method on every table or layout, with every number of rows and threads."""
    if arguments.tables:
        data = [(str(table), rows, None) for table in arguments.tables for rows in arguments.rows or [None]]
    else:
        sizes = arguments.rows or [100_000]
        data = [(layout, rows, arguments.columns) for layout in arguments.data for rows in sizes]
    runs = [
        neighbour_speed.Run(method, *where, threads, arguments.points, arguments.n_neighbors)
        for where in data
        for method in arguments.methods
        for threads in arguments.threads
    ]
    return neighbour_speed.run_all(runs, arguments.json)


def _run_minibatches(arguments: argparse.Namespace) -> int:
    choices = minibatches.Choices(arguments.n_actions, arguments.support, arguments.batch, arguments.seconds)
    return minibatches.run(arguments.tables, arguments.rows, arguments.seeds, choices, arguments.json)


def _run_far_blocks(arguments: argparse.Namespace) -> int:
    choices = far_blocks.Choices(arguments.kernels, arguments.n_actions, arguments.steps)
    return far_blocks.run(arguments.tables, arguments.rows, choices, arguments.json)
