"""Shared actions: how many, and on which rows."""

import torch

from cagp import limits
from cagp.actions import BlockActions
from cagp.dataset import Data
from cagp.kernels import Kernel
from cagp.recipes.task import Task

MOST_ACTIONS, ROWS_PER_ACTION = 512, 8
SUPPORT_ROWS, SUPPORT_SIZE = 50_000, 32
"""Beyond this many rows, shared actions weigh at most this many rows of each block: their cost is then linear in n."""


def number_of_actions(n_actions: int | str, task: Task, most_rows: int | None = None) -> int:
    """The number of actions that a user asks for; "auto" is one for eight rows, at most 512, as memory allows.

    Args:
        most_rows: the rows that a step holds, if it does not hold all.
    """
    if not isinstance(n_actions, str):
        return min(int(n_actions), task.num_rows)
    held = task.num_rows if most_rows is None else min(most_rows, task.num_rows)
    num_actions = max(1, min(MOST_ACTIONS, task.num_rows // ROWS_PER_ACTION))
    while num_actions > 1 and limits.action_bytes(held, num_actions) > task.memory:
        num_actions //= 2
    return num_actions


def constant_actions(
    kernel: Kernel, data: Data, num_actions: int, seed: int, most_support: int | None = None
) -> BlockActions:
    """Equal weights on blocks of nearby rows, shared by all test points.

    Args:
        most_support: rows of each block that carry weight; None for what suits the number of rows.
    """
    if most_support is None and data.num_rows > SUPPORT_ROWS:
        most_support = SUPPORT_SIZE
    return BlockActions.from_data(
        data,
        num_actions,
        lengthscale=kernel.lengthscales(data.X.shape[1]),
        support_size=most_support,
        generator=torch.Generator().manual_seed(seed),
    )
