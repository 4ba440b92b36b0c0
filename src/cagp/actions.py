"""Actions S (n, i): the linear combinations of the targets that the posterior conditions on, as any matrix, or learned
and block-sparse (CaGP-Opt): the rows are cut into i blocks, and action j weighs the rows of block j."""

import heapq
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from cagp.checks import check_count, check_matrix
from cagp.dataset import Data, inputs_of
from cagp.engine import BlockWeights
from cagp.kernels import Kernel
from cagp.linalg import NotPositiveDefiniteError
from cagp.prior import GP

Inputs = Float[Tensor, "n d"]
Targets = Float[Tensor, " n"]
Lengthscale = Float[Tensor, " d"]
Start = Literal["constant", "random", "eigenvector"]


class Actions(nn.Module, ABC):
    """S (n, i), given by the rows it touches (the support) and its weights on them.

    Posterior and losses depend on the span of S alone (Lemma "uniquely defined by the column space"), so ``weights``
    may be scaled freely; unit columns keep the algebra away from overflow. By default S is the attribute ``S``.
    """

    S: Tensor

    @property
    def num_rows(self) -> int:
        """n, the number of training rows."""
        return self.S.shape[0]

    @property
    def num_actions(self) -> int:
        """i, the budget."""
        return self.S.shape[1]

    @property
    def support(self) -> Int[Tensor, " m"]:
        """The training rows that any action touches, in the order of the weights' rows."""
        return torch.arange(self.num_rows, device=self.S.device)

    @abstractmethod
    def weights(self, dtype: torch.dtype) -> Float[Tensor, "m i"] | BlockWeights:
        """S on the support, its columns of unit length."""


class DenseActions(Actions):
    """Any linearly independent columns, fixed or learned."""

    def __init__(self, S: Float[Tensor, "n i"], learn: bool = False):
        super().__init__()
        check_matrix(S, "S")
        check_count(S.shape[1], "the number of columns of S", S.shape[0], "its number of rows")
        self.S = nn.Parameter(S.detach().clone(), requires_grad=learn)

    def weights(self, dtype: torch.dtype) -> Float[Tensor, "n i"]:
        S = self.S.double()
        fixed = S.detach()
        largest = nonzero(fixed.abs().amax(0))
        # Norms count as constants: dividing by a constant is exact for what depends on the span alone.
        return (S / (largest * (fixed / largest).norm(dim=0))).to(dtype)


@final
class ComputedActions(Actions):
    """Columns of about unit length, computed from parameters: gradients pass through S, which is not copied."""

    def __init__(self, S: Float[Tensor, "n i"]):
        super().__init__()
        check_matrix(S, "S")
        self.S = S

    def weights(self, dtype: torch.dtype) -> Float[Tensor, "n i"]:
        return self.S.to(dtype)


class ActionRule(nn.Module, ABC):
    """S as a function of the prior and the data, computed again at every evaluation of a loss.

    A rule of your own needs ``num_actions`` and ``actions``. What depends on parameters (the rule's own, or those of
    the prior) in a differentiable way is trained through; what is detached is held constant.
    """

    rate: float = 0.1  # Adam's learning rate of the rule's own parameters

    @property
    @abstractmethod
    def num_actions(self) -> int:
        """i, the budget."""

    @abstractmethod
    def actions(self, prior: GP, X: Inputs, y: Targets, row_noise: Targets | None = None) -> ComputedActions:
        """S at the prior's present hyperparameters, for these rows."""


def nonzero(largest: Float[Tensor, " i"]) -> Float[Tensor, " i"]:
    """The largest weight of each action, checked."""
    if not bool((largest > 0).all()):
        raise NotPositiveDefiniteError(
            f"action {int((~(largest > 0)).nonzero()[0])} is zero or not finite; every action needs a non-zero weight."
        )
    return largest


# ---- blocks ----


class Partition(NamedTuple):
    """Every row in exactly one block: block j is ``rows[offsets[j]:offsets[j + 1]]``; no block is empty."""

    rows: Int[Tensor, " n"]
    offsets: Int[Tensor, " i+1"]

    @classmethod
    def of(cls, blocks: Sequence[Tensor]) -> "Partition":
        """The partition into these blocks."""
        ends = torch.tensor([len(block) for block in blocks]).cumsum(0)
        return cls(torch.cat(list(blocks)), torch.nn.functional.pad(ends, (1, 0)).to(blocks[0].device))

    def blocks(self) -> tuple[Tensor, ...]:
        """The rows of each block."""
        return self.rows.split(self.offsets.diff().tolist())


def ordered_blocks(num_rows: int, num_blocks: int) -> Partition:
    """Consecutive rows: the paper's blocks, random where the data's order is."""
    check_count(num_blocks, "num_blocks", num_rows, "the number of rows")
    return Partition.of(torch.arange(num_rows).tensor_split(num_blocks))


def spatial_blocks(
    X: Inputs | Data, num_blocks: int, lengthscale: Lengthscale | None = None, within: Partition | None = None
) -> Partition:
    """Blocks of nearby rows, in units of ``lengthscale``: all rows, or the blocks ``within``, cut in two and again.

    The next block to be cut is always the one with the largest sum of distances of its rows to their mean, which is
    what one action per block leaves unexplained: blocks are small where rows are far apart, and hold many rows where
    they are close. The cut is across the direction of largest variance, where it leaves the least. Blocks of equal
    rows are cut last, in the order of the rows. Time O(n d² log i) if cuts are not too uneven.
    """
    X = inputs_of(X)
    check_count(num_blocks, "num_blocks", X.shape[0], "the number of rows")
    points = X.detach().double().cpu()
    if lengthscale is not None:
        if lengthscale.shape != X.shape[1:]:
            raise ValueError(f"lengthscale has shape {tuple(lengthscale.shape)}, expected ({X.shape[1]},).")
        points = points / lengthscale.detach().double().cpu()

    blocks = [torch.arange(len(X))] if within is None else [rows.cpu() for rows in within.blocks()]
    # A heap of (how much less to be cut, place among all blocks, rows); places order the result, halves side by side.
    heap: list[Any] = [(*_urgency(points, rows), (number,), rows) for number, rows in enumerate(blocks)]
    heapq.heapify(heap)
    while len(heap) < num_blocks:
        *_, place, rows = heapq.heappop(heap)
        for side, half in enumerate(_cut(points, rows)):
            heapq.heappush(heap, (*_urgency(points, half), (*place, side), half))
    return Partition.of([rows.to(X.device) for *_, rows in sorted(heap, key=lambda block: block[2])])


def _urgency(points: Tensor, rows: Tensor) -> tuple[float, int]:
    """For a heap, whose smallest comes first: minus the sum of distances to the mean, then minus the rows."""
    inside = points[rows]
    spread = float((inside - inside.mean(0)).norm(dim=1).sum())
    round_off = len(rows) * float(inside.abs().amax()) * 1e-14
    return -spread if spread > round_off else 0.0, -len(rows)


def _cut(points: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """The rows in two parts, on both sides of the best place on the line of largest variance (two means in 1-D)."""
    inside = points[rows] - points[rows].mean(0)
    axis = torch.linalg.eigh(inside.mT @ inside).eigenvectors[:, -1]
    axis = axis * axis[axis.abs().argmax()].sign()
    line, order = (inside @ axis).sort(stable=True)
    if not line[-1] > line[0]:
        return rows[: len(rows) // 2], rows[len(rows) // 2 :]
    left = torch.arange(1, len(rows), dtype=torch.float64)
    sums = line.cumsum(0)[:-1]  # of all rows: zero
    between = sums.square() * (1 / left + 1 / (len(rows) - left))  # variance that a cut here explains
    between[line[1:] == line[:-1]] = 0  # equal rows stay together
    where = int(between.argmax()) + 1
    return rows[order[:where]], rows[order[where:]]


class BlockActions(Actions):
    """Block-sparse S with learned values, (some of) the rows of block j in column j.

    Args:
        partition: which rows form a block.
        values: one weight per support row, in ascending order of the row numbers, so that they stay with their rows
            when blocks change; None for equal weights.
        support_size: at most this many rows of each block carry weight, drawn with ``generator``; None for all.
    """

    offsets: Tensor
    _support: Tensor

    def __init__(
        self,
        partition: Partition,
        values: Float[Tensor, " m"] | None = None,
        *,
        support_size: int | None = None,
        dtype: torch.dtype = torch.float32,
        generator: torch.Generator | None = None,
    ):
        super().__init__()
        self._num_rows = len(partition.rows)
        if not torch.equal(partition.rows.sort().values, torch.arange(self._num_rows, device=partition.rows.device)):
            raise ValueError("partition has rows in no block or in several; expected each row in exactly one.")
        if support_size is not None:
            check_count(support_size, "support_size", self._num_rows, "the number of rows")
            # At most that many random rows of each block, in the order they had.
            orders = ((rows, torch.randperm(len(rows), generator=generator)) for rows in partition.blocks())
            kept = [rows[order[:support_size].sort().values.to(rows.device)] for rows, order in orders]
            partition = Partition.of(kept)
        self.register_buffer("_support", partition.rows)
        self.register_buffer("offsets", partition.offsets)
        if values is None:
            values = torch.ones(len(partition.rows), dtype=dtype, device=partition.rows.device)
        if values.shape != partition.rows.shape:
            raise ValueError(f"values has shape {tuple(values.shape)}, expected ({len(partition.rows)},): the support.")
        self.values = nn.Parameter(values.detach().clone())
        self.weights(values.dtype)  # an action that is zero is an error here, not at the first step

    @classmethod
    def from_data(
        cls,
        X: Inputs | Data,
        num_actions: int,
        *,
        kernel: Kernel | None = None,
        lengthscale: Lengthscale | None = None,
        blocks: Literal["spatial", "ordered"] = "spatial",
        start: Start = "constant",
        support_size: int | None = None,
        generator: torch.Generator | None = None,
    ) -> "BlockActions":
        """Blocks of the rows of ``X`` with starting values.

        Args:
            kernel: for ``start="eigenvector"``.
            lengthscale: the unit in which rows are near each other; None for the units of ``X``.
            blocks: "spatial" (nearby rows) or "ordered" (the paper's: consecutive rows).
            start: "constant" over each block, "random" (the paper's), or the leading "eigenvector" of the block's own
                kernel matrix.
        """
        rows, X = X, inputs_of(X)
        check_count(num_actions, "num_actions", X.shape[0], "the number of rows of X")
        if blocks == "spatial":
            partition = spatial_blocks(rows, num_actions, lengthscale)
        elif blocks == "ordered":
            partition = Partition(*(t.to(X.device) for t in ordered_blocks(X.shape[0], num_actions)))
        else:
            raise ValueError(f'blocks is {blocks!r}, expected "spatial" or "ordered".')
        actions = cls(partition, support_size=support_size, dtype=X.dtype, generator=generator)
        if start == "constant":
            return actions
        if start == "random":
            values = torch.randn(len(actions.support), generator=generator, dtype=torch.float64).to(X.device)
        elif start == "eigenvector":
            values = _leading_eigenvectors(actions, X, kernel)
        else:
            raise ValueError(f'start is {start!r}, expected "constant", "random" or "eigenvector".')
        # Mean square 1 in each block: a learning rate then means the same at all sizes.
        sizes = actions.offsets.diff()
        values = _unit_blocks(values, actions.offsets) * sizes.double().sqrt().repeat_interleave(sizes)
        with torch.no_grad():
            actions.values[actions._slots] = values.to(X)
        return actions

    @property
    def num_rows(self) -> int:
        return self._num_rows

    @property
    def num_actions(self) -> int:
        return self.offsets.shape[0] - 1

    @property
    def support(self) -> Int[Tensor, " m"]:
        return self._support

    def weights(self, dtype: torch.dtype) -> BlockWeights:
        values = self.values[self._slots]
        return BlockWeights(_unit_blocks(values, self.offsets).to(dtype), self.offsets)

    @property
    def _slots(self) -> Int[Tensor, " m"]:
        """Where in ``values`` the weight of each support row is."""
        return self._support.argsort().argsort()

    def reblock(self, X: Inputs, lengthscale: Lengthscale | None = None) -> None:
        """Cut the support into blocks of nearby rows again, in other units, with equal weights."""
        # Weights learned for other blocks are a worse start than equal ones: see docs/training.md.
        rows = self._support.sort().values
        cut = spatial_blocks(X[rows], self.num_actions, lengthscale)
        self._support, self.offsets = rows[cut.rows], cut.offsets
        with torch.no_grad():
            self.values.fill_(1.0)

    def grow(self, X: Inputs, num_actions: int, lengthscale: Lengthscale | None = None) -> None:
        """Cut blocks in two until there are ``num_actions``, whose span contains the old one; rows keep weights."""
        check_count(num_actions, "num_actions", len(self._support), "the number of rows with weights")
        every = Partition(torch.arange(len(self._support), device=X.device), self.offsets)
        cut = spatial_blocks(X[self._support], num_actions, lengthscale, within=every)
        self._support, self.offsets = self._support[cut.rows], cut.offsets

    def _load_from_state_dict(self, state_dict, prefix, *args) -> None:
        # The number of blocks may have changed since this object was made.
        support, offsets = (state_dict.get(prefix + name) for name in ("_support", "offsets"))
        if support is not None and not torch.equal(support.sort().values, self._support.sort().values.to(support)):
            raise ValueError("the actions of the state are not of these rows.")
        if offsets is not None:
            whole = offsets.dtype == torch.int64 and offsets.ndim == 1 and len(offsets) > 1
            ends = (int(offsets[0]), int(offsets[-1])) if whole else None
            if ends != (0, len(self._support)) or bool((offsets.diff() < 0).any()):
                raise ValueError("the blocks of the state do not divide its rows.")
        for name, value in (("_support", support), ("offsets", offsets)):
            if value is not None:
                setattr(self, name, torch.empty_like(value, device=self._support.device))
        super()._load_from_state_dict(state_dict, prefix, *args)


def _unit_blocks(values: Tensor, offsets: Tensor) -> Tensor:
    """Values divided by the norm of their block, in float64; the norms are constants (see ``DenseActions``)."""
    W = BlockWeights(values.double(), offsets)
    columns, fixed = W.columns(), W.values.detach()
    zeros = fixed.new_zeros(W.num_columns)
    largest = nonzero(zeros.scatter_reduce(0, columns, fixed.abs(), "amax"))
    shrunk = fixed / largest[columns]
    norms = largest * zeros.index_add(0, columns, shrunk.square()).sqrt()
    return W.values / norms[columns]


@torch.no_grad()
def _leading_eigenvectors(actions: BlockActions, X: Tensor, kernel: Kernel | None) -> Tensor:
    """The leading eigenvector of each block's kernel matrix, its sum positive."""
    if kernel is None:
        raise ValueError('kernel is missing: start="eigenvector" needs the kernel whose eigenvectors to take.')
    blocks = X[actions.support].double().split(actions.offsets.diff().tolist())
    vectors = (torch.linalg.eigh(kernel(block, block)).eigenvectors[:, -1] for block in blocks)
    return torch.cat([-vector if vector.sum() < 0 else vector for vector in vectors])
