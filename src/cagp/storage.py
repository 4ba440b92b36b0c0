"""One file for a tree of tensors, numpy arrays and plain values: the safetensors format with JSON in its header.

Nothing in such a file can run code, and neither torch nor the safetensors package is needed to read it.

    8 bytes            the length of the header
    {"__metadata__":   {"digest": ..., "kind": ..., "version": ..., "state": the tree, as JSON},
     "t0":             {"dtype": ..., "shape": ..., "data_offsets": ...}, ...}    padded with spaces
    the arrays         without gaps, wide dtypes first

The digest has a fixed place and covers every other byte. It is compared before anything is parsed, so that damage to
any byte is detected. A forged file can have a correct digest. Therefore everything that is read is also checked against
the size of the file and against what ``save_state`` would have written.
"""

import hashlib
import json
import math
import os
import stat
import sys
from collections.abc import Callable, Iterable
from io import BytesIO
from numbers import Integral, Real
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from cagp.files import PathLike, write_atomically

State = dict[str, Any]
"""Nested dicts (keys are text or integers) and lists of tensors, arrays, numbers, text, booleans and None."""

BFLOAT16 = np.dtype([("bfloat16", "<u2")])
"""The bits of a bfloat16, which numpy does not have; ``array.view("u2")`` gives them as integers."""

DTYPES = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": BFLOAT16,
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "I16": np.dtype("<i2"),
    "I8": np.dtype("i1"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}

PREFIX = b'{"__metadata__":{"digest":"'
DIGEST = slice(8 + len(PREFIX), 8 + len(PREFIX) + 32)  # where the hexadecimal digits of the digest are in a file
MAX_HEADER_BYTES = 100_000_000  # the limit of other readers of safetensors
MAX_DEPTH = 128
LIST_BYTES, DICT_BYTES, ITEM_BYTES = 64, 240, 40  # what lists, dicts and their items take in Python
MAX_DIMENSIONS = 32
ALIGNMENT = 64  # bytes; that of torch's own memory. Linear algebra can round differently for other alignments.

SIGNATURES = {
    b"\x89PNG": "a PNG image",
    b"\xff\xd8\xff": "a JPEG image",
    b"%PDF": "a PDF document",
    b"PK\x03\x04": "a zip archive (NumPy, torch.save or a spreadsheet)",
    b"\x1f\x8b": "a gzip archive",
    b"\x93NUMPY": "a NumPy array",
    b"\x89HDF": "an HDF5 file",
    b"PAR1": "a Parquet table",
    **{bytes([0x80, protocol]): "a pickle, which is never opened: it could run code" for protocol in range(2, 6)},
}


class _Spec(NamedTuple):
    dtype: np.dtype
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


class _UnreadableError(ValueError):
    """Why a file cannot be read, and what to do about it."""

    def __init__(self, reason: str, remedy: str):
        super().__init__(reason)
        self.remedy = remedy


# ---- writing ----


def save_state(path: PathLike, state: State, kind: str, version: int) -> None:
    """Write a state so that ``load_state`` returns it exactly; the file is never half written.

    Tensors and arrays keep their bits, dtype and order in memory; equal ones are written once. Floats are the shortest
    decimals that give the same bits, NaN and infinities {"float": "nan"} and so on. Tuples come back as lists.

    Args:
        kind: what the file holds, for example "checkpoint"; ``load_state`` must ask for the same kind.
        version: the version of the state's structure.
    """
    write_atomically(path, _pieces(state, kind, version))


def state_to_bytes(state: State, kind: str, version: int) -> bytes:
    """What ``save_state`` would write."""
    return b"".join(_pieces(state, kind, version))


def _pieces(state: State, kind: str, version: int) -> list[bytes | memoryview]:
    numbered: dict[str, tuple[int, np.ndarray]] = {}
    tree = json.dumps(_flatten(state, numbered, "state", 0), allow_nan=False)
    arrays = [array for _, array in numbered.values()]
    specs = [_Spec(array.dtype, array.shape) for array in arrays]
    header = _header({"kind": kind, "version": str(version), "state": tree}, specs)
    num_bytes = len(header) + sum(spec.num_bytes for spec in specs)
    if len(header) > MAX_HEADER_BYTES or _tree_is_large(header, num_bytes):
        raise ValueError(
            f"the state has {len(header):,} bytes besides its arrays, which is too much to be read back; at most "
            f"{MAX_HEADER_BYTES:,} fit. Store many numbers as an array."
        )
    parts = [_bytes_of(arrays[number]) for number in _file_order(specs)]
    return [header[: DIGEST.start], _digest(header, parts), header[DIGEST.stop :], *parts]


def fingerprint(*parts: Any) -> str:
    """A short digest of tensors, arrays and JSON values, e.g. to decide whether a checkpoint belongs to these data."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        array = _as_array(part, "a part")
        if array is None:
            digest.update(json.dumps(part, sort_keys=True, default=str).encode())
        else:
            name = "bfloat16" if array.dtype == BFLOAT16 else array.dtype.name
            digest.update(f"torch.{name}{array.shape}".encode())  # the names in the checkpoints of all versions
            digest.update(_bytes_of(array))
    return digest.hexdigest()


def _as_array(value: Any, place: str) -> np.ndarray | None:
    """An array, or a tensor's memory as one, copied only from other devices; None for any other value."""
    if isinstance(value, np.ndarray):
        return value
    if "torch" not in sys.modules:
        return None
    import torch

    if not isinstance(value, torch.Tensor):
        return None
    if value.layout != torch.strided or value.is_complex():
        raise TypeError(f"{place} is a tensor of {value.dtype}, {value.layout}; expected a dense one of real numbers.")
    tensor = value.detach().cpu()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(BFLOAT16)
    return tensor.numpy()


def _flatten(value: Any, arrays: dict[str, tuple[int, np.ndarray]], place: str, depth: int) -> Any:
    """The value as JSON, with references to ``arrays``: by fingerprint, with their numbers by first occurrence."""
    if depth > MAX_DEPTH:
        raise ValueError(f"{place} is nested more than {MAX_DEPTH} deep; such a state cannot be stored.")
    match value:
        case None | bool():
            return value
        case str():
            return str(value)
        case Integral():
            return int(value)
        case Real():
            number = float(value)
            return number if math.isfinite(number) else {"float": repr(number)}
        case list() | tuple():
            return {"list": [_flatten(item, arrays, f"{place}[{j}]", depth + 1) for j, item in enumerate(value)]}
        case dict():
            for key in value:
                if isinstance(key, bool) or not isinstance(key, str | int):
                    raise TypeError(f"{place} has the key {key!r}, expected text or an integer.")
            return {"items": [[key, _flatten(v, arrays, f"{place}[{key!r}]", depth + 1)] for key, v in value.items()]}
    array = _as_array(value, place)
    if array is None:
        raise TypeError(
            f"{place} is a {type(value).__name__}, which cannot be stored; expected arrays, numbers, text, booleans, "
            "None, or dicts and lists of them."
        )
    if array.dtype not in NAMES:
        raise TypeError(f"{place} is an array of {array.dtype}, expected real numbers or booleans: {list(NAMES)}.")
    # The last bits of linear algebra can depend on the order in memory, so that the order is stored.
    strides = array.strides
    order = sorted(range(array.ndim), key=lambda dim: -strides[dim])
    is_ordered = array.flags.c_contiguous or not array.transpose(order).flags.c_contiguous
    array = np.asarray(array, order="C") if is_ordered else array.transpose(order)
    reference = {"tensor": arrays.setdefault(fingerprint(array), (len(arrays), array))[0]}
    return reference if is_ordered else {**reference, "order": order}


def _file_order(specs: list[_Spec]) -> list[int]:
    """Wide dtypes first: every array then starts at a multiple of its item size."""
    return sorted(range(len(specs)), key=lambda number: -specs[number].dtype.itemsize)


def _header(metadata: dict[str, str], specs: list[_Spec]) -> bytes:
    """The file up to its arrays, with zeros for the digest."""
    offsets, end = {}, 0
    for number in _file_order(specs):
        offsets[number] = [end, end + specs[number].num_bytes]
        end = offsets[number][1]
    entries: dict[str, Any] = {"__metadata__": {"digest": "0" * 32, **metadata}}
    for number, spec in enumerate(specs):
        shape = list(spec.shape)
        entries[f"t{number}"] = {"dtype": NAMES[spec.dtype], "shape": shape, "data_offsets": offsets[number]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _bytes_of(array: np.ndarray) -> memoryview:
    return np.asarray(array, order="C").reshape(-1).view(np.uint8).data


def _tree_is_large(header: bytes, file_size: int) -> bool:
    """Whether a header would take too much memory once parsed: text like "[[],[],[]" must not become gigabytes."""
    num_bytes = LIST_BYTES * header.count(b"[") + DICT_BYTES * header.count(b"{") + ITEM_BYTES * header.count(b",")
    return num_bytes > 2**26 + 20 * file_size


def _digest(header: bytes, parts: Iterable[bytes | memoryview]) -> bytes:
    digest = hashlib.blake2b(header[: DIGEST.start], digest_size=16)
    digest.update(header[DIGEST.stop :])
    for part in parts:
        digest.update(part)
    return digest.hexdigest().encode()


# ---- reading ----


def stored_digest(path: PathLike) -> str:
    """The digest that a file says it has, without a look at the rest of it."""
    with Path(path).open("rb") as file:
        return file.read(DIGEST.stop)[DIGEST].decode("ascii", "replace")


def load_state(
    path: PathLike, kind: str, version: int, remedy: str | None = None, *, mapped: bool = False, tensors: bool = True
) -> State:
    """The state in a file; ValueError if the file is not a complete one of this kind and version.

    Places of the state that refer to the same array share its memory: reading takes memory in proportion to the size of
    the file, however often an array is referred to. Copy an array before you write to it.

    Args:
        remedy: what the error tells the user to do. None: what suits the cause.
        mapped: arrays stay in the file, and the system reads what is used. They can be written to, which changes
            neither the file nor what others read. The file must stay as it is. Its digest is verified all the same.
        tensors: whether arrays become tensors, which needs torch.
    """
    path = Path(path)
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe would wait until a program writes to it
            what = "a folder" if path.is_dir() else "a device or a pipe"
            raise _UnreadableError(f"it is {what}, not a file", f"give the path of a {_in_words(kind)}")
        with path.open("rb") as file:
            return _read(file, kind, version, mapped, tensors)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{path} does not exist; check the path.") from error
    except _UnreadableError as error:
        raise ValueError(f"{path} cannot be read: {error}; {remedy or error.remedy}.") from error
    except OSError as error:
        raise ValueError(
            f"{path} cannot be read: {error}; {remedy or 'check the path and its permissions'}."
        ) from error


def state_from_bytes(content: bytes, kind: str, version: int) -> State:
    """The inverse of ``state_to_bytes``, with tensors; ValueError if the bytes are not a complete state."""
    return _read(BytesIO(content), kind, version)


def _in_words(kind: str) -> str:
    """The kind in a sentence that names cagp itself: saved models have the kind "cagp model"."""
    return kind.removeprefix("cagp ")


def _damaged(how: str) -> _UnreadableError:
    return _UnreadableError(f"it is damaged ({how})", "use another copy of it, or save it again")


def _read(file: BinaryIO, kind: str, version: int, mapped: bool = False, tensors: bool = True) -> State:
    """The state in an open file; see ``load_state``."""
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    header = _checked_header(file, size, kind)
    metadata, specs, tree = _parsed(header, size)
    if metadata["kind"] != kind:
        found, expected = _in_words(metadata["kind"]), _in_words(kind)
        raise _UnreadableError(f"it is a {found} of cagp, expected a {expected}", "check the path")
    if metadata["version"] != str(version):
        newer = metadata["version"].isdecimal() and int(metadata["version"]) > version
        remedy = "update cagp" if newer else "use the version of cagp that wrote it"
        raise _UnreadableError(
            f"it is a {_in_words(kind)} in version {metadata['version']} of its format, this cagp knows version "
            f"{version}",
            remedy,
        )
    stored = _mapped_array if mapped else _array
    arrays = {number: stored(file, specs[number]) for number in _file_order(specs)}
    state = _unflatten(tree, arrays, _tensor if tensors else np.asarray, 0)
    if not isinstance(state, dict):
        raise _damaged("its tree is not a dict")
    return state


def _checked_header(file: BinaryIO, size: int, kind: str) -> bytes:
    """The file up to its arrays, after the digest of the whole file was verified; the file is left at the arrays."""
    start = file.read(DIGEST.stop)
    length = int.from_bytes(start[:8], "little")
    if start[8 : DIGEST.start] != PREFIX:
        what, expected = _looks_like(start, length <= size - 8), _in_words(kind)
        raise _UnreadableError(
            f"it is {what}, not a {expected} of cagp", f"give the path of a {expected} that cagp wrote"
        )
    if not DIGEST.stop - 8 <= length <= min(size - 8, MAX_HEADER_BYTES):
        raise _damaged("it is shorter than its header")
    header = start + file.read(8 + length - len(start))
    if len(header) != 8 + length:
        raise _damaged("it changed while it was read")
    if start[DIGEST] != _digest(header, iter(lambda: file.read(2**20), b"")):
        raise _damaged("its contents do not match its digest, or it was cut short")
    if _tree_is_large(header, size):
        raise _damaged("its tree is far larger than cagp writes one for a file of this size")
    file.seek(len(header))
    return header


def _looks_like(start: bytes, header_fits: bool) -> str:
    for signature, name in SIGNATURES.items():
        if start.startswith(signature):
            return name
    if not start:
        return "empty"
    if start[8:9] == b"{" and header_fits:
        return "a safetensors file of another program or of an old version, or damaged"
    if all(32 <= byte < 127 or byte in b"\t\r\n" for byte in start):
        return "a text file"
    return "damaged at its beginning or of an unknown format"


def _parsed(header: bytes, size: int) -> tuple[dict[str, str], list[_Spec], Any]:
    """Kind and version, the dtype and shape of each array, which together fill the file, and the tree."""
    try:
        entries = json.loads(header[8:])
        metadata = entries.pop("__metadata__")
        del metadata["digest"]
        specs = [_Spec(DTYPES[e["dtype"]], tuple(e["shape"])) for e in entries.values()]
        whole = all(type(dim) is int and dim >= 0 for spec in specs for dim in spec.shape)
        # If the same header results, it held nothing else, and the arrays follow each other without gaps.
        zeros = header[: DIGEST.start] + b"0" * 32 + header[DIGEST.stop :]
        right = whole and set(metadata) == {"kind", "version", "state"} and _header(metadata, specs) == zeros
        if not right or not all(isinstance(text, str) for text in metadata.values()):
            raise ValueError("the header has other entries")
        tree = json.loads(metadata["state"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _damaged("its header is not what cagp writes") from error
    if sum(spec.num_bytes for spec in specs) != size - len(header):
        raise _damaged("its arrays do not have the length that its header says")
    # The other dimensions of an empty array may have any size, except one that no index can count.
    if any(len(s.shape) > MAX_DIMENSIONS or math.prod(max(1, dim) for dim in s.shape) >= 2**59 for s in specs):
        raise _damaged("an array has an impossible shape")
    return metadata, specs, tree


def _array(file: BinaryIO, spec: _Spec) -> np.ndarray:
    memory = np.empty(spec.num_bytes + ALIGNMENT, dtype=np.uint8)
    start = -memory.__array_interface__["data"][0] % ALIGNMENT
    content = memory[start : start + spec.num_bytes]
    if file.readinto(content) != spec.num_bytes:  # pyright: ignore[reportAttributeAccessIssue]
        raise _damaged("it changed while it was read")
    if spec.dtype == np.bool_ and bool((content > 1).any()):
        raise _damaged("a boolean is neither 0 nor 1")
    return content.view(spec.dtype).reshape(spec.shape)


def _mapped_array(file: BinaryIO, spec: _Spec) -> np.ndarray:
    """The next array of a file, which stays there. It is this very file, whatever its name leads to by now."""
    start = file.tell()
    if spec.num_bytes == 0:
        return np.empty(spec.shape, spec.dtype)
    array = np.memmap(file, spec.dtype, mode="c", offset=start, shape=spec.shape)
    file.seek(start + spec.num_bytes)
    return array


def _tensor(array: np.ndarray) -> Any:
    """An array as a tensor, which takes over its memory."""
    import torch

    if array.dtype == BFLOAT16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _unflatten(node: Any, arrays: dict[int, np.ndarray], made: Callable[[np.ndarray], Any], depth: int) -> Any:
    """The value of a node, with what is made of the arrays that it refers to."""
    if depth > MAX_DEPTH:
        raise _damaged("its tree is nested too deep")
    match node:  # a number that is not finite is no node
        case None | bool() | int() | str():
            return node
        case float() if math.isfinite(node):
            return node
        case {"float": "nan" | "inf" | "-inf" as text} if len(node) == 1:
            return float(text)
        case {"tensor": int(number)} if number in arrays:
            array = arrays[number]
            order = node.get("order", list(range(array.ndim)))
            if not isinstance(order, list) or sorted(order, key=str) != sorted(range(array.ndim), key=str):
                raise _damaged("an array has an impossible order")
            return made(array.transpose([order.index(dim) for dim in range(array.ndim)]))
        case {"list": list(values)} if len(node) == 1:
            return [_unflatten(value, arrays, made, depth + 1) for value in values]
        case {"items": list(pairs)} if len(node) == 1:
            if all(type(pair) is list and len(pair) == 2 and type(pair[0]) in (str, int) for pair in pairs):
                state = {key: _unflatten(value, arrays, made, depth + 1) for key, value in pairs}
                if len(state) == len(pairs):  # no key comes twice
                    return state
    raise _damaged("its tree has a part that cagp does not write, or that is not there")
