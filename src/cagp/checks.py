"""Validation at the boundary: what came, what was expected, what to do. Everything below assumes checked tensors."""

from numbers import Integral

import torch
from torch import Tensor

CHECKED_ROWS = 1_000_000
"""Rows that are checked at a time."""


def check_matrix(X: Tensor, name: str = "X", *, missing: bool = False) -> None:
    """Raise ValueError unless ``X`` is a floating-point matrix, not empty, and finite but for ``missing`` ones."""
    if not isinstance(X, Tensor):
        raise ValueError(f"{name} is a {type(X).__name__}, expected a torch tensor; use torch.as_tensor({name}).")
    if X.ndim != 2:
        raise ValueError(f"{name} has shape {tuple(X.shape)}, expected 2 dimensions (rows, columns).")
    if 0 in X.shape:
        raise ValueError(f"{name} has shape {tuple(X.shape)}, expected at least one row and one column.")
    _check_values(X, name, missing)


def check_vector(v: Tensor, name: str, like: Tensor) -> None:
    """Raise ValueError unless ``v`` has one finite value per row of ``like``, the inputs, in their dtype and device."""
    if not isinstance(v, Tensor):
        raise ValueError(f"{name} is a {type(v).__name__}, expected a torch tensor; use torch.as_tensor({name}).")
    if v.shape != like.shape[:1]:
        raise ValueError(f"{name} has shape {tuple(v.shape)}, expected ({like.shape[0]},): one value per row of X.")
    _check_values(v, name)
    check_same_kind(v, name, like, "X")


def check_same_kind(v: Tensor, name: str, like: Tensor, like_name: str) -> None:
    """Raise ValueError unless both tensors have the same dtype and device."""
    if v.dtype != like.dtype:
        raise ValueError(
            f"{name} has dtype {v.dtype}, {like_name} has {like.dtype}; convert one, e.g. {name}.to({like.dtype})."
        )
    if v.device != like.device:
        raise ValueError(f"{name} is on {v.device}, {like_name} on {like.device}; move one of them with .to(device).")


def check_data(X: Tensor, y: Tensor, row_noise: Tensor | None = None) -> None:
    """Raise ValueError unless inputs, targets and known noise variances fit together."""
    check_matrix(X, "X")
    check_vector(y, "y", X)
    check_row_noise(row_noise, X)


def check_row_noise(row_noise: Tensor | None, X: Tensor) -> None:
    """Raise ValueError unless ``row_noise`` is None or one non-negative variance per row of ``X``."""
    if row_noise is not None:
        check_vector(row_noise, "row_noise", X)
        if bool((row_noise < 0).any()):
            raise ValueError(
                f"row_noise has {int((row_noise < 0).sum())} negative values (smallest {float(row_noise.min()):.3g}); "
                "expected variances, so square standard deviations first."
            )


def check_new_inputs(X: Tensor, like: Tensor, name: str = "X") -> None:
    """Raise ValueError unless ``X`` has the columns, dtype and device of ``like``, the inputs of a model."""
    check_matrix(X, name)
    if X.shape[1] != like.shape[1]:
        raise ValueError(f"{name} has {X.shape[1]} columns, the training inputs had {like.shape[1]}.")
    check_same_kind(X, name, like, "the training inputs")


def check_first_order() -> None:
    """Raise RuntimeError inside a backward pass that is itself to be differentiated: its result would be wrong."""
    if torch.is_grad_enabled():
        raise RuntimeError(
            "cagp's products are differentiable once: create_graph=True and second derivatives are not supported."
        )


def check_count(value: int, name: str, largest: int, largest_name: str) -> None:
    """Raise ValueError unless 1 <= value <= largest."""
    if isinstance(value, bool) or not isinstance(value, Integral) or not 1 <= value <= largest:
        raise ValueError(f"{name} is {value!r}, expected an integer from 1 to {largest} ({largest_name}).")


def _check_values(values: Tensor, name: str, missing: bool = False) -> None:
    if not values.is_floating_point():
        raise ValueError(f"{name} has dtype {values.dtype}, expected a floating-point one, e.g. {name}.double().")
    # In parts: the whole table as booleans, and its temporaries, would take more memory than the table.
    is_wrong = torch.isinf if missing else lambda part: ~torch.isfinite(part)
    if any(bool(is_wrong(part).any()) for part in values.split(CHECKED_ROWS)):
        where = is_wrong(values).nonzero()
        raise ValueError(
            f"{name} has {len(where)} NaN or infinite values (first at index {where[0].tolist()}); "
            "remove or impute them first."
        )
