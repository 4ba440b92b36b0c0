"""The training rows nearest to a test point, in units of the lengthscales."""

import importlib
import math
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from scipy.spatial import KDTree
from torch import Tensor

from cagp.checks import check_count, check_matrix
from cagp.engine import Backend, CompiledBackend, OrderedRows, RowTree, choose_backend, column_means, spatial_order
from cagp.engine.row_tree import CHUNK_ROWS

IndexKind = Literal["auto", "tree", "scan", "approximate"]

TREE_ROWS, TREE_COLUMNS = 1_000, 32
"""From this many rows, up to this many columns, "auto" builds a compiled tree and looks how well it works."""

TREE_SHARE, PROBE_NEIGHBOURS, PROBE_ROWS = 1 / 16, 32, 64
"""It keeps the tree if searches for this many neighbours of this many rows look through at most this share of it.
Then a tree was no slower than a scan on all tables that were tried; see docs/benchmarks.md."""

SCIPY_TREE_ROWS = 2_000
"""Without compiled code, a k-d tree is faster than a scan from this times 2ᵈ rows."""

SCAN_ROWS = 200_000
"""From this many rows, "auto" takes an approximate search if a k-d tree is no faster and faiss is installed."""


class NeighbourIndex:
    """An index of the rows of ``X``, for the lengthscales it was made with.

    Args:
        lengthscale: the unit of each column; None for the units of ``X``.
        kind: "scan" (exact: compare with every row, compiled), "tree" (exact: a k-d tree, for few columns),
            "approximate" (inverted lists of faiss, for many rows in many columns) or "auto".
        origin: the point that rows are measured from, which affects round-off only; None for their mean.
        backend: computes the scans and the tree; None for the fastest that applies. With the compiled backend
            "tree" is a compiled tree, with others it is SciPy's.
        tree: the compiled tree of the same rows, for an index of kind "tree" that uses it; None to build one.
    """

    def __init__(
        self,
        X: Float[Tensor, "n d"],
        lengthscale: Float[Tensor, " d"] | None = None,
        kind: IndexKind = "auto",
        origin: Float[Tensor, " d"] | None = None,
        *,
        backend: Backend | None = None,
        tree: RowTree | None = None,
    ):
        check_matrix(X, "X")
        if kind not in ("auto", "tree", "scan", "approximate"):
            raise ValueError(f'kind is {kind!r}, expected "auto", "tree", "scan" or "approximate".')
        if lengthscale is not None and lengthscale.shape != X.shape[1:]:
            raise ValueError(f"lengthscale has shape {tuple(lengthscale.shape)}, expected ({X.shape[1]},).")
        if tree is not None and (kind != "tree" or (len(tree.rows), len(tree.unit)) != X.shape):
            raise ValueError(
                f"tree has {len(tree.rows):,} rows with {len(tree.unit)} columns, for X of shape {tuple(X.shape)} and "
                f'kind {kind!r}; expected the tree of the same rows, and kind "tree".'
            )
        self.lengthscale = None if lengthscale is None else lengthscale.detach().clone()
        if origin is None:
            origin = column_means(X) if tree is None else tree.origin
        self.origin = origin
        self.inverse_scale = (
            torch.ones_like(self.origin) if lengthscale is None else 1 / lengthscale.detach().to(self.origin)
        )
        self.num_rows = X.shape[0]
        self.backend = backend
        self._known_order: _KnownOrder | None = None
        self._prefixes: dict[int, _Prefix] = {}
        computing = choose_backend(None, X, backend)
        compiled = computing if isinstance(computing, CompiledBackend) else None
        if kind == "auto":
            kind, tree = self._chosen(X, compiled)
        elif kind == "tree" and compiled is not None and tree is None:
            tree = RowTree.of(X, self.inverse_scale, self.origin, compiled.instruction_set)
        self.kind: IndexKind = kind
        self.tree = tree
        if tree is not None:
            return  # it holds the rows
        self.points = self._scaled(X)
        if kind == "tree":
            self.scipy_tree = KDTree(self.points.cpu().numpy())
        elif kind == "approximate":
            self.lists = _InvertedLists(self.points, backend)

    def with_lengthscale(self, X: Float[Tensor, "n d"], lengthscale: Float[Tensor, " d"] | None) -> "NeighbourIndex":
        """The index of the same rows ``X`` for other lengthscales: a compiled tree is shared, all else made again."""
        return NeighbourIndex(X, lengthscale, self.kind, self.origin, backend=self.backend, tree=self.tree)

    def _chosen(self, X: Tensor, compiled: CompiledBackend | None) -> tuple[IndexKind, RowTree | None]:
        """The kind that "auto" is, by the data alone: the same for all lengthscales."""
        n, d = X.shape
        if compiled is not None and n >= TREE_ROWS and d <= TREE_COLUMNS:
            spread = X[:: max(1, n // 10_000)].detach().double().std(0)
            inverse = torch.where(spread > 0, 1 / spread, 1.0)
            tree = RowTree.of(X, inverse, self.origin, compiled.instruction_set)
            if tree.share_visited(inverse, PROBE_NEIGHBOURS, PROBE_ROWS) <= TREE_SHARE:
                return "tree", tree
        if compiled is None and X.device.type == "cpu" and n >= SCIPY_TREE_ROWS * 2**d:
            return "tree", None
        if n >= SCAN_ROWS and X.device.type == "cpu" and _faiss() is not None:
            return "approximate", None
        return "scan", None

    def _scaled(self, X: Tensor) -> Tensor:
        """In lengthscale units around the data; float32, which only matters for rows at almost equal distances."""
        out = torch.empty(X.shape, device=X.device)
        for start in range(0, len(X), CHUNK_ROWS):
            part = slice(start, start + CHUNK_ROWS)
            out[part] = (X[part].detach().double() - self.origin) * self.inverse_scale
        return out

    def nearest(
        self, points: Float[Tensor, "t d"], k: int, left_out: Int[Tensor, " t"] | None = None
    ) -> Int[Tensor, "t k"]:
        """The ``k`` rows nearest to each test point, nearest first.

        Args:
            left_out: a row for each test point that does not count: the point itself, where it is a row of ``X``.
        """
        available = self.num_rows - (left_out is not None)
        check_count(k, "k", available, "the number of rows that count")
        if self.tree is not None:
            return self.tree.nearest(points, self.inverse_scale, k, left_out)
        points = self._scaled(points)
        if self.kind == "scan":
            return _scan(points, self.points, k, left_out, None, self.backend)
        if left_out is None:
            return self._query(points, k)
        rows = self._query(points, k + 1)
        # Drops the row itself, or the last one if the row is not among them because of its many duplicates.
        counts = rows != left_out[:, None]
        order = counts.int().argsort(dim=1, descending=True, stable=True)
        return rows.gather(1, order[:, :k])

    def _query(self, points: Tensor, k: int) -> Tensor:
        if self.kind == "approximate":
            return self.lists.nearest(points, k)
        _, rows = self.scipy_tree.query(points.cpu().numpy(), k=k, workers=torch.get_num_threads())
        return torch.as_tensor(rows).view(len(points), k).to(points.device)

    def spatial_order(self, points: Float[Tensor, "t d"]) -> Int[Tensor, " t"]:
        """An order of the test points in which near ones follow each other: by the leaves of a k-d tree."""
        if isinstance(choose_backend(None, points, self.backend), CompiledBackend):
            return spatial_order(points, self.inverse_scale)
        order = KDTree(self._scaled(points).cpu().numpy()).indices
        return torch.as_tensor(order, dtype=torch.long, device=points.device)

    def earlier(self, rows: Int[Tensor, " t"], position: Int[Tensor, " n"], k: int) -> Int[Tensor, "t k"]:
        """The ``k`` nearest among the rows that come before each of ``rows`` in an order; -1 where there are fewer.

        A scan and a compiled tree are exact. The other kinds first look at the ``4 k`` nearest of all rows. Where fewer
        than ``k`` of them come earlier, they add the nearest rows of the first half of those that do.

        Args:
            position: the place of every row in the order.
        """
        check_count(k, "k", 2**31, "a size that can be computed")
        order = self._order(position)
        if isinstance(order, OrderedRows):
            assert self.tree is not None
            return self.tree.earlier(rows, order, self.inverse_scale, k)
        if self.kind == "scan":
            found = _scan(self.points[rows], self.points[order], k, None, position[rows], self.backend)
            return torch.where(found >= 0, order[found.clamp_min(0)], -1)
        return self._earlier_by_prefixes(rows, position, order, k)

    def _earlier_by_prefixes(self, rows: Tensor, position: Tensor, order: Tensor, k: int) -> Tensor:
        out = rows.new_full((len(rows), k), -1)
        level = torch.log2(position[rows].clamp_min(1).double()).floor().long()
        for exponent in level.unique().tolist():
            asked = (level == exponent).nonzero()[:, 0]
            mine = rows[asked]
            size = min(2 ** (exponent + 1), self.num_rows)
            if size <= 4096:
                found = _scan(self.points[mine], self.points[order[:size]], k, None, position[mine], self.backend)
                out[asked] = torch.where(found >= 0, order[found.clamp_min(0)], -1)
                continue
            near = self._prefix(order, size).nearest_scaled(self.points[mine], min(4 * k, size))
            half = self._prefix(order, size // 2).nearest_scaled(self.points[mine], min(k, size // 2))
            candidates = torch.cat([near, half], dim=1)
            counts = position[candidates] < position[mine][:, None]
            # Nearest first; those of the first half come after all others and fill the places left.
            counts[:, near.shape[1] :] &= ~(half[:, :, None] == near[:, None, :]).any(2)
            ranked = counts.int().argsort(dim=1, descending=True, stable=True)[:, :k]
            out[asked] = torch.where(counts.gather(1, ranked), candidates.gather(1, ranked), -1)
        return out

    def _order(self, position: Tensor) -> Tensor | OrderedRows:
        """The rows in their order, kept for the next call together with the indices of its prefixes."""
        known, version = self._known_order, -1 if position.is_inference() else position._version
        if known is None or known.position is not position or known.version != version or version < 0:
            order = position.argsort() if self.tree is None else self.tree.ordered(position)
            self._known_order = known = _KnownOrder(position, version, order)
            self._prefixes.clear()
        return known.order

    def _prefix(self, order: Tensor, size: int) -> "_Prefix":
        if size not in self._prefixes:
            self._prefixes[size] = _Prefix(self.points, order[:size], self.kind, self.backend)
        return self._prefixes[size]


class _KnownOrder(NamedTuple):
    """An order that was asked for, and what was computed from it."""

    position: Tensor
    version: int  # of the positions, which counts changes in place
    order: Tensor | OrderedRows


class _Prefix:
    """The first rows of an order, with an index of their own."""

    def __init__(self, points: Tensor, rows: Tensor, kind: IndexKind, backend: Backend | None):
        self.rows = rows
        self.index = NeighbourIndex(points[rows], kind=kind, backend=backend)

    def nearest_scaled(self, points: Tensor, k: int) -> Tensor:
        return self.rows[self.index.nearest(points, k)]


def _scan(
    points: Tensor, X: Tensor, k: int, left_out: Tensor | None, before: Tensor | None, backend: Backend | None
) -> Tensor:
    """The nearest of all rows, by increasing distance; only those before ``before`` where given. -1 for none."""
    return choose_backend(None, points, backend).nearest(points, X, k, left_out, before)


def _faiss():
    """The library for approximate search (extra "ann"), or None."""
    try:
        return importlib.import_module("faiss")
    except ImportError:
        return None


class _InvertedLists:
    """Rows in √n lists around centres; a search looks through the 16 lists nearest to the test point."""

    LISTS_SEARCHED = 16

    def __init__(self, points: Tensor, backend: Backend | None):
        faiss = _faiss()
        if faiss is None:
            raise ValueError(
                'kind is "approximate", which needs faiss: pip install "cagp[ann]", or use "tree" or "scan".'
            )
        num_lists = max(1, round(math.sqrt(len(points))))
        self.points, self.backend = points, backend
        quantizer = faiss.IndexFlatL2(points.shape[1])
        self.index = faiss.IndexIVFFlat(quantizer, points.shape[1], num_lists)
        self.index.cp.seed = 0
        # Evenly spaced: the first rows alone could all lie in one place.
        self.index.train(points[:: max(1, len(points) // (64 * num_lists))].contiguous().numpy())
        self.index.add(points.numpy())
        self.index.nprobe = self.LISTS_SEARCHED

    def nearest(self, points: Tensor, k: int) -> Tensor:
        rows = torch.from_numpy(self.index.search(points.numpy(), k)[1])
        short = (rows < 0).any(1)  # too few rows in the lists that were searched
        if bool(short.any()):
            rows[short] = _scan(points[short], self.points, k, None, None, self.backend)
        return rows
