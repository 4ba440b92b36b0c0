"""Runs that are carried out one after the other, each recorded when it ends: a suite that was killed resumes."""

import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from cagp.quantities import seconds_of
from cagp_bench.record_files import append_record, read_records
from cagp_bench.records import collect

Record = dict[str, Any]


def key_of(values: dict[str, Any], names: Sequence[str]) -> str:
    """What makes two runs the same: the text of these values, whichever version of the code carried them out."""
    return json.dumps({name: values.get(name) for name in names}, sort_keys=True)


def carry_out(
    runs: dict[str, Callable[[], Record]],
    key_of_record: Callable[[Record], str],
    max_time: str,
    records: Path | None,
    in_words: Callable[[Record], str],
    show: Callable[[list[Record]], Any],
) -> int:
    """Carry out the runs that the file of records does not have, and show the records of all; return 1 if any failed.

    A run that failed with less time than ``max_time`` is repeated. Each record is on the disk before the next run
    starts. The records are shown at the end, also after Ctrl-C.

    Args:
        runs: each run by its key.
    """
    stored = read_records(records) if records is not None and records.exists() else []
    limit = seconds_of(max_time)
    found = {
        key_of_record(record): record
        for record in stored
        if "error" not in record or seconds_of(record["max_time"]) >= limit
    }
    missing = [key for key in runs if key not in found]
    if len(missing) < len(runs):
        print(f"bench: {len(runs) - len(missing)} of {len(runs)} runs are in {records}", file=sys.stderr)

    def measured(key: str) -> Record:
        found[key] = runs[key]()
        if records is not None:
            append_record(records, found[key])
        return found[key]

    def show_all(_: list[Record]) -> None:
        show([found[key] for key in runs if key in found])

    collect([partial(measured, key) for key in missing], in_words, show_all)
    return int(any("error" in found[key] for key in runs))
