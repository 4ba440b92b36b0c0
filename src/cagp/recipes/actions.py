"""Shared actions: how many, on which rows, and how CaGP-Opt is trained on many rows."""

from typing import NamedTuple

import torch

from cagp import limits
from cagp.actions import BlockActions
from cagp.dataset import Data
from cagp.kernels import Kernel
from cagp.quantities import seconds_of
from cagp.recipes.task import Task

MOST_ACTIONS, ROWS_PER_ACTION = 512, 8
SUPPORT_ROWS, SUPPORT_SIZE = 50_000, 32
"""Beyond this many rows, shared actions weigh at most this many rows of each block: their cost is then linear in n."""

BATCH_SIZE, MINIBATCH_ROWS = 1024, 10_000
FULL_STEP, FULL_STEPS = 5e-9, 10
"""CaGP-Opt learns from minibatches of ``BATCH_SIZE`` rows beyond ``SUPPORT_ROWS`` rows, and beyond ``MINIBATCH_ROWS``
where ``max_time`` allows fewer than ``FULL_STEPS`` steps with all rows, each of about ``FULL_STEP`` n² seconds.
Heuristics; docs/benchmarks.md has the evidence."""


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


class Minibatches(NamedTuple):
    """How CaGP-Opt is trained on many rows."""

    batch_size: int | None  # rows of a step; None for all
    support_size: int | None  # rows of each block that carry weight; None for all

    @classmethod
    def of(cls, task: Task) -> "Minibatches":
        """None where a step with all rows is affordable; with them, a step costs the same whatever their number."""
        n = task.num_rows
        short = n > MINIBATCH_ROWS and seconds_of(task.max_time) < FULL_STEPS * FULL_STEP * n**2
        return cls(BATCH_SIZE, SUPPORT_SIZE) if short or support_size(n) is not None else cls(None, None)


def support_size(num_rows: int) -> int | None:
    """Rows of each block that carry weight; None for all."""
    return SUPPORT_SIZE if num_rows > SUPPORT_ROWS else None


def constant_actions(
    kernel: Kernel, data: Data, num_actions: int, seed: int, most_support: int | None = None
) -> BlockActions:
    """Equal weights on blocks of nearby rows, shared by all test points.

    Args:
        most_support: rows of each block that carry weight; None for ``support_size``.
    """
    return BlockActions.from_data(
        data,
        num_actions,
        lengthscale=kernel.lengthscales(data.X.shape[1]),
        support_size=support_size(data.num_rows) if most_support is None else most_support,
        generator=torch.Generator().manual_seed(seed),
    )
