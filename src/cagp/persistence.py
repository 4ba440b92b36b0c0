"""Priors and posteriors as states that ``cagp.tensor_files`` can write: names, numbers and tensors, nothing executable.

A posterior made from its state predicts the same bits on the same machine. What follows from other parts is not stored
but computed again: search trees, the preconditioner of conjugate gradients, what shared actions explain of all rows.
States hold no device: what is made from them is on the CPU.
"""

import copy
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
from cagp.storage import State
from cagp.system import System

MEANS = (ZeroMean, ConstantMean, LinearMean)
NOISES = (GaussianNoise, KnownNoise)
CLASSES: dict[str, type[nn.Module]] = {
    **{entry.class_name: kernel_class(name) for name, entry in KERNELS.items()},
    **{c.__name__: c for c in (*MEANS, *NOISES)},
}

DTYPES = {"float32": torch.float32, "float64": torch.float64}

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
    stored = _entry(state, "kernel", dict)
    if kernel is None:
        kernel = _made(stored, Kernel)
    else:
        given, expected = _words(_module_state(kernel)), _words(stored)
        if given != expected:
            raise ValueError(f"kernel is {given}, the stored one is {expected}; give one of the same structure.")
        kernel = copy.deepcopy(kernel)
        _fill(kernel, stored)
    return GP(kernel, _made(_entry(state, "mean", dict), Mean), _made(_entry(state, "noise", dict), Noise))


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
    parts = [] if _entry(state, "own", bool) else _entry(state, "parts", list)
    return f"{_entry(state, 'class', str)}({', '.join(map(_words, parts)) or '...'})"


def _own_classes(state: State) -> list[str]:
    if _entry(state, "own", bool):
        return [_entry(state, "class", str)]
    return [name for part in _entry(state, "parts", list) for name in _own_classes(part)]


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
        raise _strange(f"a {role.__name__.lower()}")
    _fill(module, state)
    return module


def _with_default_values(state: State) -> nn.Module:
    """A module with the sizes of the stored tensors and default values."""
    made = CLASSES.get(_entry(state, "class", str))
    tensors = _entry(state, "tensors", dict)
    parts: list[Any] = [_with_default_values(part) for part in _entry(state, "parts", list)]
    if made is None or not all(isinstance(part, Kernel) for part in parts):
        raise _strange("known classes")
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
        raise _strange("the parts of a kernel")
    settings = _entry(state, "settings", dict) if "settings" in state else {}
    try:
        return made(*parts, **settings)
    except (TypeError, ValueError) as error:
        raise _strange(f"the settings of a {made.__name__}") from error


def _num_dims(tensors: State, name: str) -> int:
    values = _entry(tensors, name, Tensor)
    if values.ndim != 1 or len(values) == 0:
        raise _strange(name)
    return len(values)


def _fill(module: nn.Module, state: State) -> None:
    """Set the parameters of a module of the same structure to the stored values."""
    tensors = {name: _entry(state["tensors"], name, Tensor) for name in _entry(state, "tensors", dict)}
    own = _entry(state, "own", bool)
    if not own:
        _fill_buffers(module, state)
    expected = dict(module.state_dict()) if own else dict(module.named_parameters(recurse=False))
    given, stored = ({k: tuple(t.shape) for k, t in group.items()} for group in (expected, tensors))
    if given != stored:
        raise ValueError(f"the stored {state['class']} has tensors of shapes {stored}, the one given {given}.")
    if own:
        attributes, wanted = _attributes(module), _entry(state, "attributes", dict)
        for name in sorted(attributes.keys() | wanted.keys()):
            if attributes.get(name) != wanted.get(name):
                raise ValueError(
                    f"the stored {state['class']} has {name} = {wanted.get(name)!r}, the one given "
                    f"{attributes.get(name)!r}; give one that was made with the same arguments."
                )
        module.load_state_dict(tensors)
        return
    floors = _entry(state, "floors", dict)
    for name in floors:
        if not name.endswith("_floor"):
            raise _strange("'floors'")
        setattr(module, name, _entry(floors, name, float))
    for name, tensor in tensors.items():
        if not tensor.is_floating_point():
            raise _strange(name)
        setattr(module, name, nn.Parameter(tensor.clone(), requires_grad=expected[name].requires_grad))
    for part, stored_part in zip(_parts(module), _entry(state, "parts", list), strict=True):
        _fill(part, stored_part)


def _fill_buffers(module: nn.Module, state: State) -> None:
    """Set what a module of this package knows of the units of its inputs."""
    buffers = dict(module.named_buffers(recurse=False))
    stored = _entry(state, "buffers", dict) if "buffers" in state else {}
    if buffers.keys() != stored.keys():
        raise _strange(f"the buffers of a {state['class']}")
    for name, buffer in buffers.items():
        setattr(module, name, _float64(stored, name, tuple(buffer.shape)).clone())


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
            "components": [posterior_state(component, dtype) for component in posterior.components],
        }
    if type(posterior) not in WRITERS:
        raise ValueError(
            f"a posterior of class {type(posterior).__name__} cannot be stored, expected {_either(tuple(WRITERS))}."
        )
    if dtype not in (None, torch.float32, torch.float64):
        raise ValueError(f"dtype is {dtype}, expected torch.float32, torch.float64 or None.")

    def rows(values: Tensor, name: str) -> Tensor:
        """The values, rounded if that makes them smaller."""
        if dtype is None or values.dtype.itemsize <= dtype.itemsize:
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


def posterior_from_state(state: State, kernel: Kernel | None = None) -> Posterior:
    """The posterior of a state; ``kernel`` as in ``prior_from_state``."""
    if _entry(state, "class", str) == AveragedPosterior.__name__:
        components, weights = _entry(state, "components", list), _entry(state, "weights", list)
        if not all(isinstance(weight, float) for weight in weights):
            raise _strange("'weights'")
        if any(_entry(component, "class", str) == AveragedPosterior.__name__ for component in components):
            raise _strange("components that are no averages")
        return AveragedPosterior([posterior_from_state(component, kernel) for component in components], weights)
    name, dtype = _entry(state, "class", str), _entry(state, "dtype", str)
    if name not in READERS or dtype not in DTYPES:
        raise _strange("a known class of posteriors")
    with torch.no_grad():
        prior = prior_from_state(_entry(state, "prior", dict), kernel)
        X = _inputs(state, DTYPES[dtype], prior)
        return READERS[name](state, prior, X, _count(state, "max_bytes"))


Rows = Callable[[Tensor, str], Tensor]


def _cagp_state(posterior: CaGPPosterior, rows: Rows) -> State:
    return {
        "X": rows(posterior.X, "X"),
        "W": _weights_state(posterior.W, rows),
        "chol": posterior.chol,
        "weights": posterior.weights,
    }


def _cagp_from_state(state: State, prior: GP, X: Tensor, max_bytes: int) -> CaGPPosterior:
    W, num_actions = _weights(state, len(X), X.dtype)
    chol, weights = _float64(state, "chol", (num_actions, num_actions)), _float64(state, "weights", (num_actions,))
    return CaGPPosterior.from_parts(prior, X, W, chol, weights, max_bytes)


def _inducing_state(posterior: InducingPosterior, rows: Rows) -> State:
    return {
        "X": posterior.X,  # not rounded: ``chol`` is the factor of their nearly singular covariance
        "chol": posterior.chol,
        "whitened_mean": posterior.whitened_mean,
        "whitened_root": posterior.whitened_root,
    }


def _inducing_from_state(state: State, prior: GP, Z: Tensor, max_bytes: int) -> InducingPosterior:
    m = len(Z)
    chol, mean = _float64(state, "chol", (m, m)), _float64(state, "whitened_mean", (m,))
    return InducingPosterior(prior, Z, chol, mean, _float64(state, "whitened_root", (m, m)), max_bytes)


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


def _cg_from_state(state: State, prior: GP, X: Tensor, max_bytes: int) -> CGPosterior:
    n = len(X)
    row_noise = _vector(state, "row_noise", n, torch.float64) if _has(state, "row_noise") else None
    system = System(prior, X.double(), row_noise, _count(state, "system_max_bytes"))
    stored = _entry(state, "representer", dict)
    _float64(stored, "solution", (n, 1))
    fields: dict[str, Any] = {
        name: _entry(stored, name, int if name == "num_iterations" else Tensor) for name in CGResult._fields
    }
    return CGPosterior(
        X,
        Solver(system, _count(state, "rank")),
        CGResult(**fields),
        tolerance=_entry(state, "tolerance", float),
        max_iterations=_count(state, "max_iterations"),
        max_bytes=max_bytes,
    )


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


def _local_from_state(state: State, prior: GP, X: Tensor, max_bytes: int) -> LocalPosterior:
    n, d = X.shape
    y = _vector(state, "y", n, X.dtype)
    row_noise = _vector(state, "row_noise", n, X.dtype) if _has(state, "row_noise") else None
    check_data(X, y, row_noise)
    stored = _entry(state, "search", dict)
    lengthscale = _shaped(stored, "lengthscale", (d,)) if _has(stored, "lengthscale") else None
    kind, selection = _entry(stored, "method", str), _entry(state, "selection", str)
    if selection != "nearest":
        raise ValueError(
            f"the stored posterior selects its neighbours by {selection!r}, which this version of cagp cannot do; "
            'expected "nearest". Fit the model again.'
        )
    search = NeighbourIndex(X, lengthscale, kind, _float64(stored, "origin", (d,)))  # pyright: ignore[reportArgumentType]
    k = _count(state, "num_neighbours")
    if k > n:
        raise _strange("'num_neighbours'")
    shared = _shared(_entry(state, "shared", dict), prior, X) if _has(state, "shared") else None
    scale = _entry(state, "local_scale", float) if _has(state, "local_scale") else None
    return LocalPosterior(prior, X, y, row_noise, k, search, shared, max_bytes, scale, shares_rows=True)


def _shared(state: State, prior: GP, X: Tensor) -> SharedActions:
    support = _entry(state, "support", Tensor)
    if support.dtype != torch.int64 or support.ndim != 1 or not bool(((support >= 0) & (support < len(X))).all()):
        raise _strange("'support'")
    W, i = _weights(state, len(support), X.dtype)
    chol, targets = _float64(state, "chol", (i, i)), _float64(state, "targets", (i,))
    prior = copy.deepcopy(prior).requires_grad_(False)
    return SharedActions.from_parts(prior, X[support], W, chol, targets, support, _count(state, "max_bytes"))


def _weights_state(W: Tensor | BlockWeights, rows: Rows) -> Tensor | State:
    if isinstance(W, BlockWeights):
        return {"values": rows(W.values, "W"), "offsets": W.offsets}
    return rows(W, "W")


def _weights(state: State, num_rows: int, dtype: torch.dtype) -> tuple[Tensor | BlockWeights, int]:
    """W and its number of columns."""
    W = state.get("W")
    if isinstance(W, Tensor):
        if W.ndim != 2 or len(W) != num_rows:
            raise _strange("'W'")
        return _shaped(state, "W", tuple(W.shape)).to(dtype), W.shape[1]
    stored = _entry(state, "W", dict)
    offsets = _entry(stored, "offsets", Tensor)
    whole = offsets.dtype == torch.int64 and offsets.ndim == 1 and len(offsets) > 1
    if not whole or int(offsets[0]) != 0 or int(offsets[-1]) != num_rows or bool((offsets.diff() < 0).any()):
        raise _strange("'offsets'")
    return BlockWeights(_vector(stored, "values", num_rows, dtype), offsets), len(offsets) - 1


WRITERS: dict[type[Posterior], Callable[[Any, Rows], State]] = {
    CaGPPosterior: _cagp_state,
    InducingPosterior: _inducing_state,
    CGPosterior: _cg_state,
    LocalPosterior: _local_state,
}
READERS: dict[str, Callable[[State, GP, Tensor, int], Posterior]] = {
    "CaGPPosterior": _cagp_from_state,
    "InducingPosterior": _inducing_from_state,
    "CGPosterior": _cg_from_state,
    "LocalPosterior": _local_from_state,
}


# ---- checks of a state ----


def _strange(what: str) -> ValueError:
    return ValueError(f"the state does not have {what} as cagp stores it; save the model again.")


def _entry(state: State, name: str, kind: type[T]) -> T:
    value = state.get(name) if isinstance(state, dict) else None
    if not isinstance(value, kind):
        raise _strange(repr(name))
    return value


def _has(state: State, name: str) -> bool:
    """Whether an optional entry is not None."""
    if name not in state:
        raise _strange(repr(name))
    return state[name] is not None


def _count(state: State, name: str) -> int:
    value = _entry(state, name, int)
    if value < 0:
        raise _strange(repr(name))
    return value


def _shaped(state: State, name: str, shape: tuple[int, ...]) -> Tensor:
    values = _entry(state, name, Tensor)
    if values.shape != shape or not values.is_floating_point():
        raise _strange(repr(name))
    return values


def _float64(state: State, name: str, shape: tuple[int, ...]) -> Tensor:
    values = _shaped(state, name, shape)
    if values.dtype != torch.float64:
        raise _strange(repr(name))
    return values


def _vector(state: State, name: str, num_rows: int, dtype: torch.dtype) -> Tensor:
    return _shaped(state, name, (num_rows,)).to(dtype)


def _inputs(state: State, dtype: torch.dtype, prior: GP) -> Tensor:
    X = _entry(state, "X", Tensor)
    check_matrix(X, "X")
    X = X.to(dtype)
    try:
        prior.mean(X[:1])
        prior.kernel(X[:1], X[:1])
    except (RuntimeError, ValueError) as error:
        raise _strange(f"a kernel and a mean for {X.shape[1]} columns") from error
    return X
