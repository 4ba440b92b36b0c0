"""Options that commands share, and values that are checked while they are parsed."""

import argparse
import textwrap
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from cagp.cli.plugins import table
from cagp.recipes import OPTIONS, RECIPES, users_of
from cagp.recipes.options import (
    DTYPE,
    EXPOSURE,
    LIKELIHOOD,
    MAX_TIME,
    PARAMETERS,
    RANDOM_STATE,
    WARM_START,
    Option,
)
from cagp.split_rules import EXPECTED, split_rule

Check = Callable[[str], Any]


def checked(expected: str, parse: Check, accepts: Callable[[Any], bool] = lambda _: True) -> Check:
    """A reader of text for argparse: an error says what came and what was expected."""

    def read(text: str) -> Any:
        with suppress(ValueError, KeyError):
            value = parse(text)
            if accepts(value):
                return value
        raise argparse.ArgumentTypeError(f"it is {text!r}, expected {expected}")

    return read


def reader_of(option: Option) -> Check:
    """The same for an option of the one table."""
    expected = option.expected.replace(" (or None)", "").replace("None", "none")
    return checked(expected, option.parse, option.accepts)


def _path(what: str, *endings: str) -> Check:
    return checked(what, Path, lambda path: path.suffix.lower() in endings)


duration = reader_of(MAX_TIME)
positive = checked("a positive integer", int, lambda value: value > 0)
rate = checked("a positive number", float, lambda value: 0 < value < float("inf"))
probability = checked("a probability between 0 and 1, e.g. 0.95", float, lambda value: 0 < value < 1)
fraction = checked("a share of the rows: 0 for none, up to below 1", float, lambda value: 0 <= value < 1)
seed = reader_of(RANDOM_STATE)
picture = _path("a picture: end its name with .png, .pdf or .svg", ".png", ".pdf", ".svg")
page = _path("an HTML page: end its name with .html", ".html", ".htm")
split = checked(EXPECTED, split_rule)


# ---- options that are no parameters of estimators ----


def _value(metavar: str, help: str, type: Check = str, **more: Any) -> dict[str, Any]:
    """The arguments of ``add_argument`` for an option with a value."""
    return {"metavar": metavar, "help": help, "type": type, **more}


def _switch(help: str) -> dict[str, Any]:
    return {"action": "store_true", "help": help}


PREDICTIONS = ("mean", "std", "lower", "upper")
"""What ``cagp predict`` can write of a target."""

TABLE_HELP = (
    "CSV, Parquet, NPZ or NPY: a file, a folder or a pattern; or a data set of the paper, e.g. dataset:bike; "
    '"-" for CSV from stdin'
)
SPLIT_HELP = (
    "which rows to test on: random, time:COLUMN (the latest ones; COLUMN stays an input) or group:COLUMN (whole "
    "groups; COLUMN is not an input) (default: %(default)s)"
)
INTERVAL_HELP = (
    "model: as the predicted distribution says; conformal: as wide as training rows need that are predicted without "
    "their own target, for local, hybrid and exact (default: %(default)s)"
)
COLUMNS_HELP = (
    f"any of {', '.join(PREDICTIONS)} (default: all four, or none beside --quantiles); the mean alone is faster"
)
FORMULAS_HELP = (
    "copy text that begins with =, +, - or @ as it is; without this, CSV has a ' before it, because spreadsheets would "
    "run it"
)
OTHERS: dict[str, dict[str, Any]] = {
    "table": _value("TABLE", TABLE_HELP, table),
    "model": _value("MODEL", "a file that cagp fit wrote", Path),
    "--data-dir": _value(
        "DIR", "where your copies of data sets are (default: CAGP_DATA; then the cache, then the UCI archive)", Path
    ),
    "--target": _value("COLUMN", "what to predict: one column or several (NPZ: y unless given)", nargs="+"),
    "--drop": _value("COLUMN", "columns that are not inputs", nargs="+", default=[]),
    "--categories": _value(
        "COLUMN", "inputs to take as levels although they hold numbers, e.g. codes", nargs="+", default=[]
    ),
    "--noise": _value(
        "COLUMN", "a column with the known noise variance of each row, in squared units of the target; not an input"
    ),
    "--split": _value("RULE", SPLIT_HELP, split, default="random"),
    "--test-fraction": _value("SHARE", "share of the rows to test on (default: %(default)s)", fraction, default=0.1),
    "--seed": _value("N", f"{RANDOM_STATE.help} (default: %(default)s)", seed, default=RANDOM_STATE.default),
    "--rows-at-a-time": _value("N", "rows held in memory (default: %(default)s)", positive, default=65_536),
    "--method": _value("METHOD", "one of those below (default: %(default)s)", choices=RECIPES, default="auto"),
    "--methods": _value("METHOD", f"any of {', '.join(RECIPES)}; see below", choices=RECIPES, nargs="+"),
    "--classify": _switch("the target holds classes: text, or numbers that are codes; predictions are probabilities"),
    "--resume": _switch("continue a run with the same options that was killed"),
    "--report": _value("FILE", "an HTML page on the test rows, with figures", page),
    "--store-float32": _switch("round the stored rows: half the size"),
    "--rows-beside": _switch("keep the rows in a file of their own, MODEL.rows; a table in pieces always does"),
    "--level": _value(
        "SHARE", "probability of the interval from lower to upper (default: %(default)s)", probability, default=0.95
    ),
    "--interval": _value("KIND", INTERVAL_HELP, choices=("model", "conformal"), default="model"),
    "--columns": _value("NAME", COLUMNS_HELP, choices=PREDICTIONS, nargs="+"),
    "--quantiles": _value("Q", "quantiles of a new observation", probability, nargs="+", default=[]),
    "--keep": _value("COLUMN", 'columns of the table to copy, or "all"', nargs="+", default=[]),
    "--keep-formulas": _switch(FORMULAS_HELP),
    "--json": _switch("print one JSON object on stdout, words on stderr"),
    "--quiet": _switch("print warnings and errors only"),
}
TABLE = ("table", "--data-dir", "--target", "--drop", "--categories", "--noise", "--split", "--test-fraction", "--seed")
"""Which table, which columns, and which rows to test on."""
PIECES = ("model", "table", "--data-dir", "--noise", "--rows-at-a-time")
"""How a model and a table of any size are read."""
BY_FLAG = {option.flag: option for option in PARAMETERS.values()}
NOT_SHARED = (DTYPE, EXPOSURE, LIKELIHOOD, RANDOM_STATE, WARM_START)
MODEL = tuple(flag for flag, option in BY_FLAG.items() if option not in NOT_SHARED)
"""The options of methods, and the parameters of estimators that every command that fits models has."""


def add(command: argparse.ArgumentParser, *names: str, **changed: Any) -> None:
    """Options by their names; ``changed`` replaces arguments of ``add_argument``.

    Parameters of estimators that the user does not set are not in the result, unless ``changed`` has a default.
    """
    for name in names:
        settings = OTHERS[name] if name in OTHERS else _of_parameter(BY_FLAG[name], **changed)
        command.add_argument(name, **(settings | changed))


def _of_parameter(option: Option, default: Any = None, **_: Any) -> dict[str, Any]:
    users = f"; for {', '.join(users_of(option.name))}" if option.name in OPTIONS else ""
    if option.is_switch:
        return {"default": argparse.SUPPRESS, **_switch(option.help + users)}
    shown = option.default if default is None else default
    words = f"{option.help}{'' if shown is None else f' (default: {shown})'}{users}"
    return _value(option.metavar, words, reader_of(option), default=argparse.SUPPRESS)


def methods_in_words() -> str:
    """A line for each method, for the help."""
    lines = [f"  {name:<8}{recipe.summary}" for name, recipe in RECIPES.items()]
    return "\n".join(["methods:", *(wrapped(line) for line in lines)])


def wrapped(line: str, indent: int = 10) -> str:
    """A line of a list, filled to 78 characters."""
    return textwrap.fill(line, 78, subsequent_indent=" " * indent)


def parameters_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """The parameters of estimators that the user set, by their names in Python."""
    places = {name: option.flag[2:].replace("-", "_") for name, option in PARAMETERS.items()}
    return {name: getattr(arguments, place) for name, place in places.items() if hasattr(arguments, place)}
