"""The command line: ``cagp --help``. A module for each command, and ``app``, which runs them."""

from cagp.cli.app import main

__all__ = ["main"]
