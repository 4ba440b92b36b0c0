"""``cagp info``: what is in a model file; ``texts/model.txt`` has the words."""

import argparse
from typing import Any

from cagp.cli.console import filled, print_json
from cagp.column_kinds import WORDS
from cagp.likelihood_registry import LIKELIHOODS
from cagp.quantities import number
from cagp.recipes.table import method_words
from cagp.saved_summary import saved_summary

MOST_VALUES = 8


def run(arguments: argparse.Namespace) -> int:
    record = saved_summary(arguments.model)
    if arguments.json:
        print_json(record)
    else:
        print(filled("model", method_words, stored, **record, KINDS=WORDS, LIKELIHOODS=LIKELIHOODS))
    return 0


def stored(value: Any) -> str:
    """A stored value of a class of the user's own, the first items of a long list."""
    if not isinstance(value, list):
        return number(value) if isinstance(value, float) else str(value)
    listed = [stored(item) for item in value[:MOST_VALUES]]
    return f"[{', '.join(listed)}{', ...' if len(value) > MOST_VALUES else ''}]"
