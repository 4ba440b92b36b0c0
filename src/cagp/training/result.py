"""How a fit ended, and what it left."""

from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

from cagp.training.history import Step, steps_from_state


class FitStatus(str, Enum):
    """Why a fit ended; ``FitResult.reason`` says it in words."""

    ALL_STEPS = "all steps"
    TIME_LIMIT = "time limit"
    NO_BETTER = "no better"  # the monitored quantity, for as many evaluations as ``patience``
    CONVERGED = "converged"  # the loss no longer improves
    INTERRUPTED = "interrupted"  # by Ctrl-C
    BAD_START = "bad start"  # no loss at the starting values
    TOO_MANY_FAILURES = "too many failures"
    UNKNOWN = "unknown"  # read from a file that does not hold it


@dataclass(frozen=True)
class FitResult:
    """What ``fit`` did; the method itself holds the best parameters."""

    steps: list[Step]
    reason: str  # why it ended, in words
    best_step: int  # the step whose parameters were kept
    best_value: float  # of the monitored quantity
    seconds: float
    failures: list[str]
    findings: list[str]
    status: FitStatus = FitStatus.UNKNOWN

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C ended the fit."""
        return self.status is FitStatus.INTERRUPTED

    def __str__(self) -> str:
        """The report, in plain words."""
        return "\n".join([self.reason, *self.failures, *self.findings])

    def state(self) -> dict[str, Any]:
        """Plain values for a file, without the status, but whether the fit was interrupted."""
        values = asdict(self)
        del values["status"]
        return {**values, "interrupted": self.interrupted}

    @classmethod
    def from_state(cls, state: dict[str, Any], status: str | None = None) -> "FitResult":
        """The inverse of ``state``. Without a ``status``, only whether the fit was interrupted is known of it.

        Raises ValueError unless every value is one that ``state`` can give.
        """
        values = {name: value for name, value in state.items() if name != "interrupted"}
        if status is None:
            known = FitStatus.INTERRUPTED if state.get("interrupted", False) else FitStatus.UNKNOWN
        else:
            known = FitStatus(status)
        result = cls(**{**values, "steps": steps_from_state(state["steps"]), "status": known})
        numbers = (result.best_step, result.best_value, result.seconds)
        if (
            not all(isinstance(number, int | float) and not isinstance(number, bool) for number in numbers)
            or not isinstance(result.best_step, int)
            or not isinstance(result.reason, str)
            or not all(isinstance(lines, list) for lines in (result.failures, result.findings))
            or not all(isinstance(line, str) for line in [*result.failures, *result.findings])
        ):
            raise ValueError("the result of the fit is not one that cagp writes")
        return result
