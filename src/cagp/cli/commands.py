"""The options of each command; its description and examples are in ``texts``. Importing this loads nothing heavy."""

import argparse
import textwrap
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from cagp.cli.plugins import table
from cagp.recipes.table import (
    DTYPE,
    EXPOSURE,
    LIKELIHOOD,
    OPTIONS,
    PARAMETERS,
    RANDOM_STATE,
    RECIPES,
    WARM_START,
    Option,
    users_of,
)

COMPARED = ("local", "hybrid", "opt", "sgpr", "svgp")
MOST_EXACT_ROWS = 5000
"""What ``cagp compare`` compares by default; up to this many training rows the exact method, too."""

PREDICTIONS = ("mean", "std", "lower", "upper")
"""What ``cagp predict`` can write of a target."""

SPLITS = '"random", "time:COLUMN" or "group:COLUMN", e.g. "time:date"'


class SplitRule(NamedTuple):
    """Which rows are held out for testing."""

    kind: str  # "random", "time" or "group"
    column: str | None = None  # of "time" and "group"

    @classmethod
    def parse(cls, text: str) -> "SplitRule":
        """The rule that a text stands for; ValueError if there is none."""
        kind, _, column = text.partition(":")
        if text != "random" and (kind not in ("time", "group") or not column):
            raise ValueError(f"the split is {text!r}, expected {SPLITS}.")
        return cls(kind, column or None)

    def __str__(self) -> str:
        return self.kind if self.column is None else f"{self.kind}:{self.column}"

    def by(self, table: Any) -> dict[str, Any]:
        """The column of a table that splits it, as the argument of ``cagp.data.split``; none for random rows."""
        return {} if self.column is None else {self.kind: table[self.column]}


# ---- commands, each a function that adds its options to a parser ----


def fit(command: argparse.ArgumentParser) -> None:
    _add(command, *TABLE, "--method", "--classify", "--likelihood", "--exposure", *MODEL)
    _add_out(command, Path("model.cagp"), "the model")
    _add(command, "--resume", "--report", "--store-float32", "--rows-beside", "--json", "--quiet")


def predict(command: argparse.ArgumentParser) -> None:
    _add(command, *PIECES)
    _add_out(command, "predictions.csv", '.csv, .csv.gz or .parquet; "-" for CSV on stdout')
    _add(command, "--level", "--interval", "--columns", "--quantiles", "--keep", "--keep-formulas", "--quiet")


def evaluate(command: argparse.ArgumentParser) -> None:
    _add(command, *PIECES)
    _add(command, "--split", default=None, help="the split of cagp fit, to test on the rows that it held out")
    share = "with --split: the share of the rows that was held out (default: 0.1)"
    _add(command, "--test-fraction", default=None, help=share)
    _add(command, "--seed", default=None, help="with --split: the random seed of the fit (default: 0)")
    _add(command, "--report", "--json", "--quiet")


def compare(command: argparse.ArgumentParser) -> None:
    _add(command, *TABLE, "--methods", *(flag for flag in MODEL if flag != "--max-time"))
    _add(command, "--max-time", default="10min")
    _add_out(command, Path("compare.png"), "the picture", type=_path("a picture", ".png", ".pdf", ".svg"))
    _add(command, "--json")
    _add(command, "--quiet", help="do not show progress")


def info(command: argparse.ArgumentParser) -> None:
    _add(command, "model")
    _add(command, "--json", help="print one JSON object on stdout")


def parameters_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """The parameters of estimators that the user set, by their names in Python."""
    places = {name: option.flag[2:].replace("-", "_") for name, option in PARAMETERS.items()}
    return {name: getattr(arguments, place) for name, place in places.items() if hasattr(arguments, place)}


def _add(command: argparse.ArgumentParser, *names: str, **changed: Any) -> None:
    """Options by their names; ``changed`` replaces arguments of ``add_argument``.

    Parameters of estimators that the user does not set are not in the result, unless ``changed`` has a default.
    """
    for name in names:
        settings = OTHERS[name] if name in OTHERS else _of_parameter(BY_FLAG[name], **changed)
        command.add_argument(name, **(settings | changed))


def _add_out(command: argparse.ArgumentParser, default: str | Path, what: str, **more: Any) -> None:
    """Where the result goes."""
    words = f"{what}; replaced if it exists (default: %(default)s)"
    command.add_argument("--out", metavar="FILE", default=default, help=words, **{"type": type(default), **more})


def _of_parameter(option: Option, default: Any = None, **_: Any) -> dict[str, Any]:
    users = f"; for {', '.join(users_of(option.name))}" if option.name in OPTIONS else ""
    if option.is_switch:
        return _switch(option.help + users, default=argparse.SUPPRESS)
    shown = option.default if default is None else default
    words = f"{option.help}{'' if shown is None else f' (default: {shown})'}{users}"
    expected = option.expected.replace(" (or None)", "").replace("None", "none")
    reader = _checked(expected, option.parse, option.accepts)
    return _value(option.metavar, words, reader, default=argparse.SUPPRESS)


# ---- values, checked while they are parsed ----

Check = Callable[[str], Any]


def _checked(expected: str, parse: Check, accepts: Callable[[Any], bool] = lambda _: True) -> Check:
    """A reader of text for argparse: an error says what came and what was expected."""

    def read(text: str) -> Any:
        with suppress(ValueError, KeyError):
            value = parse(text)
            if accepts(value):
                return value
        raise argparse.ArgumentTypeError(f"it is {text!r}, expected {expected}")

    return read


def _path(what: str, *endings: str) -> Check:
    listed = f"{', '.join(endings[:-1])} or {endings[-1]}"
    return _checked(f"{what}: end its name with {listed}", Path, lambda path: path.suffix.lower() in endings)


_PROBABILITY = _checked("a probability between 0 and 1, e.g. 0.95", float, lambda value: 0 < value < 1)
_SHARE = _checked("a share of the rows: 0 for none, up to below 1", float, lambda value: 0 <= value < 1)
_POSITIVE = _checked("a positive integer", int, lambda value: value > 0)

# ---- options that are no parameters of estimators ----


def _value(metavar: str, help: str, type: Check = str, **more: Any) -> dict[str, Any]:
    """The arguments of ``add_argument`` for an option with a value."""
    return {"metavar": metavar, "help": help, "type": type, **more}


def _switch(help: str, **more: Any) -> dict[str, Any]:
    return {"action": "store_true", "help": help, **more}


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
    "--data-dir": _value("DIR", "your copies of data sets (default: CAGP_DATA, the cache, the UCI archive)", Path),
    "--target": _value("COLUMN", "what to predict: one column or several (NPZ: y unless given)", nargs="+"),
    "--drop": _value("COLUMN", "columns that are not inputs", nargs="+", default=[]),
    "--categories": _value("COLUMN", "inputs to take as levels although they are numbers", nargs="+", default=[]),
    "--noise": _value("COLUMN", "the known noise variance of each row, in squared units of the target; not an input"),
    "--split": _value("RULE", SPLIT_HELP, _checked(SPLITS, SplitRule.parse), default="random"),
    "--test-fraction": _value("SHARE", "share of the rows to test on (default: %(default)s)", _SHARE, default=0.1),
    "--seed": {**_of_parameter(RANDOM_STATE), "default": RANDOM_STATE.default},
    "--rows-at-a-time": _value("N", "rows held in memory (default: %(default)s)", _POSITIVE, default=65_536),
    "--method": _value("METHOD", "one of those below (default: %(default)s)", choices=RECIPES, default="auto"),
    "--methods": _value("METHOD", f"any of {', '.join(RECIPES)}; see below", choices=RECIPES, nargs="+"),
    "--classify": _switch("the target holds classes: text, or numbers that are codes; predictions are probabilities"),
    "--resume": _switch("continue a run with the same options that was killed"),
    "--report": _value("FILE", "an HTML page on the test rows, with figures", _path("an HTML page", ".html", ".htm")),
    "--store-float32": _switch("round the stored rows: half the size"),
    "--rows-beside": _switch("keep the rows in a file of their own, MODEL.rows; a table in pieces always does"),
    "--level": _value("SHARE", "probability from lower to upper (default: %(default)s)", _PROBABILITY, default=0.95),
    "--interval": _value("KIND", INTERVAL_HELP, choices=("model", "conformal"), default="model"),
    "--columns": _value("NAME", COLUMNS_HELP, choices=PREDICTIONS, nargs="+"),
    "--quantiles": _value("Q", "quantiles of a new observation", _PROBABILITY, nargs="+", default=[]),
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

_METHODS = (textwrap.fill(f"  {n:<8}{recipe.summary}", 78, subsequent_indent=" " * 10) for n, recipe in RECIPES.items())
WORDS = {"methods": "\n".join(["methods:", *_METHODS]), "compared": ", ".join(COMPARED), "rows": MOST_EXACT_ROWS}
"""What descriptions and examples of the commands can name."""
