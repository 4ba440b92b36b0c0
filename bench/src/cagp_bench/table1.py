"""The paper's Table 1 and Table S1, as functions: records and tables in a folder.

``table1`` runs the suite of that name; ``table_s1`` writes the configuration that the suite uses, beside the paper's.
"""

import os
from pathlib import Path
from typing import Any

from cagp_bench import suite_runs
from cagp_bench.grids import Grid
from cagp_bench.suites import SUITES, Entry, Suite, tasks_of

QUICK_TABLES = ["dataset:parkinsons", "dataset:bike", "dataset:protein", "dataset:keggu"]
"""Tables of ``--quick``: Road and Power take hours with any settings."""

PAPER_S1 = {
    "CholeskyGP, L-BFGS": ("–", "–", "100", "1, 0.1, 0.01, 0.001, 0.0001", "n", "float64"),
    "SGPR, Adam": ("1024", "–", "1000", "1, 0.1, 0.01, 0.001, 0.0001", "n", "float32"),
    "SGPR, L-BFGS": ("1024", "–", "100", "1, 0.1, 0.01, 0.001, 0.0001", "n", "float64"),
    "SVGP, Adam": ("1024", "–", "1000", "1, 0.1, 0.01, 0.001, 0.0001", "1024", "float32"),
    "CGGP, L-BFGS": ("512", "0.0001", "100", "1, 0.1, 0.01, 0.001, 0.0001", "n", "float64"),
    "CaGP-CG, Adam": ("512", "0.0001", "250", "1, 0.1", "n", "float32"),
    "CaGP-Opt, Adam": ("512", "–", "1000", "1, 0.1, 0.01", "n", "float32"),
    "CaGP-Opt, L-BFGS": ("512", "–", "100", "1, 0.1, 0.01", "n", "float64"),
}
"""The paper's Table S1: rank, tolerance, epochs, learning rates, batch size, precision."""

_NAMES = ("rank", "tolerance", "epochs", "learning rates", "batch size", "precision")


def table1(
    quick: bool,
    data_dir: str | os.PathLike[str] | None,
    out: str | os.PathLike[str],
    *,
    tables: list[str] | None = None,
    labels: list[str] | None = None,
    seeds: list[int] | None = None,
    changes: dict[str, Any] | None = None,
) -> int:
    """Run the suite, and write its records (table1.jsonl), tables (.txt, .md, .tex, .csv) and curves to a folder.

    Runs that the folder has already are not repeated. Returns 1 if a run failed or a table is not on this machine.

    Args:
        quick: one seed, one learning rate, a noise floor of 1e-4, a minute of training at most, and four tables.
        tables: instead of those of the suite.
        labels: entries to run; None for all.
        seeds: instead of those of the suite.
        changes: settings that replace those of all entries.
    """
    suite = SUITES["table1"]
    if quick:
        suite = suite._replace(tables=QUICK_TABLES, seeds=[0], max_time="20min")
    suite = suite._replace(tables=tables or suite.tables, seeds=seeds or suite.seeds)
    if labels is not None:
        suite = with_entries(suite, labels)
    command = f"cagp reproduce table1{' --quick' if quick else ''}"
    return suite_runs.run(suite, quick=quick, changes=changes, data_dir=data_dir, out=Path(out), command=command)


def with_entries(suite: Suite, labels: list[str]) -> Suite:
    """The suite with some of its entries; ValueError for a label that it does not have."""
    known = {entry.label: entry for entry in suite.entries}
    absent = [label for label in labels if label not in known]
    if absent:
        raise ValueError(f"the suite {suite.name} has no entry {absent[0]!r}; it has {'; '.join(known)}.")
    return suite._replace(entries=[known[label] for label in labels])


def table_s1(quick: bool, data_dir: str | os.PathLike[str] | None, out: str | os.PathLike[str]) -> int:
    """Write the configuration of every entry of Table 1 as it is run, with the paper's beside it; always returns 0.

    Args:
        data_dir: not needed; the table has no data.
    """
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    configuration(quick).write(folder / "table-s1")
    return 0


def configuration(quick: bool) -> Grid:
    """A line for each entry: rank, tolerance, optimiser, epochs, rates, batch size, precision, noise floors."""
    suite = SUITES["table1"]._replace(tables=["sample:terrain"], seeds=[0])
    lines = [_configured(entry, suite, quick) for entry in suite.entries]
    return Grid({name: [line[name] for line in lines] for name in lines[0]})


def _configured(entry: Entry, suite: Suite, quick: bool) -> dict[str, str]:
    settings = [task.settings for task in tasks_of(suite._replace(entries=[entry]), quick)]
    first = settings[0]

    def all_of(name: str) -> str:
        found = dict.fromkeys(values[name] for values in settings)
        return ", ".join("ours" if value is None else format(value, "g") for value in found)

    nearest, batch = entry.method in ("local", "local-scale"), entry.method == "svgp"
    uses_cg = entry.method in ("cg", "cggp")
    ours = (
        "–" if entry.method == "exact" else f"{first['neighbours']} rows" if nearest else str(first["budget"]),
        format(first["tolerance"], "g") if uses_cg else "–",
        str(first["epochs"]) + (f", at most {first['fit_time']}" if first["fit_time"] else ""),
        all_of("lr"),
        str(first["batch_size"]) if batch else "1024" if nearest or entry.method == "hybrid" else "n",
        "float64" if first["double"] else "float32",
    )
    published = PAPER_S1.get(entry.label)
    return {
        "method": entry.label,
        "optimiser": {"adam": "Adam", "lbfgs": "L-BFGS"}[first["optimizer"]],
        **dict(zip(_NAMES, ours, strict=True)),
        "start": first["start"],
        "blocks": first["blocks"] if entry.method == "opt" else "–",
        "noise floors": all_of("noise_floor"),
        **{f"{name} in the paper": (published or ("–",) * 6)[number] for number, name in enumerate(_NAMES)},
    }
