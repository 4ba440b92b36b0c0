"""Options that commands share, and values that are checked while they are parsed."""

import argparse
import math
import textwrap
from pathlib import Path
from typing import Literal

from cagp.estimators.base import KERNELS
from cagp.quantities import bytes_of, seconds_of


class HelpFormatter(argparse.HelpFormatter):
    """Wraps paragraphs and keeps lines that are indented: examples."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        lines = text.splitlines()
        return "\n".join(line if line.startswith(" ") else textwrap.fill(line, width) for line in lines)


def duration(text: str) -> str:
    """Text that ``seconds_of`` understands."""
    try:
        seconds_of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f'{text!r} is no time above zero; write e.g. "90s", "10min", "2h"') from error
    return text


def memory(text: str) -> int:
    """Bytes from text like "4GB"."""
    try:
        return bytes_of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f'{text!r} is no size; write e.g. "500MB", "4GB"') from error


def probability(text: str) -> float:
    """A number between 0 and 1, both excluded."""
    value = _float(text)
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no probability between 0 and 1, e.g. 0.95")
    return value


def fraction(text: str) -> float:
    """A share below 1; 0 is allowed."""
    value = _float(text)
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no share of the rows: expected 0 for none, up to below 1")
    return value


def positive(text: str) -> int:
    """A whole number, 1 or more."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number, 1 or more")
    return int(text)


def seed(text: str) -> int:
    """A whole number that every generator takes."""
    if not text.isdecimal() or int(text) >= 2**31:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 0 to {2**31 - 1}")
    return int(text)


def actions(text: str) -> int | Literal["auto"]:
    """A whole number, or "auto"."""
    return "auto" if text == "auto" else positive(text)


def local_scale(text: str) -> float | Literal["auto", "none"]:
    """A positive number, "auto" or "none"."""
    if text in ("auto", "none"):
        return text
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f'{text!r} is no positive number of neighbours, "auto" or "none"')
    return number


def picture(text: str) -> Path:
    """The path of a picture."""
    if Path(text).suffix.lower() not in (".png", ".pdf", ".svg"):
        raise argparse.ArgumentTypeError(f"{text!r} is no picture: end it with .png, .pdf or .svg")
    return Path(text)


def page(text: str) -> Path:
    """The path of an HTML page."""
    if Path(text).suffix.lower() not in (".html", ".htm"):
        raise argparse.ArgumentTypeError(f"{text!r} is no page: end it with .html")
    return Path(text)


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no number") from error


# ---- groups of options ----


def add_table(command: argparse.ArgumentParser, test_fraction: float) -> None:
    """Which table, which columns, which rows to test on."""
    command.add_argument("table", metavar="TABLE", help='CSV, Parquet or NPZ; "-" for CSV from stdin')
    command.add_argument(
        "--target", nargs="+", metavar="COLUMN", help="what to predict: one column or several (NPZ: y unless given)"
    )
    command.add_argument("--drop", nargs="+", default=[], metavar="COLUMN", help="columns that are no inputs")
    command.add_argument(
        "--test-fraction",
        type=fraction,
        default=test_fraction,
        metavar="SHARE",
        help="of the rows to test on (default: %(default)s)",
    )
    command.add_argument(
        "--seed", type=seed, default=0, metavar="N", help="of the split and of training (default: %(default)s)"
    )


def add_model(command: argparse.ArgumentParser, max_time: str | None) -> None:
    """What is fitted, and how far."""
    command.add_argument(
        "--actions",
        type=actions,
        metavar="N",
        help='number of actions, or "auto" (default: auto); auto, opt, cg, hybrid',
    )
    command.add_argument(
        "--neighbours", type=positive, metavar="K", help="rows near a question (default: 32); auto, local, hybrid"
    )
    command.add_argument(
        "--local-scale",
        type=local_scale,
        metavar="N",
        help="how many neighbours of a question the learned scale counts for in its error bars: a number, "
        '"none" (the same scale everywhere), or "auto" (default: auto); auto, local, hybrid',
    )
    command.add_argument(
        "--inducing", type=positive, metavar="M", help="number of inducing points (default: 512); sgpr, svgp"
    )
    command.add_argument("--kernel", choices=KERNELS, default="matern32", help="(default: %(default)s)")
    command.add_argument(
        "--max-time",
        type=duration,
        default=max_time,
        metavar="TIME",
        help=f'of training, e.g. "10min" (default: {max_time or "no limit"})',
    )
    command.add_argument(
        "--max-memory",
        type=memory,
        metavar="SIZE",
        help='what a fit may take, e.g. "4GB" (default: half of what is free)',
    )
    command.add_argument(
        "--max-epochs", type=positive, metavar="N", help="passes over the rows (default: 300 steps, 100 for exact)"
    )
