"""``cagp bench`` and ``cagp reproduce``: commands that the package adds to ``cagp``."""
