"""The choice of a model for a table, and the fit of what was chosen to all rows."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from cagp import limits
from cagp.actions import BlockActions
from cagp.comparison import Score, compare
from cagp.methods import MultiTarget
from cagp.methods.cholesky import memory_needed
from cagp.posteriors import AveragedPosterior
from cagp.prior import GaussianNoise
from cagp.recipes import long_range, means, nearest
from cagp.recipes.actions import constant_actions, number_of_actions
from cagp.recipes.checks import check_neighbours
from cagp.recipes.exact import exact_methods, train_exact
from cagp.recipes.local import UNKNOWN_DECAY, shared_actions
from cagp.recipes.nearest import Neighbours
from cagp.recipes.opt import started_at, train_opt
from cagp.recipes.search import Effort, Search, average_words
from cagp.recipes.table import Recipe
from cagp.recipes.task import RESIDUAL_START, Fitted, Learned, Task
from cagp.recipes.trials import FEW_ROWS, Candidate, EachRow, HeldOutRows, Mean, Trial
from cagp.recipes.validation import Parts, hold_out
from cagp.training import FitResult, FitStatus
from cagp.training.history import trend
from cagp.trees import Trees

REFINING_STEPS = 50
"""Steps of CaGP-Opt after the hyperparameters were found and it was chosen."""

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
        tree_starts=(1.0, RESIDUAL_START),
        kernels=("matern12", "matern52", "rbf", "rational_quadratic"),
        more_neighbours=(128, 256),
        train_neighbours=(64, 128),
        objectives=True,
        screen_rows=200_000,
        validation_rows=10_000,
    ),
}
EXACT_EFFORT = Effort(first_steps=100, more_steps=0, other_steps=40, last_steps=0)
"""For few rows: the winner is trained on all of them."""

LEAST_TREE_ROWS = 200
"""With fewer rows, trees have too little to learn from."""

MOST_EXACT = 8000
"""Up to this many rows, predictions at given hyperparameters use all of them: one factorisation takes seconds."""


def train(recipe: Recipe, task: Task) -> Fitted:
    """Exact for few rows; else local with the kernel, mean and neighbours that predict held-out rows best."""
    n, effort = task.num_rows, EFFORTS[recipe.effort]
    if task.is_long_range:
        return means.with_mean(task, lambda residual: _long_range(recipe, residual))
    own = task.kernels[0] if len(task.kernels) > 1 else None
    base = Candidate(own, "trees" if task.mean == "trees" else "zero")
    if n <= limits.EXACT_ROWS and memory_needed(n) <= task.memory:
        return _exact(task, effort, base)
    check_neighbours(recipe.n_neighbors, n)
    base = replace(base, neighbours=Neighbours.of(recipe.n_neighbors, recipe.objective))
    parts = hold_out(task, effort.validation_rows)
    some = _some_rows(parts, effort.screen_rows)
    varied = isinstance(recipe.n_neighbors, str), effort.objectives and recipe.objective == "auto"
    search = Search(task, HeldOutRows(some, recipe.local_scale), effort, base, *varied)
    best = search.best()
    if some.train.num_rows < parts.train.num_rows:
        search, best = _on_all_rows(search, HeldOutRows(parts, recipe.local_scale), best)
    else:
        best = search.resumed(best, effort.last_steps)
    return _nearest_rows(recipe, task, search, best)


def planned_bytes(recipe: Recipe, num_rows: int, num_inputs: int, num_targets: int) -> dict[str, int]:
    """As for nearest rows; the numbers of the rows that are not held out besides."""
    tries_order = recipe.objective == "ordered" or (recipe.objective == "auto" and EFFORTS[recipe.effort].objectives)
    needed = nearest.planned_bytes(num_rows, num_inputs, num_targets, tries_order)
    return {**needed, "the rows to learn from, by number": 2 * nearest.INTEGER * num_rows}


# ---- kernels that link rows at any distance ----


def _long_range(recipe: Recipe, task: Task) -> Fitted:
    """Hyperparameters from rows near and far; predictions from all rows, or from shared actions and nearest rows."""
    n, neighbours = task.num_rows, Neighbours.of(recipe.n_neighbors, recipe.objective)
    reason = "the kernel links rows at any distance"
    if n <= MOST_EXACT and memory_needed(n) <= task.memory:
        learned = long_range.learn(task)
        choice = f"Chose exact inference: {reason}, and {n:,} rows are few enough (at most {MOST_EXACT:,})."
        posteriors = exact_methods(task, learned.priors).condition(task.data)
        return Fitted("exact", posteriors, learned.result, learned.notes, task.every_row(), choice)
    learned = long_range.learn(task, neighbours)
    shared, words = shared_actions(recipe.n_actions, task, learned.priors[0])
    learned = learned._replace(notes=[*learned.notes, words])
    fitted = nearest.condition(task, learned, neighbours, recipe.local_scale, shared)
    return fitted._replace(choice=f"Chose hybrid: {reason}, so that nearest rows alone are not enough.")


# ---- few rows ----


def _exact(task: Task, effort: Effort, base: Candidate) -> Fitted:
    """Exact inference with the kernel and the mean that predict each row best from all others."""
    reason = f"Chose exact inference: {task.num_rows:,} rows are few enough (at most {limits.EXACT_ROWS:,})."
    tries_trees = effort.trees and task.num_rows >= LEAST_TREE_ROWS
    rows = EachRow(task)
    search = Search(task, rows, EXACT_EFFORT._replace(kernels=effort.kernels, trees=tries_trees), base)
    is_alone = len(search.means()) == 1 and not search.other_kernels(base)
    if is_alone and (task.num_rows <= FEW_ROWS or not task.from_data):
        return _trained_exact(task, rows, base)._replace(choice=reason)
    best = search.best()
    average = None if search.interrupted or not search.in_time else search.average(best)
    words, last = best.candidate.words, replace(task, max_epochs=1) if search.interrupted else task
    fitted = _trained_exact(last, rows, best.candidate, best, 1.0 if average is None else 0.5)
    if average is not None:
        other, weight = average
        words = average_words(best.candidate, other.candidate, weight)
        fitted = _averaged(fitted, _trained_exact(task, rows, other.candidate, other), weight)
    if not is_alone:
        reason = f"{reason} {search.chosen(words)}"
    if search.interrupted:
        reason = f"{reason} The fit was interrupted before all models were compared."
        fitted = fitted._replace(result=_as_interrupted(fitted.result))
    return fitted._replace(choice=reason, tried=[] if is_alone else search.tried)


def _trained_exact(
    task: Task, rows: EachRow, candidate: Candidate, trial: Trial | None = None, share: float = 1.0
) -> Fitted:
    """Exact inference with all rows; each mean has a folder of its own for checkpoints.

    Args:
        trial: whose hyperparameters training starts at; None for those that the data suggest.
        share: of the time that is left, which it may take.
    """
    trees = rows.whole_trees(candidate.mean)
    residual = replace(task, mean="zero") if trees is None else task.without_mean(trees.mean)
    if task.folder is not None:
        residual = replace(residual, folder=task.folder / candidate.mean)
    if trial is not None:
        noise = [float(p.noise.noise.detach()) for p in trial.priors if isinstance(p.noise, GaussianNoise)]
        residual = replace(residual, kernel=trial.priors[0].kernel, from_data=False, noise=noise)
    fitted = train_exact(residual, trial is not None, share)
    if trees is None:
        return fitted
    return fitted._replace(trees=trees.trees, notes=[means.words_of(trees, task), *fitted.notes])


# ---- many rows ----


def _some_rows(parts: Parts, most: int) -> Parts:
    """The same held-out rows, and at most ``most`` rows to learn from."""
    if parts.train.num_rows <= most:
        return parts
    rows = parts.train.random_rows(most)
    return parts._replace(rows=parts.rows[rows], train=parts.train.rows(rows))


def _on_all_rows(search: Search, validation: HeldOutRows, best: Trial) -> tuple[Search, Trial]:
    """The best on all rows to learn from; beside it the model that it is best averaged with, if that was better.

    If trees won, they are compared again, because more rows may need them less. The best as it is if Ctrl-C ends that
    before it has a score.
    """
    if search.interrupted:
        return search, best
    num_rows, num_steps = f"on all {validation.learning.num_rows:,} rows", search.effort.last_steps
    last = Search(search.task, validation, search.effort, search.base)
    last.tried = search.tried
    try:
        (trial,) = last.attempt(best.candidate, num_steps, like=best, is_needed=True)
    except KeyboardInterrupt:
        search.interrupted = True
        return search, best
    last.note(trial, None, num_rows)
    has_trees, pair, other = trial.candidate.mean == "trees", search.partner(best), None
    if has_trees:
        other = next((rival for rival in search.rivals if rival.candidate.mean == "zero"), None)
    if other is None and pair is not None and pair[1].gain.exceed("model"):
        other = pair[0]
    if other is None or last.interrupted or not last.in_time:
        return last, trial
    for second in last.attempt(other.candidate, num_steps, like=other):
        needs_trees = second.candidate.mean == "trees" or compare(trial.score, second.score).exceed("model")
        loses = has_trees and not needs_trees
        last.note(second, trial, f"{num_rows}: {'as good without trees' if loses else 'not better'}")
        last.rivals.append(trial if loses else second)
        trial = second if loses else trial
    return last, trial


def _nearest_rows(recipe: Recipe, task: Task, search: Search, best: Trial) -> Fitted:
    """The best with all rows, after a comparison with shared actions, or its average with another model."""
    method = _compare_methods(recipe, task, search, best)
    average = None
    may_average = method.name == "local" or (method.name == "hybrid" and search.in_time)
    if may_average and not search.interrupted:
        average = search.average(best, method.score)
    words, result = best.candidate.words, _joined(search, best)
    if average is not None:
        words = average_words(best.candidate, average[0].candidate, average[1])
    if search.interrupted:
        result = _as_interrupted(result)
    choice = f"Chose {method.name}: {method.reason}. {search.chosen(words)}"
    if method.name == "opt":
        residual = _residual(task, search, best.candidate.mean)
        fitted = train_opt(residual.task, best.priors, recipe.n_actions, learned=True, most_steps=REFINING_STEPS)
        fitted = fitted._replace(notes=[*residual.notes, started_at(result)], trees=residual.trees)
        return fitted._replace(choice=choice, tried=search.tried)
    fitted = _conditioned(recipe, task, search, best, result, method.name == "hybrid")
    notes = [f"Hyperparameters were learned without the held-out rows; predictions use all {task.num_rows:,} rows."]
    notes += [UNKNOWN_DECAY] if task.decays is None else []
    fitted = fitted._replace(notes=[*notes, *fitted.notes], choice=choice, tried=search.tried)
    if average is None:
        return fitted
    other, weight = average
    return _averaged(fitted, _conditioned(recipe, task, search, other, result), weight)


class _Method(NamedTuple):
    """How the best model predicts, why, and its score."""

    name: str
    reason: str
    score: Score | None = None


METHOD_REASONS = {
    "local": "nearest rows alone do as well as anything here",
    "opt": "shared actions do as well without any neighbours",
    "hybrid": "nearest rows and shared actions together are better than either",
}


def _compare_methods(recipe: Recipe, task: Task, search: Search, best: Trial) -> _Method:
    """Whether shared actions replace nearest rows, or help them, at the hyperparameters of the best model."""
    num_actions, interrupted = number_of_actions(recipe.n_actions, task), "the fit was interrupted before other methods"
    if search.interrupted:
        return _Method("local", f"{interrupted} could be compared")
    if task.scratch is not None:
        return _Method("local", "the rows stay on disk, where shared actions are not compared")
    if limits.action_bytes(task.num_rows, num_actions) > task.memory:
        return _Method("local", f"the memory limit does not allow {num_actions:,} shared actions")
    if not search.in_time:
        return _Method("local", "the time limit does not allow shared actions to be compared")
    try:
        assert isinstance(search.validation, HeldOutRows)
        alone, beside = search.validation.with_shared(best, _actions_to_learn(recipe, search, best))
    except KeyboardInterrupt:
        search.interrupted = True
        return _Method("local", f"{interrupted} could be compared")
    # The simplest first: the first that none of the others is better than.
    scores = {"local": best.score, "opt": alone, "hybrid": beside}
    top = min(scores.values(), key=lambda score: -compare(score, best.score).mean)
    name = next(name for name, score in scores.items() if not compare(top, score).exceed("method"))
    listed = ", ".join(f"{name} {float(score.nll.mean()):.3f}" for name, score in scores.items())
    reason = f"{METHOD_REASONS[name]} (negative log density of {len(best.score.nll):,} held-out rows: {listed})"
    return _Method(name, reason, scores[name])


def _actions_to_learn(recipe: Recipe, search: Search, best: Trial) -> BlockActions:
    """Shared actions on the rows to learn from."""
    learning = search.validation.learning
    num_shared = number_of_actions(recipe.n_actions, learning)
    return constant_actions(best.priors[0].kernel, learning.data, num_shared, learning.seed)


def _conditioned(
    recipe: Recipe, task: Task, search: Search, trial: Trial, result: FitResult, is_hybrid: bool = False
) -> Fitted:
    """Nearest rows at the hyperparameters of a trial, with all rows; for the hybrid beside shared actions."""
    residual, shared = _residual(task, search, trial.candidate.mean), None
    notes = residual.notes
    if is_hybrid:
        shared, words = shared_actions(recipe.n_actions, residual.task, trial.priors[0])
        notes = [*notes, words]
    learned = Learned(trial.priors, result, notes)
    fitted = nearest.condition(residual.task, learned, trial.candidate.neighbours, recipe.local_scale, shared)
    return fitted._replace(trees=residual.trees)


class _Residual(NamedTuple):
    """A task with the residuals of a prior mean as targets."""

    task: Task
    trees: Trees | None
    notes: list[str]


def _residual(task: Task, search: Search, mean: Mean) -> _Residual:
    """The whole task with the residuals of the mean: out of fold at rows that trees were fitted to."""
    if mean == "zero":
        return _Residual(task, None, [])
    fitted, parts = search.validation.trees, search.validation.parts
    assert fitted is not None
    assert parts is not None
    values, learned = np.empty(tuple(task.y.shape)), parts.rows.cpu().numpy()
    others = np.setdiff1d(np.arange(task.num_rows), learned)
    values[learned], values[others] = fitted.mean, fitted.trees.mean(task.inputs[others])
    return _Residual(task.without_mean(values), fitted.trees, [means.words_of(fitted, parts.train)])


def _joined(search: Search, trial: Trial) -> FitResult:
    """The fits of a trial one after the other as one; what is said of them is said of the whole."""
    last, joined, seconds = trial.results[-1], [], 0.0
    for result in trial.results:
        joined += [
            replace(step, number=len(joined) + j + 1, seconds=seconds + step.seconds)
            for j, step in enumerate(result.steps)
        ]
        seconds += result.seconds
    task = search.validation.residuals(trial.candidate.mean)
    findings = [*trend(joined), *MultiTarget(trial.methods).findings(task.data, task.names)]
    is_whole = last.status in (FitStatus.ALL_STEPS, FitStatus.NO_PROGRESS) and len(trial.results) > 1
    return replace(
        last,
        steps=joined,
        best_step=len(joined) - len(last.steps) + last.best_step,
        seconds=seconds,
        failures=[failure for result in trial.results for failure in result.failures],
        findings=findings,
        reason=f"Took {len(joined):,} steps." if is_whole else last.reason,
    )


def _as_interrupted(result: FitResult) -> FitResult:
    """The result of a fit whose choice Ctrl-C ended."""
    return replace(result, status=FitStatus.INTERRUPTED, reason=f"Interrupted after {len(result.steps):,} steps.")


def _averaged(first: Fitted, second: Fitted, weight: float) -> Fitted:
    """The first model, averaged with a second one that has this weight; see ``AveragedPosterior``.

    Trees in the mean are the offset of the models that have them; if both do, these are the same trees.
    """
    offset_of = [j for j, fitted in enumerate((first, second)) if fitted.trees is not None] or [0]
    pairs = zip(first.posteriors, second.posteriors, strict=True)
    new = [note for note in second.notes if note not in first.notes]
    return first._replace(
        posteriors=[AveragedPosterior(pair, (1 - weight, weight), offset_of) for pair in pairs],
        trees=first.trees or second.trees,
        notes=[*first.notes, "Of the second model:", *new],
    )
