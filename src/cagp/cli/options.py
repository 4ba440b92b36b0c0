"""Options that commands share, and values that are checked while they are parsed."""

import argparse
import textwrap
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from cagp import kernel_registry
from cagp.cli.plugins import plugin
from cagp.likelihood_registry import GAUSSIAN, likelihoods_of
from cagp.quantities import bytes_of, seconds_of
from cagp.recipes import OPTIONS, RECIPES, users_of
from cagp.recipes.options import COPIES, MEANS, TARGET_SCALES
from cagp.split_rules import EXPECTED, SplitRule, split_rule

PIECE_ROWS = 65_536
"""Rows of a table that are held in memory at a time."""

SPLIT_WORDS = (
    "which rows to test on: random, time:COLUMN (the latest ones; COLUMN stays an input) or group:COLUMN (whole "
    "groups; COLUMN is not an input)"
)


class HelpFormatter(argparse.HelpFormatter):
    """Fills paragraphs to the width of the terminal, and keeps lines that are indented: examples."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        filled = []
        for is_prose, group in groupby(text.splitlines(), lambda line: bool(line) and not line.startswith(" ")):
            lines = list(group)
            filled += _paragraphs(lines, width) if is_prose else lines
        return "\n".join(filled)


def _paragraphs(lines: list[str], width: int) -> list[str]:
    """Lines of prose, filled; a line that ends with a colon is a heading and stays alone."""
    paragraphs, current = [], []
    for line in lines:
        current.append(line)
        if line.endswith(":"):
            paragraphs.append(current)
            current = []
    return [textwrap.fill(" ".join(part), width) for part in [*paragraphs, current] if part]


DATA_SET = "dataset:"
TABLE_WORDS = "CSV, Parquet, NPZ or NPY: a file, a folder or a pattern; or a data set of the paper, e.g. dataset:bike"


class DataSet(NamedTuple):
    """A data set of the paper that the user named instead of a file."""

    name: str
    kind: type  # of the path that takes its place


def table(text: str) -> str | DataSet:
    """A path as text, or the data set behind ``dataset:``; a file of such a name is written ./dataset:NAME."""
    return DataSet(text.removeprefix(DATA_SET), str) if text.startswith(DATA_SET) else text


def table_path(text: str) -> Path | DataSet:
    """The same with a path as such."""
    return DataSet(text.removeprefix(DATA_SET), Path) if text.startswith(DATA_SET) else Path(text)


def with_data_sets(arguments: argparse.Namespace) -> argparse.Namespace:
    """The arguments with the prepared file of each data set in its place: found on this machine, or downloaded."""
    folder = getattr(arguments, "data_dir", None)

    def file_of(value: Any) -> Any:
        if not isinstance(value, DataSet):
            return value
        prepared_file = plugin("cagp.tables", DATA_SET.rstrip(":"), f"{DATA_SET}{value.name}")
        return value.kind(prepared_file(value.name, folder))

    for name, value in vars(arguments).items():
        setattr(arguments, name, [file_of(item) for item in value] if isinstance(value, list) else file_of(value))
    return arguments


def add_data_dir(command: argparse.ArgumentParser) -> None:
    """Where copies of data sets are."""
    command.add_argument(
        "--data-dir",
        type=Path,
        metavar="DIR",
        help="where your copies of data sets are (default: CAGP_DATA; then the cache, then the UCI archive)",
    )


def duration(text: str) -> str:
    """Text that ``seconds_of`` understands."""
    try:
        seconds_of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f'it is {text!r}, expected a positive time, e.g. "90s", "10min", "2h"'
        ) from error
    return text


def memory(text: str) -> int:
    """Bytes from text like "4GB"."""
    try:
        return bytes_of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f'it is {text!r}, expected a size, e.g. "500MB", "4GB"') from error


def probability(text: str) -> float:
    """A number between 0 and 1, both excluded."""
    value = _float(text)
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"it is {text!r}, expected a probability between 0 and 1, e.g. 0.95")
    return value


def fraction(text: str) -> float:
    """A share below 1; 0 is allowed."""
    value = _float(text)
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"it is {text!r}, expected a share of the rows: 0 for none, up to below 1")
    return value


def positive(text: str) -> int:
    """A positive integer."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"it is {text!r}, expected a positive integer")
    return int(text)


def rate(text: str) -> float:
    """A positive number."""
    value = _float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"it is {text!r}, expected a positive number")
    return value


def seed(text: str) -> int:
    """An integer that every generator takes."""
    if not text.isdecimal() or int(text) >= 2**31:
        raise argparse.ArgumentTypeError(f"it is {text!r}, expected an integer from 0 to {2**31 - 1}")
    return int(text)


def picture(text: str) -> Path:
    """The path of a picture."""
    if Path(text).suffix.lower() not in (".png", ".pdf", ".svg"):
        raise argparse.ArgumentTypeError(f"it is {text!r}, expected a picture: end its name with .png, .pdf or .svg")
    return Path(text)


def page(text: str) -> Path:
    """The path of an HTML page."""
    if Path(text).suffix.lower() not in (".html", ".htm"):
        raise argparse.ArgumentTypeError(f"it is {text!r}, expected an HTML page: end its name with .html")
    return Path(text)


def split(text: str) -> SplitRule:
    """A rule by which rows are held out."""
    try:
        return split_rule(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"it is {text!r}, expected {EXPECTED}") from error


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"it is {text!r}, expected a number") from error


# ---- groups of options ----


def add_table(command: argparse.ArgumentParser, test_fraction: float | None) -> None:
    """Which table, which columns, and, unless ``test_fraction`` is None, which rows to test on."""
    command.add_argument("table", type=table, metavar="TABLE", help=f'{TABLE_WORDS}; "-" for CSV from stdin')
    add_data_dir(command)
    several = "one column" if test_fraction is None else "one column or several"
    command.add_argument(
        "--target", nargs="+", metavar="COLUMN", help=f"what to predict: {several} (NPZ: y unless given)"
    )
    command.add_argument("--drop", nargs="+", default=[], metavar="COLUMN", help="columns that are not inputs")
    command.add_argument(
        "--categories",
        nargs="+",
        default=[],
        metavar="COLUMN",
        help="inputs to take as levels although they hold numbers, e.g. codes",
    )
    if test_fraction is None:
        return
    add_noise(command)
    add_split(command)
    command.add_argument(
        "--test-fraction",
        type=fraction,
        default=test_fraction,
        metavar="SHARE",
        help="share of the rows to test on (default: %(default)s)",
    )
    command.add_argument(
        "--seed",
        type=seed,
        default=0,
        metavar="N",
        help="random seed of the split and of training (default: %(default)s)",
    )


def add_split(command: argparse.ArgumentParser, default: str | None = "random") -> None:
    """By which rule rows are held out."""
    command.add_argument(
        "--split",
        type=split,
        default=default,
        metavar="RULE",
        help=f"{SPLIT_WORDS} (default: {default or 'all rows'})",
    )


def add_likelihood(command: argparse.ArgumentParser) -> None:
    """How targets vary about the function, and what the mean of counts is proportional to."""
    names = (GAUSSIAN, *likelihoods_of("counts", "numbers"))
    command.add_argument(
        "--likelihood",
        choices=names,
        default=GAUSSIAN,
        metavar="NAME",
        help=f"how targets vary about the function: one of {', '.join(names)}; poisson and negative_binomial are for "
        "counts, student_t for numbers with outliers (default: %(default)s)",
    )
    command.add_argument(
        "--exposure",
        metavar="COLUMN",
        help="for counts: a column that their mean is proportional to, e.g. hours of observation; it is not an input",
    )


def add_noise(command: argparse.ArgumentParser) -> None:
    """Which column holds known noise variances."""
    command.add_argument(
        "--noise",
        metavar="COLUMN",
        help="a column with the known noise variance of each row, in squared units of the target; it is not an input",
    )


def add_model(command: argparse.ArgumentParser, max_time: str | None) -> None:
    """The options of methods, and limits."""
    for option in OPTIONS.values():
        if option.is_switch:
            words = f"{option.help}; for {', '.join(users_of(option.name))}"
            command.add_argument(option.flag, action="store_true", default=argparse.SUPPRESS, help=words)
            continue
        shown = "none" if option.default is None else option.default
        command.add_argument(
            option.flag,
            type=option.from_text,
            metavar=option.metavar,
            default=argparse.SUPPRESS,
            help=f"{option.help} (default: {shown}); for {', '.join(users_of(option.name))}",
        )
    add_kernel(command)
    command.add_argument(
        "--mean",
        choices=MEANS,
        default="auto",
        metavar="MEAN",
        help="the prior mean: zero, or trees (boosted trees, fitted out of fold; the Gaussian process learns what they "
        'leave); auto is zero, or what the method "auto" finds best (default: %(default)s)',
    )
    command.add_argument(
        "--target-transform",
        choices=TARGET_SCALES,
        default="auto",
        metavar="NAME",
        help="fit the target as it is (identity) or its logarithm (log); auto: the logarithm of a positive, skewed "
        "target where that predicts held-out training rows better (default: %(default)s)",
    )
    command.add_argument(
        "--copies",
        choices=COPIES,
        default="keep",
        metavar="WHAT",
        help="rows that are copies of others, targets included: keep all of them, or count each row once, if new rows "
        "are not copies of old ones (default: %(default)s)",
    )
    command.add_argument(
        "--max-time",
        type=duration,
        default=max_time,
        metavar="TIME",
        help=f'limit for the whole fit, e.g. "10min" (default: {max_time or "no limit"})',
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
    command.add_argument("--device", default="cpu", help='where to compute, e.g. "cuda" (default: %(default)s)')


def add_kernel(command: argparse.ArgumentParser) -> None:
    """Which covariance."""
    command.add_argument(
        "--kernel",
        choices=(kernel_registry.AUTO, *kernel_registry.NAMES),
        default=kernel_registry.AUTO,
        metavar="KERNEL",
        help=f"one of {', '.join(kernel_registry.NAMES)} (default: auto: {kernel_registry.CHOICES[0]}, or what the "
        'method "auto" finds best)',
    )


def add_pieces(command: argparse.ArgumentParser) -> None:
    """How a model and a table of any size are read."""
    command.add_argument("model", metavar="MODEL", help="a file that cagp fit wrote")
    command.add_argument("table", type=table, metavar="TABLE", help=f'{TABLE_WORDS}; "-" for CSV from stdin')
    add_data_dir(command)
    add_noise(command)
    command.add_argument(
        "--rows-at-a-time",
        type=positive,
        default=PIECE_ROWS,
        metavar="N",
        help="rows held in memory (default: %(default)s)",
    )


def methods_in_words() -> str:
    """A line for each method, for the help."""
    lines = [f"  {name:<8}{recipe.summary}" for name, recipe in RECIPES.items()]
    return "\n".join(["methods:", *(wrapped(line) for line in lines)])


def wrapped(line: str, indent: int = 10) -> str:
    """A line of a list, filled to 78 characters."""
    return textwrap.fill(line, 78, subsequent_indent=" " * indent)


def options_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """The options of methods that the user gave."""
    return {name: getattr(arguments, name) for name in OPTIONS if hasattr(arguments, name)}
