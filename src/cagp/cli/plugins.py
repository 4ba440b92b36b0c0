"""What other packages add to the command line, by entry points: commands, and tables that have names."""

from importlib.metadata import entry_points
from typing import Any

from cagp.cli.words import UsageError


def plugin(group: str, name: str, words: str) -> Any:
    """The object that an installed package registers under this name; UsageError says what to install."""
    for entry in entry_points(group=group, name=name):
        return entry.load()
    raise UsageError(f"{words} is part of the package cagp-bench, which is not installed: pip install cagp-bench")
