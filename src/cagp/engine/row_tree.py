"""The compiled k-d tree over the rows of a table (src/native/tree.h): built once, searched in any units."""

from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from jaxtyping import Float, Float32, Int, Int32
from torch import Tensor

from cagp.engine.compiled_backend import _native, run

CHUNK_ROWS = 2**18
"""Rows that are converted to float64 at a time."""

_LARGEST_SCALE = 2.0**100  # of a column that does not vary; its square is still far from what float32 cannot hold


class OrderedRows(NamedTuple):
    """An order of the rows as a tree knows it."""

    labels: Int32[Tensor, " n"]  # the place in the order of the row in each slot
    least: Int32[Tensor, " nodes"]  # the first place in each node
    slots: Int32[Tensor, " n"]  # the slot of each row
    rows: Int32[Tensor, " n"]  # the rows in their order


@final
@dataclass(frozen=True)
class RowTree:
    """A balanced k-d tree whose arrays hold everything: a tree made of the same arrays gives the same answers.

    Rows are stored as float32, measured from ``origin`` in units of ``unit``. These depend on the data alone, and so do
    the distances: the lengthscales that it was built for decide only along which columns nodes were cut, and how fast a
    search is.
    """

    points: Float32[Tensor, " numbers"]  # leaf by leaf, in a leaf column by column
    rows: Int32[Tensor, " n"]  # the row in each slot
    boxes: Float32[Tensor, "nodes 2 d"]
    least: Int32[Tensor, " nodes"]  # the first row in each node
    origin: Float[Tensor, " d"]  # float64
    unit: Float[Tensor, " d"]  # float64, powers of two
    instruction_set: str | None = None

    @classmethod
    def of(
        cls,
        X: Float[Tensor, "n d"],
        inverse_scale: Float[Tensor, " d"],
        origin: Float[Tensor, " d"],
        instruction_set: str | None = None,
    ) -> "RowTree":
        """The tree of the rows of ``X``, cut for these units of the columns.

        Time O(n d + n log n); memory 4 (d + 1) bytes a row for the result and no second copy of the rows.
        """
        n, d = X.shape
        nodes = _native.tree_nodes(n)
        unit = _unit(X, origin)
        points = torch.zeros(n * d + _native.tree_padding)
        for out, part in zip(points[: n * d].view(n, d).split(CHUNK_ROWS), X.split(CHUNK_ROWS), strict=True):
            out.copy_((part.detach().double() - origin) / unit)
        rows, least = torch.empty(n, dtype=torch.int32), torch.empty(nodes, dtype=torch.int32)
        boxes = torch.empty(nodes, 2, d)
        scale = _scale(inverse_scale * unit, torch.ones(d, dtype=torch.bool))
        run("tree_build", points, rows, boxes, least, scale, torch.get_num_threads())
        return cls(points, rows, boxes, least, origin, unit, instruction_set)

    def nearest(
        self,
        points: Float[Tensor, "t d"],
        inverse_scale: Float[Tensor, " d"],
        k: int,
        left_out: Int[Tensor, " t"] | None = None,
    ) -> Int[Tensor, "t k"]:
        """The ``k`` rows nearest to each point in these units, ties by row; -1 where there are fewer."""
        stored = ((points.detach().double() - self.origin) / self.unit).float()
        return self._search(stored, inverse_scale, k, self.rows, self.least, left_out, None)[0]

    def share_visited(self, inverse_scale: Float[Tensor, " d"], k: int, num_rows: int) -> float:
        """The share of all leaves that a search for ``k`` rows looks through, for some rows as test points."""
        slots = torch.arange(0, len(self.rows), max(1, len(self.rows) // num_rows))
        _, visited = self._search(self._at(slots), inverse_scale, k, self.rows, self.least, None, None)
        return float(visited.double().mean()) / ((len(self.least) + 1) // 2)

    def earlier(
        self, rows: Int[Tensor, " t"], ordered: OrderedRows, inverse_scale: Float[Tensor, " d"], k: int
    ) -> Int[Tensor, "t k"]:
        """The ``k`` nearest of the rows before each of ``rows`` in the order, ties by place; -1 for none."""
        slots = ordered.slots[rows].long()
        before = ordered.labels[slots].long()
        found, _ = self._search(self._at(slots), inverse_scale, k, ordered.labels, ordered.least, None, before)
        return torch.where(found >= 0, ordered.rows[found.clamp_min(0)].long(), -1)

    def ordered(self, position: Int[Tensor, " n"]) -> OrderedRows:
        """What ``earlier`` needs to know of an order, given the place of every row. Memory 12 bytes a row."""
        labels = torch.empty_like(self.rows)
        for out, rows in zip(labels.split(CHUNK_ROWS), self.rows.split(CHUNK_ROWS), strict=True):
            out.copy_(position[rows.long()])
        least = torch.empty_like(self.least)
        run("tree_minima", labels, least, torch.get_num_threads())
        return OrderedRows(labels, least, _inverse(self.rows), _inverse(position))

    def _at(self, slots: Tensor) -> Tensor:
        """The rows in these slots as they are stored: see src/native/tree.h for their places."""
        n, d = len(self.rows), len(self.unit)
        leaves = (len(self.least) + 1) // 2
        leaf = ((slots + 1) * leaves - 1) // max(n, 1)
        begin, end = n * leaf // leaves, n * (leaf + 1) // leaves
        columns = torch.arange(d) * (end - begin)[:, None]
        return self.points[begin[:, None] * d + columns + (slots - begin)[:, None]]

    def _search(
        self, points: Tensor, inverse_scale: Tensor, k: int, labels: Tensor, least: Tensor, left_out, before
    ) -> tuple[Tensor, Tensor]:
        """The labels of the rows that were found, and how many leaves each search looked through."""
        visited = torch.empty(len(points), dtype=torch.long)
        found = torch.empty(len(points), k, dtype=torch.long)
        scale = _scale(inverse_scale * self.unit, self.boxes[0, 1] > self.boxes[0, 0])
        tree = (self.points, labels, self.boxes, least, scale)
        machine = (torch.get_num_threads(), self.instruction_set or "")
        run("tree_nearest", *tree, points, left_out, before, found, visited, *machine)
        return found, visited


def spatial_order(points: Float[Tensor, "t d"], inverse_scale: Float[Tensor, " d"]) -> Int[Tensor, " t"]:
    """An order of the points in which near ones follow each other: by the leaves of a tree of their own."""
    return RowTree.of(points, inverse_scale, column_means(points)).rows.long()


def column_means(X: Float[Tensor, "n d"]) -> Float[Tensor, " d"]:
    """The mean of every column, in float64, without a copy of the rows."""
    total = torch.zeros(X.shape[1], dtype=torch.float64, device=X.device)
    for part in X.split(CHUNK_ROWS):
        total += part.detach().double().sum(0)
    return total / len(X)


def _unit(X: Tensor, origin: Tensor) -> Tensor:
    """A power of two for each column, by which its values come to lie between -1 and 1: float32 can hold them all."""
    if len(X) == 0:
        return torch.ones_like(origin)
    ends = torch.cat([torch.stack(part.detach().aminmax(dim=0)) for part in X.split(CHUNK_ROWS)])
    farthest = (ends.double() - origin).abs().amax(0)
    # Rows that are not finite are an error of the build. A column that does not vary keeps its unit.
    measurable = (farthest > 0) & farthest.isfinite()
    return torch.where(measurable, torch.where(measurable, farthest, 1.0).log2().ceil().exp2(), 1.0)


def _scale(scale: Tensor, varies: Tensor) -> Tensor:
    """The scales times a power of two that brings the largest of the columns that vary close to one.

    Distances keep their order, and squares of them neither vanish nor overflow.
    """
    largest = scale[varies].max() if bool(varies.any()) else scale.new_ones(())
    return (scale * (-largest.log2().floor()).exp2()).clamp_max(_LARGEST_SCALE).float()


def _inverse(permutation: Tensor) -> Tensor:
    out = torch.empty(len(permutation), dtype=torch.int32)
    places = torch.arange(len(permutation), dtype=torch.int32)
    for rows, part in zip(permutation.split(CHUNK_ROWS), places.split(CHUNK_ROWS), strict=True):
        out[rows.long()] = part
    return out
