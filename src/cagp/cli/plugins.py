"""What other packages add to the command line, by entry points: commands, and tables that have names."""

import argparse
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, NamedTuple

from cagp.cli.console import UsageError


def plugin(group: str, name: str, words: str) -> Any:
    """The object that an installed package registers under this name; UsageError says what to install."""
    for entry in entry_points(group=group, name=name):
        return entry.load()
    raise UsageError(f"{words} is part of the package cagp-bench, which is not installed: pip install cagp-bench")


class DataSet(NamedTuple):
    """A data set of the paper that the user named instead of a file."""

    name: str  # dataset:NAME
    kind: type[str] | type[Path]  # of the path that takes its place


def table(text: str) -> str | DataSet:
    """A path as text, or the data set behind ``dataset:``; a file of such a name is written ./dataset:NAME."""
    return DataSet(text, str) if text.startswith("dataset:") else text


def table_path(text: str) -> Path | DataSet:
    """The same with a path as such."""
    return DataSet(text, Path) if text.startswith("dataset:") else Path(text)


def with_data_sets(arguments: argparse.Namespace) -> argparse.Namespace:
    """The arguments with the prepared file of each data set in its place: found on this machine, or downloaded."""

    def file_of(value: Any) -> Any:
        if not isinstance(value, DataSet):
            return value
        prepared_file = plugin("cagp.tables", "dataset", value.name)
        return value.kind(prepared_file(value.name.removeprefix("dataset:"), getattr(arguments, "data_dir", None)))

    for name, value in vars(arguments).items():
        setattr(arguments, name, [file_of(item) for item in value] if isinstance(value, list) else file_of(value))
    return arguments
