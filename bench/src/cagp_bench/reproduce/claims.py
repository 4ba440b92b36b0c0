"""``cagp reproduce claims``: what the paper says, beside what the records of a folder say."""

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from cagp_bench.record_files import read_records
from cagp_bench.reproduce import table1_claims
from cagp_bench.reproduce.choices import CHOICES, SIZES, experiment
from cagp_bench.reproduce.experiment import Claim, Record
from cagp_bench.reproduce.running import verdict

WIDTH = 110


class Row(NamedTuple):
    """A claim, and what came out."""

    figure: str  # or table
    size: str | None  # of the records that judge it; None without records
    claim: str
    paper: str
    ours: str
    verdict: str


def run(out: Path) -> int:
    """Print all claims, judged by the records of the folder; nothing is measured."""
    if not out.is_dir():
        raise FileNotFoundError(
            f"{out} does not exist: there are no records to judge by; run cagp reproduce all --out {out} first."
        )
    print(as_text(rows(out)))
    return 0


def rows(folder: Path) -> list[Row]:
    """A row for each claim, judged by the largest runs that the folder has records of."""
    found = []
    for name in CHOICES:
        chosen = experiment(name)
        found += _judged(name, chosen.claims, *_largest(_good_records(folder / f"{chosen.source}.jsonl")))
    files = sorted(folder.glob(f"{table1_claims.SOURCE}*.jsonl"))
    records = [record for file in files for record in _good_records(file)]
    size = table1_claims.size_of(records) if records else None
    return found + _judged(table1_claims.SOURCE, table1_claims.CLAIMS, size, records)


def _judged(name: str, claims: Sequence[Claim], size: str | None, records: list[Record]) -> list[Row]:
    found = []
    for claim in claims:
        outcome = claim.judge(records) if records else None
        ours = "no records" if outcome is None else outcome.ours
        found.append(Row(name, size, claim.words, claim.paper, ours, verdict(outcome)))
    return found


def _good_records(path: Path) -> list[Record]:
    return [record for record in read_records(path) if "error" not in record] if path.exists() else []


def _largest(known: list[Record]) -> tuple[str | None, list[Record]]:
    for size in reversed(SIZES):
        records = [record for record in known if record["settings"]["size"] == size]
        if records:
            return size, records
    return None, []


def as_text(found: list[Row]) -> str:
    """The rows as paragraphs that fit a terminal, and how many claims hold."""
    lines = []
    for row in found:
        where = row.figure if row.size is None else f"{row.figure}, {row.size}"
        lines.append(f"{row.claim}: {row.verdict.upper()}")
        for name, text in (("paper", row.paper), ("ours", f"{row.ours} [{where}]")):
            lines += textwrap.wrap(f"{name}: {text}", WIDTH, initial_indent="    ", subsequent_indent=" " * 11)
    counts = {word: sum(row.verdict == word for row in found) for word in dict.fromkeys(row.verdict for row in found)}
    total = ", ".join(f"{word}: {count}" for word, count in sorted(counts.items(), key=lambda item: -item[1]))
    return "\n".join([*lines, "", f"{len(found)} claims. {total.capitalize()}."])
