"""``cagp info``: what is in a model file."""

import argparse
import math
from typing import Any

from cagp.cli.console import count, names, print_json
from cagp.column_kinds import DATETIME, LEVELS, TIMEDELTA, WORDS
from cagp.likelihood_registry import LIKELIHOODS
from cagp.quantities import number, size
from cagp.recipes import method_words
from cagp.saved_summary import saved_summary

UNITS = {DATETIME: ", as days since 1970", TIMEDELTA: ", as days"}
UNITS_OF = {"period": "in the units of the inputs", "lengthscale": "within a period, whose circle has radius 1"}
MOST_VALUES = 8


def run(arguments: argparse.Namespace) -> int:
    """Read the file and print what is in it."""
    record = saved_summary(arguments.model)
    if arguments.json:
        print_json(record)
    else:
        print(_words(record))
    return 0


MEANS = {"zero": "zero, in standard units", "trees": "boosted trees; the Gaussian process models the residuals"}


def _words(record: dict[str, Any]) -> str:
    article = "an" if record["class"].startswith(("Exact", "SGPR", "SVGP")) else "a"
    lines = [
        f"{record['file']}: {size(record['bytes'])}, written {record['written']}, checksum verified",
        f"Saved by cagp {record['library_version']} from {article} {record['class']}.",
        "",
        *_methods(record),
        f"Prior mean: {MEANS[record['mean']]}.",
        _holding(record),
        "",
        f"{'Target' if len(record['targets']) == 1 else 'Targets'}:",
    ]
    if record["classes"] is not None:
        classes = record["classes"]
        listed = f"{count(len(classes), 'class', 'classes')}, {_listed(classes)}"
        lines.append(f"  {record['targets'][0]['name']}: {listed}")
        lines.append(f"  likelihood: {LIKELIHOODS[record['likelihood']].words}")
    elif record["likelihood"] is not None:
        lines += _with_likelihood(record)
    for target in record["targets"] if record["likelihood"] is None else []:
        scale = "on a log scale, " if target["transform"] == "log" else ""
        rows = f" ({count(target['rows'], 'row')})" if target["rows"] != record["train_rows"] else ""
        lines.append(
            f"  {target['name']}{rows}: {scale}mean {number(target['mean'])}, standard deviation "
            f"{number(target['std'])}; standard deviation of its noise {number(target['noise_std'])}"
        )
    lines += ["", f"{count(len(record['inputs']), 'input')}:"]
    lines += [f"  {column['name']}: {_encoding(column)}" for column in record["inputs"]]
    unit = UNIT_OF[None if record["likelihood"] is None else LIKELIHOODS[record["likelihood"]].targets]
    lines += ["", f"Kernel, {unit}: {record['kernel']}."]
    parts = record["kernel_parts"]
    for part in parts:
        lines += _kernel_part(part, alone=len(parts) == 1)
    lines += ["", f"The fit: {count(record['steps'], 'step')}, {record['fit_seconds']:.1f} s.", record["fit_report"]]
    return "\n".join(lines)


UNIT_OF = {
    None: "in units of the target's variance",
    "classes": "of the log odds",
    "counts": "of the logarithm of the mean",
    "numbers": "in units of the target's spread, squared",
}


def _with_likelihood(record: dict[str, Any]) -> list[str]:
    """A target whose likelihood is not Gaussian."""
    (target,), entry = record["targets"], LIKELIHOODS[record["likelihood"]]
    shown = {"df": "degrees of freedom"}
    learned = [f"{shown.get(name, name)} {number(value)}" for name, value in record["likelihood_parameters"].items()]
    lines = [f"  {target['name']}: {'counts' if entry.targets == 'counts' else 'numbers'}"]
    if entry.targets == "numbers":
        lines[0] += f", median {number(target['mean'])}, spread (by absolute deviations) {number(target['std'])}"
    lines.append(f"  likelihood: {entry.words}{'; ' if learned else ''}{', '.join(learned)}")
    return lines + ([] if record["exposure"] is None else [f"  exposure: {record['exposure']}"])


def _listed(classes: list[Any]) -> str:
    return names([str(label) for label in classes], 12)


def _methods(record: dict[str, Any]) -> list[str]:
    """What was fitted; to each target where methods differ."""
    if len(set(record["methods"])) == 1:
        return [f"Method: {method_words(record['method'])}."]
    pairs = zip(record["targets"], record["methods"], strict=True)
    return [f"Method for {target['name']}: {method_words(method)}." for target, method in pairs]


def _holding(record: dict[str, Any]) -> str:
    trained = f"Trained on {count(record['train_rows'], 'row')}."
    if not record["holds_training_data"]:
        return f"{trained} It holds {count(record['inducing_points'], 'inducing point')}, and none of the rows."
    if record["regions"]:
        files = f"{record['file']}.region-1-of-{record['regions']} and so on, which belong to it"
        return f"{trained} It holds all of them in {count(record['regions'], 'file')}, {files}, as " + (
            f"{record['stored_dtype']}: share them as you would share these data."
        )
    every = "all" if record["rows_held"] == record["train_rows"] else f"{record['rows_held']:,}"
    where = f" in {record['file']}.rows, which belongs to it" if record["rows_beside"] else ""
    held = f"{every} of them{where}, as {record['stored_dtype']}"
    return f"{trained} It holds {held}: share it as you would share these data."


def _encoding(column: dict[str, Any]) -> str:
    missing = "; one more input says where it is missing" if column["missing"] else ""
    if column["kind"] != LEVELS:
        written = f", written as {column['format']}" if column["format"] else ""
        return WORDS[column["kind"]] + written + UNITS.get(column["kind"], "") + missing
    coded = "one 0/1 input" if len(column["levels"]) == 2 else "a 0/1 input for each"
    if column["common"]:
        coded = f"a 0/1 input for each of the {len(column['common'])} most frequent, and one for the others"
    return f"{count(len(column['levels']), 'level')} ({names(column['levels'], 6)}), {coded}{missing}"


def _kernel_part(part: dict[str, Any], alone: bool) -> list[str]:
    """The lengthscales, periods and other parameters of one kernel of a sum or product."""
    lines, inputs, kernel = [], part["inputs"], "" if alone else f" of {part['kernel']}"
    known = [e for e in part["lengthscales"] or [] if math.isfinite(e["lengthscale"])]
    if known:
        lines.append(
            f"Lengthscales{kernel}, the most relevant input first: how far one must go for the function to change"
        )
        width = max(len(e["name"]) for e in known)
        for e in sorted(known, key=lambda e: e["lengthscale_in_std"]):
            relative = number(e["lengthscale_in_std"])
            lines.append(f"  {e['name']:<{width}}  {number(e['lengthscale']):>12}  ({relative} standard deviations)")
    if part["own"]:
        stored = [f"{name} = {_values(value)}" for name, value in part["parameters"].items()]
        return [f"Parameters of {part['kernel']}, as stored: {', '.join(stored) or 'no parameters'}"]
    for name, value in part["parameters"].items():
        if name == "lengthscale" and part["lengthscales"]:
            continue
        if isinstance(value, list):
            lines.append(f"{name.capitalize()}{kernel}, {UNITS_OF.get(name, 'for inputs in standard deviations')}")
            width = max(map(len, inputs))
            lines += [f"  {i:<{width}}  {number(v):>12}" for i, v in zip(inputs, value, strict=True)]
        else:
            lines.append(
                f"{name.capitalize()}{kernel}{', in degrees' if name == 'lengthscale' else ''}: {number(value)}"
            )
    return lines


def _values(value: Any) -> str:
    if not isinstance(value, list):
        return number(value) if isinstance(value, float) else str(value)
    listed = [_values(item) for item in value[:MOST_VALUES]]
    return f"[{', '.join(listed)}{', ...' if len(value) > MOST_VALUES else ''}]"
