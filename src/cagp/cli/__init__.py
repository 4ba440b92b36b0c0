"""The command line: ``cagp --help``. Parsers in ``commands``, a module that runs each command, and ``app``."""

import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; Ctrl-C while modules are imported ends like Ctrl-C later."""
    try:
        from cagp.cli import app

        return app.main(argv)
    except KeyboardInterrupt:
        print("cagp: interrupted", file=sys.stderr)
        return 130
