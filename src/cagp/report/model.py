"""What the sections on the fitted model show, the same for regressors and classifiers."""

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import numpy as np
from markupsafe import Markup

from cagp.plots import Vector
from cagp.recipes import method_words
from cagp.report.columns import InputColumn
from cagp.report.page import fixed, listed, number, text
from cagp.report.subject import Subject

TOP_INPUTS, NOTED_INPUTS = 20, 6


def model_values(subject: Subject, tested_on: str, goal: str, **values: Any) -> dict[str, dict[str, Any]]:
    """The values of the sections on the data, the lengthscales, the training and the fit."""
    model = subject.model
    method = method_words(model.method_)
    data = {"subject": subject, "tested_on": tested_on, "goal": goal, "method": method, "ranges": [], "trees": []}
    return {
        "data": data | values,
        "relevance": relevance_of(subject),
        "learning": learning_of(model.fit_result_),
        "fit": {"model": model, "tried": tried(model), "settings": settings_of(model)},
    }


def varying(subject: Subject) -> np.ndarray:
    """Which encoded inputs vary among the test rows; all of them if none does.

    The lengthscale of an input that is constant in training remains at its starting value and means nothing.
    """
    encoder, codes = subject.encoded_rows
    inputs = encoder.expand(codes)
    varies = np.array([len(np.unique(column[np.isfinite(column)])) > 1 for column in inputs.T])
    return varies if varies.any() else np.ones_like(varies)


def relevance_of(subject: Subject) -> dict[str, Any]:
    """Inputs that vary and their lengthscales, the shortest first."""
    model, kept = subject.model, varying(subject)
    lengthscales = np.asarray(model.lengthscales_, float).ravel()[kept]
    order = np.argsort(lengthscales, kind="stable")
    names = [str(name) for name in np.asarray(model.feature_names_out_)[kept][order]]
    lengthscales = lengthscales[order] if np.isfinite(lengthscales).all() else None
    rows = [] if lengthscales is None else zip(names[:10], lengthscales, strict=False)
    return {
        "names": names,
        "lengthscales": lengthscales,
        "num_constant": int((~kept).sum()),
        "rows": [(text(name, 80), number(float(value))) for name, value in rows],
        "kernel": [kernel_row(part) for part in model.kernel_parts_] if len(model.kernel_parts_) > 1 else [],
    }


def kernel_row(part: dict[str, Any]) -> tuple[tuple[Any, str], str]:
    """A part of a kernel and its scale, and a note on what it sees and has learned."""
    learned = [
        f"{what} {entry['name']} {number(float(entry[what]))}"
        for what in ("lengthscale", "period")
        for entry in part[f"{what}s"] or []
        if np.isfinite(entry[what])
    ]
    more = f" and {len(learned) - TOP_INPUTS} more" if len(learned) > TOP_INPUTS else ""
    seen = f"Sees {listed(part['inputs'])}"
    note = f"{seen}: {', '.join(learned[:TOP_INPUTS])}{more}" if learned else seen
    return (text(part["kernel"], 80), number(float(part["outputscale"]))), text(note, 2000)


def inputs_of(columns: Sequence[InputColumn], row: int) -> Markup:
    """The values of one row in the first of these columns, as a note below a table's row."""
    pairs = ((text(column.name, 30), text(column.shown(row), 30)) for column in columns[:NOTED_INPUTS])
    return Markup(", ").join(Markup(" ").join(pair) for pair in pairs)


def learning_of(result: Any) -> dict[str, Any]:
    """The loss and the evaluations against training time."""
    steps = [] if result is None else [step for step in result.steps if np.isfinite(step.loss)]
    evaluated = [(step.seconds, step.evaluation) for step in steps if step.evaluation]
    evaluations: dict[str, tuple[Vector, Vector]] = {}
    for name in dict.fromkeys(key for _, values in evaluated for key in values):
        points = np.array([(at, values[name]) for at, values in evaluated if values.get(name) is not None], float)
        if len(points):
            evaluations[name] = points[:, 0], points[:, 1]
    seconds, losses = (np.array([getattr(step, name) for step in steps], float) for name in ("seconds", "loss"))
    return {"result": result, "seconds": seconds, "losses": losses, "evaluations": evaluations}


def tried(model: Any) -> list[tuple[Any, ...]]:
    """A row for every model that "auto" compared, with its target if these differ; nothing if none was compared."""
    trials = getattr(model, "choices_", [])
    if len(trials) < 2:
        return []
    targets, rows = [trial.get("target") for trial in trials], []
    for target, trial in zip(targets, trials, strict=True):
        cells = ["–"] * 4
        if "nll" in trial:
            gain = "–" if trial["gain"] is None else f"{fixed(trial['gain'], 3, '+')} ± {fixed(trial['gain_error'], 3)}"
            cells = [number(trial["nll"]), number(trial["crps"]), gain, number(trial["seconds"])]
        first = [text(str(target), 60)] if len(set(targets)) > 1 else []
        rows.append((*first, text(trial["model"], 120), *cells, text(trial["outcome"], 80)))
    return rows


def settings_of(model: Any) -> list[tuple[Any, Any]]:
    """All parameters of the estimator, and what it is."""
    facts = [("Estimator", text(type(model).__name__)), ("Library", f"cagp {version('cagp')}")]
    return [*facts, *((name, text(repr(value), 300)) for name, value in sorted(model.get_params().items()))]
