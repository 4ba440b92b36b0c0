"""``cagp``: finds the command, and turns what goes wrong into one line and an exit code."""

import argparse
import signal
import sys
import threading
import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from importlib import import_module
from importlib.metadata import version
from typing import Any, NamedTuple

from cagp.cli.console import HelpFormatter, UsageError, complain, leave_pipe, on_one_line, warn
from cagp.cli.plugins import plugin, with_data_sets
from cagp.launch import FirstProcessError, launched_rank, launched_size


class Command(NamedTuple):
    """A command: its name and its line in the help.

    ``cagp.cli.commands`` has a function of this name that adds its options to a parser, and the module
    ``cagp.cli.<name>`` runs it; both are imported when it is called.
    """

    name: str
    summary: str
    is_plugin: bool = False  # of another package, which registers it in the entry points ``cagp.commands``
    shares_work: bool = False  # whether several processes can run it together


GROUPS = {
    "from a table to predictions": [
        Command("fit", "learn from a table, test on held-out rows, save the model", shares_work=True),
        Command("predict", "means and error bars for the rows of a table of any size", shares_work=True),
        Command("evaluate", "how good a model is on a table with known targets; a report"),
        Command("info", "what is in a model file"),
    ],
    "which method": [
        Command("compare", "several methods on one table: quality, time, memory"),
    ],
    "measurements (pip install cagp-bench)": [
        Command("bench", "measure speed, memory and quality", is_plugin=True),
        Command("reproduce", "the figures and claims of the paper, measured here", is_plugin=True),
    ],
}
COMMANDS = {command.name: command for group in GROUPS.values() for command in group}
EXAMPLES = """\
examples:
  cagp fit houses.csv --target price --out houses.cagp
  cagp predict houses.cagp new.csv --out predictions.csv
  cagp evaluate houses.cagp sold.csv --report report.html
  cagp compare houses.csv --target price --max-time 1min
  cagp bench engine"""
TABLES = """\
Tables are CSV (.csv, .tsv, .txt, also .gz; "-" is stdin), Parquet (.parquet) or NumPy (.npz with X and y). With
cagp-bench, the tables of the paper have names: dataset:parkinsons, dataset:bike, dataset:protein, dataset:keggu,
dataset:road and dataset:power.

Exit codes: 0 done, 1 failed (bad data, a bad file, no memory), 2 wrong usage, 130 interrupted (Ctrl-C), 143
terminated (SIGTERM)."""


class Terminated(BaseException):
    """The process was asked to end (SIGTERM): it leaves no unfinished files behind."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 done, 1 failed, 2 wrong usage, 130 interrupted, 143 terminated."""
    rank, size = launched_rank(), launched_size()
    who = f"process {rank} of {size}: " if rank > 0 else ""
    with warnings.catch_warnings(), ExitStack() as restored:
        # The command is the process: its warnings are lines on stderr.
        warnings.showwarning = _show_warning
        if size == 1 and threading.current_thread() is threading.main_thread():
            # Unfinished files are removed. A process that waits for others would not notice the signal.
            restored.callback(signal.signal, signal.SIGTERM, signal.signal(signal.SIGTERM, _terminate))
        try:
            arguments = _parsed(argv)
            if size > 1 and not COMMANDS[arguments.command].shares_work:
                raise UsageError(f"{size} processes were started; only cagp fit and cagp predict share their work.")
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
            if not _is_memory(error):
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
    listed = [
        f"{title}:\n" + "\n".join(f"  {command.name:<10}{command.summary}" for command in group)
        for title, group in GROUPS.items()
    ]
    parser = argparse.ArgumentParser(
        prog="cagp",
        usage="cagp COMMAND ...   (cagp COMMAND --help says more)",
        description="Gaussian process regression for large data, with error bars that include what was not computed.",
        epilog="\n\n".join([*listed, EXAMPLES, TABLES]),
        formatter_class=HelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"cagp {version('cagp')}")
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND", help=argparse.SUPPRESS)
    parser.add_argument("options", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    called = parser.parse_args(argv)
    command = COMMANDS[called.command]
    if command.is_plugin:
        add_to = plugin("cagp.commands", command.name, f"cagp {command.name}")
    else:
        add_to = getattr(import_module("cagp.cli.commands"), command.name)
    own = argparse.ArgumentParser(prog=f"cagp {command.name}", formatter_class=HelpFormatter)
    add_to(own)
    return own.parse_args(called.options, argparse.Namespace(command=command.name))


def _show_warning(message: Warning | str, *_: Any) -> None:
    """One line on stderr; only process 0 shows warnings."""
    if launched_rank() == 0:
        warn(on_one_line(message))


def _is_memory(error: BaseException) -> bool:
    """Whether an allocation failed; torch has no class of its own for that."""
    return isinstance(error, MemoryError) or "allocate memory" in str(error) or "out of memory" in str(error)
