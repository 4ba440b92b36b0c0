"""``cagp reproduce``: measure what is missing, draw from the records alone, and write down what came out."""

import os
import shutil
import sys
import time
import warnings
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path

from cagp import plots
from cagp.files import locked_folder, write_atomically
from cagp_bench.record_files import append_record, read_records
from cagp_bench.records import in_one_line, machine
from cagp_bench.reproduce.choices import SIZES, experiment
from cagp_bench.reproduce.experiment import Experiment, Outcome, Record, Tables, Task, key_of

DPI = 110.0
UNFINISHED = "unfinished"
"""The folder, beside the records, for checkpoints of fits that have not ended."""


def run(names: list[str], size: str, out: Path, data_dir: Path | str | None = None, from_records: bool = False) -> int:
    """Measure, draw and describe each experiment in the folder ``out``; return 1 if a measurement failed.

    Records that the folder has already are not measured again. With ``from_records``, nothing is measured.
    """
    if size not in SIZES:
        raise ValueError(f"size is {size!r}, expected one of {', '.join(SIZES)}.")
    folder = data_dir or os.environ.get("CAGP_DATA")
    tables = Tables(None if folder is None else Path(folder), out / UNFINISHED)
    experiments = {name: experiment(name) for name in names}
    # All tasks before the first measurement: a table that is missing is noticed now, not after hours.
    tasks = {} if from_records else {name: found.tasks(size, tables) for name, found in experiments.items()}
    if from_records and not out.is_dir():
        raise FileNotFoundError(f"{out} does not exist: there are no records to draw from; run without --from-records.")
    out.mkdir(parents=True, exist_ok=True)
    failed = False
    with locked_folder(out, "another cagp reproduce"):
        for name, found in experiments.items():
            path = out / f"{found.source}.jsonl"
            if not from_records:
                measure_missing(path, tasks[name], name, tables)
            records = records_of(path, size, tasks.get(name))
            failed |= any("error" in record for record in records)
            publish(name, found, records, size, out)
    return int(failed)


def measure_missing(path: Path, tasks: list[Task], name: str, tables: Tables) -> None:
    """Carry out the tasks that the file has no record of, and append each record when it is measured."""
    known = read_records(path) if path.exists() else []
    finished = {key_of(record["settings"]) for record in known}
    missing = [task for task in tasks if key_of(task.settings) not in finished]
    if len(missing) < len(tasks):
        print(f"reproduce: {name}: {len(tasks) - len(missing)} of {len(tasks)} records exist", file=sys.stderr)
    for number, task in enumerate(missing, start=1):
        record = measured(task)
        append_record(path, record)
        if (checkpoints := tables.checkpoints(task.settings)) is not None:
            shutil.rmtree(checkpoints, ignore_errors=True)
        print(f"reproduce: {name}: {number}/{len(missing)} {_in_words(record)}", file=sys.stderr, flush=True)


def measured(task: Task) -> Record:
    """The record of a task; a failure is a record too: ``error`` says why."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    about = {**machine(), "load": load, "cagp": version("cagp")}
    start, date = time.perf_counter(), datetime.now(timezone.utc).isoformat(timespec="seconds")
    with warnings.catch_warnings(record=True) as notices:
        warnings.simplefilter("always")
        try:
            result = task.measure()
        except Exception as error:
            result = {"error": in_one_line(error)}
    words = list(dict.fromkeys(str(notice.message).splitlines()[0] for notice in notices))
    record = {"settings": task.settings, **result, "seconds": time.perf_counter() - start, "date": date, **about}
    return record | ({"warnings": words[:5]} if words else {})


def records_of(path: Path, size: str, tasks: list[Task] | None) -> list[Record]:
    """The records of these tasks; without tasks, all of this size."""
    known = read_records(path) if path.exists() else []
    of_size = [record for record in known if record.get("settings", {}).get("size") == size]
    if tasks is None:
        if not of_size:
            raise FileNotFoundError(f"{path} has no records of size {size!r}; run without --from-records first.")
        return of_size
    wanted = {key_of(task.settings) for task in tasks}
    return [record for record in of_size if key_of(record["settings"]) in wanted]


def publish(name: str, found: Experiment, records: list[Record], size: str, out: Path) -> None:
    """Draw the figure as PNG and PDF, and write its caption to NAME.md."""
    whole = [record for record in records if "error" not in record]
    if not whole:
        raise ValueError(
            f"every measurement of {name} failed, the first with {records[0]['error']!r}: nothing to draw."
        )
    figure = found.draw(whole)
    for ending in ("png", "pdf"):
        plots.write_figure(figure, out / f"{name}.{ending}", dpi=DPI)
    text = page(name, found, records, size)
    write_atomically(out / f"{name}.md", text.encode())
    print(f"{out / name}.png, .pdf, .md")


def page(name: str, found: Experiment, records: list[Record], size: str) -> str:
    """The caption of a figure as Markdown: what the paper says, what this shows, and whether the two agree."""
    whole = [record for record in records if "error" not in record]
    lines = [f"# {found.title}", "", f"![{found.title}]({name}.png)", "", f"**The paper.** {found.paper}", ""]
    lines += [f"**This figure.** {found.caption(whole)}", ""]
    if found.differs:
        lines += [f"**Other than in the paper.** {found.differs}", ""]
    for claim in found.claims:
        outcome = claim.judge(whole)
        if outcome is not None:
            lines.append(f"- {claim.words}: **{verdict(outcome)}**. Paper: {claim.paper}. Here: {outcome.ours}.")
    failures = [record for record in records if "error" in record]
    lines += ["", *(f"- Failed: {_in_words(record)}" for record in failures), ""] if failures else [""]
    command = f"cagp reproduce {name}{' --quick' if size == 'quick' else ''}"
    lines += [f"Made by `{command}` from {len(records)} records; {measured_on(records)}.", ""]
    return "\n".join(lines)


def measured_on(records: list[Record]) -> str:
    """Processors, threads, versions and dates of records, in words."""
    dates = sorted(record["date"][:10] for record in records)
    when = dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"
    found = dict.fromkeys(
        f"{r['machine']} ({r['instruction_set']}), {r['cores']} cores, {r['threads']} threads, torch {r['torch']}, "
        f"cagp {r['cagp']}"
        for r in records
    )
    return f"{when}; {'; '.join(found)}"


def verdict(outcome: Outcome | None) -> str:
    """Whether a claim holds, in words."""
    if outcome is None:
        return "not measured"
    if outcome.on is not None and 0 < outcome.on[0] < outcome.on[1]:
        return f"holds on {outcome.on[0]} of {outcome.on[1]} tables"
    return {True: "holds", False: "does not hold", None: "undecided"}[outcome.holds]


def _in_words(record: Record) -> str:
    settings = {name: v for name, v in record["settings"].items() if name not in ("experiment", "size", "options")}
    named = ", ".join(str(v) if isinstance(v, str) else f"{name.replace('_', ' ')} {v}" for name, v in settings.items())
    return f"{named} failed: {record['error']}" if "error" in record else f"{named}: {record['seconds']:.1f} s"
