"""The methods that a user can choose, and how each is trained.

``table`` lists the methods and what can be set: regressors, the command line, reports and ``cagp info`` read it, and
it does not import torch. ``train`` goes from a ``Task`` to a ``Fitted``; the other modules are its steps.
"""

from typing import Any

SITES_GUARANTEE = (
    "Given the sites, the variance of the latent function is never below that of all rows with the same sites and "
    "hyperparameters."
)


def guarantee_words(
    never_below_exact: bool, has_local_scale: bool, on_log_scale: bool, is_average: bool, has_sites: bool
) -> str:
    """What holds for the variance of a fitted model, in one sentence; for log targets, of their logarithm."""
    if has_sites:
        return SITES_GUARANTEE
    subject = "On the scale of the fit, the variance" if on_log_scale else "The variance"
    exact = "same average of the two exact Gaussian processes" if is_average else "exact Gaussian process"
    if has_local_scale and not never_below_exact:
        why = "since error bars follow a local scale; with local_scale=None it never is"
        return f"{subject} can be below that of the {exact}, {why}."
    how = "is never" if never_below_exact else "can be"
    return f"{subject} {how} below that of the {exact} with the same hyperparameters."


def tried_in_words(tried: list[dict[str, Any]]) -> list[str]:
    """A line for each model that "auto" tried."""
    lines = []
    for trial in tried:
        if "nll" not in trial:
            lines.append(f"  {trial['model']}: {trial['outcome']}")
            continue
        gain = "" if trial["gain"] is None else f", gain {trial['gain']:+.3f} ± {trial['gain_error']:.3f}"
        scores = f"negative log density {trial['nll']:.3f}, CRPS {trial['crps']:.4f}{gain}"
        cost = f"{trial['steps']:,} steps, {trial['seconds']:.1f} s"
        lines.append(f"  {trial['model']}: {scores}; {cost}; {trial['outcome']}")
    return ["Tried, on held-out rows:", *lines] if lines else []
