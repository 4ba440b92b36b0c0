"""Runs that are carried out one after the other, each recorded when it ends: a suite that was killed resumes."""

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cagp.quantities import seconds_of
from cagp_bench.record_files import append_record, read_records
from cagp_bench.records import collect

Record = dict[str, Any]


def key_of(values: dict[str, Any], names: Sequence[str]) -> str:
    """What makes two runs the same: the text of these values, whichever version of the code carried them out."""
    return json.dumps({name: values.get(name) for name in names}, sort_keys=True)


def stored_records(records: Path | None) -> list[Record]:
    """The records of a file, none if there is no such file yet."""
    return read_records(records) if records is not None and records.exists() else []


def with_enough_time(record: Record, max_time: str) -> bool:
    """Whether a run that failed had as much time as it would have now; one that did not fail always had."""
    return "error" not in record or seconds_of(record["max_time"]) >= seconds_of(max_time)


def carry_out(
    keys: Sequence[str],
    found: dict[str, Record],
    measure: Callable[[int], Record],
    records: Path | None,
    in_words: Callable[[Record], str],
    show: Callable[[list[Record]], None],
) -> int:
    """Measure the runs whose keys are not in ``found``, and show the records of all; return 1 if any failed.

    Each record is on the disk before the next run starts. The records are shown at the end, also after Ctrl-C.
    """
    missing = [number for number, key in enumerate(keys) if key not in found]
    if len(missing) < len(keys):
        print(f"bench: {len(keys) - len(missing)} of {len(keys)} runs are in {records}", file=sys.stderr)

    def measured(number: int) -> Record:
        record = measure(number)
        if records is not None:
            append_record(records, record)
        found[keys[number]] = record
        return record

    def show_all(_: list[Record]) -> None:
        show([found[key] for key in keys if key in found])

    collect([lambda number=number: measured(number) for number in missing], in_words, show_all)
    return int(any("error" in found[key] for key in keys))
