"""``cagp demo``: a map of elevations."""

import argparse
from pathlib import Path

from cagp import demo


def add_to(command: argparse.ArgumentParser) -> None:
    """The options of ``cagp demo``."""
    command.description = (
        "Fit 20,000 embedded elevations in Colorado with 16, 64 and 256 actions; takes about a minute."
    )
    command.epilog = "example:\n  cagp demo --out my-demo"
    command.add_argument(
        "--out", type=Path, default=Path("cagp-demo"), help="folder for the picture (default: %(default)s)"
    )
    command.set_defaults(run=lambda arguments: demo.run(arguments.out))
