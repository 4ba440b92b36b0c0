"""``cagp info``: what is in a model file; ``texts/model.txt`` has the words."""

import argparse
import math
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from cagp.cli.console import count, names, print_json
from cagp.column_kinds import WORDS
from cagp.likelihood_registry import LIKELIHOODS
from cagp.quantities import number, size
from cagp.recipes import method_words
from cagp.saved_summary import saved_summary

MOST_VALUES = 8


def run(arguments: argparse.Namespace) -> int:
    """Read the file and print what is in it."""
    record = saved_summary(arguments.model)
    if arguments.json:
        print_json(record)
    else:
        print(_template().render(record))
    return 0


def _template() -> Any:
    loader = FileSystemLoader(Path(__file__).parent / "texts")
    made = Environment(loader=loader, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    made.filters |= {function.__name__: function for function in (count, method_words, names, number, size, stored)}
    made.tests["finite"] = math.isfinite
    return made.get_template("model.txt", globals={"KINDS": WORDS, "LIKELIHOODS": LIKELIHOODS})


def stored(value: Any) -> str:
    """A stored value of a class of the user's own, the first items of a long list."""
    if not isinstance(value, list):
        return number(value) if isinstance(value, float) else str(value)
    listed = [stored(item) for item in value[:MOST_VALUES]]
    return f"[{', '.join(listed)}{', ...' if len(value) > MOST_VALUES else ''}]"
