"""The options of methods: their names, defaults, checks, and how the command line reads them."""

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any

MEANS = ("auto", "zero", "trees")
"""Values of the parameter ``mean``: the prior mean; "auto" is zero, or what the method "auto" finds best."""

TARGET_SCALES = ("auto", "identity", "log")
"""On which scale targets are fitted, see ``cagp.data.transforms``: values that users can choose."""

COPIES = ("keep", "once")
"""What is done with rows that are copies of others: values that users can choose."""


@dataclass(frozen=True)
class Option:
    """One option, in Python ``name=...`` and on the command line ``--name``.

    Args:
        expected: what a value must be, in words.
        accepts: whether a value is one.
        parse: a value from text; raises ValueError where the text is not one.
        is_switch: False or True; on the command line it takes no value.
    """

    name: str
    default: Any
    metavar: str
    help: str
    expected: str
    accepts: Callable[[Any], bool]
    parse: Callable[[str], Any]
    is_switch: bool = False

    @property
    def flag(self) -> str:
        """The option on the command line."""
        return f"--{self.name.replace('_', '-')}"

    def check(self, value: Any) -> None:
        """Raise ValueError unless ``value`` is one that the option accepts."""
        if not self.accepts(value):
            raise ValueError(f"{self.name} is {value!r}, expected {self.expected}.")

    def from_text(self, text: str) -> Any:
        """The value that the text stands for; an argparse error where it stands for none."""
        try:
            value = self.parse(text)
        except ValueError:
            value = text
        if not self.accepts(value):
            raise argparse.ArgumentTypeError(f"it is {text!r}, expected {self.expected.replace('None', 'none')}")
        return value

    def field(self) -> Any:
        """The field of a recipe that holds a value of this option."""
        return field(default=self.default, metadata={"option": self})


def is_positive_integer(value: Any) -> bool:
    """Whether ``value`` is an integer, 1 or larger; True is not."""
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 1


def _is_auto(value: Any) -> bool:
    return isinstance(value, str) and value == "auto"


def _is_local_scale(value: Any) -> bool:
    is_number = isinstance(value, Real) and not isinstance(value, bool) and 0 < float(value) < math.inf
    return value is None or _is_auto(value) or is_number


N_ACTIONS = Option(
    "n_actions",
    "auto",
    "N",
    'number of actions, or "auto": one for eight rows, at most 512',
    'a positive integer (or "auto")',
    lambda value: _is_auto(value) or is_positive_integer(value),
    lambda text: text if text == "auto" else int(text),
)
DEFAULT_NEIGHBORS = 32
"""In training, unless the user or the method "auto" chooses otherwise."""

N_NEIGHBORS = Option(
    "n_neighbors",
    "auto",
    "K",
    'training rows that predict each row during training; predictions use twice as many; "auto" is 32, and the method '
    '"auto" also tries more in predictions',
    'a positive integer (or "auto")',
    lambda value: _is_auto(value) or is_positive_integer(value),
    lambda text: text if text == "auto" else int(text),
)
OBJECTIVE = Option(
    "objective",
    "auto",
    "NAME",
    'what hyperparameters are learned from: "loo", each row predicted from its nearest other rows, or "ordered", from '
    'the nearest rows before it in a random order (Vecchia); "auto" is loo, and the method "auto" compares both',
    '"auto", "loo" or "ordered"',
    lambda value: isinstance(value, str) and value in ("auto", "loo", "ordered"),
    str,
)
EFFORT = Option(
    "effort",
    "default",
    "LEVEL",
    'how much is tried: "fast" (one model), "default" (several), or "thorough" (more models, and more steps of each)',
    '"fast", "default" or "thorough"',
    lambda value: isinstance(value, str) and value in ("fast", "default", "thorough"),
    str,
)
LOCAL_SCALE = Option(
    "local_scale",
    "auto",
    "N",
    'whether error bars follow the neighbours of a test point: "auto", "none" (one scale everywhere; the variance is '
    "then never below the exact one), or the number of neighbours that the learned scale counts for",
    '"auto", None or a positive number of neighbours',
    _is_local_scale,
    lambda text: {"auto": "auto", "none": None}[text] if text in ("auto", "none") else float(text),
)
N_INDUCING = Option(
    "n_inducing",
    512,
    "M",
    "number of inducing points",
    "a positive integer",
    is_positive_integer,
    int,
)

SHARDS = Option(
    "shards",
    False,
    "",
    "cut the table into regions, one for each process that torchrun starts: no process holds all rows",
    "True or False",
    lambda value: isinstance(value, bool),
    lambda text: text == "True",
    is_switch=True,
)

_ALL = (N_ACTIONS, N_NEIGHBORS, LOCAL_SCALE, OBJECTIVE, EFFORT, N_INDUCING, SHARDS)
OPTIONS = {option.name: option for option in _ALL}
"""Every option that some method has."""
