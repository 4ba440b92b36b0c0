"""Actions S (n, i): the linear combinations of the targets that the posterior conditions on."""

from cagp.actions.base import ActionRule, Actions, ComputedActions, DenseActions
from cagp.actions.blocks import BlockActions, Partition, ordered_blocks, refined_blocks, spatial_blocks

__all__ = [
    "ActionRule",
    "Actions",
    "BlockActions",
    "ComputedActions",
    "DenseActions",
    "Partition",
    "ordered_blocks",
    "refined_blocks",
    "spatial_blocks",
]
