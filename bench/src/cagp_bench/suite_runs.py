"""``cagp bench run``: carries out the runs of a suite that its file of records lacks, and shows what there is.

Each run has a process of its own with a time and a memory limit. Its record is on the disk before the next run starts:
a suite that was killed resumes with the same command.
"""

import json
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from cagp.data import split, terrain
from cagp.files import replacing
from cagp.quantities import bytes_of, seconds_of
from cagp_bench import table_quality
from cagp_bench.contenders import settings_of
from cagp_bench.data.paper_tables import DATA_VARIABLE, cache_folder, prepared_file
from cagp_bench.processes import in_new_process
from cagp_bench.records import environment, in_one_line
from cagp_bench.resuming import Record, carry_out, key_of
from cagp_bench.suite_tables import suite_grid, write_tables
from cagp_bench.suites import KEY, Suite, Task, tasks_of

TEST_SHARE = 0.1


def run(
    suite: Suite,
    *,
    quick: bool = False,
    changes: dict[str, Any] | None = None,
    data_dir: str | os.PathLike[str] | None = None,
    records: Path | None = None,
    out: Path | None = None,
    as_json: bool = False,
    command: str | None = None,
) -> int:
    """Carry out a suite, show its table, and write tables and plots to ``out``; return 1 if a run or a table failed.

    Args:
        quick: shorter runs, see ``tasks_of``.
        changes: settings that replace those of all entries.
        data_dir: where copies of data sets are.
        records: the file of records; by default NAME.jsonl in ``out``, or none.
        command: what the user called, for the records.
    """
    for read, limit in ((seconds_of, suite.max_time), (bytes_of, suite.max_memory)):
        read(limit)  # an invalid limit is an error now, not after the first table
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        records = out / f"{suite.name}.jsonl" if records is None else records
    tasks, paths, absent = _with_tables(tasks_of(suite, quick, changes), data_dir)
    called = {} if command is None else {"command": command}

    def measured(task: Task) -> Record:
        return {**measure_alone(task, paths[task.table], suite), **called}

    failed = carry_out(
        {key(task): partial(measured, task) for task in tasks},
        partial(key_of, names=KEY),
        suite.max_time,
        records,
        in_words,
        partial(_show, tasks=tasks, suite=suite, out=out, as_json=as_json),
    )
    return int(failed or bool(absent))


def key(task: Task) -> str:
    """What makes two runs the same, whichever version of the code carried them out."""
    return key_of(_about(task), KEY)


def _about(task: Task) -> dict[str, Any]:
    """What a record says of its task."""
    settings = task.settings if task.protocol == "gp" else {**settings_of(task.method), **task.settings}
    return {**task._asdict(), "table": table_label(task.table), "settings": settings}


def table_label(table: str) -> str:
    """What records call a table: its name without its place."""
    return Path(table.partition(":")[2] or table).stem


def measure_alone(task: Task, path: Path, suite: Suite) -> Record:
    """The record of one run in a process of its own; a failure is a record too, with ``error``."""
    about = {**_about(task), "suite": suite.name, "max_time": suite.max_time, "max_memory": suite.max_memory}
    about.pop("max_rows")
    if task.protocol == "gp":
        options = {"table": str(path), "rows": task.rows, "method": task.method, "seed": task.seed}
        options |= {"settings": task.settings}
        module = "cagp_bench.gp_quality"
    else:
        asked = table_quality.Run(str(path), "y", task.rows, task.method, task.seed, task.settings.get("fit_time"))
        options, module = {"run": asked._asdict()}, "cagp_bench.table_quality"
    return {**environment(), **about, **in_new_process(module, options, suite.max_time, suite.max_memory)}


def in_words(record: Record) -> str:
    """A record as a line of progress."""
    lr = record["settings"].get("lr") if record["protocol"] == "gp" else None
    start = f"{record['table']}, seed {record['seed']}, {record['label']}" + ("" if lr is None else f", rate {lr:g}")
    if "error" in record:
        return f"{start} failed: {record['error']}"
    return f"{start}: NLL {record['nll']:.3f}, RMSE {record['rmse']:.4g}, fit {record['fit_s']:.1f} s"


# ---- tables ----


def _with_tables(
    tasks: Sequence[Task], data_dir: str | os.PathLike[str] | None
) -> tuple[list[Task], dict[str, Path], list[str]]:
    """The tasks that can be run here, the file of each table, and the tables that are not on this machine."""
    paths, sizes, absent = {}, {}, []
    for table in dict.fromkeys(task.table for task in tasks):
        try:
            paths[table] = table_file(table, data_dir)
            sizes[table] = _num_rows(paths[table])
        except (OSError, ValueError) as error:
            absent.append(table)
            print(f"bench: {table} is left out: {in_one_line(error)}", file=sys.stderr, flush=True)
    possible = []
    for task in tasks:
        if task.table not in paths:
            continue
        most = sizes[task.table] if task.rows is None else min(task.rows, sizes[task.table])
        if task.max_rows is None or len(split(most, TEST_SHARE, 0).train) <= task.max_rows:
            possible.append(task)
    return possible, paths, absent


def table_file(table: str, data_dir: str | os.PathLike[str] | None = None) -> Path:
    """The NPZ file of a table of a suite; FileNotFoundError says what to do where there is none."""
    kind, _, name = table.partition(":")
    if kind == "dataset":
        return prepared_file(name, data_dir, progress=True)
    if kind == "sample" and name == "terrain":
        return _terrain_file()
    if kind == "folder":
        folder = os.environ.get(DATA_VARIABLE) if data_dir is None else data_dir
        if folder is None:
            raise FileNotFoundError(f"{table} is in a folder of yours: name it with --data-dir or {DATA_VARIABLE}.")
        table = os.fspath(Path(folder) / f"{name}.npz")
    if not Path(table).is_file():
        raise FileNotFoundError(f"{table} does not exist.")
    return Path(table)


def _terrain_file() -> Path:
    """The elevations of the demo as an NPZ file in the cache."""
    path = cache_folder() / "prepared" / "sample" / "terrain.npz"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        data = terrain()
        with replacing(path) as file:
            np.savez(file, X=data.X.numpy(), y=data.y.numpy())
    return path


def _num_rows(path: Path) -> int:
    with np.load(path, allow_pickle=False) as file:
        return len(file["y"])


# ---- showing ----


def _show(records: list[Record], tasks: list[Task], suite: Suite, out: Path | None, as_json: bool) -> None:
    """The records as JSON or as a table; files in ``out``."""
    labels = {key(task): task.label for task in tasks}
    named = [{**record, "label": labels[key_of(record, KEY)]} for record in records]
    if out is not None:
        write_tables(named, tasks, suite.name, out)
    if as_json:
        print(json.dumps(named, indent=1))
        return
    console = Console()
    grid = suite_grid(named, [(table_label(task.table), task.label) for task in tasks])
    print(grid.text(console.width))
    for record in named:
        if "error" in record:
            console.print(f"failed: {in_words(record)}", style="red", soft_wrap=True, markup=False)
