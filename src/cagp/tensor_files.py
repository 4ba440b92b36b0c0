"""The files of ``cagp.storage`` for trees of torch tensors and plain values."""

import os
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cagp.storage import (
    BFLOAT16,
    State,
    fingerprint,
    read_state,
    state_from_bytes,
    state_to_bytes,
    write_state,
)

DTYPES = (
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
)


def save_state(path: str | os.PathLike[str], state: State, kind: str, version: int) -> None:
    """Write a state so that ``load_state`` returns it exactly; the file is never half written.

    Tensors keep their bits, dtype and order in memory, and come back on the CPU without gradients. Equal tensors are
    written once. See ``cagp.storage.write_state`` for the rest.

    Args:
        kind: what the file holds, for example "checkpoint"; ``load_state`` must ask for the same kind.
        version: the version of the state's structure.
    """
    write_state(path, state, kind, version, _array_of)


def load_state(
    path: str | os.PathLike[str], kind: str, version: int, remedy: str | None = None, *, mapped: bool = False
) -> State:
    """The state in a file; ValueError if the file is not a complete one of this kind and version.

    Places that refer to the same tensor share its memory: copy it before you write to it.

    Args:
        remedy: what the error tells the user to do. None: what suits the cause.
        mapped: tensors stay in the file, see ``cagp.storage.read_state``.
    """
    return _with_tensors(read_state(path, kind, version, remedy, mapped=mapped))


def state_as_bytes(state: State, kind: str, version: int) -> bytes:
    """What ``save_state`` would write, for another process."""
    return state_to_bytes(state, kind, version, _array_of)


def state_of_bytes(content: bytes, kind: str, version: int) -> State:
    """The inverse of ``state_as_bytes``; ValueError if the bytes are not a complete state of this kind and version."""
    return _with_tensors(state_from_bytes(content, kind, version))


def tensor_fingerprint(*parts: Any) -> str:
    """A short digest of tensors and JSON values; see ``cagp.storage.fingerprint``."""
    return fingerprint(*(_as_array(part) if isinstance(part, Tensor) else part for part in parts))


def _array_of(value: Any, place: str) -> np.ndarray | None:
    if not isinstance(value, Tensor):
        return None
    if value.dtype not in DTYPES or value.layout != torch.strided:
        raise TypeError(f"{place} is a tensor of {value.dtype}, {value.layout}; expected a dense one of real numbers.")
    return _as_array(value)


def _as_array(tensor: Tensor) -> np.ndarray:
    """The tensor's memory as an array, copied only from other devices."""
    tensor = tensor.detach().cpu()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(BFLOAT16)
    return tensor.numpy()


def _with_tensors(value: Any) -> Any:
    """The tree with its arrays as tensors, which take over their memory."""
    if isinstance(value, dict):
        return {key: _with_tensors(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_tensors(item) for item in value]
    if isinstance(value, np.ndarray):
        if value.dtype == BFLOAT16:
            return torch.from_numpy(value.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(value)
    return value
