"""``cagp bench counts`` and ``cagp bench outliers``: their options."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from cagp.cli.plugins import table_path
from cagp.lazy import lazy_module
from cagp_bench.choices import COUNTING, ROBUST

if TYPE_CHECKING:
    from cagp_bench import likelihood_quality
else:
    likelihood_quality = lazy_module("cagp_bench.likelihood_quality")


def add_counts(suite: argparse.ArgumentParser) -> None:
    """The options of ``cagp bench counts``."""
    suite.description = (
        "Fit regressors for counts to 90 % of the rows of each table and score their predictions of the others: NLL, "
        "RMSE, CRPS, Poisson deviance of the mean, coverage, processor seconds."
    )
    suite.epilog = "example:\n  OMP_NUM_THREADS=1 cagp bench counts bike.npz --logarithms --drop x14 x15"
    _add_tables(suite, COUNTING)
    suite.add_argument("--drop", nargs="+", default=[], metavar="COLUMN", help="columns that are not inputs")
    suite.add_argument("--logarithms", action="store_true", help="the target holds logarithms of counts")
    suite.set_defaults(
        run=lambda a: likelihood_quality.run_counts(
            a.tables, a.target, a.drop, a.logarithms, a.methods, a.seeds, a.records, a.json
        )
    )


def add_outliers(suite: argparse.ArgumentParser) -> None:
    """The options of ``cagp bench outliers``."""
    suite.description = (
        "Replace a share of the training targets of each table by gross errors, fit regressors, and score their "
        "predictions of clean rows, in standard deviations of clean targets."
    )
    suite.epilog = "example:\n  OMP_NUM_THREADS=1 cagp bench outliers protein.npz --rows 10000 --shares 0 0.1"
    _add_tables(suite, ROBUST)
    suite.add_argument("--rows", type=int, default=30_000, metavar="N", help="training rows, at most (default: 30000)")
    suite.add_argument(
        "--shares", type=float, nargs="+", default=[0.0, 0.1], metavar="SHARE", help="of gross errors (default: 0 0.1)"
    )
    suite.set_defaults(
        run=lambda a: likelihood_quality.run_outliers(
            a.tables, a.target, a.rows, a.shares, a.methods, a.seeds, a.records, a.json
        )
    )


def _add_tables(suite: argparse.ArgumentParser, methods: tuple[str, ...]) -> None:
    suite.add_argument("tables", nargs="+", type=table_path, metavar="TABLE", help="files of inputs and targets")
    suite.add_argument("--target", default="y", metavar="COLUMN", help="what to predict (default: %(default)s)")
    suite.add_argument(
        "--methods",
        nargs="+",
        choices=methods,
        default=list(methods[:2]),
        metavar="METHOD",
        help=f"any of {', '.join(methods)} (default: {' '.join(methods[:2])})",
    )
    suite.add_argument(
        "--seeds", type=int, nargs="+", default=[0], metavar="SEED", help="one split per seed (default: 0)"
    )
    suite.add_argument("--records", type=Path, metavar="FILE", help="JSON lines, to which records are added")
