"""What an experiment is: tasks that give records, a drawing made from records alone, and claims judged by them."""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

Record = dict[str, Any]
"""What was measured; ``settings`` is all that it depends on, ``error`` says why nothing was measured."""


class Task(NamedTuple):
    """One measurement."""

    settings: dict[str, Any]  # plain values: two tasks with the same ones are the same
    measure: Callable[[], dict[str, Any]]


class Outcome(NamedTuple):
    """What records say about a claim."""

    ours: str  # numbers, in words
    holds: bool | None  # None where they do not decide
    on: tuple[int, int] | None = None  # where it holds: the number of tables with it, and of all


class Claim(NamedTuple):
    """Something the paper says."""

    words: str
    paper: str  # the paper's own evidence
    judge: Callable[[list[Record]], Outcome | None]  # None: these records do not have what it takes


class Tables:
    """A folder of tables (.npz with X and y), which need not exist before one is asked for.

    Args:
        folder: None if there is none.
        unfinished: a folder for the checkpoints of long fits, which resume from them; None for no checkpoints.
    """

    def __init__(self, folder: Path | None, unfinished: Path | None = None):
        self.folder, self.unfinished = folder, unfinished

    def path(self, name: str) -> Path:
        """The file of a table; FileNotFoundError says where to put it."""
        if self.folder is None:
            raise FileNotFoundError(
                f"the table {name} is needed: name a folder that has {name}.npz (arrays X and y) with --data-dir, or "
                "set CAGP_DATA to it."
            )
        path = self.folder / f"{name}.npz"
        if not path.is_file():
            raise FileNotFoundError(
                f"{self.folder} has no {name}.npz; put the table there (arrays X and y), or name another folder with "
                "--data-dir."
            )
        return path

    def digest(self, name: str) -> str:
        """The first digits of the SHA-256 of the file: other data give other records."""
        return _digest(self.path(name))

    def checkpoints(self, settings: dict[str, Any]) -> Path | None:
        """Where the fit of a task with these settings keeps its checkpoints."""
        if self.unfinished is None:
            return None
        return self.unfinished / hashlib.sha256(key_of(settings).encode()).hexdigest()[:16]


@cache
def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


class Experiment(ABC):
    """A figure: how it is measured and drawn, what the paper's caption says, and whether records agree."""

    title: str
    paper: str
    """What the paper's figure shows and its caption says, in our words."""
    differs: str = ""
    """How our set-up differs from the paper's."""
    source: str
    """The name of the file of records, without its ending: figures of the same measurements share it."""
    claims: tuple[Claim, ...] = ()

    @abstractmethod
    def tasks(self, size: str, tables: Tables) -> list[Task]:
        """What is to be measured at this size."""

    @abstractmethod
    def draw(self, records: list[Record]) -> Figure:
        """The figure; records of failures are not among these."""

    @abstractmethod
    def caption(self, records: list[Record]) -> str:
        """What the figure shows, with numbers from the records."""


def options_of(size: Any) -> dict[str, Any]:
    """The fields of a size that each measurement depends on: all but the number of seeds."""
    return {name: value for name, value in asdict(size).items() if name != "num_seeds"}


def key_of(settings: dict[str, Any]) -> str:
    """Settings as text: equal for equal settings, also after a way through a file."""
    return json.dumps(settings, sort_keys=True)


def on_tables(words: list[str], verdicts: list[bool]) -> Outcome | None:
    """What records of several tables say together; None without any."""
    if not verdicts:
        return None
    return Outcome("; ".join(words), all(verdicts), (sum(verdicts), len(verdicts)))


def select(records: list[Record], **settings: Any) -> list[Record]:
    """The records that have these settings."""
    return [r for r in records if all(r["settings"].get(name) == value for name, value in settings.items())]


def values(records: list[Record], name: str) -> list[Any]:
    """The distinct values of a setting, in the order of the records."""
    return list(dict.fromkeys(r["settings"][name] for r in records))


def plain(array: Tensor | np.ndarray, digits: int = 5) -> list[Any]:
    """An array as (nested) lists of numbers with so few digits that files stay small."""
    numbers = np.asarray(array.detach().cpu() if isinstance(array, Tensor) else array, dtype=float)
    return [plain(row, digits) if row.ndim else float(f"{row:.{digits}g}") for row in numbers]


def generator(*numbers: int) -> torch.Generator:
    """A generator that depends on all of these numbers and on how many there are."""
    return torch.Generator().manual_seed(int(np.random.SeedSequence((len(numbers), *numbers)).generate_state(1)[0]))
