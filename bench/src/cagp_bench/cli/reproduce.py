"""``cagp reproduce``: the paper's tables, figures and claims, measured on this machine."""

import argparse
from pathlib import Path

from cagp.cli.plugins import UsageError
from cagp_bench import table1
from cagp_bench.options import listed as choices_in_words
from cagp_bench.reproduce import claims, running
from cagp_bench.reproduce.choices import CHOICES

ALL, CLAIMS = "all", "claims"
TABLES = {
    "table1": "Table 1: every method on every table; with --quick, four tables and one seed",
    "table-s1": "Table S1: the settings of Table 1 here, beside the paper's; measures nothing",
}
"""Tables of the paper, which a suite of ``cagp bench run`` measures."""


def add_to(command: argparse.ArgumentParser) -> None:
    """The options of ``cagp reproduce``."""
    command.description = (
        "Repeat an experiment of the paper: measure, append each measurement to a file of records in FOLDER, and "
        "draw the figure from the records (PNG, PDF, and its caption as FIGURE.md). What the folder has records of "
        "is not measured again, so a run that was interrupted resumes. The default takes the paper's sizes, and "
        "hours."
    )
    listed = [
        *CHOICES.items(),
        (ALL, "all of these figures"),
        *TABLES.items(),
    ]
    listed.append((CLAIMS, "each claim of the paper, judged by the records in FOLDER; measures nothing"))
    command.epilog = "\n".join(
        [
            "figures and tables:",
            choices_in_words(listed),
            "",
            "examples:",
            "  cagp reproduce visual-abstract --quick",
            "  cagp reproduce all --quick --data-dir tables --out figures",
            "  cagp reproduce learning-curves --out figures --quick --from-records",
            "  cagp reproduce claims --out figures",
            "  cagp reproduce table1 --quick --data-dir tables --out table1",
        ]
    )
    command.add_argument("figure", choices=[name for name, _ in listed], metavar="FIGURE", help="what to make")
    command.add_argument("--quick", action="store_true", help="fewer rows, steps and seeds: minutes instead of hours")
    command.add_argument(
        "--out",
        type=Path,
        default=Path("cagp-figures"),
        metavar="FOLDER",
        help="for records and figures (default: %(default)s)",
    )
    command.add_argument(
        "--data-dir",
        type=Path,
        metavar="DIR",
        help="tables as NAME.npz with arrays X and y, for what needs them (default: CAGP_DATA)",
    )
    command.add_argument(
        "--from-records", action="store_true", help="draw from the records in FOLDER, and measure nothing"
    )
    command.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    if arguments.figure == CLAIMS:
        if arguments.quick or arguments.data_dir is not None:
            raise UsageError("claims measures nothing: leave out --quick and --data-dir.")
        return claims.run(arguments.out)
    if arguments.figure in TABLES:
        if arguments.from_records:
            raise UsageError(f"{arguments.figure} measures only what {arguments.out} lacks: leave out --from-records.")
        make = table1.table1 if arguments.figure == "table1" else table1.table_s1
        return make(arguments.quick, arguments.data_dir, arguments.out)
    if arguments.from_records and arguments.data_dir is not None:
        raise UsageError("--from-records measures nothing: leave out --data-dir.")
    names = list(CHOICES) if arguments.figure == ALL else [arguments.figure]
    size = "quick" if arguments.quick else "full"
    return running.run(names, size, arguments.out, arguments.data_dir, arguments.from_records)
