"""``cagp bench run``: its options."""

import argparse
import shlex
from pathlib import Path

from cagp.cli.plugins import UsageError
from cagp_bench import suite_estimates, suite_runs, table1
from cagp_bench.gp_settings import gp_settings
from cagp_bench.options import duration, listed, positive, settings
from cagp_bench.suites import SUITES, suite_from_file


def add_to(suite: argparse.ArgumentParser) -> None:
    """The options of ``cagp bench run``."""
    suite.description = (
        "Carry out a suite: every method on every table with every seed and learning rate, each run in a process of "
        "its own with a time and a memory limit. A suite that was killed resumes with the same command. Tables are "
        "printed from the records; --out also writes them as text, Markdown, LaTeX and CSV, with learning curves."
    )
    suite.epilog = (
        f"suites:\n{listed((name, known.words) for name, known in SUITES.items())}\n\n"
        "examples:\n  cagp bench run smoke --out smoke\n"
        "  cagp bench run table1 --quick --tables dataset:parkinsons --out table1\n"
        "  cagp bench run local --tables houses.npz --seeds 0 1 2 --set neighbours=64"
    )
    suite.add_argument(
        "suite", metavar="SUITE", help=f"one of {', '.join(SUITES)}, or a JSON file with a suite of yours"
    )
    suite.add_argument(
        "--tables",
        nargs="+",
        metavar="TABLE",
        help="other tables: .npz files, dataset:NAME, folder:NAME (a file in --data-dir) or sample:terrain",
    )
    suite.add_argument("--methods", nargs="+", metavar="LABEL", help="some lines of the suite, by their labels")
    suite.add_argument("--seeds", type=int, nargs="+", metavar="SEED", help="one split per seed (default: the suite's)")
    suite.add_argument("--rows", type=positive, metavar="N", help="use N random rows of each table")
    suite.add_argument(
        "--set",
        nargs="+",
        default=[],
        metavar="KEY=VALUE",
        help="settings of all Gaussian process runs, e.g. noise_floor=1e-6 epochs=60; fit_time=10min is also for other "
        "methods that can end in time",
    )
    suite.add_argument("--quick", action="store_true", help="shorter runs with one learning rate and one noise floor")
    suite.add_argument("--max-time", type=duration, metavar="TIME", help="a run that takes longer is killed")
    suite.add_argument("--max-memory", metavar="SIZE", help="a run that takes more is killed, e.g. 8GB")
    suite.add_argument(
        "--records", type=Path, metavar="FILE", help="JSON lines; runs that it has are not repeated (default: in --out)"
    )
    suite.add_argument("--out", type=Path, metavar="DIR", help="a folder for records, tables and plots")
    suite.add_argument(
        "--estimate",
        type=Path,
        metavar="FILE",
        help="run nothing: print how many hours of training it would take, by the steps of the records in FILE",
    )
    suite.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    """The suite with what the user changed."""
    name = arguments.suite
    if name not in SUITES and not name.endswith(".json"):
        raise UsageError(f"SUITE is {name!r}, expected one of {', '.join(SUITES)}, or a JSON file.")
    suite = SUITES[name] if name in SUITES else suite_from_file(Path(name))
    for field in ("tables", "seeds", "rows", "max_time", "max_memory"):
        if getattr(arguments, field) is not None:
            suite = suite._replace(**{field: getattr(arguments, field)})
    if arguments.methods is not None:
        suite = table1.with_entries(suite, arguments.methods)
    changes = settings(arguments.set)
    gp_settings(changes)  # an unknown setting is an error now
    if arguments.estimate is not None:
        return suite_estimates.run(suite, arguments.quick, changes, arguments.estimate)
    return suite_runs.run(
        suite,
        quick=arguments.quick,
        changes=changes,
        data_dir=arguments.data_dir,
        records=arguments.records,
        out=arguments.out,
        as_json=arguments.json,
        command=_command(arguments),
    )


def _command(arguments: argparse.Namespace) -> str:
    """The call without what does not change its runs: folders and files."""
    words = ["cagp", "bench", "run", Path(arguments.suite).name, *(["--quick"] if arguments.quick else [])]
    for option in ("tables", "methods", "seeds", "rows", "set", "max_time", "max_memory"):
        value = getattr(arguments, option)
        if value:
            words += [f"--{option.replace('_', '-')}", *map(str, value if isinstance(value, list) else [value])]
    return shlex.join(words)
