"""``cagp demo``: a map of elevations."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from cagp.lazy import lazy_module

if TYPE_CHECKING:
    from cagp import demo
else:
    demo = lazy_module("cagp.demo")


def add_to(command: argparse.ArgumentParser) -> None:
    """The options of ``cagp demo``."""
    command.description = (
        "Fit 20,000 elevations in Colorado, which come with the package, with 16, 64 and 256 actions. Print a table "
        "and draw a picture. It takes about a minute."
    )
    command.epilog = "example:\n  cagp demo --out my-demo"
    command.add_argument(
        "--out", type=Path, default=Path("cagp-demo"), metavar="FOLDER", help="for the picture (default: %(default)s)"
    )
    command.set_defaults(run=lambda arguments: demo.run(arguments.out))
