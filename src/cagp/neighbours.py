"""The training rows nearest to a test point, in units of the lengthscales."""

import copy
import importlib
import math
from typing import Literal

import torch
from jaxtyping import Float, Int
from scipy.spatial import KDTree
from torch import Tensor

from cagp.checks import check_count, check_matrix
from cagp.engine import Backend, CompiledBackend, OrderedRows, RowTree, choose_backend, column_means, spatial_order
from cagp.engine.compiled_backend import CHUNK_ROWS

IndexKind = Literal["auto", "tree", "scan", "approximate"]

TREE_ROWS, TREE_COLUMNS = 1_000, 32
TREE_SHARE, PROBE_NEIGHBOURS, PROBE_ROWS = 1 / 16, 32, 64
"""From this many rows, up to this many columns, "auto" builds a compiled tree. It keeps the tree if searches for this
many neighbours of this many rows look through at most this share of it. Then a tree was no slower than a scan on all
tables that were tried; see docs/benchmarks.md."""

SCIPY_TREE_ROWS = 2_000  # without compiled code, a k-d tree is faster than a scan from this times 2ᵈ rows

SCAN_ROWS = 200_000
"""From this many rows, "auto" takes an approximate search if a k-d tree is no faster and faiss is installed."""

LISTS_SEARCHED = 16  # of the inverted lists, by each approximate search


class NeighbourIndex:
    """An index of the rows of ``X``, for the lengthscales it was made with.

    Args:
        lengthscale: the unit of each column; None for the units of ``X``.
        kind: "scan" (exact: compare with every row, compiled), "tree" (exact: a k-d tree, for few columns),
            "approximate" (inverted lists of faiss, for many rows in many columns) or "auto".
        origin: the point that rows are measured from, which affects round-off only; None for their mean.
        backend: computes the scans and the tree; None for the fastest that applies. With the compiled backend
            "tree" is a compiled tree, with others it is SciPy's.
        check: False if the rows were checked before.
    """

    def __init__(
        self,
        X: Float[Tensor, "n d"],
        lengthscale: Float[Tensor, " d"] | None = None,
        kind: IndexKind = "auto",
        origin: Float[Tensor, " d"] | None = None,
        *,
        backend: Backend | None = None,
        check: bool = True,
    ):
        if check:
            check_matrix(X, "X")
        if kind not in ("auto", "tree", "scan", "approximate"):
            raise ValueError(f'kind is {kind!r}, expected "auto", "tree", "scan" or "approximate".')
        if lengthscale is not None and lengthscale.shape != X.shape[1:]:
            raise ValueError(f"lengthscale has shape {tuple(lengthscale.shape)}, expected ({X.shape[1]},).")
        self.num_rows, self.origin = X.shape[0], column_means(X) if origin is None else origin
        self.backend = choose_backend(None, X, backend)
        self._set_unit(lengthscale)
        self.tree: RowTree | None = None
        self.kind: IndexKind = self._chosen(X) if kind == "auto" else kind
        if self.kind == "tree" and isinstance(self.backend, CompiledBackend):
            self.tree = self.tree or RowTree.of(X, self.inverse_scale, self.origin, self.backend.instruction_set)
            return  # it holds the rows
        self.points = self._scaled(X)
        if self.kind == "tree":
            self.scipy_tree = KDTree(self.points.cpu().numpy())
        elif self.kind == "approximate":
            self.lists = _inverted_lists(self.points)

    def with_lengthscale(self, X: Float[Tensor, "n d"], lengthscale: Float[Tensor, " d"] | None) -> "NeighbourIndex":
        """The index of the same rows ``X`` for other lengthscales: a compiled tree is shared, all else made again."""
        if self.tree is None:
            return NeighbourIndex(X, lengthscale, self.kind, self.origin, backend=self.backend, check=False)
        other = copy.copy(self)
        other._set_unit(lengthscale)
        return other

    def _set_unit(self, lengthscale: Tensor | None) -> None:
        self.lengthscale = None if lengthscale is None else lengthscale.detach().clone()
        unit = torch.ones_like(self.origin) if lengthscale is None else lengthscale.detach().to(self.origin)
        self.inverse_scale = 1 / unit

    def _chosen(self, X: Tensor) -> IndexKind:
        """The kind that "auto" is, by the data alone: the same for all lengthscales."""
        (n, d), on_cpu = X.shape, X.device.type == "cpu"
        if not isinstance(self.backend, CompiledBackend):
            if on_cpu and n >= SCIPY_TREE_ROWS * 2**d:
                return "tree"
        elif n >= TREE_ROWS and d <= TREE_COLUMNS:
            spread = X[:: max(1, n // 10_000)].detach().double().std(0)
            inverse = torch.where(spread > 0, 1 / spread, 1.0)
            tree = RowTree.of(X, inverse, self.origin, self.backend.instruction_set)
            if tree.share_visited(inverse, PROBE_NEIGHBOURS, PROBE_ROWS) <= TREE_SHARE:
                self.tree = tree
                return "tree"
        return "approximate" if n >= SCAN_ROWS and on_cpu and _faiss() is not None else "scan"

    def _scaled(self, X: Tensor) -> Tensor:
        """In lengthscale units around the data; float32, which only matters for rows at almost equal distances."""
        out = torch.empty(X.shape, device=X.device)
        for scaled, part in zip(out.split(CHUNK_ROWS), X.split(CHUNK_ROWS), strict=True):
            scaled.copy_((part.detach().double() - self.origin) * self.inverse_scale)
        return out

    def nearest(
        self, points: Float[Tensor, "t d"], k: int, left_out: Int[Tensor, " t"] | None = None
    ) -> Int[Tensor, "t k"]:
        """The ``k`` rows nearest to each test point, nearest first, but for the row ``left_out``: the point itself."""
        check_count(k, "k", self.num_rows - (left_out is not None), "the number of rows that count")
        if self.tree is not None:
            return self.tree.nearest(points, self.inverse_scale, k, left_out)
        points = self._scaled(points)
        if self.kind == "scan":
            return self.backend.nearest(points, self.points, k, left_out, None)
        if left_out is None:
            return self._query(points, k)
        rows = self._query(points, k + 1)
        # Drops the row itself, or the last one if the row is not among them because of its many duplicates.
        counts = rows != left_out[:, None]
        order = counts.int().argsort(dim=1, descending=True, stable=True)
        return rows.gather(1, order[:, :k])

    def _query(self, points: Tensor, k: int) -> Tensor:
        if self.kind == "tree":
            _, rows = self.scipy_tree.query(points.cpu().numpy(), k=k, workers=torch.get_num_threads())
            return torch.as_tensor(rows).view(len(points), k).to(points.device)
        rows = torch.from_numpy(self.lists.search(points.numpy(), k)[1])
        short = (rows < 0).any(1)  # too few rows in the lists that were searched
        if bool(short.any()):
            rows[short] = self.backend.nearest(points[short], self.points, k, None, None)
        return rows

    def spatial_order(self, points: Float[Tensor, "t d"]) -> Int[Tensor, " t"]:
        """An order of the test points in which near ones follow each other: by the leaves of a k-d tree."""
        if isinstance(self.backend, CompiledBackend):
            return spatial_order(points, self.inverse_scale)
        order = KDTree(self._scaled(points).cpu().numpy()).indices
        return torch.as_tensor(order, dtype=torch.long, device=points.device)

    def ordered(self, position: Int[Tensor, " n"]) -> "OrderedIndex":
        """The index for searches among the rows that come before a row, given the place of every row in an order."""
        return OrderedIndex(self, position)


class OrderedIndex:
    """The rows of an index in an order. See ``NeighbourIndex.ordered``."""

    def __init__(self, index: NeighbourIndex, position: Int[Tensor, " n"]):
        self.index, self.position = index, position
        self._order = position.argsort() if index.tree is None else index.tree.ordered(position)

    def earlier(self, rows: Int[Tensor, " t"], k: int) -> Int[Tensor, "t k"]:
        """The ``k`` nearest among the rows that come before each of ``rows``, exactly; -1 where there are fewer."""
        check_count(k, "k", 2**31, "a size that can be computed")
        index, position = self.index, self.position
        if isinstance(self._order, OrderedRows):
            assert index.tree is not None
            return index.tree.earlier(rows, self._order, index.inverse_scale, k)
        found = rows.new_full((len(rows), k), -1)
        # Rows that come early have few candidates: those in the same power of two are compared with as many.
        level = torch.log2(position[rows].clamp_min(1).double()).floor().long()
        for exponent in level.unique().tolist():
            asked, order = (level == exponent).nonzero()[:, 0], self._order[: 2 ** (exponent + 1)]
            mine = rows[asked]
            near = index.backend.nearest(index.points[mine], index.points[order], k, None, position[mine])
            found[asked] = torch.where(near >= 0, order[near.clamp_min(0)], -1)
        return found


def _faiss():
    """The library for approximate search (extra "ann"), or None."""
    try:
        return importlib.import_module("faiss")
    except ImportError:
        return None


def _inverted_lists(points: Tensor):
    """Rows in √n lists around centres; a search looks through the lists nearest to the test point."""
    faiss = _faiss()
    if faiss is None:
        raise ValueError('kind is "approximate", which needs faiss: pip install "cagp[ann]", or use "tree" or "scan".')
    num_lists = max(1, round(math.sqrt(len(points))))
    lists = faiss.IndexIVFFlat(faiss.IndexFlatL2(points.shape[1]), points.shape[1], num_lists)
    lists.cp.seed = 0
    # Evenly spaced: the first rows alone could all lie in one place.
    lists.train(points[:: max(1, len(points) // (64 * num_lists))].contiguous().numpy())
    lists.add(points.numpy())
    lists.nprobe = LISTS_SEARCHED
    return lists
