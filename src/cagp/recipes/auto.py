"""The choice of a model for a table, and the fit of what was chosen to all rows."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from cagp import limits
from cagp.comparison import Score, compare
from cagp.methods import MultiTarget
from cagp.methods.compared import memory_needed
from cagp.posteriors import AveragedPosterior
from cagp.prior import GaussianNoise
from cagp.recipes import exact, local
from cagp.recipes.local import Neighbours, action_bytes, number_of_actions
from cagp.recipes.opt import started_at, train_opt
from cagp.recipes.search import Effort, Search
from cagp.recipes.table import Recipe
from cagp.recipes.task import RESIDUAL_START, Fitted, Learned, Task, trees_of, with_mean, with_trees, words_of
from cagp.recipes.trials import FEW_ROWS, Candidate, EachRow, HeldOutRows, Trial
from cagp.training import FitResult, FitStatus
from cagp.training.history import trend

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
    if task.decays is False:
        return with_mean(task, lambda residual: _long_range(recipe, residual))
    own = task.kernels[0] if len(task.kernels) > 1 else None
    base = Candidate(own, "trees" if task.mean == "trees" else "zero")
    if n <= limits.EXACT_ROWS and memory_needed(n) <= task.memory:
        return _exact(recipe, task, effort, base)
    local.check_neighbours(recipe.n_neighbors, n)
    base = replace(base, neighbours=Neighbours.of(recipe.n_neighbors, recipe.objective))
    if recipe.n_neighbors != "auto":
        effort = effort._replace(more_neighbours=(), train_neighbours=())
    if recipe.objective != "auto":
        effort = effort._replace(objectives=False)
    parts = some = task.hold_out(effort.validation_rows)
    if parts.train.num_rows > effort.screen_rows:
        rows = parts.train.random_rows(effort.screen_rows)
        some = parts._replace(rows=parts.rows[rows], train=parts.train.rows(rows))
    search = Search(task, HeldOutRows(some, recipe.local_scale), effort, base)
    best = search.best()
    if some is not parts:
        search, best = _on_all_rows(search, HeldOutRows(parts, recipe.local_scale), best)
    else:
        best = search.resumed(best, effort.last_steps)
    return _nearest_rows(recipe, task, search, best)


def planned_bytes(recipe: Recipe, num_rows: int, num_inputs: int, num_targets: int) -> dict[str, int]:
    """As for nearest rows; the numbers of the rows that are not held out besides."""
    if recipe.objective == "auto" and EFFORTS[recipe.effort].objectives:
        recipe = replace(recipe, objective="ordered")  # which is tried, and needs more
    needed = local.planned_bytes(recipe, num_rows, num_inputs, num_targets)
    return {**needed, "the rows to learn from, by number": 2 * local.INTEGER * num_rows}


# ---- kernels that link rows at any distance ----


def _long_range(recipe: Recipe, task: Task) -> Fitted:
    """Hyperparameters from rows near and far; predictions from all rows, or from shared actions and nearest rows."""
    n, neighbours = task.num_rows, Neighbours.of(recipe.n_neighbors, recipe.objective)
    reason = "the kernel links rows at any distance"
    if n <= MOST_EXACT and memory_needed(n) <= task.memory:
        learned = local.learn_far(task)
        choice = f"Chose exact inference: {reason}, and {n:,} rows are few enough (at most {MOST_EXACT:,})."
        posteriors = exact.exact_methods(task, learned.priors).condition(task.data)
        return Fitted("exact", posteriors, learned.result, learned.notes, slice(None), choice)
    learned = local.learn_far(task, neighbours)
    fitted = local.condition(recipe, task, learned, neighbours, is_hybrid=True)
    return fitted._replace(choice=f"Chose hybrid: {reason}, so that nearest rows alone are not enough.")


# ---- few rows ----


def _exact(recipe: Recipe, task: Task, effort: Effort, base: Candidate) -> Fitted:
    """Exact inference with the kernel and the mean that predict each row best from all others."""
    reason = f"Chose exact inference: {task.num_rows:,} rows are few enough (at most {limits.EXACT_ROWS:,})."
    tries_trees = effort.trees and task.num_rows >= LEAST_TREE_ROWS
    rows = EachRow(task)
    search = Search(task, rows, EXACT_EFFORT._replace(kernels=effort.kernels, trees=tries_trees), base)

    def trained(task: Task, candidate: Candidate, trial: Trial | None = None, share: float = 1.0) -> Fitted:
        """Exact inference with all rows, from the hyperparameters of a trial; ``share`` is that of the time left."""
        trees = None
        if candidate.mean == "trees":
            trees = rows.trees if rows.parts is None else trees_of(task)
        if task.folder is not None:  # each mean has one of its own for checkpoints
            task = replace(task, folder=task.folder / candidate.mean)
        if trial is not None:
            noise = [float(p.noise.noise.detach()) for p in trial.priors if isinstance(p.noise, GaussianNoise)]
            task = replace(task, kernel=trial.priors[0].kernel, from_data=False, noise=noise)
        return with_trees(task, trees, lambda residual: exact.train(recipe, residual, trial is not None, share))

    is_alone = len(search.means()) == 1 and not search.other_kernels(base)
    if is_alone and (task.num_rows <= FEW_ROWS or not task.from_data):
        return trained(task, base)._replace(choice=reason)
    best = search.best()
    average = None if search.interrupted or not search.in_time else search.average(best)
    last = replace(task, max_epochs=1) if search.interrupted else task
    fitted = trained(last, best.candidate, best, 1.0 if average is None else 0.5)
    if average is not None:
        other, weight = average
        fitted = _averaged(fitted, trained(task, other.candidate, other), weight)
    if is_alone:
        search.tried.clear()
    else:
        reason = f"{reason} {search.chosen(best, average)}"
    if search.interrupted:
        reason = f"{reason} The fit was interrupted before all models were compared."
        fitted = fitted._replace(result=_as_interrupted(fitted.result))
    return fitted._replace(choice=reason, tried=search.tried)


# ---- many rows ----


def _on_all_rows(search: Search, validation: HeldOutRows, best: Trial) -> tuple[Search, Trial]:
    """The best on all rows to learn from; beside it the model that it is best averaged with, if that was better.

    If trees won, they are compared again, because more rows may need them less. The best as it is if Ctrl-C ends that
    before it has a score.
    """
    num_rows, num_steps = f"on all {validation.learning.num_rows:,} rows", search.effort.last_steps
    last = Search(search.task, validation, search.effort, search.base)
    last.tried = search.tried
    again = partial(last.attempt, best.candidate, num_steps, like=best, is_needed=True)
    trial = search.unless_interrupted(again)
    if trial is None:
        return search, best
    last.note(trial, None, num_rows)
    has_trees, pair, other = trial.candidate.mean == "trees", search.partner(best), None
    if has_trees:
        other = next((rival for rival in search.rivals if rival.candidate.mean == "zero"), None)
    if other is None and pair is not None and pair[1].gain.exceed("model"):
        other = pair[0]
    if other is None or last.interrupted or not last.in_time:
        return last, trial
    second = last.attempt(other.candidate, num_steps, like=other)
    if second is None:
        return last, trial
    needs_trees = second.candidate.mean == "trees" or compare(trial.score, second.score).exceed("model")
    loses = has_trees and not needs_trees
    last.note(second, trial, f"{num_rows}: {'as good without trees' if loses else 'not better'}")
    last.rivals.append(trial if loses else second)
    return last, second if loses else trial


def _nearest_rows(recipe: Recipe, task: Task, search: Search, best: Trial) -> Fitted:
    """The best with all rows, after a comparison with shared actions, or its average with another model."""
    name, reason, score = _compare_methods(recipe, task, search, best)
    average, result = None, _joined(search, best)
    if not search.interrupted and (name == "local" or (name == "hybrid" and search.in_time)):
        average = search.average(best, score)
    if search.interrupted:
        result = _as_interrupted(result)

    def conditioned(trial: Trial, is_hybrid: bool = False) -> Fitted:
        given = Learned(trial.priors, result), trial.candidate.neighbours, is_hybrid
        return _with_mean_of(trial, task, search, lambda residual: local.condition(recipe, residual, *given))

    def refined(residual: Task) -> Fitted:
        fitted = train_opt(residual, best.priors, recipe.n_actions, learned=True, most_steps=REFINING_STEPS)
        return fitted._replace(notes=[started_at(result)])

    if name == "opt":
        fitted = _with_mean_of(best, task, search, refined)
    else:
        fitted = conditioned(best, name == "hybrid")
        notes = [f"Hyperparameters were learned without the held-out rows; predictions use all {task.num_rows:,} rows."]
        notes += [local.UNKNOWN_DECAY] if task.decays is None else []
        fitted = fitted._replace(notes=[*notes, *fitted.notes])
    choice = f"Chose {name}: {reason}. {search.chosen(best, average)}"
    fitted = fitted._replace(choice=choice, tried=search.tried)
    if average is None:
        return fitted
    other, weight = average
    return _averaged(fitted, conditioned(other), weight)


def _with_mean_of(trial: Trial, task: Task, search: Search, train: Callable[[Task], Fitted]) -> Fitted:
    """What ``train`` makes of all rows with the mean of a trial: out of fold at rows that trees were fitted to."""
    if trial.candidate.mean == "zero":
        return train(task)
    trees, parts = search.validation.trees, search.validation.parts
    assert parts is not None
    values, learned = np.empty(tuple(task.y.shape)), parts.rows.cpu().numpy()
    others = np.setdiff1d(np.arange(task.num_rows), learned)
    values[learned], values[others] = trees.mean, trees.trees.mean(task.inputs[others])
    return with_trees(task, trees._replace(mean=values), train, words_of(trees, parts.train))


METHOD_REASONS = {
    "local": "nearest rows alone do as well as anything here",
    "opt": "shared actions do as well without any neighbours",
    "hybrid": "nearest rows and shared actions together are better than either",
}


def _compare_methods(recipe: Recipe, task: Task, search: Search, best: Trial) -> tuple[str, str, Score]:
    """How the best model predicts, why, and its score: shared actions may replace nearest rows, or help them."""
    num_actions, validation = number_of_actions(recipe.n_actions, task), search.validation
    assert isinstance(validation, HeldOutRows)
    interrupted = "the fit was interrupted before other methods could be compared"
    obstacles = {
        interrupted: search.interrupted,
        "the rows stay on disk, where shared actions are not compared": task.scratch is not None,
        f"the memory limit does not allow {num_actions:,} shared actions": (
            action_bytes(task.num_rows, num_actions) > task.memory
        ),
        "the time limit does not allow shared actions to be compared": not search.in_time,
    }
    if reasons := [reason for reason, is_met in obstacles.items() if is_met]:
        return "local", reasons[0], best.score
    num_shared = number_of_actions(recipe.n_actions, validation.learning)
    found = search.unless_interrupted(lambda: validation.with_shared(best, num_shared))
    if found is None:
        return "local", interrupted, best.score
    # The simplest first: the first that none of the others is better than.
    scores = {"local": best.score, "opt": found[1], "hybrid": found[0]}
    top = min(scores.values(), key=lambda score: -compare(score, best.score).mean)
    name = next(name for name, score in scores.items() if not compare(top, score).exceed("method"))
    listed = ", ".join(f"{name} {float(score.nll.mean()):.3f}" for name, score in scores.items())
    reason = f"{METHOD_REASONS[name]} (negative log density of {len(best.score.nll):,} held-out rows: {listed})"
    return name, reason, scores[name]


def _joined(search: Search, trial: Trial) -> FitResult:
    """The fits of a trial one after the other as one; what is said of them is said of the whole."""
    last, joined, seconds = trial.results[-1], [], 0.0
    for result in trial.results:
        numbered = enumerate(result.steps, start=len(joined) + 1)
        joined += [replace(step, number=number, seconds=seconds + step.seconds) for number, step in numbered]
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
