"""Options of commands that suites share, and values that are checked while they are parsed."""

import argparse
import json
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from cagp.cli.plugins import UsageError, table_path
from cagp.quantities import seconds_of

NUM_ACTIONS = 512
NUMBERS: dict[str, Any] = {"type": int, "nargs": "+", "metavar": "N"}


def positive(text: str) -> int:
    """A positive integer."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"it is {text!r}, expected a positive integer")
    return int(text)


def rate(text: str) -> float:
    """A positive number."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"it is {text!r}, expected a positive number")
    return value


def duration(text: str) -> str:
    """A time, as text."""
    try:
        seconds_of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f'it is {text!r}, expected a positive time, e.g. "90s", "10min", "2h"'
        ) from error
    return text


def settings(pairs: Iterable[str]) -> dict[str, Any]:
    """Settings from KEY=VALUE: numbers, true, false and null as in JSON, everything else as text."""
    found = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise UsageError(f"--set is {pair!r}, expected KEY=VALUE, e.g. epochs=60.")
        try:
            found[key] = json.loads(value)
        except ValueError:
            found[key] = value
    return found


def listed(words: Iterable[tuple[str, str]]) -> str:
    """Names and what they stand for, a name on each line, filled to 78 characters."""
    pairs = list(words)
    width = max(len(name) for name, _ in pairs) + 4
    lines = (f"  {name}".ljust(width) + words for name, words in pairs)
    return "\n".join(textwrap.fill(line, 78, subsequent_indent=" " * width) for line in lines)


# ---- options ----


def add_tables(suite: argparse.ArgumentParser, nargs: str = "+", words: str = "NPZ, CSV or Parquet files") -> None:
    """Files of inputs and targets, or names of data sets."""
    suite.add_argument("tables", type=table_path, nargs=nargs, metavar="TABLE", help=words)


def add_target(suite: argparse.ArgumentParser) -> None:
    """Which column is predicted."""
    suite.add_argument(
        "--target", default="y", metavar="COLUMN", help="the column to predict, in every table (default: %(default)s)"
    )


def add_methods(suite: argparse.ArgumentParser, choices: Iterable[str], chosen: Iterable[str], words: str = "") -> None:
    """Which contenders are measured."""
    choices, chosen = list(choices), list(chosen)
    words = words or ", ".join(choices)
    suite.add_argument(
        "--methods",
        nargs="+",
        choices=choices,
        default=chosen,
        metavar="METHOD",
        help=f"any of {words} (default: {' '.join(chosen)})",
    )


def add_seeds(suite: argparse.ArgumentParser) -> None:
    """Which splits."""
    suite.add_argument(
        "--seeds", type=int, nargs="+", default=[0], metavar="SEED", help="one split per seed (default: 0)"
    )


def add_rows(suite: argparse.ArgumentParser) -> None:
    """How many rows of each table."""
    suite.add_argument("--rows", type=positive, metavar="N", help="use N random rows of each table (default: all)")


def add_actions(suite: argparse.ArgumentParser, words: str = "number of actions") -> None:
    """How many actions."""
    suite.add_argument(
        "--n-actions", type=positive, default=NUM_ACTIONS, metavar="N", help=f"{words} (default: %(default)s)"
    )


def add_repeats(suite: argparse.ArgumentParser) -> None:
    """How often a call is timed."""
    suite.add_argument(
        "--repeats", type=int, default=3, metavar="N", help="time each call N times, take the best (default: 3)"
    )


def add_fit_time(suite: argparse.ArgumentParser, words: str) -> None:
    """How long a fit may take."""
    suite.add_argument("--fit-time", type=duration, metavar="TIME", help=words)


def add_max_time(suite: argparse.ArgumentParser) -> None:
    """When a run is killed."""
    suite.add_argument(
        "--max-time",
        type=duration,
        default="1h",
        metavar="TIME",
        help="a run that takes longer is killed (default: %(default)s)",
    )


def add_records(suite: argparse.ArgumentParser) -> None:
    """Where records are kept."""
    suite.add_argument(
        "--records",
        type=Path,
        metavar="FILE",
        help="a file of JSON lines: runs that it has are not repeated, others are added",
    )
