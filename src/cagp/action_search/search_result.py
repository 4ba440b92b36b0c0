"""What a search found: a table of trials and, in words, how many actions to take."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cagp.training import FitStatus

WORTH = 0.01
"""A smaller gain in NLL (nats per row) does not count; a heuristic."""

STANDARD_ERRORS = 2.0
"""Nor does a gain below this many standard errors of the difference between two fits, row by row."""


@dataclass(frozen=True)
class Trial:
    """One fit, judged on the validation rows. If it failed, ``error`` says why and the numbers are NaN."""

    num_actions: int
    lr: float  # of the hyperparameters
    error: str | None = None
    nll: float = math.nan  # nats per row, of standardised targets
    rmse: float = math.nan  # of standardised targets
    coverage: float = math.nan  # of 95 % intervals
    seconds: float = math.nan  # of training
    steps: int = 0
    best_step: int = 0  # the step whose parameters were kept
    reason: str = ""  # why the fit ended
    threads: int = 0
    curve: Sequence[Sequence[float]] = field(default=(), repr=False)  # pairs (seconds, NLL), one for each evaluation
    row_nll: Sequence[float] = field(default=(), repr=False)  # of the first validation rows, for comparisons
    status: str = FitStatus.UNKNOWN.value  # why the fit ended, as a value of FitStatus


@dataclass(frozen=True)
class SearchResult:
    """All trials, by number of actions and learning rate; printed, a table and a recommendation in words."""

    trials: list[Trial]
    folder: Path
    num_rows: int  # that the fits were trained on

    @property
    def best(self) -> Trial | None:
        """The trial with the lowest NLL on the validation rows; None if all failed."""
        return min((t for t in self.trials if t.error is None), key=lambda t: t.nll, default=None)

    @property
    def best_of_each(self) -> list[Trial]:
        """For each number of actions, in ascending order, the trial with the best learning rate."""
        counts = sorted({t.num_actions for t in self.trials if t.error is None})
        return [
            min((t for t in self.trials if t.num_actions == i and t.error is None), key=lambda t: t.nll) for i in counts
        ]

    @property
    def recommended(self) -> Trial | None:
        """The fewest actions that no larger number tried clearly improves on; None if all trials failed."""
        each = self.best_of_each
        return next((t for k, t in enumerate(each) if not any(clearly_better(u, t) for u in each[k + 1 :])), None)

    def table(self) -> str:
        """One line for each trial."""
        lines = ["actions   rate       NLL     RMSE  coverage  seconds  steps"]
        for t in self.trials:
            start = f"{t.num_actions:>7,}  {t.lr:>5g}"
            if t.error is None:
                numbers = f"  {t.nll:>8.3f} {t.rmse:>8.4f}  {t.coverage:>8.3f}  {t.seconds:>7.1f}  {t.steps:>5}"
                lines.append(start + numbers)
            else:
                lines.append(f"{start}  failed: {t.error}")
        return "\n".join(lines)

    def recommendation(self) -> str:
        """How many actions to take, and what fewer and more would change."""
        chosen = self.recommended
        if chosen is None:
            return "No trial succeeded: see their errors above."
        sentences = [
            f"Take {chosen.num_actions:,} actions at learning rate {chosen.lr:g}: NLL {chosen.nll:.3f}, RMSE "
            f"{chosen.rmse:.4f} and {chosen.coverage:.1%} of the validation rows in their 95 % intervals, after "
            f"{chosen.seconds:.0f} s."
        ]
        each = self.best_of_each
        place = each.index(chosen)
        if place > 0:
            fewer = each[place - 1]
            sentences.append(f"{fewer.num_actions:,} lose {fewer.nll - chosen.nll:.3f} nats per row.")
        sentences += [_comparison(chosen, more) for more in each[place + 1 :]]
        if place == len(each) - 1 and chosen.num_actions < self.num_rows:
            more = min(2 * chosen.num_actions, self.num_rows)
            sentences.append(f"It is the largest number that was tried: {more:,} may do better.")
        rates = sorted({t.lr for t in self.trials})
        if len(rates) > 1 and chosen.lr in (rates[0], rates[-1]):
            edge, further = ("lowest", "lower") if chosen.lr == rates[0] else ("highest", "higher")
            sentences.append(f"Its learning rate is the {edge} that was tried: a {further} one may do better.")
        hurried = [f"{t.num_actions:,}" for t in each if t.status == FitStatus.TIME_LIMIT]
        if hurried:
            sentences.append(
                f"Fits with {', '.join(hurried)} actions ran out of time: with more time, the order may change."
            )
        failed = sum(t.error is not None for t in self.trials)
        if failed:
            sentences.append(f"{failed} of {len(self.trials)} trials failed.")
        return " ".join(sentences)

    def __str__(self) -> str:
        return f"{self.table()}\n\n{self.recommendation()}"


def clearly_better(trial: Trial, other: Trial) -> bool:
    """Whether the NLL is lower by more than ``WORTH``, and by more than chance explains."""
    gain, error = _gain(trial, other)
    return gain > WORTH and gain > STANDARD_ERRORS * error


def _gain(trial: Trial, other: Trial) -> tuple[float, float]:
    """How much lower the NLL is, and the standard error of that difference over the rows that both predicted."""
    differences = [b - a for a, b in zip(trial.row_nll, other.row_nll, strict=True)]
    n, gain = len(differences), other.nll - trial.nll
    if n < 2:
        return gain, math.inf
    mean = sum(differences) / n
    return gain, math.sqrt(sum((x - mean) ** 2 for x in differences) / (n - 1) / n)


def _comparison(chosen: Trial, more: Trial) -> str:
    gain, error = _gain(more, chosen)
    times = f"{more.seconds / max(chosen.seconds, 1e-9):.1f} times the time"
    if gain <= 0:
        return f"{more.num_actions:,} gain nothing and take {times}."
    return (
        f"{more.num_actions:,} would gain {gain:.3f} ± {error:.3f} nats per row for {times}: too little to matter, or "
        "to tell from chance."
    )
