"""``python -m cagp.cli`` is ``cagp``."""

import sys

from cagp.cli.app import main

if __name__ == "__main__":
    sys.exit(main())
