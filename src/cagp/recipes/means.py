"""Trees in the mean of a task: fitted once, kept beside the checkpoints, and subtracted from the targets."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cagp import storage, trees
from cagp.recipes.task import Fitted, Task
from cagp.trees import OutOfFold, TreeObjective, Trees

KIND, VERSION = "cagp trees", 1
TREE_SHARE = 0.3
"""The share of the time that is left which trees may take."""


def with_mean(task: Task, train: Callable[[Task], Fitted]) -> Fitted:
    """What ``train`` makes of the targets, or of the residuals of trees if the task asks for trees."""
    return with_trees(task, trees_of(task) if task.mean == "trees" else None, train)


def with_trees(
    task: Task, fitted_trees: OutOfFold | None, train: Callable[[Task], Fitted], words: str | None = None
) -> Fitted:
    """What ``train`` makes of the residuals of trees, if there are any; ``words`` about the trees stand in front."""
    if fitted_trees is None:
        return train(task)
    fitted = train(task.without_mean(fitted_trees.mean))
    notes = [words or words_of(fitted_trees, task), *fitted.notes]
    return fitted._replace(trees=fitted_trees.trees, notes=notes)


def trees_of(task: Task, objective: TreeObjective = "l2") -> OutOfFold:
    """Trees for the rows of the task; those of an interrupted fit with the same rows are read from its folder.

    Of several processes, the first fits them for all.

    Args:
        objective: see ``cagp.trees.fit_trees``.
    """
    limit = TREE_SHARE * task.time_left()
    if task.ranks.size == 1:
        return _stored_or_fitted(task, limit, objective)
    state = task.ranks.from_first(lambda: _state(_stored_or_fitted(task, limit, objective)))
    return _of_state(state, state["finished"])


def _stored_or_fitted(task: Task, max_seconds: float, objective: TreeObjective) -> OutOfFold:
    path = None if task.folder is None else task.folder / f"trees-{task.num_rows}.cagp"
    if path is not None and path.exists():
        state = storage.load_state(path, KIND, VERSION, remedy="delete it to fit them again")
        mean, shape = state.get("mean"), tuple(task.y.shape)
        is_mean = isinstance(mean, Tensor) and mean.dtype == torch.float64 and tuple(mean.shape) == shape
        if mean is None or not is_mean or not bool(torch.isfinite(mean).all()):
            raise ValueError(f"{path} does not hold the trees of these rows; delete it to fit them again.")
        return _of_state(state, finished=True)
    fold = None
    if task.rule.kind != "random":
        fold = task.rule.folds(task.num_rows, trees.number_of_folds(task.num_rows), task.seed)
    fitted = trees.fit_trees(
        task.inputs,
        as_array(task.y),
        None if task.row_noise is None else as_array(task.row_noise),
        categorical=task.categorical,
        seed=task.seed,
        fold=fold,
        max_seconds=max_seconds,
        objective=objective,
        exposure=None if task.known is None else as_array(task.known.exp()),
    )
    if path is not None and fitted.finished:
        path.parent.mkdir(parents=True, exist_ok=True)
        state = {name: value for name, value in _state(fitted).items() if name != "finished"}
        storage.save_state(path, state, KIND, VERSION)
    return fitted


def words_of(fitted: OutOfFold, task: Task, loss: str | None = None) -> str:
    """What the trees explain, in words.

    Args:
        loss: of their out-of-fold predictions, in words; None for the share of the variance that they explain.
    """
    counts = " and ".join(dict.fromkeys(f"{count:,}" for count in fitted.trees.num_trees))
    if loss is None:
        y = as_array(task.y)
        explained = 1 - np.square(y - fitted.mean).sum(0) / np.maximum(np.square(y - y.mean(0)).sum(0), 1e-300)
        shares = " and ".join(f"{share:.1%}" for share in explained)
        about = f"they explain {shares} of the variance of the targets"
    else:
        about = f"the {loss}"
    late = "" if fitted.finished else " The time limit ended them early."
    return (
        f"The prior mean is {counts} boosted trees, fitted out of fold: {about}, and the Gaussian process models the "
        f"residuals.{late}"
    )


def state_of(fitted: Trees) -> dict[str, Any]:
    """Trees as tensors of bytes, for a file."""
    models = [[torch.tensor(list(text.encode()), dtype=torch.uint8) for text in m] for m in fitted.texts]
    return {"models": models}


def trees_from_state(state: dict[str, Any]) -> Trees:
    """The inverse of ``state_of``; ValueError where it is not such a state."""
    models = state.get("models") if isinstance(state, dict) else None
    if not isinstance(models, list) or not all(isinstance(m, list) and all(map(_is_text, m)) for m in models):
        raise ValueError("the stored trees cannot be read: they are not lists of text; save the model again.")
    return Trees([[bytes(text.numpy()).decode() for text in texts] for texts in models])


def _is_text(text: Any) -> bool:
    return isinstance(text, Tensor) and text.dtype == torch.uint8 and text.ndim == 1


def _state(fitted: OutOfFold) -> dict[str, Any]:
    return {**state_of(fitted.trees), "mean": torch.from_numpy(fitted.mean), "finished": fitted.finished}


def _of_state(state: dict[str, Any], finished: bool) -> OutOfFold:
    return OutOfFold(trees_from_state(state), state["mean"].numpy(), finished=finished)


def as_array(values: Tensor) -> np.ndarray:
    """A tensor as a float64 array."""
    return values.detach().double().cpu().numpy()
