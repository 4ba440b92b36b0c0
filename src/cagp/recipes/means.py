"""Trees in the mean of a task: fitted once, kept beside the checkpoints, and left out of what the process learns."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cagp.lazy import lazy_module
from cagp.recipes.base import Recipe

if TYPE_CHECKING:
    import torch

    from cagp import tensor_files, trees
    from cagp.recipes import task as tasks
else:
    torch, tensor_files, trees = map(lazy_module, ("torch", "cagp.tensor_files", "cagp.trees"))

KIND, VERSION = "cagp trees", 1
TREE_SHARE = 0.3
"""The share of the time that is left which trees may take."""


def train_with_mean(recipe: Recipe, task: "tasks.Task") -> "tasks.Fitted":
    """Train a recipe with the prior mean that the task asks for; a recipe that chooses the mean does it itself."""
    return recipe.train(task) if recipe.chooses_mean else with_mean(task, recipe.train)


def with_mean(task: "tasks.Task", train: "Callable[[tasks.Task], tasks.Fitted]") -> "tasks.Fitted":
    """What ``train`` makes of the targets, or of what trees leave of them if the task asks for trees."""
    if task.mean != "trees":
        return train(replace(task, mean="zero"))
    found = trees_of(task)
    fitted = train(replace(task.without_mean(found.mean), mean="zero"))
    return fitted._replace(trees=found.trees, notes=[words_of(found, task), *fitted.notes])


def trees_of(task: "tasks.Task", objective: "trees.TreeObjective" = "l2") -> "trees.OutOfFold":
    """Trees for the rows of the task; those of an interrupted fit with the same rows are read from its folder.

    Of several processes, the first fits them for all.

    Args:
        objective: see ``cagp.trees.fit_trees``.
    """
    limit = TREE_SHARE * task.time_left()
    if task.ranks.size == 1:
        return _found(task, limit, objective)
    state = task.ranks.from_first(lambda: _state(_found(task, limit, objective)))
    return _of_state(state, state["finished"])


def _found(task: "tasks.Task", max_seconds: float, objective: "trees.TreeObjective") -> "trees.OutOfFold":
    path = None if task.folder is None else task.folder / f"trees-{task.num_rows}.cagp"
    if path is not None and path.exists():
        return _read(path, tuple(task.y.shape))
    y, row_noise = as_array(task.y), None if task.row_noise is None else as_array(task.row_noise)
    limits = {"categorical": task.categorical, "seed": task.seed, "max_seconds": max_seconds}
    limits |= {"objective": objective, "exposure": None if task.known is None else as_array(task.known.exp())}
    if task.rule.kind != "random":
        limits["fold"] = task.rule.folds(task.num_rows, trees.number_of_folds(task.num_rows), task.seed)
    found = trees.fit_trees(task.inputs, y, row_noise, **limits)
    if path is not None and found.finished:
        path.parent.mkdir(parents=True, exist_ok=True)
        state = _state(found)
        del state["finished"]
        tensor_files.save_state(path, state, KIND, VERSION)
    return found


def words_of(found: "trees.OutOfFold", task: "tasks.Task") -> str:
    """What the trees explain, in words."""
    y = as_array(task.y)
    explained = 1 - np.square(y - found.mean).sum(0) / np.maximum(np.square(y - y.mean(0)).sum(0), 1e-300)
    shares = " and ".join(f"{share:.1%}" for share in explained)
    counts = " and ".join(f"{count:,}" for count in found.trees.num_trees)
    late = "" if found.finished else " The time limit ended them early."
    return (
        f"The prior mean is {counts} boosted trees, fitted out of fold: they explain {shares} of the variance of the "
        f"targets, and the Gaussian process learns what they leave.{late}"
    )


def state_of(found: "trees.Trees") -> dict[str, Any]:
    """Trees as tensors of bytes, for a file."""
    models = [[torch.tensor(list(text.encode()), dtype=torch.uint8) for text in m] for m in found.texts]
    return {"models": models}


def trees_from_state(state: dict[str, Any]) -> "trees.Trees":
    """The inverse of ``state_of``; ValueError where it is not such a state."""
    if not _is_state_of_trees(state):
        raise ValueError("the stored trees cannot be read: they are not lists of text; save the model again.")
    return trees.Trees([[bytes(text.numpy()).decode() for text in models] for models in state["models"]])


def _is_state_of_trees(state: Any) -> bool:
    models = state.get("models") if isinstance(state, dict) else None
    if not isinstance(models, list) or not all(isinstance(texts, list) for texts in models):
        return False
    tensors = [text for texts in models for text in texts]
    return all(isinstance(text, torch.Tensor) and text.dtype == torch.uint8 and text.ndim == 1 for text in tensors)


def _read(path: Path, shape: tuple[int, ...]) -> "trees.OutOfFold":
    state = tensor_files.load_state(path, KIND, VERSION, remedy="delete it to fit them again")
    mean = state.get("mean")
    right = isinstance(mean, torch.Tensor) and mean.dtype == torch.float64 and tuple(mean.shape) == shape
    if mean is None or not right or not bool(torch.isfinite(mean).all()):
        raise ValueError(f"{path} does not hold the trees of these rows; delete it to fit them again.")
    return _of_state(state, finished=True)


def _state(found: "trees.OutOfFold") -> dict[str, Any]:
    return {**state_of(found.trees), "mean": torch.from_numpy(found.mean), "finished": found.finished}


def _of_state(state: dict[str, Any], finished: bool) -> "trees.OutOfFold":
    return trees.OutOfFold(trees_from_state(state), state["mean"].numpy(), finished=finished)


def as_array(values: "torch.Tensor") -> np.ndarray:
    """A tensor as a float64 array."""
    return values.detach().double().cpu().numpy()
