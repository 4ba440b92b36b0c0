"""``cagp bench honesty``: whether error bars are right in every place, on generated tables whose truth is known.

Each situation has named places (``cagp_bench.situations``). For each place: the share of new observations in their
95 % intervals, and of values of the function in intervals with ``noise=False``; the nats per row by which predictions
are behind the truth, and the most at one row. For classes: the mean predicted probability, the true one, and the nats.
"""

import argparse
import time
import zlib
from functools import partial
from importlib.metadata import version
from typing import Any, NamedTuple

import numpy as np

from cagp import CaGPClassifier, CaGPRegressor
from cagp.memory import peak_memory
from cagp_bench.options import add_max_time, add_records, add_seeds, settings
from cagp_bench.processes import answer, in_new_process
from cagp_bench.records import FAILED, attempt, machine, show
from cagp_bench.resuming import carry_out, key_of
from cagp_bench.situations import SITUATIONS, Drawn, Situation

LOWEST, HIGHEST = 0.92, 0.98
"""Coverage of 95 % intervals outside this range is marked."""

MOST_NATS = 50.0
"""A row that is less probable than this, in nats below the truth, is marked."""

MARK = " !"


class Run(NamedTuple):
    """What is fitted to which table."""

    situation: str
    seed: int
    options: dict[str, Any]  # of the estimator


def add_to(suite: argparse.ArgumentParser) -> None:
    """The options of ``cagp bench honesty``."""
    suite.description = (
        "Generate tables in which error bars can be wrong in one place, fit the defaults, and print the coverage of "
        "95 % intervals by place, and the nats behind the truth. Numbers outside 92 to 98 % are marked."
    )
    suite.epilog = (
        'examples:\n  cagp bench honesty --only "loud pocket" groups\n  cagp bench honesty --set method=local'
    )
    suite.add_argument("--only", nargs="+", metavar="NAME", help="names of situations, or their beginnings")
    suite.add_argument(
        "--set", nargs="+", default=[], metavar="KEY=VALUE", help="parameters of the estimators, e.g. method=exact"
    )
    add_seeds(suite)
    add_max_time(suite)
    add_records(suite)
    suite.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Fit every situation with every seed, and print a line for each place; return 1 if a fit failed."""
    begins = tuple(arguments.only or [""])
    names = [name for name in SITUATIONS if name.startswith(begins)]
    if not names:
        raise ValueError(f"--only is {', '.join(begins)!r}, expected beginnings of some of: {'; '.join(SITUATIONS)}.")
    runs = [Run(name, seed, settings(arguments.set)) for name in names for seed in arguments.seeds]
    return carry_out(
        {_key(run._asdict()): partial(measure_alone, run, arguments.max_time) for run in runs},
        _key,
        arguments.max_time,
        arguments.records,
        _in_words,
        partial(_show, as_json=arguments.json),
    )


def _key(record: dict[str, Any]) -> str:
    return key_of(record, Run._fields)


def _in_words(record: dict[str, Any]) -> str:
    start = f"{record['situation']}, seed {record['seed']}"
    return f"{start} failed: {record['error']}" if "error" in record else f"{start}: {record['fit_s']:.1f} s"


# ---- the table ----


def pooled(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A line for each place of each situation: means over all rows of all seeds, and the worst row."""
    lines = []
    for name in dict.fromkeys(record["situation"] for record in records):
        own = [record for record in records if record["situation"] == name]
        failed = [record for record in own if "error" in record]
        lines += [{"situation": name, "seed": r["seed"], "error": r["error"]} for r in failed]
        good = [record for record in own if "error" not in record]
        for place in dict.fromkeys(place for record in good for place in record["places"]):
            parts = [record["places"][place] for record in good if place in record["places"]]
            rows = sum(part["rows"] for part in parts)
            means = {
                key: sum(part["rows"] * part[key] for part in parts) / rows for key in parts[0] if key not in NOT_MEANS
            }
            worst = max(part["worst"] for part in parts)
            lines.append({"situation": name, "place": place, "rows": rows, **means, "worst": worst})
    return lines


NOT_MEANS = ("rows", "worst")


def is_right(line: dict[str, Any]) -> bool:
    """Whether nothing of a place is marked."""
    return not any(MARK in text(line) for name, text in COLUMNS.items() if name != "situation")


def _covered(key: str) -> Any:
    def text(line: dict[str, Any]) -> str:
        if key not in line:
            return ""
        wrong = line[key] < LOWEST or (line[key] > HIGHEST and line["exact_level"])
        return f"{100 * line[key]:.1f}{MARK if wrong else ''}"

    return text


def _chance(line: dict[str, Any]) -> str:
    return "" if "predicted" not in line else f"{line['predicted']:.4f} / {line['true']:.4f}"


def _worst(line: dict[str, Any]) -> str:
    return "" if "error" in line else f"{line['worst']:.1f}{MARK if line['worst'] > MOST_NATS else ''}"


COLUMNS: dict[str, Any] = {
    "situation": lambda line: line["situation"],
    "place": lambda line: line.get("place", FAILED),
    "rows": lambda line: f"{line['rows']:,}" if "rows" in line else "",
    "coverage, %": _covered("coverage"),
    "function, %": _covered("function_coverage"),
    "probability / true": _chance,
    "nats behind": lambda line: f"{line['behind']:.4f}" if "behind" in line else "",
    "worst row": _worst,
}


def _show(records: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        show(records, {}, as_json)
        return
    lines = pooled(records)
    show(lines, COLUMNS, as_json, num_keys=2)
    good = [line for line in lines if "error" not in line]
    seconds = sum(record.get("fit_s", 0.0) for record in records)
    print(f"{sum(map(is_right, good))} of {len(good)} places have nothing marked; all fits took {seconds:.0f} s.")


# ---- one run ----


def measure_alone(run: Run, max_time: str) -> dict[str, Any]:
    """The record of one run in a process of its own; a failure is a record too, with ``error``."""
    record = {**machine(), **run._asdict(), "max_time": max_time}
    return record | in_new_process("cagp_bench.honesty", {"run": run._asdict()}, max_time)


def measure(run: Run) -> dict[str, Any]:
    """What holds in each place, in this process; a failure is a record with ``error``."""
    situation = SITUATIONS[run.situation]
    seed = [zlib.crc32(situation.name.encode()), run.seed]
    drawn = situation.draw(np.random.default_rng(seed))
    found = attempt(partial(_measured, situation, drawn, {**situation.options, **run.options}))
    return {"cagp": version("cagp"), "kind": situation.kind, **found, "peak_bytes": peak_memory()}


def _measured(situation: Situation, drawn: Drawn, options: dict[str, Any]) -> dict[str, Any]:
    start = time.perf_counter()
    estimator = CaGPClassifier if situation.kind == "classes" else CaGPRegressor
    model = estimator(**options).fit(drawn.X, drawn.y, **drawn.by)
    fit_s = time.perf_counter() - start
    rows = _class_rows(model, drawn) if situation.kind == "classes" else _number_rows(model, drawn, situation.kind)
    places = {}
    for place in dict.fromkeys(drawn.place.tolist()):
        here = drawn.place == place
        means = {name: float(np.mean(values[here])) for name, values in rows.items()}
        places[place] = {"rows": int(here.sum()), **means, "worst": float(rows["behind"][here].max())}
    return {"fit_s": fit_s, "method": model.method_, "choice": model.choice_, "places": places}


def _number_rows(model: Any, drawn: Drawn, kind: str) -> dict[str, np.ndarray]:
    covered = []
    for values, noise in ((drawn.y_test, True), (drawn.truth, False)):
        low, high = model.predict_interval(drawn.X_test, noise=noise)
        covered.append((low <= values) & (values <= high))
    behind = drawn.log_density - np.asarray(model.log_predictive_density(drawn.X_test, drawn.y_test))
    has_level = np.full(len(behind), float(kind == "numbers"))  # intervals of counts hold at least their level
    return {"coverage": covered[0], "function_coverage": covered[1], "behind": behind, "exact_level": has_level}


def _class_rows(model: Any, drawn: Drawn) -> dict[str, np.ndarray]:
    predicted = np.asarray(model.predict_proba(drawn.X_test))[:, list(model.classes_).index(1)]
    log = np.log(np.clip(np.stack([1 - predicted, predicted]), 1e-300, None))
    truth = np.stack([1 - drawn.truth, drawn.truth])
    behind = (truth * (np.log(np.clip(truth, 1e-300, None)) - log)).sum(0)  # the divergence from the truth
    return {"predicted": predicted, "true": drawn.truth, "behind": behind}


if __name__ == "__main__":
    answer(lambda run: measure(Run(**run)))
