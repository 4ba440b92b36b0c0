"""The report's sections, from the data to the settings, in words and figures."""

from collections.abc import Sequence
from datetime import datetime
from functools import partial
from html import escape
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

from cagp import plots
from cagp.plots import Z95, shortened
from cagp.report import evidence
from cagp.report.evidence import Answers, Components, Effect, Rows, Scores, Surface
from cagp.report.figures import HEIGHT, Drawing, common_limits, listed
from cagp.report.page import count, figures, number, page, section, share, table, text, tiles
from cagp.storage import write_atomically

MAX_TARGETS = 12
"""Targets with sections of their own; the others are in the table of all targets."""

TOP_INPUTS = 20

METHODS = {
    "exact": "an exact Gaussian process (Cholesky factorisation)",
    "opt": "CaGP-Opt, a computation-aware Gaussian process with learned actions",
    "cg": "CaGP-CG, a computation-aware Gaussian process with the actions of conjugate gradients",
    "local": "CaGP-Local, which answers every question from its nearest rows",
    "hybrid": "the hybrid of CaGP-Local and shared actions",
    "sgpr": "SGPR, a Gaussian process seen through inducing points",
    "svgp": "SVGP, a variational Gaussian process with inducing points",
    "cggp": "an exact Gaussian process with solves by conjugate gradients",
}
KINDS = {
    "exact": "The computational part is exact: it was computed with all training rows.",
    "estimate": "The computational part is an estimate from below: what many more of the nearest rows would remove.",
}


class Target(NamedTuple):
    """All that is said of one target."""

    name: str
    number: int  # from 0
    y: np.ndarray
    mean: np.ndarray
    std: np.ndarray
    scores: Scores
    baseline: Scores


def write_report(
    model: Any,
    X_test: Any,
    y_test: Any,
    path: str | Path,
    *,
    title: str | None = None,
    max_rows: int | None = 20_000,
) -> Path:
    """Write one HTML file on how well a fitted model predicts test rows, and why; return its path.

    The file needs no network and no scripts, follows the reader's light or dark scheme, prints, and is written whole or
    not at all. Its folder is made where it does not exist.

    Args:
        model: a fitted regressor of ``cagp``.
        X_test: inputs that it was not trained on; rows with a missing target are left out, and the report says so.
        path: of the file, e.g. "report.html".
        title: the heading; names the targets unless given.
        max_rows: rows that are tested; of more, so many are drawn at random. None for all.

    Time: predictions of these rows and of about 5,000 more, and the parts of the variance of 300.
    """
    path = Path(path)
    if path.is_dir():
        raise ValueError(f"path is the folder {path}, expected a file, e.g. {path / 'report.html'}.")
    rows = evidence.test_rows(model, X_test, y_test, max_rows)
    names = [str(name) for name in model.target_names_]
    answers = evidence.ask(model, rows.X)
    targets = [_target(model, j, name, rows, answers) for j, name in enumerate(names)]
    parts, learned, draw = evidence.components(model, rows), evidence.learned(model, rows), Drawing()

    shown, several = targets[:MAX_TARGETS], len(targets) > 1
    data = section(2, "data", "Data and model", *_data(model, rows, targets))
    learning = section(2, "learning", "Learning curve", *_learning(model, draw))
    relevance = section(2, "relevance", "Which inputs matter", *_relevance(model, rows, draw))
    fit = section(2, "fit", "The fit", *_fit(model))
    links = [("data", "Data")]
    if several:
        own = [_whole_target(draw, target, parts, learned) for target in shown]
        main = [data, section(2, "targets", "All targets", _overview(targets)), learning, relevance, *own, fit]
        links += [("targets", "All targets"), ("learning", "Learning"), ("relevance", "Inputs")]
        links += [(f"target-{t.number + 1}", shortened(t.name, 24)) for t in shown]
    else:
        metrics, errors, calibration, uncertainty, effects = _of_target(draw, targets[0], parts, learned, 2, "")
        main = [data, metrics, learning, errors, calibration, uncertainty, relevance, effects, fit]
        links += [
            ("metrics", "Metrics"),
            ("learning", "Learning"),
            ("errors", "Errors"),
            ("calibration", "Calibration"),
        ]
        links += [("uncertainty", "Uncertainty"), ("relevance", "Inputs"), ("effects", "Effects")]
    links.append(("fit", "Fit"))
    heading = f"Predicting {listed(names)}" if title is None else title
    header = "\n".join([f"<h1>{text(heading, 300)}</h1>", *_summary(targets), _key_numbers(targets)])
    footer = f"Written by cagp {version('cagp')} on {datetime.now().astimezone():%Y-%m-%d %H:%M %Z}."
    html = page(heading, header, links, "\n".join(part for part in main if part), footer)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, html.encode("utf-8", errors="replace"))
    return path


def _target(model: Any, j: int, name: str, rows: Rows, answers: Answers) -> Target:
    y, mean, std = (np.ascontiguousarray(part[:, j]) for part in (rows.y, answers.mean, answers.std))
    return Target(name, j, y, mean, std, evidence.scores(y, mean, std), evidence.baseline(model, j, y))


def _of_target(
    draw: Drawing, target: Target, parts: Components, learned: list[Effect] | Surface, level: int, prefix: str
) -> list[str]:
    """The sections on one target: metrics, errors, calibration, uncertainty, effects."""
    return [
        section(level, f"{prefix}metrics", "How good the predictions are", *_metrics(target)),
        section(level, f"{prefix}errors", "Actual against predicted values", *_errors(draw, target)),
        section(level, f"{prefix}calibration", "Are the error bars right?", *_calibration(draw, target)),
        section(level, f"{prefix}uncertainty", "Where the uncertainty comes from", *_uncertainty(draw, target, parts)),
        section(level, f"{prefix}effects", "What the inputs do", *_effects(draw, target, learned)),
    ]


def _whole_target(draw: Drawing, target: Target, parts: Components, learned: list[Effect] | Surface) -> str:
    prefix = f"target-{target.number + 1}"
    return section(2, prefix, text(target.name), *_of_target(draw, target, parts, learned, 3, f"{prefix}-"))


# ---- at the top ----


def _summary(targets: Sequence[Target]) -> list[str]:
    if len(targets) > 1:
        right = sum(_verdict(t) == "as promised" for t in targets)
        return [
            f'<p class="lead">{count(len(targets), "target")} on {count(len(targets[0].y), "test row")}. The 95 % '
            f"intervals hold what they promise, up to chance, for {right} of {len(targets)}.</p>"
        ]
    (target,) = targets
    found, base = target.scores, target.baseline
    return [
        f'<p class="lead">On {count(len(target.y), "test row")}, predictions of {text(target.name, 60)} are off by '
        f"{number(found.rmse)} (root mean square; always predicting the training mean: {number(base.rmse)}). "
        f"The 95 % intervals hold {share(found.coverage)} of the actual values: {_verdict(target)}.</p>"
    ]


def _key_numbers(targets: Sequence[Target]) -> str:
    if len(targets) > 1:
        return ""
    found, base = targets[0].scores, targets[0].baseline
    low, high = evidence.chance(0.95, len(targets[0].y))
    return tiles(
        [
            ("RMSE", number(found.rmse), f"baseline {number(base.rmse)}"),
            ("R²", f"{found.r2:.3f}" if np.isfinite(found.r2) else "–", "1 is perfect"),
            ("95 % coverage", share(found.coverage), f"by chance {100 * low:.1f} to {share(high)}"),
            ("Negative log-likelihood", number(found.nll), f"baseline {number(base.nll)}"),
        ]
    )


def _verdict(target: Target) -> str:
    """Whether the coverage of 95 % intervals differs from 95 % by more than chance explains."""
    low, high = evidence.chance(0.95, len(target.y))
    observed = target.scores.coverage
    if low <= observed <= high:
        return "as promised"
    slightly = "slightly " if abs(observed - 0.95) < 0.02 else ""
    return f"the intervals are {slightly}too {'narrow' if observed < low else 'wide'}"


# ---- the data and the model ----


def _data(model: Any, rows: Rows, targets: Sequence[Target]) -> list[str]:
    columns = evidence.column_names(rows.X)
    encoded = len(model.feature_names_out_)
    coded = "" if encoded == len(columns) else f" (encoded as {encoded} numbers)"
    unit = ", in its own unit" if len(targets) == 1 else ", each in its own unit"
    ranges = "; ".join(
        f"{text(t.name, 60)} goes from {number(float(t.y.min()))} to {number(float(t.y.max()))}"
        for t in targets[:MAX_TARGETS]
    )
    sentences = [
        f"The model was trained on {count(model.n_rows_, 'row')} and is tested on {count(len(rows.y), 'other row')}. "
        f"It predicts {count(len(targets), 'target')} from {count(len(columns), 'input')}{coded}: "
        f"{text(listed(columns), 320)}. Among the test rows, {ranges}{unit}."
    ]
    if rows.num_missing:
        verb = "was" if rows.num_missing == 1 else "were"
        sentences.append(f"{count(rows.num_missing, 'row')} without a target {verb} left out.")
    if len(rows.y) < rows.num_given - rows.num_missing:
        sentences.append(f"The tested rows were drawn at random from {rows.num_given - rows.num_missing:,}.")
    reasons = [line for line in str(model.fit_report_).splitlines() if line.startswith("Chose ")]
    fitted = (
        f"Fitted: {METHODS.get(model.method_, text(model.method_))}. {' '.join(text(line, 400) for line in reasons)}"
    )
    return [f"<p>{' '.join(sentences)}</p>", f"<p>{fitted}</p>"]


def _overview(targets: Sequence[Target]) -> str:
    cells = [
        [
            text(t.name) if t.number >= MAX_TARGETS else f'<a href="#target-{t.number + 1}">{text(t.name)}</a>',
            number(t.scores.rmse),
            f"{t.scores.r2:.3f}" if np.isfinite(t.scores.r2) else "–",
            number(t.scores.nll),
            share(t.scores.coverage),
        ]
        for t in targets
    ]
    caption = "RMSE in the unit of each target, NLL in nats per row: lower is better. R²: higher is better."
    if len(targets) > MAX_TARGETS:
        caption += f" The first {MAX_TARGETS} targets have sections of their own."
    return table(["Target", "RMSE", "R²", "NLL", "95 % coverage"], cells, caption, kind="dense")


# ---- one target ----


def _metrics(target: Target) -> list[str]:
    found, base, unit = target.scores, target.baseline, f"unit of {text(target.name, 40)}"
    low, high = evidence.chance(0.95, len(target.y))
    words = {
        "NLL": (
            "Negative log-likelihood, nats per row; lower is better. How surprising the actual values are, given "
            "predictions and error bars. Another unit of the target would shift it.",
            (number(found.nll), number(base.nll)),
        ),
        "RMSE": (
            f"Root mean squared error, {unit}; lower is better. Large errors count most.",
            (number(found.rmse), number(base.rmse)),
        ),
        "R²": (
            "Share of the variance explained, no unit; higher is better. 1 is perfect, 0 is predicting the mean of the "
            "test rows.",
            tuple(f"{v:.4f}".replace("-", "−") if np.isfinite(v) else "–" for v in (found.r2, base.r2)),
        ),
        "CRPS": (
            f"Continuous ranked probability score, {unit}; lower is better. The absolute error, for predictions with "
            "error bars.",
            (number(found.crps), number(base.crps)),
        ),
        "95 % coverage": (
            f"Share of actual values inside the 95 % interval; closer to 95 % is better. Chance alone would put it "
            f"between {share(low)} and {share(high)}. Here: {_verdict(target)}.",
            (share(found.coverage), share(base.coverage)),
        ),
        "95 % width": (
            f"Mean width of the 95 % intervals, {unit}; narrower is better, where the coverage is as good.",
            (number(found.width), number(base.width)),
        ),
    }
    cells = [[name, *values] for name, (_, values) in words.items()]
    notes = [note for note, _ in words.values()]
    caption = (
        f"On {count(len(target.y), 'test row')}. The baseline predicts the mean of the training targets for every row, "
        "with their standard deviation."
    )
    return [table(["Metric", "Model", "Baseline"], cells, caption, notes)]


def _errors(draw: Drawing, target: Target) -> list[str]:
    y, mean, std = target.y, target.mean, target.std
    many = len(y) > 300
    caption = (
        "The stronger the colour, the more rows (logarithmic). The lines are 95 % intervals, averaged over rows with "
        "similar predictions: about one row in 20 belongs outside."
        if many
        else "Each row on its own 95 % interval; about one in 20 belongs outside."
    )
    alt = f"Actual over predicted values of {target.name}, {len(y)} rows; R squared {target.scores.r2:.3f}."
    error = y - mean
    worst = int(np.abs(error).argmax())
    quantiles = np.quantile(np.abs(error), [0.5, 0.9])
    cells = {
        "Median absolute error": (float(quantiles[0]), "half of the rows are closer"),
        "90 % quantile of absolute errors": (float(quantiles[1]), "one row in ten is further off"),
        "Largest absolute error": (
            float(np.abs(error[worst])),
            f"predicted {number(float(mean[worst]))}, actual {number(float(y[worst]))}",
        ),
        "Mean error": (float(error.mean()), "actual minus predicted; near 0 is unbiased"),
    }
    return [
        "<p>Right predictions lie on the dashed diagonal.</p>",
        figures(
            draw(
                lambda ax: plots.predicted_against_actual(ax, y, mean, std, shortened(target.name, 22)),
                alt,
                caption,
                3.2,
            ),
            table(
                ["Error", "Value"],
                [[name, number(value)] for name, (value, _) in cells.items()],
                "In the unit of the target.",
                [note for _, note in cells.values()],
            ),
        ),
    ]


def _calibration(draw: Drawing, target: Target) -> list[str]:
    data = (target.y, target.mean, target.std)
    error, by_chance = evidence.coverage_error(*data)
    pictures = figures(
        draw(
            lambda ax: plots.calibration_curve(ax, *data),
            f"Observed against promised coverage of central intervals for {target.name}.",
            "Below the diagonal, intervals hold fewer values than they promise: too narrow. Above: too wide.",
        ),
        draw(
            lambda ax: plots.pit_histogram(ax, *data),
            f"Histogram of the probability integral transform for {target.name}.",
            "Flat is right. A U: error bars too narrow. A hill: too wide. A slope: predictions too high or too low.",
        ),
    )
    return [
        "<p>A 95 % interval should hold 95 % of the actual values, a 50 % interval half of them. The grey bands are "
        "where chance alone would leave each point or bar 19 times in 20, were the rows independent. Over 19 levels, "
        f"promised and observed coverage differ by {share(error)} on average; chance alone would leave about "
        f"{share(by_chance)}.</p>",
        pictures,
    ]


def _uncertainty(draw: Drawing, target: Target, parts: Components) -> list[str]:
    noise, latent = parts.noise[:, target.number], parts.latent[:, target.number]
    computational = None if parts.computational is None else parts.computational[:, target.number]
    stacked = plots.variance_parts(noise, latent, computational)
    means = np.array([part.variance.clip(0).mean() for part in stacked])
    remedies = {
        "noise": "scatter of the target about the function; stays, whatever is done",
        "data": "what the training rows leave open; more rows would lower it",
        "data and computation": "what training rows and approximation leave open together",
        "computation": "what was not computed; more actions or neighbours would lower it",
    }
    cells = [
        [
            part.name.capitalize(),
            number(float(np.sqrt(mean))),
            plots.percent(float(mean / means.sum())),
        ]
        for part, mean in zip(stacked, means, strict=True)
    ]
    kind = KINDS.get(parts.kind, "This method does not say how much of its uncertainty is due to its approximation.")
    words = ", ".join(
        f"{part.name} {plots.percent(float(m / means.sum()))}" for part, m in zip(stacked, means, strict=True)
    )
    caption = f"Means over {count(len(noise), 'test row')}. Variances add up; standard deviations do not."
    return [
        f"<p>The variance of a prediction is a sum of parts. {kind}</p>",
        figures(
            draw(
                lambda ax: plots.variance_shares(ax, stacked),
                f"Shares of the predictive variance: {words}.",
                height=2.4,
            ),
            draw(
                lambda ax: plots.variance_by_certainty(ax, stacked),
                "Shares of the predictive variance, from the most certain to the least certain rows.",
                "Rows from the most to the least certain, in groups of equal size.",
                2.4,
            ),
        ),
        table(
            ["Part", "Standard deviation", "Share of variance"],
            cells,
            caption,
            [remedies[part.name] for part in stacked],
        ),
    ]


def _effects(draw: Drawing, target: Target, learned: list[Effect] | Surface) -> list[str]:
    j, name = target.number, shortened(target.name, 28)
    if isinstance(learned, Surface):
        return _maps(draw, target, learned)
    if not learned:
        return ["<p>No input varies among the test rows, or can be drawn.</p>"]
    if learned[0].num_background == 0:
        picture = draw(
            partial(_only, target=target, effect=learned[0]), f"{name} over {learned[0].axis.name}.", "", 3.2
        )
        return [
            figures(
                picture,
                "<p>The prediction over the only input, inside the range of the test rows. The shaded band holds the "
                "function with probability 95 %, the dashed lines a new observation.</p>",
            )
        ]
    limits = common_limits(
        [float((e.mean - Z95 * e.std)[:, j].min()) for e in learned],
        [float((e.mean + Z95 * e.std)[:, j].max()) for e in learned],
    )

    def one(ax: Axes, effect: Effect) -> None:
        _one_effect(ax, effect, j)
        ax.set_ylim(limits)
        ax.set_ylabel(shortened(target.name, 26), parse_math=False)

    drawn = [
        draw(partial(one, effect=e), f"Partial effect of {e.axis.name} on {name}, with a 95 % band.", "", 2.4)
        for e in learned
    ]
    which = "The input" if len(learned) == 1 else f"The {len(learned)} most relevant inputs"
    return [
        f"<p>{which} that can be drawn. A line is the mean prediction if each of "
        f"{count(learned[0].num_background, 'test row')}, drawn at random, had this value of the input and kept its "
        "other inputs. Its band is ± 1.96 times the mean standard deviation of the function (without noise) at these "
        "rows: at least as wide as the 95 % interval of the mean that is drawn. Inputs go from the 1 % to the 99 % "
        "quantile of the test rows; marks below are test rows. All figures share one vertical scale. Where inputs go "
        "together, some of these combinations never occur.</p>",
        figures(*drawn),
    ]


def _one_effect(ax: Axes, effect: Effect, j: int) -> None:
    axis = effect.axis
    if axis.kind == "levels":
        plots.category_effect(ax, [str(n) for n in axis.nodes], effect.mean[:, j], effect.std[:, j], axis.name)
        return
    marks = axis.rows[evidence.sample(len(axis.rows), 80)]
    marks = marks[(marks >= axis.values[0]) & (marks <= axis.values[-1])]
    plots.effect(ax, axis.values, effect.mean[:, j], effect.std[:, j], marks, axis.name)
    if axis.kind == "date":
        _dates(ax)


def _only(ax: Axes, target: Target, effect: Effect) -> None:
    axis, j = effect.axis, target.number
    if axis.kind == "levels":
        _one_effect(ax, effect, j)
    else:
        chosen = evidence.sample(len(target.y), 2000)
        points = axis.rows[chosen], target.y[chosen]
        moments = effect.mean[:, j], effect.std[:, j], effect.observation_std[:, j]
        plots.fit_in_one_input(ax, axis.values, *moments, points, axis.name)
        if axis.kind == "date":
            _dates(ax)
    ax.set_ylabel(shortened(target.name, 26), parse_math=False)


def _dates(ax: Axes) -> None:
    locator = AutoDateLocator(maxticks=6)
    ax.xaxis.set_major_locator(locator)
    ax.xaxis.set_major_formatter(ConciseDateFormatter(locator))


def _maps(draw: Drawing, target: Target, learned: Surface) -> list[str]:
    (first, second), j = learned.axes, target.number
    chosen = evidence.sample(len(target.y), 600)
    points = first.rows[chosen], second.rows[chosen]

    def one(ax: Axes, values: np.ndarray, label: str, colors: Any) -> None:
        names = first.name, second.name
        plots.surface(ax, first.values, second.values, values, label, colors, points, names)

    name = shortened(target.name, 24)
    drawings = [("prediction", learned.mean, name, plots.VALUE_COLORS)]
    drawings += [("standard deviation", learned.std, f"std of {name}", plots.STD_COLORS)]
    return [
        "<p>The prediction over both inputs, and the standard deviation of the function (without noise): bright is "
        "where the model knows least. Dots are test rows.</p>",
        figures(
            *(
                draw(
                    partial(one, values=values[:, :, j], label=label, colors=colors),
                    f"Map of the {what} of {target.name} over {first.name} and {second.name}.",
                    what.capitalize(),
                    3.1,
                )
                for what, values, label, colors in drawings
            )
        ),
    ]


# ---- the model ----


def _learning(model: Any, draw: Drawing) -> list[str]:
    result = model.fit_result_
    steps = [] if result is None else [step for step in result.steps if np.isfinite(step.loss)]
    if result is None or not steps:
        return ["<p>Nothing was recorded of the training.</p>"]
    seconds, losses = np.array([s.seconds for s in steps], float), np.array([s.loss for s in steps], float)
    drawn = [
        draw(
            lambda ax: plots.learning_curve(ax, seconds, losses),
            f"Loss over training time: from {losses[0]:.4g} to {losses[-1]:.4g} in {len(steps)} steps.",
            "The loss that was minimised; lower is better. It should have become flat. The first twentieth of the "
            "steps may be above the frame.",
        )
    ]
    evaluated = [s for s in steps if s.evaluation]
    for name in dict.fromkeys(key for s in evaluated for key in s.evaluation):
        points = [(s.seconds, s.evaluation[name]) for s in evaluated if s.evaluation.get(name) is not None]
        if points:
            times, values = (np.array(column, float) for column in zip(*points, strict=True))
            drawn.append(
                draw(
                    partial(plots.learning_curve, seconds=times, losses=values, ylabel=shortened(name)),
                    f"Evaluation {name} over training time.",
                    f"{text(name)} on the rows it was evaluated on.",
                )
            )
    cells = [
        ["Steps", f"{len(steps):,}"],
        ["Seconds", number(float(result.seconds))],
        ["Loss at the start", number(float(losses[0]))],
        ["Lowest loss", number(float(losses.min()))],
        ["Parameters kept", f"of step {result.best_step:,}" if result.best_step <= len(steps) else "of the end"],
    ]
    return [f"<p>{text(result.reason, 400)}</p>", figures(*drawn, table(["Training", "Value"], cells, "In numbers."))]


def _relevance(model: Any, rows: Rows, draw: Drawing) -> list[str]:
    kept = evidence.varying(model, rows)
    names = [str(name) for name, keep in zip(model.feature_names_out_, kept, strict=True) if keep]
    lengthscales = np.asarray(model.lengthscales_, float).ravel()[kept]
    if not np.isfinite(lengthscales).all():
        return ["<p>The kernel has no lengthscale for each input, so that inputs cannot be compared.</p>"]
    number_shown = min(TOP_INPUTS, len(names))
    best = int(lengthscales.argmin())
    height = max(1.6, 0.75 + 0.2 * number_shown)
    shown = f"The {number_shown} most relevant of {len(names)} inputs. " if number_shown < len(names) else ""
    if not kept.all():
        shown += f"Left out: {count(int((~kept).sum()), 'input')} without variation among the test rows."
    order = np.argsort(lengthscales, kind="stable")[:number_shown]
    cells = [[text(names[k], 80), number(float(lengthscales[k]))] for k in order[:10]]
    return [
        "<p>The lengthscale of an input is how far one has to move along it, in its standard deviations, for the "
        "function to change much. Relevance is the inverse: the longer the bar, the faster the function varies along "
        "the input. An input with a bar near zero does next to nothing. Inputs that vary together may share their "
        "relevance in any proportion.</p>",
        figures(
            draw(
                lambda ax: plots.relevance(ax, names, lengthscales, TOP_INPUTS),
                f"Relevance of {number_shown} inputs; the most relevant is {names[best]}.",
                shown,
                min(height, 4.9) if number_shown > 3 else HEIGHT * 0.6,
            ),
            table(["Input", "Lengthscale"], cells, "In standard deviations of each input."),
        ),
    ]


def _fit(model: Any) -> list[str]:
    lines = [line.strip() for line in str(model.fit_report_).splitlines() if line.strip()]
    items = "".join(f"<li>{text(line, 1000)}</li>" for line in lines)
    settings = [
        [f"<code>{escape(name)}</code>", text(repr(value), 300)] for name, value in sorted(model.get_params().items())
    ]
    facts = [["Regressor", text(type(model).__name__)], ["Library", f"cagp {version('cagp')}"]]
    return [
        f'<ul class="plain">{items}</ul>',
        table(["Setting", "Value"], [*facts, *settings], "Settings of the regressor", kind="words"),
    ]
