"""The paper's claims about methods on tables, judged by scores, wherever these were measured."""

from collections.abc import Sequence

import numpy as np

from cagp_bench.reproduce.experiment import Outcome, on_tables
from cagp_bench.suites import PUBLISHED

Scores = dict[str, dict[str, tuple[float, float]]]
"""By table and method: the mean of a score over seeds, and its standard deviation (0 for one seed)."""

Curve = Sequence[tuple[float, float]]
"""Seconds of training, and the test NLL after them."""

OPT, OURS = "CaGP-Opt", "CaGP-Opt (ours)"

LINES = {
    OPT: ("CaGP-Opt, Adam", "CaGP-Opt, L-BFGS"),
    "SVGP": ("SVGP, Adam",),
    "SGPR": ("SGPR, Adam", "SGPR, L-BFGS"),
}
"""Lines of the paper's Table 1 that belong to a method."""

MARGIN = 0.01
"""Nats per row by which two methods may differ and count as equal, where there is no spread over seeds."""

LEAST_SHARE = 0.1
"""A method has a ramp-up phase if it is behind SVGP in more than this share of the time."""


def matches_or_beats(nll: Scores, other: str, excepted: tuple[str, ...] = ()) -> Outcome | None:
    """Whether the NLL of CaGP-Opt is not above that of another method."""
    words, verdicts = [], []
    for table, found in _with_both(nll, other).items():
        own, theirs = found[OPT], found[other]
        extra = f" ({OURS} {found[OURS][0]:.3f})" if OURS in found else ""
        words.append(f"{table}, test NLL {own[0]:.3f}, {other} {theirs[0]:.3f}{extra}")
        if table not in excepted:
            verdicts.append(own[0] <= theirs[0] + max(MARGIN, own[1], theirs[1]))
    return on_tables(words, verdicts)


def learns_less_noise(noise: Scores) -> Outcome | None:
    """Whether the noise of CaGP-Opt is below SVGP's."""
    found = _with_both(noise, "SVGP")
    words = [
        f"{table}, noise variance " + ", ".join(f"{name} {value:.2g}" for name, (value, _) in means.items())
        for table, means in found.items()
    ]
    return on_tables(words, [means["SVGP"][0] > means[OPT][0] for means in found.values()])


def covers_better(error: Scores, chance: dict[str, float]) -> Outcome | None:
    """Whether the coverage error of CaGP-Opt is below SVGP's, by the tables where the two differ by more than chance.

    Args:
        chance: by table, the standard deviation of a coverage with as many test rows as there are.
    """
    words, verdicts = [], []
    for table, means in _with_both(error, "SVGP").items():
        own, theirs = means[OPT][0], means["SVGP"][0]
        is_chance = abs(own - theirs) < 2 * chance[table]
        values = ", ".join(f"{name} {100 * value:.1f} %" for name, (value, _) in means.items())
        words.append(f"{table} {values}{' (a difference that small is chance)' if is_chance else ''}")
        if not is_chance:
            verdicts.append(own < theirs)
    return on_tables(words, verdicts) or (Outcome("; ".join(words), None) if words else None)


def time_behind(own: Curve, theirs: Curve) -> tuple[float, float] | None:
    """The share of the common training time, on a logarithmic axis, in which ``own`` is above; the final difference."""
    curves = [np.array(curve).T for curve in (own, theirs)]
    begin, end = (pick(curve[0][place] for curve in curves) for pick, place in ((max, 0), (min, -1)))
    if not end > begin:
        return None
    times = np.geomspace(max(begin, 1e-3), end, 200)
    first, second = (np.interp(times, *curve) for curve in curves)
    return float(np.mean(first > second)), float(curves[0][1][-1] - curves[1][1][-1])


def ramps_up(curves: dict[str, dict[str, Curve]], method: str, expected: bool) -> Outcome | None:
    """Whether a method is behind SVGP early in training, as expected or not; ``curves`` are by table and method."""
    words, verdicts = [], []
    for table, found in curves.items():
        behind = time_behind(found[method], found["SVGP"]) if {method, "SVGP"} <= set(found) else None
        if behind is not None:
            share, last = behind
            words.append(
                f"{table}, behind SVGP in {100 * share:.0f} % of the common time (logarithmic), {last:+.3f} nats at "
                "the end"
            )
            verdicts.append((share > LEAST_SHARE) == expected)
    return on_tables(words, verdicts)


def coverage_chance(num_test: int) -> float:
    """The standard deviation of a coverage of 95 % with this many test rows."""
    return (0.95 * 0.05 / num_test) ** 0.5


def paper_nll(other: str) -> str:
    """The paper's test NLL of CaGP-Opt and another method, the better optimiser of each."""
    found = []
    for table, lines in PUBLISHED.items():
        best = {name: [lines[label].nll for label in LINES[name] if label in lines] for name in (OPT, other)}
        if all(best.values()):
            found.append(f"{table} {min(best[OPT]):.3f}, {other} {min(best[other]):.3f}")
    return "test NLL: " + "; ".join(found)


def _with_both(scores: Scores, other: str) -> Scores:
    return {table: found for table, found in scores.items() if OPT in found and other in found}
