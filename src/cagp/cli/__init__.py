"""The command line: ``cagp --help``. A module for each command, and ``app``, which runs them."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from cagp.lazy import lazy_module

if TYPE_CHECKING:
    from cagp.cli import app
else:
    app = lazy_module("cagp.cli.app")

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; Ctrl-C while modules are imported ends like Ctrl-C later."""
    try:
        return app.main(argv)
    except KeyboardInterrupt:
        print("cagp: interrupted", file=sys.stderr)
        return 130
