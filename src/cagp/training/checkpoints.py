"""Checkpoints: one safetensors file with JSON in its header, written atomically; nothing in it can run code."""

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from cagp.training.history import write_atomically

VERSION = 1

State = dict[str, Any]
"""Nested dicts and lists of tensors, numbers, text, booleans and None."""


def save_checkpoint(path: Path, state: State) -> None:
    """Write the state; tensors keep their bits."""
    tensors: dict[str, Tensor] = {}
    tree = json.dumps(_flatten(state, tensors))
    content = save(tensors, {"version": str(VERSION), "state": tree, "digest": fingerprint(tree, *tensors.values())})
    write_atomically(path, content)


def load_checkpoint(path: Path) -> State:
    """Read a state back, or raise ValueError where the file is not a whole checkpoint of this version."""
    try:
        with safe_open(str(path), framework="pt") as file:
            header = file.metadata() or {}
            if header.get("version") != str(VERSION):
                raise ValueError(f"it is not a checkpoint of version {VERSION}")
            tensors = {f"t{number}": file.get_tensor(f"t{number}") for number in range(len(file.keys()))}
            if header.get("digest") != fingerprint(header.get("state"), *tensors.values()):
                raise ValueError("its contents do not match their digest")
        return _unflatten(json.loads(header["state"]), tensors)
    except (SafetensorError, ValueError, KeyError, OSError) as error:
        raise ValueError(f"{path} cannot be read: {error}; delete it to start afresh.") from error


def fingerprint(*parts: Any) -> str:
    """A short digest of tensors and JSON values: whether a checkpoint belongs to these data and settings."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        if isinstance(part, Tensor):
            digest.update(f"{part.dtype}{tuple(part.shape)}".encode())
            digest.update(part.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
        else:
            digest.update(json.dumps(part, sort_keys=True, default=str).encode())
    return digest.hexdigest()


def _flatten(value: Any, tensors: dict[str, Tensor]) -> Any:
    """The value with every tensor replaced by a reference to ``tensors``."""
    if isinstance(value, Tensor):
        name = f"t{len(tensors)}"
        tensors[name] = value.detach().cpu().contiguous().clone()
        return {"tensor": name}
    if isinstance(value, dict):
        return {"items": [[key, _flatten(item, tensors)] for key, item in value.items()]}
    if isinstance(value, list | tuple):
        return {"list": [_flatten(item, tensors) for item in value]}
    return value


def _unflatten(value: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, dict):
        if "tensor" in value:
            return tensors[value["tensor"]]
        if "list" in value:
            return [_unflatten(item, tensors) for item in value["list"]]
        return {key: _unflatten(item, tensors) for key, item in value["items"]}
    return value
