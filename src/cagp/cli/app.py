"""``cagp``: finds the command, and turns what goes wrong into one line and an exit code."""

import argparse
import re
import signal
import sys
import threading
import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from importlib import import_module
from importlib.metadata import version
from typing import Any

from cagp.cli.console import HelpFormatter, UsageError, complain, help_texts, leave_pipe, on_one_line, warn
from cagp.cli.plugins import plugin, with_data_sets
from cagp.launch import FirstProcessError, launched_rank, launched_size

COMMANDS = ("fit", "predict", "evaluate", "info", "compare")
"""``cagp.cli.commands`` has a function of this name that adds options to a parser, and the module ``cagp.cli.<name>``
runs the command; both are imported when it is called."""
PLUGINS = ("bench", "reproduce")
"""Commands of another package, which registers them in the entry points ``cagp.commands``."""
SHARE_WORK = ("fit", "predict")
"""Commands that several processes can run together."""


class Terminated(BaseException):
    """The process was asked to end (SIGTERM): it leaves no unfinished files behind."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 done, 1 failed, 2 wrong usage, 130 interrupted, 143 terminated."""
    rank, size = launched_rank(), launched_size()
    who = f"process {rank} of {size}: " if rank > 0 else ""
    with warnings.catch_warnings(), ExitStack() as restored:
        # The command is the process: its warnings are lines on stderr.
        warnings.showwarning = lambda message, *_: warn(on_one_line(message))
        if size == 1 and threading.current_thread() is threading.main_thread():
            # Unfinished files are removed. A process that waits for others would not notice the signal.
            restored.callback(signal.signal, signal.SIGTERM, signal.signal(signal.SIGTERM, _terminate))
        try:
            arguments = _parsed(argv)
            if size > 1 and arguments.command not in SHARE_WORK:
                raise UsageError(f"{size} processes were started; only cagp fit and cagp predict share their work.")
            if size > 1 and arguments.table == "-":
                raise UsageError(f'the table is "-", which {size} processes cannot all read; give the name of a file.')
            arguments = with_data_sets(arguments)
            run = getattr(arguments, "run", None) or import_module(f"cagp.cli.{arguments.command}").run
            code = run(arguments)
            sys.stdout.flush()
            return code
        except BrokenPipeError:  # the reader of our output, e.g. head, has seen enough
            leave_pipe(sys.stdout)
            return 0
        except UsageError as error:
            if rank == 0:  # all processes have the same options
                complain(error)
            return 2
        except FirstProcessError:  # process 0 complains
            return 1
        except (ValueError, TypeError, OSError) as error:
            complain(f"{who}{error}")
            return 1
        except (MemoryError, RuntimeError) as error:
            # torch has no class of its own for an allocation that failed
            if isinstance(error, RuntimeError) and not re.search("allocate memory|out of memory", str(error)):
                raise
            complain(f"{who}not enough memory: {str(error).splitlines()[0] if str(error) else 'an allocation failed'}")
            return 1
        except KeyboardInterrupt:
            complain(f"{who}interrupted")
            return 130
        except Terminated:
            complain("terminated; what is not finished was not written, and checkpoints stay for --resume")
            return 143


def _terminate(*_: Any) -> None:
    raise Terminated


def _parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    """The options of the command that is called; parsers of the others are not built."""
    description, epilog = help_texts("cagp")
    usage = "cagp COMMAND ...   (cagp COMMAND --help says more)"
    parser = argparse.ArgumentParser("cagp", usage, description, epilog, formatter_class=HelpFormatter)
    parser.add_argument("--version", action="version", version=f"cagp {version('cagp')}")
    parser.add_argument("command", choices=COMMANDS + PLUGINS, metavar="COMMAND", help=argparse.SUPPRESS)
    parser.add_argument("options", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    called = parser.parse_args(argv)
    command = called.command
    own = argparse.ArgumentParser(prog=f"cagp {command}", formatter_class=HelpFormatter)
    if command in PLUGINS:
        plugin("cagp.commands", command, f"cagp {command}")(own)
    else:
        commands = import_module("cagp.cli.commands")
        own.description, own.epilog = help_texts(command, **commands.WORDS)
        getattr(commands, command)(own)
    return own.parse_args(called.options, argparse.Namespace(command=command))
