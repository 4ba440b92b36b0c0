"""The search for a model: candidates in rounds, each trained a little; one that is better replaces the best so far.

Means with their starts come first, then kernels, then objectives and neighbours in training, then neighbours in
predictions. What "better" means is in ``cagp.comparison``. A record of what was tried is a list of plain dicts.
"""

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

from cagp.comparison import Average, Gains, Score, best_average, compare
from cagp.recipes.task import RESIDUAL_START, Task
from cagp.recipes.trials import Candidate, EachRow, HeldOutRows, Mean, Trial, Validation

BATCH_SIZE = 1024
"""Rows in a step of CaGP-Local."""

LEAST_TIME = 0.4
"""The share of ``max_time`` that must be left for a further model to be tried."""

TREES_BEHIND = 2.0
"""Trees are not tried in the mean if a few of them alone err more than this many times as much as the model so far."""

Made = TypeVar("Made")


class Effort(NamedTuple):
    """How much is tried."""

    first_steps: int  # of every start
    more_steps: int  # of the best start of each mean, unless it is far behind
    other_steps: int  # of other kernels and objectives, which start where the best one is
    last_steps: int  # of the winner
    starts: tuple[float, ...] = (1.0,)  # of the lengthscales, times those that the data suggest
    tree_starts: tuple[float, ...] = (RESIDUAL_START,)
    kernels: tuple[str, ...] = ()  # beside Matérn 3/2
    more_neighbours: tuple[int, ...] = ()  # in predictions
    train_neighbours: tuple[int, ...] = ()  # in training and predictions
    objectives: bool = False  # whether the ordered objective is tried
    trees: bool = True
    screen_rows: int = 50_000  # models are compared on at most this many rows to learn from
    validation_rows: int = 5_000


class Search:
    """Rounds that vary ``base`` in what task and effort leave open; and what was tried in them."""

    def __init__(self, task: Task, validation: Validation, effort: Effort, base: Candidate):
        self.task, self.validation, self.effort, self.base = task, validation, effort, base
        self.tried: list[dict[str, Any]] = []
        self.rivals: list[Trial] = []  # trials that lost: the winner may be averaged with one of them
        self.interrupted = False  # by Ctrl-C: nothing further is tried then

    # ---- rounds: each starts from the best of the last ----

    def best(self) -> Trial:
        best = self._means_and_starts()
        for others in (self.other_kernels, self._other_training):
            for candidate in others(best.candidate):
                best = self._challenge(best, candidate)
        return self._more_neighbours(best)

    def means(self) -> dict[Mean, tuple[float, ...]]:
        """The means to try, the simplest first, with their starts."""
        means: dict[Mean, tuple[float, ...]] = {} if self.task.mean == "trees" else {"zero": self.effort.starts}
        if self.task.mean == "trees" or (self.task.mean == "auto" and self.effort.trees):
            means["trees"] = self.effort.tree_starts
        return means

    def other_kernels(self, best: Candidate) -> list[Candidate]:
        """The same with other kernels; none where the user has chosen one."""
        others = [] if best.kernel is None else self.effort.kernels
        return [replace(best, kernel=name) for name in others if name in self.task.kernels and name != best.kernel]

    def _other_training(self, best: Candidate) -> list[Candidate]:
        near = best.neighbours
        others = [near._replace(objective="ordered")] if self.effort.objectives else []
        others += [near._replace(in_training=k) for k in self.effort.train_neighbours]
        return [replace(best, neighbours=other) for other in others]

    def _means_and_starts(self) -> Trial:
        """The better of the means, each with its best start; a mean that is far behind is not trained any further."""
        best: Trial | None = None
        for mean, starts in self.means().items():
            some = starts if self.task.from_data else starts[:1]
            candidates = [replace(self.base, mean=mean, start=start) for start in some]
            if mean == "trees" and best is not None and self._trees_are_hopeless(candidates[0], best):
                continue
            trials: list[Trial] = []
            for candidate in candidates:
                # A fit needs one trial, whatever the time.
                is_needed = best is None and not trials
                trial = self.attempt(candidate, self.effort.first_steps, is_needed=is_needed)
                trials += [] if trial is None else [trial]
            if not trials:
                continue
            trial = max(trials, key=lambda other: compare(other.score, trials[0].score).mean)
            for other in trials:
                if other is not trial:
                    self.note(other, trial, "another start is better")
            more = self.effort.more_steps
            if best is not None and more and compare(best.score, trial.score).exceed("far"):
                self.note(trial, best, f"far behind after {trial.num_steps:,} steps")
                continue
            trial = self.resumed(trial, more)
            if best is None:
                self.note(trial, None, "first")
            best = trial if best is None else self.better(best, trial)
        assert best is not None
        return best

    def _trees_are_hopeless(self, candidate: Candidate, best: Trial) -> bool:
        """Whether a few trees alone, which cost little, are so far behind that more of them are not tried."""
        error = self._if_allowed(candidate, self.validation.quick_trees_error)
        if error is None:
            return True
        is_behind = error > TREES_BEHIND * float(best.score.error.square().mean()) ** 0.5
        if not self.task.ranks.broadcast(float(is_behind)):
            return False
        self.leave_out(candidate, "a few trees alone err more than twice as much")
        return True

    def _challenge(self, best: Trial, candidate: Candidate) -> Trial:
        """The better of the best and a challenger, which starts at the hyperparameters of the best.

        If the challenger is better, the best is trained for the same number of steps before it is replaced.
        """
        trial = self.attempt(candidate, self.effort.other_steps, like=best)
        if trial is None:
            return best
        if compare(trial.score, best.score).exceed("model"):
            best = self.resumed(best, self.effort.other_steps)
        return self.better(best, trial)

    def _more_neighbours(self, best: Trial) -> Trial:
        """Predictions from more neighbours, as long as they gain enough for what they cost."""
        for count in self.effort.more_neighbours:
            assert isinstance(self.validation, HeldOutRows)
            near = best.candidate.neighbours
            if (near.in_predictions or 2 * near.in_training) >= count or count >= self.validation.learning.num_rows:
                continue
            candidate = replace(best.candidate, neighbours=near._replace(in_predictions=count))
            trial = self._if_allowed(candidate, partial(self.validation.with_neighbours, best, candidate))
            if trial is None:
                break
            is_better = compare(trial.score, best.score).exceed("neighbours")
            self.note(trial, best, "better" if is_better else "not better by enough for its cost")
            if not is_better:
                break
            best = trial
        return best

    # ---- single trials ----

    def attempt(
        self, candidate: Candidate, num_steps: int, like: Trial | None = None, is_needed: bool = False
    ) -> Trial | None:
        """A new trial; None where the time is short or Ctrl-C ends it before it has a score."""
        # If further steps may follow, the learning rate does not fall.
        settings = {"schedule": "constant"} if like is None and self.effort.more_steps > 0 else {}
        make = partial(self.validation.trial, candidate, num_steps, like, **settings)
        trial = make() if is_needed else self._if_allowed(candidate, make)
        return None if trial is None else self._watched(trial)

    def resumed(self, trial: Trial, num_steps: int) -> Trial:
        """The trial after further steps, as far as ``max_epochs`` and the time allow."""
        limit = self.validation.learning.step_limit(BATCH_SIZE)
        allowed = num_steps if limit is None else min(num_steps, limit - trial.num_steps)
        resumed = self._if_in_time(partial(self.validation.resume, trial, allowed)) if allowed > 0 else None
        return trial if resumed is None else self._watched(resumed)

    def better(self, best: Trial, trial: Trial) -> Trial:
        """The trial if it is clearly better than the best so far; the other one becomes a rival."""
        is_better = compare(trial.score, best.score).exceed("model")
        self.note(trial, best, "better" if is_better else "not better")
        loser, best = (best, trial) if is_better else (trial, best)
        self.rivals.append(loser)
        return best

    def _if_allowed(self, candidate: Candidate, make: Callable[[], Made]) -> Made | None:
        """What ``make`` returns; None, and a line in the record, where the time is short or Ctrl-C ends it."""
        made = self._if_in_time(make)
        if made is None:
            self.leave_out(candidate, "the fit was interrupted" if self.interrupted else "the time limit")
        return made

    def _if_in_time(self, make: Callable[[], Made]) -> Made | None:
        return None if self.interrupted or not self.in_time else self.unless_interrupted(make)

    def unless_interrupted(self, make: Callable[[], Made]) -> Made | None:
        """What ``make`` returns; None if Ctrl-C ends it, or has ended something before."""
        if not self.interrupted:
            try:
                return make()
            except KeyboardInterrupt:
                self.interrupted = True
        return None

    def _watched(self, trial: Trial) -> Trial:
        self.interrupted |= trial.results[-1].interrupted
        if self.task.verbose:
            print(
                f"tried {trial.candidate.words}: {trial.num_steps:,} steps, negative log density of held-out rows "
                f"{float(trial.score.nll.mean()):.3f}, {trial.seconds:.1f} s",
                file=sys.stderr,
            )
        return trial

    @property
    def in_time(self) -> bool:
        """Whether ``max_time`` leaves room for more than what must still be done."""
        task = self.task
        return task.max_time is None or task.time_left() > LEAST_TIME * (task.deadline - task.began)

    # ---- averages ----

    def partner(self, best: Trial, score: Score | None = None) -> tuple[Trial, Average] | None:
        """The rival whose average with the best predicts validation rows best; ``score`` is that of the best."""
        rivals = self.rivals
        if isinstance(self.validation, EachRow):  # where a second kernel is not worth twice the time
            rivals = [rival for rival in rivals if rival.candidate.mean != best.candidate.mean]
        pairs = [(rival, best_average(score or best.score, rival.score)) for rival in rivals]
        return max(pairs, key=lambda pair: pair[1].gain.mean, default=None)

    def average(self, best: Trial, score: Score | None = None) -> tuple[Trial, float] | None:
        """Another model that was tried, and its weight, if the average of both is better than the best alone."""
        began, pair = time.perf_counter(), self.partner(best, score)
        if pair is None:
            return None
        other, (weight, scored, gain) = pair
        is_better, num_steps = gain.exceed("model"), best.num_steps + other.num_steps
        words, outcome = _words(best, (other, weight)), "better" if is_better else "not better"
        self._record(words, scored, gain, num_steps, time.perf_counter() - began, outcome)
        return (other, weight) if is_better else None

    # ---- the record ----

    def note(self, trial: Trial, against: Trial | None, outcome: str) -> None:
        """Add a trial to what was tried."""
        gain = None if against is None else compare(trial.score, against.score)
        self._record(trial.candidate.words, trial.score, gain, trial.num_steps, trial.seconds, outcome)

    def _record(self, words: str, score: Score, gain: Gains | None, steps: int, seconds: float, outcome: str) -> None:
        scores = {"nll": float(score.nll.mean()), "crps": float(score.crps.mean())}
        gains = {"gain": None if gain is None else gain.mean, "gain_error": None if gain is None else gain.error}
        self.tried.append({"model": words, **scores, **gains, "steps": steps, "seconds": seconds, "outcome": outcome})

    def leave_out(self, candidate: Candidate, reason: str) -> None:
        """Add a model that was not tried."""
        self.tried.append({"model": candidate.words, "outcome": f"not tried: {reason}"})

    def chosen(self, best: Trial, average: tuple[Trial, float] | None) -> str:
        """Which of the models that were tried, in a sentence."""
        compared = sum("nll" in trial for trial in self.tried)
        model = f"The model is {_words(best, average)}"
        return f"{model}." if compared < 2 else f"{model}, the best of {compared} on held-out rows."


def _words(best: Trial, average: tuple[Trial, float] | None) -> str:
    """A model in words, or its average with another of some weight."""
    words = best.candidate.words
    return words if average is None else f"{words}, averaged with {average[1]:.0%} {average[0].candidate.words}"
