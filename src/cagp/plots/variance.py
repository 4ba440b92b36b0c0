"""Where the predictive variance comes from: shares of its parts."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes

from cagp.plots.style import AMBER, BLUE, INK, MUTED, SMALL, Vector, legend, named_bars, styled


class Part(NamedTuple):
    """A part of the predictive variance."""

    name: str
    variance: Vector  # of each row
    color: str


def variance_parts(noise: Vector, latent: Vector, computational: Vector | None) -> list[Part]:
    """The parts in the order in which they are stacked; pass None for a computational part that is unknown."""
    parts = [Part("noise", np.asarray(noise, float), MUTED), Part("data", np.asarray(latent, float), BLUE)]
    if computational is None:
        return [parts[0], Part("data and computation", parts[1].variance, BLUE)]
    return [*parts, Part("computation", np.asarray(computational, float), AMBER)]


def variance_shares(ax: Axes, parts: Sequence[Part]) -> Axes:
    """The share of each part in the total variance of all rows, as bars."""
    sums = np.array([part.variance.clip(0).sum() for part in parts])
    shares = 100 * sums / sums.sum()
    places = named_bars(ax, [part.name for part in parts], "share of the predictive variance (%)")
    ax.barh(places, shares, 0.62, color=[part.color for part in parts], linewidth=0)
    for place, share in zip(places, shares, strict=True):
        ax.text(share + 1.5, place, percent(share / 100), va="center", fontsize=SMALL, color=INK)
    ax.set_xlim(0, 119)
    ax.set_xticks([0, 25, 50, 75, 100])
    return ax


def variance_by_certainty(ax: Axes, parts: Sequence[Part], num_groups: int = 10) -> Axes:
    """The mean share of each part, for groups of rows ordered from the most to the least certain."""
    total = np.sum([part.variance.clip(0) for part in parts], axis=0)
    groups = np.array_split(np.argsort(total, kind="stable"), min(num_groups, len(total)))
    bottom = np.zeros(len(groups))
    for part in parts:
        share = np.array([100 * (part.variance[rows].clip(0) / total[rows]).mean() for rows in groups])
        ax.bar(np.arange(len(groups)), share, 0.86, bottom, color=part.color, linewidth=0, label=part.name)
        bottom += share
    ax.set_xticks([0, len(groups) - 1] if len(groups) > 1 else [0], ["most certain", "least"][: len(groups)])
    ax.set(ylim=(0, 118), xlim=(-0.6, len(groups) - 0.4))
    ax.set_yticks([0, 25, 50, 75, 100])
    legend(ax, "upper center", ncols=len(parts), columnspacing=1.2, borderaxespad=0.1)
    styled(ax, f"rows in {len(groups)} groups by total variance", "share of the variance (%)")
    ax.grid(visible=False, axis="x")
    return ax


def percent(share: float) -> str:
    """A share in percent. Small ones are not rounded to 0.0 %, which is for exactly zero."""
    value = 100 * share
    if value == 0 or value >= 0.1:
        return f"{value:.1f} %"
    return f"{value:.3f} %" if value >= 0.001 else "< 0.001 %"
