"""Sections on the model: its data, its training, which inputs matter, and its settings."""

from collections.abc import Sequence
from functools import partial
from html import escape
from importlib.metadata import version

import numpy as np

from cagp import plots
from cagp.estimators.overlap import Overlap
from cagp.plots import shortened
from cagp.recipes import method_words
from cagp.report.accuracy import MAX_TARGETS
from cagp.report.html import count, number, side_by_side, table, text
from cagp.report.input_effects import varying
from cagp.report.leakage import tested_rows
from cagp.report.rows import HeldOutRows, column_names
from cagp.report.subject import AnyModel, Model, PipelineModel
from cagp.report.svg import HEIGHT, Drawing, listed
from cagp.report.targets import Target

TOP_INPUTS = 20


def data_and_model(model: Model, rows: HeldOutRows, targets: Sequence[Target], overlap: Overlap) -> list[str]:
    """What the model was trained and tested on, and which method was fitted."""
    columns = column_names(rows.X)
    encoded = len(model.feature_names_out_)
    coded = "" if encoded == len(columns) else f" (encoded as {encoded} numbers)"
    unit = ", in its own unit" if len(targets) == 1 else ", each in its own unit"
    ranges = "; ".join(
        f"{text(t.name, 60)} ranges from {number(float(t.y.min()))} to {number(float(t.y.max()))}"
        for t in targets[:MAX_TARGETS]
    )
    if isinstance(model, PipelineModel):
        coded = f" (which the earlier steps of a pipeline turn into {encoded} numbers)"
    sentences = [
        f"The model was trained on {count(model.n_rows_, 'row')} and is tested on {tested_rows(overlap)} "
        f"It predicts {count(len(targets), 'target')} from {count(len(columns), 'input')}{coded}: "
        f"{text(listed(columns), 320)}. Among the test rows, {ranges}{unit}."
    ]
    if rows.num_missing:
        verb = "was" if rows.num_missing == 1 else "were"
        sentences.append(f"{count(rows.num_missing, 'row')} without a target {verb} left out.")
    if len(rows.y) < rows.num_given - rows.num_missing:
        sentences.append(f"The tested rows were drawn at random from {rows.num_given - rows.num_missing:,}.")
    fitted = f"The fitted model is {text(method_words(model.method_), 400)}."
    if model.choice_ is not None:
        fitted += f" {text(model.choice_, 400)}"
    return [f"<p>{' '.join(sentences)}</p>", f"<p>{fitted}</p>"]


def learning_curves(draw: Drawing, model: AnyModel) -> list[str]:
    """The loss against training time, and evaluations if there are any."""
    result = model.fit_result_
    steps = [] if result is None else [step for step in result.steps if np.isfinite(step.loss)]
    if result is None or not steps:
        return ["<p>The model has no record of its training.</p>"]
    seconds, losses = np.array([s.seconds for s in steps], float), np.array([s.loss for s in steps], float)
    drawn = [
        draw(
            lambda ax: plots.learning_curve(ax, seconds, losses),
            f"Loss against training time: from {losses[0]:.4g} to {losses[-1]:.4g} in {len(steps)} steps.",
            "The loss that was minimised; lower is better. It should be flat at the end. The first twentieth of the "
            "steps may lie above the frame.",
        )
    ]
    evaluated = [(step.seconds, step.evaluation) for step in steps if step.evaluation]
    for name in dict.fromkeys(key for _, values in evaluated for key in values):
        points = [(seconds, values[name]) for seconds, values in evaluated if values.get(name) is not None]
        if points:
            times, values = (np.array(column, float) for column in zip(*points, strict=True))
            drawn.append(
                draw(
                    partial(plots.learning_curve, seconds=times, losses=values, ylabel=shortened(name)),
                    f"Evaluation {name} against training time.",
                    f"{text(name)} on the rows it was evaluated on.",
                )
            )
    cells = [
        ["Steps", f"{len(steps):,}"],
        ["Seconds", number(float(result.seconds))],
        ["Loss at the start", number(float(losses[0]))],
        ["Lowest loss", number(float(losses.min()))],
        [
            "Parameters kept",
            f"those of step {result.best_step:,}" if result.best_step <= len(steps) else "those at the end",
        ],
    ]
    return [
        f"<p>{text(result.reason, 400)}</p>",
        side_by_side(*drawn, table(["Training", "Value"], cells, "Training in numbers.")),
    ]


def relevance_figure(draw: Drawing, model: AnyModel, rows: HeldOutRows) -> list[str]:
    """1 / lengthscale of the inputs that matter most."""
    kept = varying(model, rows)
    names = [str(name) for name, keep in zip(model.feature_names_out_, kept, strict=True) if keep]
    lengthscales = np.asarray(model.lengthscales_, float).ravel()[kept]
    if not np.isfinite(lengthscales).all():
        return ["<p>The kernel does not have a lengthscale for each input, so inputs cannot be compared.</p>"]
    number_shown = min(TOP_INPUTS, len(names))
    best = int(lengthscales.argmin())
    height = max(1.6, 0.75 + 0.2 * number_shown)
    shown = f"The {number_shown} most relevant of {len(names)} inputs. " if number_shown < len(names) else ""
    if not kept.all():
        constant = int((~kept).sum())
        shown += (
            f"Left out: {count(constant, 'input')} that {'does' if constant == 1 else 'do'} not vary in the test rows."
        )
    order = np.argsort(lengthscales, kind="stable")[:number_shown]
    cells = [[text(names[k], 80), number(float(lengthscales[k]))] for k in order[:10]]
    return [
        "<p>The lengthscale of an (encoded) input is the distance along it, in standard deviations of the input, over "
        "which the function changes substantially. Bars show its inverse: the longer, the faster the function varies "
        "with the input. That is not how much an input matters: see the importance of columns.</p>",
        side_by_side(
            draw(
                lambda ax: plots.relevance(ax, names, lengthscales, TOP_INPUTS),
                f"Relevance of {number_shown} inputs; the most relevant is {names[best]}.",
                shown,
                min(height, 4.9) if number_shown > 3 else HEIGHT * 0.6,
            ),
            table(["Input", "Lengthscale"], cells, "In standard deviations of the input."),
        ),
    ]


def kernel_table(model: Model) -> list[str]:
    """What every part of a sum or product of kernels has learned; nothing if the kernel has one part."""
    parts = model.kernel_parts_
    if len(parts) < 2:
        return []
    cells, notes = [], []
    for part in parts:
        cells.append([text(part["kernel"], 80), number(float(part["outputscale"]))])
        learned = [
            f"{what} {text(entry['name'], 40)} {number(float(entry[what]))}"
            for what in ("lengthscale", "period")
            for entry in part[f"{what}s"] or []
            if np.isfinite(entry[what])
        ]
        more = f" and {len(learned) - TOP_INPUTS} more" if len(learned) > TOP_INPUTS else ""
        seen = f"Sees {text(listed(part['inputs']), 320)}"
        notes.append(f"{seen}: {', '.join(learned[:TOP_INPUTS])}{more}" if learned else seen)
    caption = (
        "The parts of the kernel. Scales are in units of the target's variance, lengthscales and periods in the units "
        "of the inputs."
    )
    return [table(["Part", "Scale"], cells, caption, notes)]


def fit_and_settings(model: AnyModel) -> list[str]:
    """The fit report and all settings of the model."""
    lines = [line.strip() for line in str(model.fit_report_).splitlines() if line.strip()]
    items = "".join(f"<li>{text(line, 1000)}</li>" for line in lines)
    settings = [
        [f"<code>{escape(name)}</code>", text(repr(value), 300)] for name, value in sorted(model.get_params().items())
    ]
    kind = "Classifier" if hasattr(model, "classes_") else "Regressor"
    facts = [[kind, text(type(model).__name__)], ["Library", f"cagp {version('cagp')}"]]
    return [
        f'<ul class="plain">{items}</ul>',
        table(["Setting", "Value"], [*facts, *settings], f"Settings of the {kind.lower()}", kind="words"),
    ]
