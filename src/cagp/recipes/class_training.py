"""Training a classifier: scores of labels are regressed on, with hyperparameters learned by left-out labels."""

import copy
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from cagp.likelihoods import Bernoulli, ClassLikelihood
from cagp.methods import CaGPLocal, CaGPOpt, Method, MultiTarget, ScoreRegression
from cagp.posteriors import Posterior, predict_columns
from cagp.prior import GP, GaussianNoise, KnownNoise
from cagp.recipes.base import Recipe
from cagp.recipes.likelihoods import COMPARED_FROM, chosen_mean, train_sites
from cagp.recipes.means import trees_of
from cagp.recipes.task import Fitted, Task
from cagp.starting import start_from_data

STEPS = 100
"""Of training; an action of "opt" is learned in as many."""

NEIGHBORS, PREDICTING = 64, 2
"""Rows that predict each row in training, unless the user chooses; predictions take this many times as many.
docs/benchmarks.md has the evidence."""

START = 0.5
"""Lengthscales start at this times those that the data suggest for regression."""

STARTS = {"zero": (4.0, 5.0), "trees": (0.5, 3.0)}
"""Where outputscale and step start, by the prior mean."""

RESERVE = 0.1
"""The share of ``max_time`` that is left for the posterior."""


def train_scores(recipe: Recipe, task: Task) -> Fitted:
    """Learn functions that give the classes of rows; the targets are zeros and ones, a column for each function.

    "auto" is prior mean zero for few rows; with more, whichever of zero and trees predicts held-out rows better.

    Args:
        task: its ``row_noise`` is 1 / weight of each row; None for equal weights.
    """
    task = task.in_double()
    if task.mean == "auto" and task.num_rows < COMPARED_FROM:
        task = replace(task, mean="zero")
    if task.mean != "auto":
        return _train(recipe, task)
    mean, choice = chosen_mean(
        task, lambda tried, held: _held_out_loss(_train(recipe, tried, "compared-"), held), "log loss"
    )
    return _train(recipe, replace(task, mean=mean))._replace(choice=choice)


@torch.no_grad()
def _held_out_loss(found: Fitted, held_out: Task) -> float:
    """The weighted log loss of held-out labels."""
    assert isinstance(found.likelihood, ClassLikelihood)
    mean, variance = predict_columns(found.posteriors, held_out.X)
    mean = mean + torch.tensor(found.offsets, dtype=torch.float64).to(mean.device)
    if found.trees is not None:
        mean = mean + torch.from_numpy(found.trees.mean(held_out.inputs)).to(mean)
    weight = _weight(held_out)
    return float(weight @ found.likelihood.row_loss(held_out.y, mean, variance) / weight.sum())


def _weight(task: Task) -> Tensor:
    return torch.ones_like(task.y[:, 0]) if task.row_noise is None else 1 / task.row_noise[:, 0]


def _train(recipe: Recipe, task: Task, name: str = "") -> Fitted:
    """Train with a prior mean that is chosen; ``name`` is the beginning of that of the folder for checkpoints."""
    likelihood = copy.deepcopy(task.likelihood)
    assert isinstance(likelihood, ClassLikelihood)
    notes, trees, weight = [], None, _weight(task)
    offsets = likelihood.offsets(task.y, weight)
    offset = offsets.expand(task.y.shape)
    if task.mean == "trees":
        found = trees_of(task, "multiclass" if task.y.shape[1] > 1 else "binary")
        trees, offsets = found.trees, torch.zeros_like(offsets)
        offset = torch.from_numpy(found.mean).to(task.y)
        zero = torch.zeros_like(offset[:, 0])
        loss = float(weight @ likelihood.row_loss(task.y, offset, zero) / weight.sum())
        late = "" if found.finished else " The time limit ended them early."
        notes.append(
            f"The prior mean is {trees.num_trees[0]:,} boosted trees for each function, fitted out of fold: the log "
            f"loss of their out-of-fold predictions is {loss:.4f}, and the Gaussian process learns what they "
            f"leave.{late}"
        )
    outputscale, step = STARTS[task.mean]
    prior = _prior(task, outputscale)
    count = recipe_neighbours(recipe)
    local = CaGPLocal(prior, count, seed=task.seed, max_bytes=task.max_bytes)
    scores = ScoreRegression(local, likelihood, offset, weight, step).to(task.X.device)
    labels = task.with_targets(task.y)
    reserve = 0.0 if task.max_time is None else RESERVE * task.time_left()
    result = labels.run(scores, f"{name}{recipe.name}-scores-{task.mean}", most_steps=STEPS, reserve=reserve)
    posteriors = _condition(recipe, task, scores, PREDICTING * count, name)
    learned = {"likelihood": likelihood.requires_grad_(False), "offsets": offsets.tolist()}
    return Fitted(recipe.name, posteriors, result, notes, None, trees=trees, **learned)


class FittedClasses(NamedTuple):
    """What ``train_classes`` returns."""

    fitted: Fitted
    likelihood: ClassLikelihood
    offsets: list[float]


def train_classes(recipe: Recipe, task: Task, likelihood: ClassLikelihood) -> FittedClasses:
    """For callers that do not use ``recipes.train`` yet."""
    task = replace(task, likelihood=likelihood, targets="classes")
    is_sites = recipe.name == "exact" and isinstance(likelihood, Bernoulli) and task.row_noise is None
    found = train_sites(recipe, task) if is_sites else train_scores(recipe, task)
    assert isinstance(found.likelihood, ClassLikelihood)
    assert found.offsets is not None
    return FittedClasses(found, found.likelihood, found.offsets)


def recipe_neighbours(recipe: Recipe) -> int:
    """Rows that predict each row in training."""
    chosen = getattr(recipe, "n_neighbors", "auto")
    return NEIGHBORS if isinstance(chosen, str) else int(chosen)


def _prior(task: Task, outputscale: float) -> GP:
    prior = GP(task.kernel, noise=GaussianNoise(1.0, task.noise_floor))
    if task.from_data:
        start_from_data(prior, task.column(0), stretch=START, outputscale=outputscale)
        prior.noise = GaussianNoise(1.0, task.noise_floor)
    return prior.to(task.X.device)


def _condition(recipe: Recipe, task: Task, scores: ScoreRegression, num_neighbours: int, name: str) -> list[Posterior]:
    """The posterior of each function, by the method of the recipe, at the hyperparameters that were learned."""
    prior, row_noise = scores.prior, None
    if task.row_noise is not None:
        prior, row_noise = GP(prior.kernel, noise=KnownNoise()), scores.row_noise()
    prior.requires_grad_(False)
    columns = scores.targets(task.y).unbind(1)
    method = recipe.predicting_method(task.with_targets(task.y), prior)
    data = [task.data.with_targets(column.contiguous(), row_noise) for column in columns]
    if isinstance(method, CaGPLocal):
        k = min(num_neighbours, task.num_rows)
        return [method.condition(of_one, num_neighbours=k, shares_rows=True) for of_one in data]
    methods = [method] * len(columns)
    if isinstance(method, CaGPOpt):
        methods = _learned_actions(task, method, torch.stack(columns, 1), row_noise, name)
    return [own.condition(of_one) for own, of_one in zip(methods, data, strict=True)]


def _learned_actions(task: Task, first: CaGPOpt, targets: Tensor, row_noise: Tensor | None, name: str) -> list[Method]:
    """CaGP-Opt for each function, with actions that all share, learned at fixed hyperparameters."""
    options = {"max_bytes": first.max_bytes, "reblock_at": first.reblock_at}
    options |= {"batch_size": first.batch_size, "seed": first.seed}
    others = [CaGPOpt(first.prior, first.actions, first.loss, **options) for _ in targets.unbind(1)[1:]]
    method = MultiTarget([first, *others])
    noise = None if row_noise is None else row_noise[:, None].expand(targets.shape).contiguous()
    regression = task.with_targets(targets, noise)
    reserve = 0.0 if task.max_time is None else RESERVE * task.time_left()
    regression.run(method, f"{name}opt-actions-{task.mean}", most_steps=STEPS, reserve=reserve)
    return method.parts
