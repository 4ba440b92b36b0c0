"""The choice of a model for a table: several are tried on held-out rows, cheap ones first."""

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, final

from cagp import limits
from cagp.lazy import lazy_module
from cagp.recipes import plans
from cagp.recipes.base import REST_START, Recipe
from cagp.recipes.checks import check_neighbours
from cagp.recipes.exact import train_exact
from cagp.recipes.opt import started_at, train_opt
from cagp.recipes.options import EFFORT, LOCAL_SCALE, N_ACTIONS, N_NEIGHBORS, OBJECTIVE

if TYPE_CHECKING:
    import numpy as np
    import torch

    from cagp import methods, training
    from cagp.methods import cholesky
    from cagp.recipes import averages, exact_choice, far_apart, means, race, steps
    from cagp.recipes import task as tasks
    from cagp.training import FitResult, history
    from cagp.trees import OutOfFold, Trees
else:
    np, torch = map(lazy_module, ("numpy", "torch"))
    methods, cholesky = map(lazy_module, ("cagp.methods", "cagp.methods.cholesky"))
    training, history = map(lazy_module, ("cagp.training", "cagp.training.history"))
    exact_choice, far_apart = map(lazy_module, ("cagp.recipes.exact_choice", "cagp.recipes.far_apart"))
    averages = lazy_module("cagp.recipes.averages")
    means, race, steps = map(lazy_module, ("cagp.recipes.means", "cagp.recipes.race", "cagp.recipes.steps"))

REFINING_STEPS = 50
"""Steps of CaGP-Opt after the hyperparameters were found and it was chosen."""


class Effort(NamedTuple):
    """How much is tried."""

    first_steps: int  # of every start
    more_steps: int  # of the best start of each mean, unless it is far behind
    other_steps: int  # of other kernels and objectives, which start where the best one is
    last_steps: int  # of the winner
    starts: tuple[float, ...] = (1.0,)  # of the lengthscales, times those that the data suggest
    tree_starts: tuple[float, ...] = (REST_START,)
    kernels: tuple[str, ...] = ()  # beside Matérn 3/2
    more_neighbours: tuple[int, ...] = ()  # in predictions
    train_neighbours: tuple[int, ...] = ()  # in training and predictions
    objectives: bool = False  # whether the ordered objective is tried
    trees: bool = True
    screen_rows: int = 50_000  # models are compared on at most this many rows to learn from
    judging_rows: int = 5_000


EFFORTS = {
    "fast": Effort(300, 0, 0, 0, trees=False, screen_rows=2**62),
    "default": Effort(
        first_steps=60,
        more_steps=100,
        other_steps=40,
        last_steps=100,
        starts=(1.0, 0.4),
        kernels=("matern12", "matern52", "rational_quadratic"),
        more_neighbours=(128,),
        objectives=True,
    ),
    "thorough": Effort(
        first_steps=100,
        more_steps=200,
        other_steps=150,
        last_steps=200,
        starts=(1.0, 0.4, 0.1),
        tree_starts=(1.0, REST_START),
        kernels=("matern12", "matern52", "rbf", "rational_quadratic"),
        more_neighbours=(128, 256),
        train_neighbours=(64, 128),
        objectives=True,
        screen_rows=200_000,
        judging_rows=10_000,
    ),
}
BATCH_SIZE = 1024
"""Rows in a step of CaGP-Local."""

LEAST_TIME = 0.4
"""The share of ``max_time`` that must be left for a further model to be tried."""

INTERRUPTED = "the fit was interrupted before other methods could be compared"

COSTLIER_GAIN = 0.02
"""Nats per row that more neighbours must gain: predictions then take several times as long."""


@final
@dataclass(frozen=True)
class Auto(Recipe):
    """The model that suits the table."""

    n_actions: int | str = N_ACTIONS.field()
    n_neighbors: int | str = N_NEIGHBORS.field()
    local_scale: float | str | None = LOCAL_SCALE.field()
    objective: str = OBJECTIVE.field()
    effort: str = EFFORT.field()

    name: ClassVar[str] = "auto"
    words: ClassVar[str] = "the model that predicts held-out training rows best"
    summary: ClassVar[str] = (
        f"exact up to {limits.EXACT_ROWS:,} rows; beyond, the model that predicts held-out training rows best"
    )
    chooses_mean: ClassVar[bool] = True
    shares_rows: ClassVar[bool] = True

    def planned_bytes(self, num_rows: int, num_inputs: int, num_targets: int) -> dict[str, int] | None:
        """As for nearest rows; the numbers of the rows that are not held out besides."""
        tries_order = self.objective == "ordered" or (self.objective == "auto" and EFFORTS[self.effort].objectives)
        needed = plans.local_bytes(num_rows, num_inputs, num_targets, tries_order)
        return {**needed, "the rows to learn from, by number": 2 * plans.INTEGER * num_rows}

    def train(self, task: "tasks.Task") -> "tasks.Fitted":
        """Exact for few rows; else local with the kernel, mean and neighbours that predict held-out rows best."""
        n = task.num_rows
        if task.kernel.decays(task.X.shape[1]) is False:
            options = (self.n_actions, steps.Neighbours.of(self.n_neighbors, self.objective), self.local_scale)
            return means.with_mean(task, lambda rest: far_apart.train_far_apart(rest, *options))
        if n <= limits.EXACT_ROWS and cholesky.memory_needed(n) <= task.memory:
            return self._exact(task)
        check_neighbours(self.n_neighbors, n)
        effort = EFFORTS[self.effort]
        parts = steps.hold_out(task, effort.judging_rows)
        contest = race.Race(_few_rows(parts, effort.screen_rows), self.local_scale)
        winner = _Contest(self, effort, contest, task).winner()
        if contest.parts.train.num_rows < parts.train.num_rows:
            contest, winner = _on_all_rows(parts, contest, winner, effort, self.local_scale)
        else:
            winner = _resumed(contest, winner, effort.last_steps)
        return self._fitted(task, contest, winner)

    def _exact(self, task: "tasks.Task") -> "tasks.Fitted":
        """Exact inference with the kernel and the mean that predict each row best from all others."""
        reason = f"Chose exact inference: {task.num_rows:,} rows are few enough (at most {limits.EXACT_ROWS:,})."
        effort = EFFORTS[self.effort]
        choice = exact_choice.choose_exact(task, effort.kernels, effort.trees)
        fitted = _trained_exact(task, choice.best, choice.trees, 1.0 if choice.average is None else 0.5)
        words = choice.best.candidate.words
        if choice.average is not None:
            other, weight = choice.average
            words = race.average_words(choice.best.candidate, other.candidate, weight)
            fitted = averages.average(fitted, _trained_exact(task, other, choice.trees), weight)
        if choice.tried:
            reason = f"{reason} {_chosen(words, choice.tried)}"
        if choice.interrupted:
            reason = f"{reason} The fit was interrupted before all models were compared."
            fitted = fitted._replace(result=race.as_interrupted(fitted.result))
        return fitted._replace(choice=reason, tried=choice.tried)

    def _fitted(self, task: "tasks.Task", contest: "race.Race", winner: "race.Trial") -> "tasks.Fitted":
        """The winner with all rows, after a comparison with shared actions, or its average with another model."""
        candidate = winner.candidate
        num_actions = steps.number_of_actions(self.n_actions, task)
        method, reason = self._shared(task, num_actions, contest, winner)
        average = self._average(task, contest, winner, method)
        words = candidate.words
        if average is not None:
            words = race.average_words(candidate, average[0].candidate, average[1])
        result = _joined(winner, contest.learning(candidate.mean))
        result = race.as_interrupted(result) if contest.interrupted else result
        chosen = {"choice": f"Chose {method}: {reason}. {_chosen(words, contest.tried)}", "tried": contest.tried}
        if method == "opt":
            rest = _rest(task, contest, candidate.mean)
            fitted = train_opt(rest.task, winner.priors, self.n_actions, learned=True, most_steps=REFINING_STEPS)
            return fitted._replace(notes=[*rest.notes, started_at(result)], trees=rest.trees, **chosen)
        num_shared = num_actions if method == "hybrid" else None
        fitted = self._conditioned(task, contest, winner, num_shared, result)
        learned = f"Hyperparameters were learned without the held-out rows; predictions use all {task.num_rows:,} rows."
        fitted = fitted._replace(notes=[learned, *fitted.notes], **chosen)
        if average is None:
            return fitted
        other, weight = average
        return averages.average(fitted, self._conditioned(task, contest, other, None, result), weight)

    def _conditioned(
        self, task: "tasks.Task", contest: "race.Race", trial: "race.Trial", num_shared: int | None, result: "FitResult"
    ) -> "tasks.Fitted":
        """Nearest rows at the hyperparameters of a trial, with all rows."""
        near, rest = trial.candidate.neighbours, _rest(task, contest, trial.candidate.mean)
        fitted = steps.condition_local(rest.task, trial.priors, near, self.local_scale, num_shared, result)
        return fitted._replace(notes=[*rest.notes, *fitted.notes], trees=rest.trees)

    def _average(
        self, task: "tasks.Task", contest: "race.Race", winner: "race.Trial", method: str
    ) -> "tuple[race.Trial, float] | None":
        """Another model that was tried, and its weight, if the average of both predicts held-out rows better.

        Without shared actions both have their scores, and no time limit is in the way of what they say together.
        """
        if not contest.rivals or method == "opt" or contest.interrupted:
            return None
        if method == "hybrid" and not _in_time(task):
            return None
        score, began = winner.score, time.perf_counter()
        if method == "hybrid":
            try:
                train = contest.learning(winner.candidate.mean)
                num_shared = steps.number_of_actions(self.n_actions, train)
                shared = steps.constant_actions(winner.priors[0].kernel, train.data, num_shared, train.seed)
                score = contest.with_shared(winner, shared)
            except KeyboardInterrupt:
                contest.interrupted = True
                return None
        best = race.best_partner(score, contest.rivals)
        assert best is not None
        other, found = best
        words = race.average_words(winner.candidate, other.candidate, found.weight)
        outcome, seconds = "better" if found.gain.is_clear else "not better", time.perf_counter() - began
        num_steps = winner.num_steps + other.num_steps
        contest.tried.append(race.record(words, found.score, found.gain, num_steps, seconds, outcome))
        return (other, found.weight) if found.gain.is_clear else None

    def _shared(
        self, task: "tasks.Task", num_actions: int, contest: "race.Race", winner: "race.Trial"
    ) -> "steps.Choice":
        """Whether shared actions replace nearest rows, or help them, at the hyperparameters of the winner."""
        if contest.interrupted:
            return steps.Choice("local", INTERRUPTED)
        if task.scratch is not None:
            return steps.Choice("local", "the rows stay on disk, where shared actions are not compared")
        if limits.action_bytes(task.num_rows, num_actions) > task.memory:
            return steps.Choice("local", f"the memory limit does not allow {num_actions:,} shared actions")
        if not _in_time(task):
            return steps.Choice("local", "the time limit does not allow shared actions to be compared")
        try:
            return self._compared(contest, winner)
        except KeyboardInterrupt:
            contest.interrupted = True
            return steps.Choice("local", INTERRUPTED)

    def _compared(self, contest: "race.Race", winner: "race.Trial") -> "steps.Choice":
        train, held_out = contest.learning(winner.candidate.mean), contest.judging(winner.candidate.mean)
        num_shared = steps.number_of_actions(self.n_actions, train)
        shared = steps.constant_actions(winner.priors[0].kernel, train.data, num_shared, train.seed)
        methods = steps.local_methods(train, winner.priors, winner.candidate.neighbours, self.local_scale)
        if self.local_scale == "auto":
            methods, _ = steps.with_local_scales(methods, train)
        return steps.choose(methods, shared, train, held_out)


class _Contest:
    """The rounds: means and starts, kernels, objectives, neighbours. Each round starts from the best of the last."""

    def __init__(self, recipe: Auto, effort: Effort, contest: "race.Race", task: "tasks.Task"):
        self.recipe, self.effort, self.race, self.task = recipe, effort, contest, task
        near = steps.Neighbours.of(recipe.n_neighbors, recipe.objective)
        kernel = task.kernels[0] if len(task.kernels) > 1 else None
        self.base = race.Candidate(kernel, "trees" if task.mean == "trees" else "zero", neighbours=near)

    def winner(self) -> "race.Trial":
        """The best trial of all rounds."""
        best = self._means_and_starts()
        for candidate in self._kernels(best):
            best = self._challenge(best, candidate)
        for candidate in self._training(best):
            best = self._challenge(best, candidate)
        if isinstance(self.recipe.n_neighbors, str):
            best = self._more_neighbours(best)
        return best

    def _means_and_starts(self) -> "race.Trial":
        """The better of the means, each with its best start; a mean that is far behind is not trained any further."""
        holder = None
        for mean, starts in self._starts().items():
            if mean == "trees" and holder is not None and self._trees_are_hopeless(holder):
                continue
            trials = []
            for start in starts if self.task.from_data else starts[:1]:
                candidate = replace(self.base, mean=mean, start=start)
                goes_on, first = self.effort.more_steps > 0, self.effort.first_steps
                if holder is None and not trials:  # a fit needs one
                    allowed = max(1, _allowed(self.task, None, first))
                    trials = [self.race.start(candidate, allowed, goes_on=goes_on)]
                else:
                    trials += self._attempt(candidate, first, goes_on=goes_on)
            if not trials:
                continue
            best = max(trials, key=lambda trial: self.race.difference(trial, trials[0]).gain)
            for trial in trials:
                if trial is not best:
                    self.race.note(trial, best, "another start is better")
            if holder is not None and self.race.difference(holder, best).is_far:
                self.race.note(best, holder, f"far behind after {best.num_steps:,} steps")
                continue
            best = _resumed(self.race, best, self.effort.more_steps)
            if holder is None:
                self.race.note(best, None, "first")
                holder = best
            else:
                holder = self._better(holder, [best])
        assert holder is not None
        return holder

    def _trees_are_hopeless(self, holder: "race.Trial") -> bool:
        """Whether a few trees alone, which cost little, are so far behind that more of them are not tried."""
        candidate = replace(self.base, mean="trees")
        if self.race.interrupted or not _in_time(self.task):
            return False  # and not tried for that reason
        try:
            behind = self.race.trees_are_far_behind(holder)
        except KeyboardInterrupt:
            self._interrupt(candidate)
            return True
        if behind:
            self.race.tried.append(race.left_out(candidate, "a few trees alone err more than twice as much"))
        return behind

    def _starts(self) -> "dict[race.Mean, tuple[float, ...]]":
        """The means to try, the simplest first, with their starts."""
        found: dict[race.Mean, tuple[float, ...]] = {} if self.task.mean == "trees" else {"zero": self.effort.starts}
        if self.task.mean == "trees" or (self.task.mean == "auto" and self.effort.trees):
            found["trees"] = self.effort.tree_starts
        return found

    def _better(self, holder: "race.Trial", others: "list[race.Trial]") -> "race.Trial":
        """The holder, or the last of the others that is clearly better than the one before."""
        for trial in others:
            better = self.race.difference(trial, holder).is_clear
            self.race.note(trial, holder, "better" if better else "not better")
            loser, holder = (holder, trial) if better else (trial, holder)
            self.race.rivals.append(loser)
        return holder

    def _kernels(self, best: "race.Trial") -> "list[race.Candidate]":
        own = best.candidate.kernel  # None is the user's choice
        others = [name for name in self.effort.kernels if name in self.task.kernels and own not in (name, None)]
        return [replace(best.candidate, kernel=name) for name in others]

    def _training(self, best: "race.Trial") -> "list[race.Candidate]":
        """Other objectives and neighbours in training."""
        near, found = best.candidate.neighbours, []
        if self.effort.objectives and self.recipe.objective == "auto":
            found.append(near._replace(objective="ordered"))
        if isinstance(self.recipe.n_neighbors, str):
            found += [near._replace(in_training=k) for k in self.effort.train_neighbours]
        return [replace(best.candidate, neighbours=other) for other in found]

    def _challenge(self, holder: "race.Trial", candidate: "race.Candidate") -> "race.Trial":
        """The better of the two; the challenger starts at the hyperparameters of the holder.

        If it is better, the holder gets as many further steps before it has to go.
        """
        found = self._attempt(candidate, self.effort.other_steps, like=holder)
        if found and self.race.difference(found[0], holder).is_clear:
            holder = _resumed(self.race, holder, self.effort.other_steps)
        return self._better(holder, found)

    def _attempt(
        self, candidate: "race.Candidate", num_steps: int, like: "race.Trial | None" = None, goes_on: bool = False
    ) -> "list[race.Trial]":
        """A new trial; none where the time is short or Ctrl-C ends it before it has a score."""
        if not self._may_try(candidate):
            return []
        try:
            return [self.race.start(candidate, _allowed(self.task, None, num_steps), like, goes_on=goes_on)]
        except KeyboardInterrupt:
            self._interrupt(candidate)
            return []

    def _more_neighbours(self, best: "race.Trial") -> "race.Trial":
        """Predictions from more neighbours, as long as they gain enough for what they cost."""
        for count in self.effort.more_neighbours:
            near = best.candidate.neighbours._replace(in_predictions=count)
            known = best.candidate.neighbours.in_predictions or 2 * near.in_training
            if known >= count or count >= self.race.parts.train.num_rows:
                continue
            candidate = replace(best.candidate, neighbours=near)
            if not self._may_try(candidate):
                break
            try:
                trial = self.race.judge_again(best, near)
            except KeyboardInterrupt:
                self._interrupt(candidate)
                break
            found = self.race.difference(trial, best)
            better = found.is_clear and found.gain > COSTLIER_GAIN
            self.race.note(trial, best, "better" if better else "not better by enough for its cost")
            if not better:
                break
            best = trial
        return best

    def _interrupt(self, candidate: "race.Candidate") -> None:
        self.race.interrupted = True
        self.race.tried.append(race.left_out(candidate, "the fit was interrupted"))

    def _may_try(self, candidate: "race.Candidate") -> bool:
        if self.race.interrupted:
            self._interrupt(candidate)
            return False
        if not _in_time(self.task):
            self.race.tried.append(race.left_out(candidate, "the time limit"))
            return False
        return True


def _on_all_rows(
    parts: "steps.Parts", screened: "race.Race", winner: "race.Trial", effort: Effort, local_scale: Any
) -> "tuple[race.Race, race.Trial]":
    """The winner on all rows to learn from; beside it the model that it is best averaged with, if that was better.

    Where trees won, they must prove themselves again, because more rows may need them less. The winner as it is if
    Ctrl-C ends that before it has a score.
    """
    if screened.interrupted:
        return screened, winner
    contest, num_rows = race.Race(parts, local_scale), f"on all {parts.train.num_rows:,} rows"
    contest.tried = screened.tried
    num_steps = max(1, _allowed(parts.train, None, effort.last_steps))
    try:
        trial = contest.start(winner.candidate, num_steps, like=winner)
    except KeyboardInterrupt:
        screened.interrupted = True
        return screened, winner
    contest.note(trial, None, num_rows)
    has_trees, best = trial.candidate.mean == "trees", race.best_partner(winner.score, screened.rivals)
    other = screened.without_trees() if has_trees else None
    if other is None and best is not None and best[1].gain.is_clear:
        other = best[0]
    if other is None or contest.interrupted or not _in_time(parts.train):
        return contest, trial
    try:
        second = contest.start(other.candidate, num_steps, like=other)
    except KeyboardInterrupt:
        contest.interrupted = True
        return contest, trial
    loses_trees = has_trees and second.candidate.mean == "zero" and not contest.difference(trial, second).is_clear
    contest.note(second, trial, f"{num_rows}: {'as good without trees' if loses_trees else 'not better'}")
    contest.rivals.append(trial if loses_trees else second)
    return contest, second if loses_trees else trial


def _trained_exact(
    task: "tasks.Task", model: "exact_choice.Model", trees: "OutOfFold | None", share: float = 1.0
) -> "tasks.Fitted":
    """Exact inference with one of the models that were compared; each has a folder of its own for checkpoints.

    Args:
        share: of the time that is left, which it may take.
    """
    mean, folder = model.candidate.mean, None if task.folder is None else task.folder / model.candidate.mean
    fitted = train_exact(replace(model.learned, folder=folder), model.is_near, share)
    if mean == "zero" or trees is None:
        return fitted
    return fitted._replace(trees=trees.trees, notes=[means.words_of(trees, task), *fitted.notes])


class _Rest(NamedTuple):
    """What a prior mean leaves of a task."""

    task: "tasks.Task"
    trees: "Trees | None"
    notes: list[str]


def _rest(task: "tasks.Task", contest: "race.Race", mean: "race.Mean") -> _Rest:
    """The whole task without what the mean explains: out of fold at rows that trees have seen."""
    if mean == "zero":
        return _Rest(task, None, [])
    found = contest.trees
    assert found is not None
    values, learned = np.empty(tuple(task.y.shape)), contest.parts.rows.cpu().numpy()
    others = np.setdiff1d(np.arange(task.num_rows), learned)
    values[learned], values[others] = found.mean, found.trees.mean(task.inputs[others])
    return _Rest(task.without_mean(values), found.trees, [means.words_of(found, contest.parts.train)])


def _few_rows(parts: "steps.Parts", most: int) -> "steps.Parts":
    """The same held-out rows, and at most ``most`` rows to learn from."""
    n = parts.train.num_rows
    if n <= most:
        return parts
    rows = torch.randperm(n, generator=torch.Generator().manual_seed(parts.train.seed))[:most].to(parts.rows.device)
    return parts._replace(rows=parts.rows[rows], train=parts.train.rows(rows))


def _resumed(contest: "race.Race", trial: "race.Trial", num_steps: int) -> "race.Trial":
    """The trial after further steps, as far as limits allow."""
    task = contest.parts.train
    allowed = _allowed(task, trial, num_steps)
    if not allowed or contest.interrupted or not _in_time(task):
        return trial
    try:
        return contest.resume(trial, allowed)
    except KeyboardInterrupt:
        contest.interrupted = True
        return trial


def _allowed(task: "tasks.Task", trial: "race.Trial | None", num_steps: int) -> int:
    """The further steps that ``max_epochs`` allows, at most ``num_steps``."""
    limit = task.step_limit(BATCH_SIZE)
    done = 0 if trial is None else trial.num_steps
    return num_steps if limit is None else max(0, min(num_steps, limit - done))


def _in_time(task: "tasks.Task") -> bool:
    """Whether ``max_time`` leaves room for more than what must still be done."""
    return task.max_time is None or task.time_left() > LEAST_TIME * (task.deadline - task.began)


def _chosen(words: str, tried: list[dict[str, Any]]) -> str:
    """Which of the models that were tried, in a sentence."""
    compared = sum("nll" in trial for trial in tried)
    model = f"The model is {words}"
    return f"{model}." if compared < 2 else f"{model}, the best of {compared} on held-out rows."


def _joined(winner: "race.Trial", task: "tasks.Task") -> "FitResult":
    """The fits of a trial one after the other as one; what is said of them is said of the whole."""
    results = winner.results
    last, joined, seconds = results[-1], [], 0.0
    for result in results:
        joined += [
            replace(step, number=len(joined) + j + 1, seconds=seconds + step.seconds)
            for j, step in enumerate(result.steps)
        ]
        seconds += result.seconds
    failures = [failure for result in results for failure in result.failures]
    best = len(joined) - len(last.steps) + last.best_step
    findings = [*history.trend(joined), *methods.MultiTarget(winner.methods).findings(task.data, task.names)]
    is_whole = last.status in (training.FitStatus.ALL_STEPS, training.FitStatus.NO_PROGRESS)
    reason = f"Took {len(joined):,} steps." if is_whole and len(results) > 1 else last.reason
    changes = {"steps": joined, "best_step": best, "seconds": seconds, "failures": failures}
    return replace(last, **changes, findings=findings, reason=reason)
