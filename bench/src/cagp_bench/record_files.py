"""Records in a file of JSON lines: each is written when it is measured, so that a long suite can be resumed."""

import json
import os
from pathlib import Path
from typing import Any


def read_records(path: Path) -> list[dict[str, Any]]:
    """The records of a file; a last line without its end, which a killed process leaves, is not one.

    Raises ValueError where a line is not a record.
    """
    text = path.read_text(encoding="utf-8")
    lines = text[: text.rfind("\n") + 1].splitlines()
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        if not isinstance(record, dict):
            raise ValueError(
                f"line {number} of {path} is {line[:40]!r}, expected a record as JSON; choose a file that --records "
                "wrote, or a new one."
            )
        records.append(record)
    return records


def append_record(path: Path, record: dict[str, Any]) -> None:
    """Write one record to the end of a file; when this returns, it is on the disk."""
    with path.open("ab+") as file:
        _drop_unfinished_line(file)
        file.write(json.dumps(record).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def _drop_unfinished_line(file: Any) -> None:
    """Cut the file after its last complete line."""
    end = file.seek(0, os.SEEK_END)
    while end > 0:
        file.seek(end - 1)
        if file.read(1) == b"\n":
            break
        end -= 1
    file.truncate(end)
