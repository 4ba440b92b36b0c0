"""``python -m cagp`` is ``cagp``. Ctrl-C ends it without a traceback, also while it starts."""

import sys
from typing import TYPE_CHECKING

from cagp.lazy import lazy_module

if TYPE_CHECKING:
    from cagp import cli
else:
    cli = lazy_module("cagp.cli")


def main() -> int:
    """Load the command line and run it; 130 if Ctrl-C comes before it is loaded."""
    try:
        return cli.main()
    except KeyboardInterrupt:
        print("cagp: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
