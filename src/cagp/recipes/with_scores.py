"""Training a classifier: scores of labels are regressed on, with hyperparameters learned by left-out labels."""

import copy

import torch
from jaxtyping import Float
from torch import Tensor

from cagp.likelihoods import ClassLikelihood
from cagp.methods import CaGPLocal, CaGPOpt, MultiTarget, ScoreRegression
from cagp.posteriors import Posterior
from cagp.prior import GP, GaussianNoise, KnownNoise
from cagp.recipes.means import trees_of, words_of
from cagp.recipes.opt import sharing_actions
from cagp.recipes.table import Recipe
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


def train(recipe: Recipe, task: Task, name: str = "") -> Fitted:
    """Learn functions that give the classes of rows; the targets are zeros and ones, a column for each function.

    Args:
        task: its ``row_noise`` is 1 / weight of each row; None for equal weights.
        name: the beginning of the name of the folder for checkpoints.
    """
    likelihood, notes, trees, weight = copy.deepcopy(task.likelihood), [], None, weights_of(task)
    assert isinstance(likelihood, ClassLikelihood)
    offsets = likelihood.offsets(task.y, weight)
    offset = offsets.expand(task.y.shape)
    if task.mean == "trees":
        fitted = trees_of(task, "multiclass" if task.y.shape[1] > 1 else "binary")
        trees, offsets = fitted.trees, torch.zeros_like(offsets)
        offset = torch.from_numpy(fitted.mean).to(task.y)
        loss = float(weight @ likelihood.row_loss(task.y, offset, torch.zeros_like(offset[:, 0])) / weight.sum())
        notes.append(words_of(fitted, task, f"log loss of their out-of-fold predictions is {loss:.4f}"))
    outputscale, step = STARTS[task.mean]
    count = NEIGHBORS if isinstance(recipe.n_neighbors, str) else int(recipe.n_neighbors)
    local = CaGPLocal(_prior(task, outputscale), count, seed=task.seed, max_bytes=task.max_bytes)
    scores = ScoreRegression(local, likelihood, offset, weight, step).to(task.X.device)
    labels = task.with_targets(task.y)
    result = labels.run(
        scores, f"{name}{recipe.name}-scores-{task.mean}", most_steps=STEPS, reserve=task.reserve(RESERVE)
    )
    posteriors = _condition(recipe, task, scores, PREDICTING * count, name)
    learned = {"likelihood": likelihood.requires_grad_(False), "offsets": offsets.tolist()}
    return Fitted(recipe.name, posteriors, result, notes, None, trees=trees, **learned)


def weights_of(task: Task) -> Float[Tensor, " n"]:
    """What each row counts."""
    return torch.ones_like(task.y[:, 0]) if task.row_noise is None else 1 / task.row_noise[:, 0]


def _prior(task: Task, outputscale: float) -> GP:
    prior = GP(copy.deepcopy(task.kernel), noise=GaussianNoise(1.0, task.noise_floor))
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
    targets = scores.targets(task.y)
    columns = [task.data.with_targets(column.contiguous(), row_noise) for column in targets.unbind(1)]
    method = recipe.predicting_method(task.with_targets(task.y), prior)
    if isinstance(method, CaGPLocal):
        k = min(num_neighbours, task.num_rows)
        return [method.condition(column, num_neighbours=k, shares_rows=True) for column in columns]
    methods = [method] * len(columns)
    if isinstance(method, CaGPOpt):
        methods = _learned_actions(task, method, targets, row_noise, name).parts
    pairs = zip(methods, columns, strict=True)
    return [each.condition(column) for each, column in pairs]


def _learned_actions(task: Task, first: CaGPOpt, targets: Tensor, row_noise: Tensor | None, name: str) -> MultiTarget:
    """CaGP-Opt for each function, with actions that all share, learned at fixed hyperparameters."""
    several = sharing_actions(first, [first.prior] * targets.shape[1])
    noise = None if row_noise is None else row_noise[:, None].expand(targets.shape).contiguous()
    regression = task.with_targets(targets, noise)
    regression.run(several, f"{name}opt-actions-{task.mean}", most_steps=STEPS, reserve=task.reserve(RESERVE))
    return several
