"""The section on where the uncertainty comes from."""

from typing import NamedTuple

import numpy as np

from cagp import plots
from cagp.diagnostics import Kind
from cagp.report.html import count, number, side_by_side, table, text
from cagp.report.rows import HeldOutRows, Matrix, as_matrix, sample
from cagp.report.subject import Model
from cagp.report.svg import Drawing
from cagp.report.targets import Target

SPLIT_ROWS = 300
"""Rows whose variance is split into parts: that may cost far more than a prediction."""

KINDS: dict[Kind, str] = {
    "exact": "The computational part is exact: it was computed from all training rows.",
    "estimate": "The computational part is an estimate from below: it is what many more of the nearest rows would "
    "remove, and the true part may be larger.",
    "unknown": "This method does not say how much of its uncertainty is due to its approximation.",
}
MEANINGS = {
    "noise": "Scatter of the target about the function; neither more rows nor more computation lower it",
    "data": "What the training rows leave open; more rows would lower it",
    "data and computation": "What the training rows and the approximation leave open together",
    "computation": "What was not computed; more actions or neighbours would lower it",
}


class VarianceParts(NamedTuple):
    """The parts of the predictive variance of some test rows; see ``cagp.diagnostics.Components``."""

    noise: Matrix
    latent: Matrix
    computational: Matrix | None  # None if it is not known
    kind: Kind


def variance_parts_of(model: Model, rows: HeldOutRows) -> VarianceParts:
    """The parts for up to ``SPLIT_ROWS`` of the rows."""
    chosen = sample(len(rows.y), SPLIT_ROWS)
    X = rows.take(chosen)
    parts = model.predict(X, return_components=True, sample_noise=rows.take_noise(chosen))[-1]
    noise, latent, computational = (as_matrix(parts[name], len(X)) for name in ("noise", "latent", "computational"))
    unknown = parts["computational_kind"] == "unknown" or not np.isfinite(computational).all()
    return VarianceParts(noise, latent, None if unknown else computational, parts["computational_kind"])


def variance_figures(draw: Drawing, target: Target, parts: VarianceParts, guarantee: str) -> list[str]:
    """Shares of the parts, over all rows and from the most to the least certain ones."""
    noise, latent = parts.noise[:, target.number], parts.latent[:, target.number]
    computational = None if parts.computational is None else parts.computational[:, target.number]
    stacked = plots.variance_parts(noise, latent, computational)
    means = np.array([part.variance.clip(0).mean() for part in stacked])
    shares = [plots.percent(float(mean / means.sum())) for mean in means]
    cells = [
        [part.name.capitalize(), number(float(np.sqrt(mean))), share]
        for part, mean, share in zip(stacked, means, shares, strict=True)
    ]
    words = ", ".join(f"{part.name} {share}" for part, share in zip(stacked, shares, strict=True))
    caption = f"Means over {count(len(noise), 'test row')}. Variances add up; standard deviations do not."
    return [
        f"<p>The variance of a prediction is a sum of parts. {KINDS[parts.kind]} {text(guarantee, 400)}</p>",
        side_by_side(
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
            [MEANINGS[part.name] for part in stacked],
        ),
    ]
