"""The compiled backend: the C++ code of src/native as differentiable torch functions, on the CPU; and its k-d tree."""

import importlib
import math
import warnings
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, final

import torch
from jaxtyping import Float, Float32, Int, Int32
from torch import Tensor

from cagp.checks import check_first_order
from cagp.engine.backend import Backend, BlockWeights, Inputs, LocalMoments, LocalRows, PerColumn, Points, by_rows
from cagp.kernels import Kernel, kernel_class

_native: Any = None
try:
    _native = importlib.import_module("cagp.engine._native")
except ImportError:
    warnings.warn(
        "cagp was installed without its compiled kernels (no C++ compiler, or CAGP_NATIVE=0): everything works "
        "through torch, more slowly. Install a C++ compiler and reinstall cagp to change that.",
        RuntimeWarning,
        stacklevel=2,
    )

if _native is not None and not hasattr(_native, "tree_nearest"):
    raise ImportError(
        f"the compiled kernels in {_native.__file__} are older than the Python sources; install cagp again, e.g. with "
        "pip install --editable ."
    )

INSTRUCTION_SETS: tuple[str, ...] = () if _native is None else tuple(_native.instruction_sets())
"""What the compiled code was built for and this machine runs, best last; empty where it was not built."""

_TILE_ELEMENTS = 2**21  # of k(X, Z) V: large enough to hide starting threads, small enough for the cache
CHUNK_ROWS = 2**18  # rows that are converted to float64 at a time
_LARGEST_SCALE = 2.0**100  # of a column that does not vary; its square is still far from what float32 cannot hold


# The number of each compiled class of kernels, and whether it has a parameter ``alpha`` besides the lengthscales.
_KINDS: dict[type[Kernel], tuple[int, bool]] = {
    kernel_class(name): (number, has_alpha)
    for number, (name, has_alpha) in enumerate([] if _native is None else _native.kernels())
}


class _Stationary(NamedTuple):
    """A kernel as the compiled code takes it: a number times one of the stationary kernels."""

    kind: int
    lengthscale: Tensor
    alpha: Tensor | None
    scale: Tensor | None  # None for one
    part: Kernel  # the stationary kernel itself

    @classmethod
    def of(cls, kernel: Kernel) -> "_Stationary":
        """A kernel for which ``unsupported_reason`` has no reason."""
        part: Any
        ((scale, part),) = kernel.linear_parts()
        kind, has_alpha = _KINDS[type(part)]
        return cls(kind, part.lengthscale, part.alpha if has_alpha else None, scale, part)

    @property
    def parameters(self) -> tuple[Tensor, Tensor | None, Tensor]:
        """Lengthscale, alpha and scale."""
        return self.lengthscale, self.alpha, torch.ones((), dtype=torch.float64) if self.scale is None else self.scale


@final
@dataclass(frozen=True)
class CompiledBackend(Backend):
    """Compiled loops over pairs of rows, in as many threads as torch uses.

    Results depend neither on the number of threads nor on which thread did what.
    """

    name: ClassVar[str] = "native"
    instruction_set: str | None  # one of ``INSTRUCTION_SETS``; None where the compiled code was not built

    @property
    def words(self) -> str:
        return f"native ({self.instruction_set})"

    def unsupported_reason(self, kernel: Kernel | None, X: Tensor) -> str | None:
        if self.instruction_set is None:
            return "the compiled kernels are not installed"
        if kernel is not None and type(kernel) not in _KINDS:
            with torch.no_grad():
                (_, part), *others = kernel.linear_parts()
            if others:
                return "the kernel is a sum"
            if type(part) not in _KINDS:
                return f"{type(part).__name__} is not compiled"
        if X.device.type != "cpu":
            return f"the data are on {X.device.type}"
        if X.dtype not in (torch.float32, torch.float64):
            return f"the data are {str(X.dtype).removeprefix('torch.')}"
        return None

    def product(
        self, kernel: Kernel, X: Tensor, Z: Tensor, W: Tensor | BlockWeights | None, max_bytes: int, tolerance: float
    ) -> Tensor:
        """Block-sparse ``W`` in one sweep, time O(n m d); dense ``W`` in tiles by BLAS, time O(n m (d + c)).

        With block-sparse ``W``, where ``Z`` is ``X``, each pair of rows is evaluated once. A block is left out for a
        panel of nearby rows, up to 32 of them, if no point of its bounding box is within the support radius of theirs.
        """
        if isinstance(W, Tensor):
            rows = max(1, min(_TILE_ELEMENTS, max_bytes // (4 * X.element_size())) // len(Z))
            return by_rows(lambda tile: self.product(kernel, tile, Z, None, max_bytes, tolerance) @ W, X, rows)
        k = _Stationary.of(kernel)
        if W is None:
            radius, pair, weights = math.inf, (X, Z), (None, None)
        else:
            radius, pair, weights = k.part.support_radius(tolerance), (X, None if Z is X else Z), W
        out = _Product.apply(k.kind, self.instruction_set, radius, *pair, k.lengthscale, k.alpha, *weights)
        return out if k.scale is None else k.scale.to(out) * out

    def conditionals(self, kernel: Kernel, rows: LocalRows) -> LocalMoments:
        """One sweep. Time O(t k² (d + k)), memory O(t (k + d))."""
        k = _Stationary.of(kernel)
        arguments = (*rows._replace(X=rows.X.detach()), *k.parameters)
        return LocalMoments(*_Conditionals.apply(k.kind, self.instruction_set, torch.is_grad_enabled(), *arguments))

    def density(
        self, kernel: Kernel, X: Tensor, y: Tensor, rows: Tensor, neighbours: Tensor, noise: Tensor
    ) -> Tensor | None:
        """Time O(t k² (d + k)), memory O(k² + k d) per thread."""
        k = _Stationary.of(kernel)
        arguments = (X, y, rows, neighbours, noise, *k.parameters)
        return _Density.apply(k.kind, self.instruction_set, torch.is_grad_enabled(), *arguments)

    def nearest(self, points: Tensor, X: Tensor, k: int, left_out: Tensor | None, before: Tensor | None) -> Tensor:
        """All distances, none of them kept. Time O(t n d), memory O(t k): the result."""
        rows = torch.empty(len(points), k, dtype=torch.long)
        run("nearest", points, X, left_out, before, rows, torch.get_num_threads(), self.instruction_set)
        return rows


COMPILED = CompiledBackend(INSTRUCTION_SETS[-1] if INSTRUCTION_SETS else None)


def run(function: str, *arguments: Any) -> None:
    """Call a compiled function with tensors as it takes them: contiguous, without gradients, as views of NumPy."""
    arrays = (v.detach().contiguous().numpy() if isinstance(v, Tensor) else v for v in arguments)
    getattr(_native, function)(*arrays)


def _alpha(alpha: Tensor | None) -> float:
    """The parameter as the compiled code takes it, even where there is none."""
    return 1.0 if alpha is None else float(alpha)


def _like(values: Tensor, parameter: Tensor | None) -> Tensor | None:
    """The gradient of a parameter, if there is one, in its shape and dtype."""
    return None if parameter is None else values.reshape(parameter.shape).to(parameter)


def _scaled(X: Tensor, Z: Tensor | None, lengthscale: Tensor) -> tuple[Tensor, Tensor | None]:
    """Both inputs in lengthscale units, with the origin moved to the data so that no digits are lost far from it."""
    origin, lengthscale = (X if Z is None else Z).mean(0), lengthscale.to(X)
    return (X - origin) / lengthscale, None if Z is None else (Z - origin) / lengthscale


class _Product(torch.autograd.Function):
    """k(X, Z), or k(X, Z) W with ``values`` and ``offsets`` of block-sparse W. ``Z`` is None where it is X."""

    @staticmethod
    def forward(
        ctx, kind: int, instruction_set: str, radius: float, X: Tensor, Z, lengthscale: Tensor, alpha, values, offsets
    ) -> Tensor:
        ctx.save_for_backward(X, Z, lengthscale, alpha, values, offsets)
        ctx.kind, ctx.instruction_set, ctx.radius = kind, instruction_set, radius
        inputs = (kind, *_scaled(X, Z, lengthscale), _alpha(alpha))
        out = X.new_empty(len(X), len(Z) if values is None else len(offsets) - 1)
        machine = (torch.get_num_threads(), instruction_set)
        if values is None:
            run("matrix", *inputs, out, *machine)
        else:
            run("block", *inputs, values, offsets, out, *machine, radius)
        return out

    @staticmethod
    def backward(ctx, *grad_outputs: Tensor):
        check_first_order()
        X, Z, lengthscale, alpha, values, offsets = ctx.saved_tensors
        need_X, need_Z = ctx.needs_input_grad[3:5]
        of_square, of_alpha = torch.zeros(X.shape[1], dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
        of_X = X.new_zeros(X.shape) if need_X else None
        of_Z = Z.new_zeros(Z.shape) if need_Z else None
        # The product of X with itself has one gradient, which is returned where that of Z would be.
        pair = (None, of_X) if Z is None else (of_X, of_Z)
        inputs = (ctx.kind, *_scaled(X, Z, lengthscale), _alpha(alpha))
        machine, of_values = (torch.get_num_threads(), ctx.instruction_set), None
        if values is None:
            run("matrix_gradient", *inputs, grad_outputs[0], of_square, of_alpha, *pair, *machine)
        else:
            of_values = values.new_empty(values.shape)
            weights = (values, offsets, grad_outputs[0], of_square, of_alpha, of_values)
            run("block_gradient", *inputs, *weights, *pair, *machine, ctx.radius)
        # ∂r²/∂ℓ = -2 difference² / ℓ, with differences in lengthscale units.
        of_lengthscale = -2 * of_square.to(lengthscale) / lengthscale
        of_X, of_Z = (None if grad is None else grad / lengthscale.to(grad) for grad in (of_X, of_Z))
        return None, None, None, of_X, of_Z, of_lengthscale, _like(of_alpha, alpha), of_values, None


class _Conditionals(torch.autograd.Function):
    """Of all that a forward pass computes, gradients need C⁻¹r, C⁻¹c and each test point's slopes in the parameters."""

    @staticmethod
    def forward(ctx, kind: int, instruction_set: str, recorded: bool, *tensors) -> LocalMoments:
        points, X, neighbours, noise, residual, gram, cross, lengthscale, alpha, scale = tensors
        needed = [recorded and need for need in ctx.needs_input_grad[3:]]
        (t, k), d = neighbours.shape, X.shape[1]

        def empty(*shape: int, wanted: bool = True) -> Any:
            return torch.empty(shape, dtype=torch.float64) if wanted else None

        moments = LocalMoments(*(empty(t) for _ in LocalMoments._fields))
        solutions = [empty(t, k, wanted=any(needed)) for _ in range(2)]
        of_parameters = empty(t, 2, d + 2, wanted=needed[0] or any(needed[7:]))
        saved = (*solutions, of_parameters, empty(t, 2, d, wanted=needed[0]))
        run(
            "conditionals",
            *(kind, points, X, lengthscale.reciprocal(), neighbours, _alpha(alpha), float(scale)),
            noise.detach().numpy(),  # which may be one number, repeated
            *((residual, None) if residual.ndim == 2 else (None, residual)),
            *(gram, cross, *moments, *saved, torch.get_num_threads(), instruction_set),
        )
        ctx.needed, ctx.dtype = needed, X.dtype
        ctx.save_for_backward(lengthscale, alpha, scale, *saved)
        ctx.mark_non_differentiable(moments.misfit, moments.num_rows)
        return moments

    @staticmethod
    def backward(ctx, *grad_outputs: Tensor):
        check_first_order()
        lengthscale, alpha, scale, *saved = ctx.saved_tensors
        (t, k), d = saved[0].shape, len(lengthscale)
        of_parameters = None if saved[2] is None else torch.zeros(d + 2, dtype=torch.float64)
        shapes = ((t, d), (t, k), (t, k), (t, k, k), (t, k))  # of points, noise, residual, gram and cross
        needed = (ctx.needed[0], *ctx.needed[3:7])
        of_points, *of_values = (
            saved[0].new_empty(shape) if need else None for need, shape in zip(needed, shapes, strict=True)
        )
        gradients = (of_parameters, of_points, *of_values)
        run("conditionals_gradient", *saved[:2], *grad_outputs[:2], *saved[2:], *gradients, torch.get_num_threads())
        of_kernel = None, None, None
        if of_parameters is not None:
            of_lengthscale = (-2 * of_parameters[:d] / lengthscale).to(lengthscale)
            of_kernel = of_lengthscale, _like(of_parameters[d], alpha), _like(of_parameters[d + 1], scale)
        of_points = None if of_points is None else of_points.to(ctx.dtype)
        return None, None, None, of_points, None, None, *of_values, *of_kernel


class _Density(torch.autograd.Function):
    """The gradient is found together with the value, and kept for the backward pass."""

    @staticmethod
    def forward(ctx, kind: int, instruction_set: str, recorded: bool, *tensors) -> Tensor:
        X, y, rows, neighbours, noise, lengthscale, alpha, scale = tensors
        sums = torch.zeros(X.shape[1] + 4, dtype=torch.float64)
        inputs = (rows, X, y, lengthscale.reciprocal(), neighbours, _alpha(alpha), float(scale), float(noise))
        slopes = recorded and any(ctx.needs_input_grad[3:])
        run("density", kind, *inputs, slopes, sums, torch.get_num_threads(), instruction_set)
        ctx.save_for_backward(sums, noise, lengthscale, alpha, scale)
        return sums[0].clone()

    @staticmethod
    def backward(ctx, *grad_outputs: Tensor):
        check_first_order()
        sums, noise, lengthscale, alpha, scale = ctx.saved_tensors
        gradients = sums[1:] * grad_outputs[0]
        of_squares, of_alpha, of_scale, of_noise = gradients.split([len(lengthscale), 1, 1, 1])
        of_parameters = (-2 * of_squares / lengthscale, _like(of_alpha, alpha), _like(of_scale, scale))
        return *(None,) * 7, _like(of_noise, noise), *of_parameters


# ---- the tree (src/native/tree.h): built once, searched in any units ----


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
        cls, X: Inputs, inverse_scale: PerColumn, origin: PerColumn, instruction_set: str | None = None
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
        self, points: Points, inverse_scale: PerColumn, k: int, left_out: Int[Tensor, " t"] | None = None
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
    """The scales times a power of two that brings the largest of the columns that vary close to one."""
    # Distances keep their order, and squares of them neither vanish nor overflow.
    largest = scale[varies].max() if bool(varies.any()) else scale.new_ones(())
    return (scale * (-largest.log2().floor()).exp2()).clamp_max(_LARGEST_SCALE).float()


def _inverse(permutation: Tensor) -> Tensor:
    out = torch.empty(len(permutation), dtype=torch.int32)
    places = torch.arange(len(permutation), dtype=torch.int32)
    for rows, part in zip(permutation.split(CHUNK_ROWS), places.split(CHUNK_ROWS), strict=True):
        out[rows.long()] = part
    return out
