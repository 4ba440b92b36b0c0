"""Priors and posteriors as states that ``cagp.tensor_files`` can write: names, numbers and tensors, nothing executable.

A posterior made from its state predicts the same bits on the same machine. What follows from other parts is not stored
but computed again: search trees, the preconditioner of conjugate gradients, what shared actions explain of all rows.
States hold no device: what is made from them is on the CPU.
"""

import copy
import math
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from cagp.checks import check_data, check_matrix
from cagp.engine import BlockWeights
from cagp.kernel_registry import KERNELS
from cagp.kernels import (
    ActiveDims,
    Cosine,
    Kernel,
    Linear,
    Periodic,
    Product,
    Scale,
    Stationary,
    Sum,
    kernel_class,
)
from cagp.linalg import CGResult
from cagp.local_inference import SharedActions
from cagp.neighbours import NeighbourIndex
from cagp.parameters import Positive
from cagp.posteriors import (
    AveragedPosterior,
    CaGPPosterior,
    CGPosterior,
    InducingPosterior,
    LocalPosterior,
    Posterior,
)
from cagp.prior import GP, ConstantMean, GaussianNoise, KnownNoise, LinearMean, Mean, Noise, ZeroMean
from cagp.solver import Solver
from cagp.state_checks import count_in, entry, factor, float64_in, has, is_finite, shaped, strange, vector
from cagp.storage import State
from cagp.system import System

MEANS = (ZeroMean, ConstantMean, LinearMean)
NOISES = (GaussianNoise, KnownNoise)
CLASSES: dict[str, type[nn.Module]] = {
    **{entry.class_name: kernel_class(name) for name, entry in KERNELS.items()},
    **{c.__name__: c for c in (*MEANS, *NOISES)},
}

DTYPES = {"float32": torch.float32, "float64": torch.float64}

MODULE_BYTES = 10_000
"""About what a kernel takes besides its parameters."""

MOST_ITERATIONS = 10**6
"""Of conjugate gradients, in a file."""

T = TypeVar("T")


# ---- priors ----


def prior_state(prior: GP) -> State:
    """Kernel, mean and noise by the names of their classes, with floors and raw parameters, bit for bit.

    A kernel of a class of your own is stored as the name of its class, its plain attributes and its tensors.
    """
    for name, part, known in (("mean", prior.mean, MEANS), ("noise", prior.noise, NOISES)):
        if type(part) not in known:
            raise ValueError(
                f"the {name} is a {type(part).__name__}, a class of your own, which cannot be stored; expected "
                f"{_either(known)}. Only kernels can be of a class of your own; many means can be written as a kernel."
            )
    return {name: _module_state(part) for name, part in prior.named_children()}


def prior_from_state(state: State, kernel: Kernel | None = None) -> GP:
    """The prior of a state.

    Args:
        kernel: a kernel with the structure of the stored one; needed if that has classes of your own. It is copied, and
            the copy gets the stored parameters. None: the kernel is made from the stored names.
    """
    stored = entry(state, "kernel", dict)
    if kernel is None:
        kernel = _made(stored, Kernel)
    else:
        given, expected = _words(_module_state(kernel)), _words(stored)
        if given != expected:
            raise ValueError(f"kernel is {given}, the stored one is {expected}; give one of the same structure.")
        kernel = copy.deepcopy(kernel)
        _fill(kernel, stored)
    return GP(kernel, _made(entry(state, "mean", dict), Mean), _made(entry(state, "noise", dict), Noise))


def _either(classes: tuple[type, ...]) -> str:
    return " or ".join(c.__name__ for c in classes)


def _parts(module: nn.Module) -> list[nn.Module]:
    if isinstance(module, Scale | ActiveDims):
        return [module.kernel]
    return list(module.parts) if isinstance(module, Sum | Product) else []


def _is_own(module: nn.Module) -> bool:
    """Whether the class is not one of this package, whatever its name."""
    return CLASSES.get(type(module).__name__) is not type(module)


def _module_state(module: nn.Module) -> State:
    state: State = {"class": type(module).__name__, "own": _is_own(module)}
    if state["own"]:
        return state | {"tensors": dict(module.state_dict()), "attributes": _attributes(module)}
    settings, buffers = (
        module.plain_arguments() if isinstance(module, Kernel) else {},
        dict(module.named_buffers(recurse=False)),
    )
    return state | {
        **({"settings": settings} if settings else {}),
        **({"buffers": buffers} if buffers else {}),
        "tensors": dict(module.named_parameters(recurse=False)),
        "floors": {name: float(value) for name, value in vars(module).items() if name.endswith("_floor")},
        "parts": [_module_state(part) for part in _parts(module)],
    }


def _attributes(module: nn.Module) -> dict[str, Any]:
    """The plain attributes of a module and of those inside it, which together with its tensors define it."""
    return {
        f"{path}.{name}" if path else name: value
        for path, part in module.named_modules()
        for name, value in vars(part).items()
        if isinstance(value, bool | int | float | str) and name != "training" and not name.startswith("_")
    }


def _words(state: State) -> str:
    """The structure of a kernel, like "Scale(MyKernel(...))"."""
    parts = [] if entry(state, "own", bool) else entry(state, "parts", list)
    return f"{entry(state, 'class', str)}({', '.join(map(_words, parts)) or '...'})"


def _own_classes(state: State) -> list[str]:
    if entry(state, "own", bool):
        return [entry(state, "class", str)]
    return [name for part in entry(state, "parts", list) for name in _own_classes(part)]


def _made(state: State, role: type[T]) -> T:
    """The module of a state; ValueError if it has classes of your own."""
    own = _own_classes(state)
    if own:
        raise ValueError(
            f"the stored kernel is {_words(state)}, and {own[0]} is a class of your own, whose code is not stored; "
            f"give a kernel of the same structure: cagp.load(path, kernel={_words(state)})."
        )
    module = _with_default_values(state)
    if not isinstance(module, role):
        raise strange(f"a {role.__name__.lower()}")
    _fill(module, state)
    return module


def _with_default_values(state: State) -> nn.Module:
    """A module with the sizes of the stored tensors and default values."""
    made = CLASSES.get(entry(state, "class", str))
    tensors = entry(state, "tensors", dict)
    parts: list[Any] = [_with_default_values(part) for part in entry(state, "parts", list)]
    if made is None or not all(isinstance(part, Kernel) for part in parts):
        raise strange("known classes")
    if issubclass(made, Stationary):
        return made(_num_dims(tensors, "raw_lengthscale"))
    if issubclass(made, Periodic | Cosine):
        return made(_num_dims(tensors, "raw_period"))
    if issubclass(made, Linear):
        return made(_num_dims(tensors, "raw_variance"))
    if issubclass(made, LinearMean):
        return made(_num_dims(tensors, "slope"))
    one, several = issubclass(made, Scale | ActiveDims), issubclass(made, Sum | Product)
    if (one and len(parts) != 1) or (several and not parts) or (parts and not one and not several):
        raise strange("the parts of a kernel")
    settings = entry(state, "settings", dict) if "settings" in state else {}
    try:
        return made(*parts, **settings)
    except (TypeError, ValueError) as error:
        raise strange(f"the settings of a {made.__name__}") from error


def _num_dims(tensors: State, name: str) -> int:
    values = entry(tensors, name, Tensor)
    if values.ndim != 1 or len(values) == 0:
        raise strange(name)
    return len(values)


def _fill(module: nn.Module, state: State) -> None:
    """Set the parameters of a module of the same structure to the stored values."""
    tensors = {name: entry(state["tensors"], name, Tensor) for name in entry(state, "tensors", dict)}
    own = entry(state, "own", bool)
    if not own:
        _fill_buffers(module, state)
    expected = dict(module.state_dict()) if own else dict(module.named_parameters(recurse=False))
    given, stored = ({k: tuple(t.shape) for k, t in group.items()} for group in (expected, tensors))
    if given != stored:
        raise ValueError(f"the stored {state['class']} has tensors of shapes {stored}, the one given {given}.")
    if own:
        attributes, wanted = _attributes(module), entry(state, "attributes", dict)
        for name in sorted(attributes.keys() | wanted.keys()):
            if attributes.get(name) != wanted.get(name):
                raise ValueError(
                    f"the stored {state['class']} has {name} = {wanted.get(name)!r}, the one given "
                    f"{attributes.get(name)!r}; give one that was made with the same arguments."
                )
        if not all(map(is_finite, tensors.values())):
            raise strange(f"finite parameters of {state['class']}")
        module.load_state_dict(tensors)
        return
    floors = entry(state, "floors", dict)
    for name in floors:
        if not name.endswith("_floor"):
            raise strange("'floors'")
        is_one = isinstance(getattr(type(module), name.removesuffix("_floor"), None), Positive)
        if not is_one or not 0 <= entry(floors, name, float) < math.inf:
            raise strange(name)
        setattr(module, name, entry(floors, name, float))
    for name, tensor in tensors.items():
        _check_parameter(name, tensor, floors.get(f"{name.removeprefix('raw_')}_floor", 0.0))
        setattr(module, name, nn.Parameter(tensor.clone(), requires_grad=expected[name].requires_grad))
    for part, stored_part in zip(_parts(module), entry(state, "parts", list), strict=True):
        _fill(part, stored_part)


def _check_parameter(name: str, tensor: Tensor, floor: float) -> None:
    """Raise ValueError unless the values are finite, and those of positive parameters positive."""
    if tensor.dtype != torch.float64 or not is_finite(tensor):
        raise strange(name)
    if name.startswith("raw_"):
        values = tensor.exp() + floor
        if not bool(((values > 0) & torch.isfinite(values)).all()):
            raise strange(name)


def _fill_buffers(module: nn.Module, state: State) -> None:
    """Set what a module of this package knows of the units of its inputs."""
    buffers = dict(module.named_buffers(recurse=False))
    stored = entry(state, "buffers", dict) if "buffers" in state else {}
    if buffers.keys() != stored.keys():
        raise strange(f"the buffers of a {state['class']}")
    for name, buffer in buffers.items():
        values = float64_in(stored, name, tuple(buffer.shape)).clone()
        if name == "unit" and not bool((values > 0).all()):
            raise strange(name)
        setattr(module, name, values)


# ---- posteriors ----


def posterior_state(posterior: Posterior, dtype: torch.dtype | None = None) -> State:
    """The parts that define a posterior.

    Args:
        dtype: torch.float32 rounds float64 training rows (inputs, targets, known noise, weights of actions), which
            about halves the size. The posterior made from that state still computes in float64, with the rounded rows:
            its predictions no longer have the same bits. Hyperparameters, factors and inducing points are not rounded.
    """
    if isinstance(posterior, AveragedPosterior):
        return {
            "class": type(posterior).__name__,
            "prior": prior_state(posterior.prior),  # it follows from the others; for those who read it without a model
            "weights": list(posterior.weights),
            "offset_of": list(posterior.offset_of),
            "components": [posterior_state(component, dtype) for component in posterior.components],
        }
    if type(posterior) not in WRITERS:
        raise ValueError(
            f"a posterior of class {type(posterior).__name__} cannot be stored, expected {_either(tuple(WRITERS))}."
        )
    if dtype not in (None, torch.float32, torch.float64):
        raise ValueError(f"dtype is {dtype}, expected torch.float32, torch.float64 or None.")

    def rows(values: Tensor, name: str) -> Tensor:
        """The values, rounded if that makes them smaller; those that belong to rows of this dtype stay as they are."""
        if dtype in (None, posterior.X.dtype) or values.dtype.itemsize <= dtype.itemsize:
            return values
        rounded = values.to(dtype)
        lost = ~torch.isfinite(rounded) | ((rounded == 0) & (values != 0) & (name == "row_noise"))
        if bool(lost.any()):
            raise ValueError(f"{name} has values beyond the range of {dtype}; store it with dtype=None.")
        return rounded

    return {
        "class": type(posterior).__name__,
        "prior": prior_state(posterior.prior),
        "dtype": str(posterior.X.dtype).removeprefix("torch."),
        "max_bytes": int(posterior.max_bytes),
        **WRITERS[type(posterior)](posterior, rows),
    }


class Sharing:
    """What posteriors made from one file share, so that they take memory in proportion to the file.

    A file can refer to the same rows as often as it likes: they are converted once, and searched through one index.

    Args:
        max_bytes: what all parameters may take, which are copied for each posterior.
    """

    def __init__(self, max_bytes: int = 2**62):
        self.left = max_bytes
        self._rows: dict[Any, tuple[Tensor, Tensor]] = {}
        self._indices: dict[Any, NeighbourIndex] = {}

    def spend(self, state: State) -> None:
        """Count a module and those inside it; ValueError if there are more than a file of this size can mean."""
        tensors = entry(state, "tensors", dict).values()
        self.left -= MODULE_BYTES + sum(t.numel() * t.element_size() for t in tensors if isinstance(t, Tensor))
        if self.left < 0:
            raise ValueError("its kernels have far more parameters than cagp writes into a file of this size.")
        for part in [] if entry(state, "own", bool) else entry(state, "parts", list):
            self.spend(part)

    def rows(self, X: Tensor, dtype: torch.dtype) -> Tensor:
        """The rows in this dtype."""
        if X.dtype == dtype:
            return X
        key = (X.data_ptr(), X.shape, X.stride(), dtype)
        return self._rows.setdefault(key, (X, X.to(dtype)))[1]  # X stays, and so does its address

    def index(self, X: Tensor, lengthscale: Tensor | None, kind: Any, origin: Tensor) -> NeighbourIndex:
        """The index of these rows."""
        unit = None if lengthscale is None else tuple(lengthscale.tolist())
        key = (X.data_ptr(), X.shape, X.stride(), unit, kind, tuple(origin.tolist()))
        if key not in self._indices:
            self._indices[key] = NeighbourIndex(X, lengthscale, kind, origin)
        return self._indices[key]


def _offset_of(state: State) -> list[int]:
    """The components that an offset belongs to; older files hold the number of a single one."""
    value = state.get("offset_of")
    found = value if isinstance(value, list) else [value]
    numbers = [number for number in found if type(number) is int]
    if len(numbers) < len(found):
        raise strange("'offset_of'")
    return numbers


def posterior_from_state(state: State, kernel: Kernel | None = None, sharing: Sharing | None = None) -> Posterior:
    """The posterior of a state; ``kernel`` as in ``prior_from_state``.

    It holds the tensors of the state itself, which nobody may change any more.

    Args:
        sharing: with the other posteriors of a file; None for one that stands alone.
    """
    sharing = Sharing() if sharing is None else sharing
    if entry(state, "class", str) == AveragedPosterior.__name__:
        components, weights = entry(state, "components", list), entry(state, "weights", list)
        if not all(isinstance(weight, float) for weight in weights):
            raise strange("'weights'")
        if any(entry(component, "class", str) == AveragedPosterior.__name__ for component in components):
            raise strange("components that are no averages")
        parts = [posterior_from_state(part, kernel, sharing) for part in components]
        return AveragedPosterior(parts, weights, _offset_of(state))
    name, dtype = entry(state, "class", str), entry(state, "dtype", str)
    if name not in READERS or dtype not in DTYPES:
        raise strange("a known class of posteriors")
    with torch.no_grad():
        for part in entry(state, "prior", dict).values():
            sharing.spend(part)
        prior = prior_from_state(entry(state, "prior", dict), kernel)
        X = _inputs(state, DTYPES[dtype], prior, sharing)
        return READERS[name](state, prior, X, count_in(state, "max_bytes"), sharing)


Rows = Callable[[Tensor, str], Tensor]


def _cagp_state(posterior: CaGPPosterior, rows: Rows) -> State:
    return {
        "X": rows(posterior.X, "X"),
        "W": _weights_state(posterior.W, rows),
        "chol": posterior.chol,
        "weights": posterior.weights,
    }


def _cagp_from_state(state: State, prior: GP, X: Tensor, max_bytes: int, sharing: Sharing) -> CaGPPosterior:
    W, num_actions = _weights(state, len(X), X.dtype, sharing)
    chol, weights = factor(state, "chol", num_actions), float64_in(state, "weights", (num_actions,))
    return CaGPPosterior.from_parts(prior, X, W, chol, weights, max_bytes)


def _inducing_state(posterior: InducingPosterior, rows: Rows) -> State:
    return {
        "X": posterior.X,  # not rounded: ``chol`` is the factor of their nearly singular covariance
        "chol": posterior.chol,
        "whitened_mean": posterior.whitened_mean,
        "whitened_root": posterior.whitened_root,
    }


def _inducing_from_state(state: State, prior: GP, Z: Tensor, max_bytes: int, sharing: Sharing) -> InducingPosterior:
    m = len(Z)
    chol, mean = factor(state, "chol", m), float64_in(state, "whitened_mean", (m,))
    root = float64_in(state, "whitened_root", (m, m))
    return InducingPosterior(prior, Z, chol, mean, root, max_bytes, shares_rows=True)


def _cg_state(posterior: CGPosterior, rows: Rows) -> State:
    system = posterior._solver.system
    return {
        "X": rows(posterior.X, "X"),
        "row_noise": None if system.row_noise is None else rows(system.row_noise, "row_noise"),
        "rank": posterior._solver.rank,
        "system_max_bytes": int(system.max_bytes),
        "tolerance": float(posterior.tolerance),
        "max_iterations": posterior.max_iterations,
        "representer": posterior.representer_status._asdict(),
    }


def _cg_from_state(state: State, prior: GP, X: Tensor, max_bytes: int, sharing: Sharing) -> CGPosterior:
    n = len(X)
    row_noise = vector(state, "row_noise", n, torch.float64) if has(state, "row_noise") else None
    system = System(prior, sharing.rows(X, torch.float64), row_noise, count_in(state, "system_max_bytes"))
    stored = entry(state, "representer", dict)
    _check_cg(stored, n)
    rank, tolerance = count_in(state, "rank"), entry(state, "tolerance", float)
    if not 0 < tolerance < 1 or not 1 <= count_in(state, "max_iterations") <= MOST_ITERATIONS:
        raise strange("the settings of conjugate gradients")
    fields: dict[str, Any] = {
        name: entry(stored, name, int if name == "num_iterations" else Tensor) for name in CGResult._fields
    }
    return CGPosterior(
        X,
        Solver(system, rank),
        CGResult(**fields),
        tolerance=tolerance,
        max_iterations=count_in(state, "max_iterations"),
        max_bytes=max_bytes,
        shares_rows=True,
    )


def _check_cg(stored: State, num_rows: int) -> None:
    """Raise ValueError unless a stored solution of conjugate gradients has the parts that cagp writes."""
    float64_in(stored, "solution", (num_rows, 1))
    steps = entry(stored, "diagonal", Tensor)
    for name in ("diagonal", "off_diagonal"):
        float64_in(stored, name, (len(steps) if steps.ndim else 0, 1))
    for name in ("residual_norms", "squared_norms"):
        float64_in(stored, name, (1,))
    for name in ("converged", "broke_down"):
        flags = entry(stored, name, Tensor)
        if flags.dtype != torch.bool or flags.shape != (1,):
            raise strange(repr(name))
    count_in(stored, "num_iterations")


def _local_state(posterior: LocalPosterior, rows: Rows) -> State:
    index, shared = posterior.index, posterior.shared
    return {
        "X": rows(posterior.X, "X"),
        "y": rows(posterior.y, "y"),
        "row_noise": None if posterior.row_noise is None else rows(posterior.row_noise, "row_noise"),
        "num_neighbours": posterior.num_neighbours,
        "selection": "nearest",  # the only one left; older versions also wrote "greedy"
        "local_scale": posterior.local_scale,
        "search": {"method": index.kind, "lengthscale": index.lengthscale, "origin": index.origin},
        "shared": None
        if shared is None
        else {
            "support": shared.support,
            "W": _weights_state(shared.W, rows),
            "chol": shared.chol,
            "targets": shared.targets,
            "max_bytes": int(shared.max_bytes),
        },
    }


def _local_from_state(state: State, prior: GP, X: Tensor, max_bytes: int, sharing: Sharing) -> LocalPosterior:
    n, d = X.shape
    y = vector(state, "y", n, X.dtype)
    row_noise = vector(state, "row_noise", n, X.dtype) if has(state, "row_noise") else None
    check_data(X, y, row_noise)
    stored = entry(state, "search", dict)
    lengthscale = shaped(stored, "lengthscale", (d,)) if has(stored, "lengthscale") else None
    if lengthscale is not None and not bool((lengthscale > 0).all()):
        raise strange("'lengthscale'")
    kind, selection = entry(stored, "method", str), entry(state, "selection", str)
    if selection != "nearest":
        raise ValueError(
            f"the stored posterior selects its neighbours by {selection!r}, which this version of cagp cannot do; "
            'expected "nearest". Fit the model again.'
        )
    search = sharing.index(X, lengthscale, kind, float64_in(stored, "origin", (d,)))
    k = count_in(state, "num_neighbours")
    if k > n:
        raise strange("'num_neighbours'")
    shared = _shared(entry(state, "shared", dict), prior, X, sharing) if has(state, "shared") else None
    scale = entry(state, "local_scale", float) if has(state, "local_scale") else None
    return LocalPosterior(prior, X, y, row_noise, k, search, shared, max_bytes, scale, shares_rows=True)


def _shared(state: State, prior: GP, X: Tensor, sharing: Sharing) -> SharedActions:
    support = entry(state, "support", Tensor)
    if support.dtype != torch.int64 or support.ndim != 1 or not bool(((support >= 0) & (support < len(X))).all()):
        raise strange("'support'")
    if len(support.unique()) != len(support):
        raise strange("'support'")
    W, i = _weights(state, len(support), X.dtype, sharing)
    chol, targets = factor(state, "chol", i), float64_in(state, "targets", (i,))
    prior = copy.deepcopy(prior).requires_grad_(False)
    return SharedActions.from_parts(prior, X[support], W, chol, targets, support, count_in(state, "max_bytes"))


def _weights_state(W: Tensor | BlockWeights, rows: Rows) -> Tensor | State:
    if isinstance(W, BlockWeights):
        return {"values": rows(W.values, "W"), "offsets": W.offsets}
    return rows(W, "W")


def _weights(state: State, num_rows: int, dtype: torch.dtype, sharing: Sharing) -> tuple[Tensor | BlockWeights, int]:
    """W and its number of columns."""
    W = state.get("W")
    if isinstance(W, Tensor):
        if W.ndim != 2 or len(W) != num_rows or W.shape[1] == 0:
            raise strange("'W'")
        # Those of iterative methods are float64 also beside float32 rows: rounding them would change SᵀK̂S.
        found = shaped(state, "W", tuple(W.shape))
        return found if found.dtype == torch.float64 else sharing.rows(found, dtype), W.shape[1]
    stored = entry(state, "W", dict)
    offsets = entry(stored, "offsets", Tensor)
    whole = offsets.dtype == torch.int64 and offsets.ndim == 1 and len(offsets) > 1
    if not whole or int(offsets[0]) != 0 or int(offsets[-1]) != num_rows or bool((offsets.diff() < 0).any()):
        raise strange("'offsets'")
    return BlockWeights(vector(stored, "values", num_rows, dtype), offsets), len(offsets) - 1


WRITERS: dict[type[Posterior], Callable[[Any, Rows], State]] = {
    CaGPPosterior: _cagp_state,
    InducingPosterior: _inducing_state,
    CGPosterior: _cg_state,
    LocalPosterior: _local_state,
}
READERS: dict[str, Callable[[State, GP, Tensor, int, Sharing], Posterior]] = {
    "CaGPPosterior": _cagp_from_state,
    "InducingPosterior": _inducing_from_state,
    "CGPosterior": _cg_from_state,
    "LocalPosterior": _local_from_state,
}


def _inputs(state: State, dtype: torch.dtype, prior: GP, sharing: Sharing) -> Tensor:
    X = entry(state, "X", Tensor)
    check_matrix(X, "X")
    if X.dtype not in DTYPES.values():
        raise strange("'X'")
    X = sharing.rows(X, dtype)
    try:
        prior.mean(X[:1])
        prior.kernel(X[:1], X[:1])
    except (RuntimeError, ValueError) as error:
        raise strange(f"a kernel and a mean for {X.shape[1]} columns") from error
    return X
