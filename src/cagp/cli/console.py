"""What commands print, and where: words on stdout, or on stderr where stdout is for data or JSON; help texts."""

import argparse
import json
import math
import os
import sys
import textwrap
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from cagp.launch import launched_rank
from cagp.quantities import number, size

TEXTS = Path(__file__).parent / "texts"


class UsageError(ValueError):
    """Options that contradict each other or do not fit the table: exit code 2."""


class Console:
    """Where the words of a command go: to stdout, to stderr where stdout is for data, or nowhere with --quiet."""

    def __init__(self, quiet: bool = False, data_on_stdout: bool = False):
        self.quiet, self.data_on_stdout = quiet, data_on_stdout

    def say(self, text: str = "") -> None:
        """Print words. Where nobody reads them any more, stay quiet and let the command do its work."""
        stream = sys.stderr if self.data_on_stdout else sys.stdout
        if self.quiet:
            return
        try:
            print(text, file=stream, flush=True)
        except BrokenPipeError:
            self.quiet = True
            leave_pipe(stream)


def leave_pipe(stream: Any) -> None:
    """Discard the rest of the output to a closed pipe: Python would complain when it flushes it."""
    with suppress(OSError):  # a stream that is not a file has no such buffer
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def warn(text: str) -> None:
    """One line on stderr, by process 0: the others have the same to say."""
    if launched_rank() == 0:
        print(f"cagp: warning: {text}", file=sys.stderr)


def complain(error: BaseException | str) -> None:
    """What went wrong, on one line of stderr."""
    print(f"cagp: {on_one_line(error) or type(error).__name__}", file=sys.stderr)


def on_one_line(text: object) -> str:
    return " ".join(str(text).split())


def print_json(value: dict[str, Any]) -> None:
    """One JSON object on stdout; null for numbers that JSON does not have."""
    print(json.dumps(_plain(value), indent=1, allow_nan=False, ensure_ascii=False))


def count(value: int, singular: str, plural: str | None = None) -> str:
    """A number and its noun."""
    return f"{value:,} {singular if value == 1 else plural or singular + 's'}"


def names(items: Any, most: int = 8) -> str:
    """Names with commas, the last ones counted where there are many."""
    listed = [str(item) for item in items]
    rest = len(listed) - most
    return ", ".join(listed) if rest <= 1 else f"{', '.join(listed[:most])} and {rest} more"


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):  # arrays and numbers of NumPy
        value = value.tolist()
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, int) else str(value)  # paths are text


class HelpFormatter(argparse.HelpFormatter):
    """Fills paragraphs to the width of the terminal, and keeps those with indented lines: examples and lists."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        parts = text.split("\n\n")
        return "\n\n".join(part if "\n " in part else textwrap.fill(part, width) for part in parts)


def filled(name: str, *filters: Callable[..., str], **values: object) -> str:
    """The template ``texts/NAME.txt`` with these values; it can use ``filters`` by their names."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # help texts do not need it

    made = Environment(loader=FileSystemLoader(TEXTS), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    made.filters |= {function.__name__: function for function in (count, names, number, size, *filters)}
    made.tests["finite"] = math.isfinite
    return made.get_template(f"{name}.txt", globals=values).render().rstrip("\n")


def help_texts(name: str, **values: object) -> tuple[str, ...]:
    """The description and the epilog of a parser, from the file ``texts/NAME.txt`` with these values filled in."""
    text = (TEXTS / f"{name}.txt").read_text(encoding="utf-8")
    return tuple(text.format(**values).strip().split("\n---\n"))
