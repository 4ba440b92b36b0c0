"""What the whole calibration curve says about the error bars, in words, so that the headline agrees with it."""

from typing import NamedTuple

import numpy as np

from cagp.metrics import LEVEL, Calibration
from cagp.plots import coverage_band
from cagp.report.html import share
from cagp.report.targets import Target, calibration_of

AS_IT_SHOULD = "as it should be, up to chance"


class Verdict(NamedTuple):
    """Whether the error bars are right, up to chance, and what is wrong with them."""

    is_right: bool
    words: str  # after "The 95 % intervals contain so much of the actual values: "


def expected_coverage(level: float, num_rows: int) -> tuple[float, float]:
    """The range for the observed coverage of one level in which all 19 levels lie together with probability 95 %.

    This is for error bars that are right and rows that are independent.
    """
    low, high = coverage_band(level, num_rows)
    return float(low), float(high)


def verdict(target: Target) -> Verdict:
    """What the coverage at 19 levels says about the error bars of a target."""
    return verdict_on(calibration_of(target), len(target.y))


def verdict_on(found: Calibration, num_rows: int) -> Verdict:
    """The error bars are right if the whole curve lies in the grey band of its figure."""
    low, high = coverage_band(found.levels, num_rows)
    distance = found.coverage - found.levels
    beyond = (found.coverage < low) | (found.coverage > high)
    if not beyond.any():
        return Verdict(True, AS_IT_SHOULD)
    last = int(np.abs(found.levels - LEVEL).argmin())
    # Of the levels beyond chance, the one that is farthest off.
    worst = int(np.where(beyond, np.abs(distance), -1).argmax())
    side = "narrow" if distance[worst] < 0 else "wide"
    other = f"the {100 * found.levels[worst]:.0f} % intervals contain {share(found.coverage[worst])}"
    if not beyond[last]:
        where = "in the middle" if found.levels[worst] < 0.85 else "there"
        return Verdict(False, f"{AS_IT_SHOULD}, but {other}, so the error bars are too {side} {where}")
    ends = f"the intervals are {'slightly ' if abs(distance[last]) < 0.02 else ''}too "
    ends += "narrow" if distance[last] < 0 else "wide"
    opposite = beyond & (np.sign(distance) != np.sign(distance[last]))
    if not opposite.any():
        return Verdict(False, ends)
    worst = int(np.where(opposite, np.abs(distance), -1).argmax())
    side = "narrow" if distance[worst] < 0 else "wide"
    tails = "; errors have heavier tails than a normal distribution" if side == "wide" else ""
    return Verdict(
        False,
        f"{ends}. But the {100 * found.levels[worst]:.0f} % intervals contain {share(found.coverage[worst])} and are "
        f"too {side}{tails}",
    )
