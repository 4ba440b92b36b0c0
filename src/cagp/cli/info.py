"""``cagp info``: what is in a model file."""

import argparse
import math
from typing import Any

from cagp.cli.console import count, names, print_json
from cagp.column_kinds import DATETIME, LEVELS, TIMEDELTA, WORDS
from cagp.likelihood_registry import LIKELIHOODS
from cagp.quantities import number, size
from cagp.recipes.table import method_words
from cagp.saved_summary import saved_summary

MEANS = {"zero": "zero, in standard units", "trees": "boosted trees; the Gaussian process models the residuals"}
COLUMN_UNITS = {DATETIME: ", as days since 1970", TIMEDELTA: ", as days"}
KERNEL_UNITS = {
    None: "in units of the target's variance",
    "classes": "of the log odds",
    "counts": "of the logarithm of the mean",
    "numbers": "in units of the target's spread, squared",
}
"""By what the likelihood is for; None is Gaussian noise."""
PARAMETER_UNITS = {
    "period": "in the units of the inputs",
    "lengthscale": "within a period, whose circle has radius 1",
}
MOST_VALUES = 8


def run(arguments: argparse.Namespace) -> int:
    """Read the file and print what is in it."""
    record = saved_summary(arguments.model)
    if arguments.json:
        print_json(record)
    else:
        print("\n".join(_lines(record)))
    return 0


def _lines(record: dict[str, Any]) -> list[str]:
    article = "an" if record["class"].startswith(("Exact", "SGPR", "SVGP")) else "a"
    parts, methods = record["kernel_parts"], [f"Method: {method_words(record['method'])}."]
    if len(set(record["methods"])) > 1:
        pairs = zip(record["targets"], record["methods"], strict=True)
        methods = [f"Method for {target['name']}: {method_words(method)}." for target, method in pairs]
    likelihood = None if record["likelihood"] is None else LIKELIHOODS[record["likelihood"]].targets
    return [
        f"{record['file']}: {size(record['bytes'])}, written {record['written']}, checksum verified",
        f"Saved by cagp {record['library_version']} from {article} {record['class']}.",
        "",
        *methods,
        f"Prior mean: {MEANS[record['mean']]}.",
        f"Trained on {count(record['train_rows'], 'row')}. It holds {_held(record)}",
        "",
        f"{'Target' if len(record['targets']) == 1 else 'Targets'}:",
        *(f"  {line}" for line in _targets(record)),
        "",
        f"{count(len(record['inputs']), 'input')}:",
        *(f"  {column['name']}: {_encoding(column)}" for column in record["inputs"]),
        "",
        f"Kernel, {KERNEL_UNITS[likelihood]}: {record['kernel']}.",
        *(line for part in parts for line in _kernel_part(part, "" if len(parts) == 1 else f" of {part['kernel']}")),
        "",
        f"The fit: {count(record['steps'], 'step')}, {record['fit_seconds']:.1f} s.",
        record["fit_report"],
    ]


def _held(record: dict[str, Any]) -> str:
    """What the file holds of the rows."""
    file, dtype = record["file"], record["stored_dtype"]
    if not record["holds_training_data"]:
        return f"{count(record['inducing_points'], 'inducing point')}, and none of the rows."
    if record["regions"]:
        files = f"{count(record['regions'], 'file')}, {file}.region-1-of-{record['regions']} and so on"
        return f"all of them in {files}, which belong to it, as {dtype}: share them as you would share these data."
    every = "all" if record["rows_held"] == record["train_rows"] else f"{record['rows_held']:,}"
    where = f" in {file}.rows, which belongs to it" if record["rows_beside"] else ""
    return f"{every} of them{where}, as {dtype}: share it as you would share these data."


def _targets(record: dict[str, Any]) -> list[str]:
    """The targets, and how they depend on the function."""
    first, targets = record["targets"][0], record["targets"]
    if record["likelihood"] is None:
        lines = []
        for target in targets:
            rows = f" ({count(target['rows'], 'row')})" if target["rows"] != record["train_rows"] else ""
            scale = "on a log scale, " if target["transform"] == "log" else ""
            lines.append(
                f"{target['name']}{rows}: {scale}mean {number(target['mean'])}, standard deviation "
                f"{number(target['std'])}; standard deviation of its noise {number(target['noise_std'])}"
            )
        return lines
    entry, shown = LIKELIHOODS[record["likelihood"]], {"df": "degrees of freedom"}
    if record["classes"] is not None:
        kind = f"{count(len(record['classes']), 'class', 'classes')}, {names(record['classes'], 12)}"
    elif entry.targets == "counts":
        kind = "counts"
    else:
        kind = f"numbers, median {number(first['mean'])}, spread (by absolute deviations) {number(first['std'])}"
    learned = [f"{shown.get(name, name)} {number(value)}" for name, value in record["likelihood_parameters"].items()]
    lines = [f"{first['name']}: {kind}", f"likelihood: {entry.words}{'; ' if learned else ''}{', '.join(learned)}"]
    return lines + ([] if record["exposure"] is None else [f"exposure: {record['exposure']}"])


def _encoding(column: dict[str, Any]) -> str:
    missing = "; one more input says where it is missing" if column["missing"] else ""
    if column["kind"] != LEVELS:
        written = f", written as {column['format']}" if column["format"] else ""
        return WORDS[column["kind"]] + written + COLUMN_UNITS.get(column["kind"], "") + missing
    coded = "one 0/1 input" if len(column["levels"]) == 2 else "a 0/1 input for each"
    if column["common"]:
        coded = f"a 0/1 input for each of the {len(column['common'])} most frequent, and one for the others"
    return f"{count(len(column['levels']), 'level')} ({names(column['levels'], 6)}), {coded}{missing}"


def _kernel_part(part: dict[str, Any], whose: str) -> list[str]:
    """The lengthscales, periods and other parameters of one kernel of a sum or product."""
    if part["own"]:
        stored = [f"{name} = {_values(value)}" for name, value in part["parameters"].items()]
        return [f"Parameters of {part['kernel']}, as stored: {', '.join(stored) or 'no parameters'}"]
    lines, relevance = [], "the most relevant input first: how far one must go for the function to change"
    if known := [scale for scale in part["lengthscales"] or [] if math.isfinite(scale["lengthscale"])]:
        known.sort(key=lambda scale: scale["lengthscale_in_std"])
        in_std = [f"  ({number(scale['lengthscale_in_std'])} standard deviations)" for scale in known]
        shown = _column([scale["name"] for scale in known], [scale["lengthscale"] for scale in known])
        lines = [f"Lengthscales{whose}, {relevance}", *map(str.__add__, shown, in_std)]
    for name, value in part["parameters"].items():
        if name == "lengthscale" and part["lengthscales"]:
            continue
        if isinstance(value, list):
            unit = PARAMETER_UNITS.get(name, "for inputs in standard deviations")
            lines += [f"{name.capitalize()}{whose}, {unit}", *_column(part["inputs"], value)]
        else:
            unit = ", in degrees" if name == "lengthscale" else ""
            lines.append(f"{name.capitalize()}{whose}{unit}: {number(value)}")
    return lines


def _column(inputs: list[str], values: list[float]) -> list[str]:
    """A number for each input."""
    width = max(map(len, inputs))
    return [f"  {name:<{width}}  {number(value):>12}" for name, value in zip(inputs, values, strict=True)]


def _values(value: Any) -> str:
    if not isinstance(value, list):
        return number(value) if isinstance(value, float) else str(value)
    listed = [_values(item) for item in value[:MOST_VALUES]]
    return f"[{', '.join(listed)}{', ...' if len(value) > MOST_VALUES else ''}]"
