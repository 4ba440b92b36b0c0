"""``python -m cagp`` is ``cagp``."""

import sys

from cagp.cli import main

if __name__ == "__main__":
    sys.exit(main())
