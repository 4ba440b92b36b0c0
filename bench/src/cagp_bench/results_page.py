"""``cagp bench results``: the page of results, made from files of records and nothing else."""

import argparse
import re
import textwrap
from collections.abc import Sequence
from pathlib import Path

from cagp.files import write_atomically
from cagp_bench.record_files import read_records
from cagp_bench.resuming import key_of
from cagp_bench.suite_tables import Record, suite_grid
from cagp_bench.suites import KEY, SUITES

INTRODUCTION = """\
# Results

Each table on this page is made from a file of records in `bench/docs/records`, by `cagp bench results`. A test makes
the page again and compares. NLL, RMSE, CRPS and widths are in standard deviations of the training targets; lower is
better.

- **NLL** and the columns after it are those of the epoch and the learning rate that validation rows choose: a tenth of
  the training rows.
- **By test rows** is what the paper's protocol would report for the same runs: it chooses both on the test rows.
- **In the paper** is its Table 1: means of five seeds on a GPU, with up to 1,000 epochs.
- **A noise floor of 1e-4** is the default of GPyTorch, which the paper used; it limits the NLL to about -3.7.
- **A limit of training time** (`fit_time` in a command) ends a run wherever it is. On a loaded machine that is early;
  the epoch says how far it came. Such lines say what a method gives in that time, not what it can reach.
- A dash is a cell that was not run, or that a method does not have."""

NOTES = {
    "parkinsons": "Parkinsons has rows of 42 persons in both parts of a random split.",
    "bike": "Bike has no noise: two of its inputs add up to the count whose logarithm is the target.",
    "keggu": "71 % of the rows of KEGGu are copies of others.",
}
"""What to know of a table."""

ABSENT = {"road": "Road", "power": "Power"}
"""Tables of the paper that are too large to come with the project."""


def add_to(suite: argparse.ArgumentParser) -> None:
    """The options of ``cagp bench results``."""
    suite.description = "Write a page from files of records: a table for each, with command, machine and date."
    suite.epilog = "example:\n  cagp bench results --out results.md records/suite-actions.jsonl"
    suite.add_argument("records", type=Path, nargs="+", metavar="FILE", help="JSON lines that cagp bench run wrote")
    suite.add_argument("--out", type=Path, required=True, metavar="FILE", help="the Markdown page")
    suite.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Write the page; return 0."""
    write_atomically(arguments.out, page(arguments.records).encode())
    return 0


def page(files: Sequence[Path]) -> str:
    """The whole page: a section for each file of records, in their order."""
    return "\n\n".join([INTRODUCTION, *map(section, files)]) + "\n"


def section(file: Path) -> str:
    """Heading, command, machine, date and table of a file of records."""
    stored = [record for record in read_records(file) if "suite" in record]
    records = list({key_of(record, KEY): record for record in stored}.values())  # of a run that was repeated, the last
    if not records:
        raise ValueError(f"{file} has no records of a suite; expected a file that cagp bench run wrote.")
    tables = list(dict.fromkeys(record["table"] for record in records))
    notes = [NOTES[table] for table in tables if table in NOTES] + _absent(records, tables)
    failures = [f"- failed: {_name(record)}: {_plain(record['error'])}" for record in records if "error" in record]
    parts = [
        f"## {file.stem}",
        "Commands:" if len(commands(records)) > 1 else "Command:",
        "\n".join(f"    {command} {_target(command, file)}" for command in commands(records)),
        _filled(_where(records)),
        suite_grid(records, _expected(records, tables)).markdown(),
        *(["\n".join(failures)] if failures else []),
        *([_filled(" ".join(notes))] if notes else []),
    ]
    return "\n\n".join(parts)


def commands(records: Sequence[Record]) -> list[str]:
    """The commands that carry out these runs again."""
    return list(dict.fromkeys(record.get("command") or f"cagp bench run {record['suite']}" for record in records))


def _expected(records: Sequence[Record], tables: Sequence[str]) -> list[tuple[str, str]]:
    """The lines that the table should have: those of the whole suite, unless every command asked for some methods."""
    names = {record["suite"] for record in records}
    if all(" --methods " in command for command in commands(records)) or not names <= set(SUITES):
        return []
    return [(table, entry.label) for table in tables for name in names for entry in SUITES[name].entries]


def _absent(records: Sequence[Record], tables: Sequence[str]) -> list[str]:
    """A sentence on the paper's tables that Table 1 lacks."""
    names = [name for table, name in ABSENT.items() if table not in tables]
    if not names or {record["suite"] for record in records} != {"table1"}:
        return []
    return [f"{' and '.join(names)} of the paper: not on this machine ([how to get them](data-sets.md))."]


def _target(command: str, file: Path) -> str:
    """The option that makes a command write to this file."""
    return f"--out {file.parent.name}" if command.startswith("cagp reproduce") else f"--records {file.name}"


def _where(records: Sequence[Record]) -> str:
    """Machine, threads, load, versions and dates in a sentence."""

    def all_of(key: str) -> str:
        return ", ".join(dict.fromkeys(str(record.get(key)) for record in records))

    days = sorted({str(record["date"])[:10] for record in records})
    loads = [record["load"] for record in records if record.get("load") is not None]
    load = f", load {min(loads):.1f} to {max(loads):.1f}" if loads else ""
    versions = ", ".join(dict.fromkeys(str(record["versions"].get("cagp")) for record in records))
    return (
        f"Machine: {all_of('cpu')}, {all_of('cores')} cores, {all_of('threads')} thread(s), "
        f"{all_of('instruction_set')}{load}. Date: {days[0]}{'' if len(days) == 1 else ' to ' + days[-1]}. Versions: "
        f"cagp {versions} ({all_of('commit')}), torch {all_of('torch')}, Python {all_of('python')}."
    )


def _filled(text: str) -> str:
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)


def _name(record: Record) -> str:
    return f"{record['table']}, seed {record['seed']}, {record['label']}"


def _plain(error: str) -> str:
    """An error as prose: without what Markdown would read as its own."""
    return re.sub(r"[`|<>*_]", " ", error)
