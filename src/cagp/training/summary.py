"""What a user should know about a fit, in plain words. What depends on the method comes from the method."""

from cagp.training.history import Step


def trend(steps: list[Step]) -> list[str]:
    """Whether the loss was still falling when the fit ended."""
    if len(steps) < 20:
        return []
    tenth = len(steps) // 10
    losses = [step.loss for step in steps]
    total = losses[0] - min(losses)
    late = sum(losses[-2 * tenth : -tenth]) / tenth - sum(losses[-tenth:]) / tenth
    if total > 0 and late > 0.01 * total:
        return [f"The loss was still falling ({late / total:.0%} of all progress in the last tenth): take more steps."]
    return []
