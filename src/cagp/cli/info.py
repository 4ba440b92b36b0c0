"""``cagp info``: what is in a model file."""

import argparse
import math
from datetime import datetime
from pathlib import Path
from typing import Any

from cagp import kernels
from cagp.cli.words import count, names, number, print_json, size
from cagp.data.encoding import WORDS
from cagp.estimators import GPRegressor, load
from cagp.estimators.saved import KIND, VERSION
from cagp.kernels import Kernel
from cagp.parameters import named_values
from cagp.posteriors import InducingPosterior
from cagp.report.words import METHODS
from cagp.storage import load_state

DESCRIPTION = """\
Say what is in a model file: where it comes from, what it was trained on and holds of it, its inputs, its
hyperparameters and the report of its fit. The whole file is read and its checksum verified; nothing in it is run."""

EPILOG = """\
examples:
  cagp info houses.cagp
  cagp info houses.cagp --json"""

KERNELS: dict[type[Kernel], str] = {
    kernels.RBF: "RBF (infinitely smooth functions)",
    kernels.Matern12: "Matern 1/2 (rough, continuous functions)",
    kernels.Matern32: "Matern 3/2 (once differentiable functions)",
    kernels.Matern52: "Matern 5/2 (twice differentiable functions)",
    kernels.RationalQuadratic: "rational quadratic (smooth functions on several scales)",
    kernels.Constant: "constant",
    kernels.Linear: "linear",
}


def add_to(command: argparse.ArgumentParser) -> None:
    """The options of ``cagp info``."""
    command.description, command.epilog = DESCRIPTION, EPILOG
    command.add_argument("model", type=Path, metavar="MODEL", help="a file that cagp fit wrote")
    command.add_argument("--json", action="store_true", help="print one JSON object on stdout")
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Read the file and say what is in it."""
    model, state = load(arguments.model), load_state(arguments.model, KIND, VERSION)
    record = _record(arguments.model, model, state)
    if arguments.json:
        print_json(record)
    else:
        print(_words(record))
    return 0


def _record(path: Path, model: GPRegressor, state: dict[str, Any]) -> dict[str, Any]:
    about = path.stat()
    held, prior = model.posteriors_[0].X, model.posteriors_[0].prior
    input_std, target_std = model.scaler_.input_std.numpy(), model.scaler_.target_std.numpy()
    lengthscales = model.lengthscales_
    inducing = isinstance(model.posteriors_[0], InducingPosterior)
    return {
        "file": str(path),
        "bytes": about.st_size,
        "written": datetime.fromtimestamp(about.st_mtime).astimezone().isoformat(timespec="seconds"),
        "checksum": "verified",
        "library_version": state["library"],
        "class": state["class"],
        "method": model.method_,
        "train_rows": model.n_rows_,
        "rows_held": 0 if inducing else len(held),
        "inducing_points": len(held) if inducing else 0,
        "holds_training_data": not inducing,
        "stored_dtype": state["stored_dtype"] or str(held.dtype).removeprefix("torch."),
        "inputs": state["encoder"]["columns"],
        "encoded_inputs": [
            {"name": str(name), "lengthscale": own * std, "lengthscale_in_std": own}
            for name, own, std in zip(model.feature_names_out_, lengthscales.tolist(), input_std.tolist(), strict=True)
        ],
        "targets": [
            {"name": name, "mean": mean, "std": std, "noise_std": noise}
            for name, mean, std, noise in zip(
                model.target_names_,
                model.scaler_.target_mean.tolist(),
                target_std.tolist(),
                model.noise_std_.tolist(),
                strict=True,
            )
        ],
        "kernel": kernel_words(prior.kernel),
        "hyperparameters": named_values(prior),
        "fit_report": model.fit_report_,
        "fit_seconds": model.fit_result_.seconds,
        "steps": len(model.fit_result_.steps),
    }


def kernel_words(kernel: Kernel) -> str:
    """A kernel in words, e.g. "0.8 x Matern 3/2 (...)"; amplitudes are in units of the targets' variance."""
    if isinstance(kernel, kernels.Scale):
        return f"{number(float(kernel.outputscale.detach()))} x {kernel_words(kernel.kernel)}"
    if isinstance(kernel, kernels.Sum | kernels.Product):
        joint = " + " if isinstance(kernel, kernels.Sum) else " x "
        return f"({joint.join(kernel_words(part) for part in kernel.parts)})"
    return KERNELS.get(type(kernel), type(kernel).__name__)


def _words(record: dict[str, Any]) -> str:
    lines = [
        f"{record['file']}: {size(record['bytes'])}, written {record['written']}, checksum verified",
        f"Saved by cagp {record['library_version']} from a {record['class']}.",
        "",
        f"Method: {METHODS.get(record['method'], record['method'])}.",
        _holding(record),
        "",
        f"{'Target' if len(record['targets']) == 1 else 'Targets'}:",
    ]
    for target in record["targets"]:
        lines.append(
            f"  {target['name']}: mean {number(target['mean'])}, standard deviation {number(target['std'])}; "
            f"standard deviation of its noise {number(target['noise_std'])}"
        )
    lines += ["", f"{count(len(record['inputs']), 'input')}:"]
    lines += [f"  {column['name']}: {_encoding(column)}" for column in record["inputs"]]
    lines += ["", f"Kernel, in units of the target's variance: {record['kernel']}."]
    known = [e for e in record["encoded_inputs"] if math.isfinite(e["lengthscale"])]
    if known:
        lines.append("Lengthscales, the most relevant input first: how far one must go for the function to change")
        width = max(len(e["name"]) for e in known)
        for e in sorted(known, key=lambda e: e["lengthscale_in_std"]):
            relative = number(e["lengthscale_in_std"])
            lines.append(f"  {e['name']:<{width}}  {number(e['lengthscale']):>12}  ({relative} standard deviations)")
    lines += ["", f"The fit: {count(record['steps'], 'step')}, {record['fit_seconds']:.1f} s.", record["fit_report"]]
    return "\n".join(lines)


def _holding(record: dict[str, Any]) -> str:
    trained = f"Trained on {count(record['train_rows'], 'row')}."
    if not record["holds_training_data"]:
        return f"{trained} It holds {count(record['inducing_points'], 'inducing point')}, and none of the rows."
    every = "all" if record["rows_held"] == record["train_rows"] else f"{record['rows_held']:,}"
    return f"{trained} It holds {every} of them, as {record['stored_dtype']}: share it as you would share these data."


def _encoding(column: dict[str, Any]) -> str:
    if column["kind"] != "levels":
        return WORDS[column["kind"]] + {"datetime": ", as days since 1970", "timedelta": ", as days"}.get(
            column["kind"], ""
        )
    coded = "one 0/1 input" if len(column["levels"]) == 2 else "a 0/1 input for each"
    return f"{count(len(column['levels']), 'level')} ({names(column['levels'], 6)}), {coded}"
