"""One file for a state of tensors and plain values: safetensors with JSON in its header; nothing in it can run code.

    8 bytes            the length of the header
    {"__metadata__":   {"digest": ..., "kind": ..., "version": ..., "state": the tree, as JSON},
     "t0":             {"dtype": ..., "shape": ..., "data_offsets": ...}, ...}    padded with spaces
    the tensors        without gaps, wide dtypes first

The digest has a fixed place and covers every other byte. It is compared before anything is parsed, so that a damaged
file is recognised whatever byte was hit. A file that was made to deceive can have a fitting digest: all that is read is
checked against the size of the file and against what ``save_state`` would have written.
"""

import hashlib
import json
import math
import os
import stat
from collections.abc import Iterable
from numbers import Integral, Real
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import torch
from torch import Tensor

State = dict[str, Any]
"""Nested dicts (keys are text or whole numbers) and lists of tensors, numbers, text, booleans and None."""

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}

PREFIX = b'{"__metadata__":{"digest":"'
DIGEST = slice(8 + len(PREFIX), 8 + len(PREFIX) + 32)  # the place of the digest's hexadecimal digits in a file
MOST_HEADER_BYTES = 100_000_000  # the limit of other readers of safetensors
MOST_NESTED = 128
MOST_DIMENSIONS = 32

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
    dtype: torch.dtype
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


def save_state(path: str | os.PathLike[str], state: State, kind: str, version: int) -> None:
    """Write a state so that ``load_state`` returns it exactly, and so that the file is never half written.

    Tensors keep their bits, dtype and order in memory, and come back on the CPU without gradients; one that occurs
    several times is written once. Floats are written as the shortest decimals that give the same bits; NaN and
    infinities as {"float": "nan"}, {"float": "inf"}, {"float": "-inf"}. Tuples come back as lists.

    Args:
        kind: what the file holds, in a word like "checkpoint"; ``load_state`` must ask for the same.
        version: of the state's structure.
    """
    tensors = _Tensors()
    tree = json.dumps(_flatten(state, tensors, "state", 0), allow_nan=False)
    header = _header({"kind": kind, "version": str(version), "state": tree}, [_spec(t) for t in tensors.all])
    if len(header) > MOST_HEADER_BYTES:
        raise ValueError(f"the state has {len(header):,} bytes besides its tensors, at most {MOST_HEADER_BYTES:,} fit.")
    parts = [_bytes_of(tensors.all[number]) for number in _file_order([_spec(t) for t in tensors.all])]
    digest = _digest(header, parts)
    write_atomically(Path(path), [header[: DIGEST.start], digest, header[DIGEST.stop :], *parts])


def write_atomically(path: Path, content: bytes | Iterable[bytes | memoryview]) -> None:
    """Write a file so that at any moment it is either the old one or the new one, whole."""
    part = path.with_name(path.name + ".part")
    try:
        with part.open("wb") as file:
            for piece in [content] if isinstance(content, bytes) else content:
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def fingerprint(*parts: Any) -> str:
    """A short digest of tensors and JSON values: whether a checkpoint belongs to these data and settings."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        if isinstance(part, Tensor):
            digest.update(f"{part.dtype}{tuple(part.shape)}".encode())
            digest.update(_bytes_of(part.detach().cpu()))
        else:
            digest.update(json.dumps(part, sort_keys=True, default=str).encode())
    return digest.hexdigest()


class _Tensors:
    """The different tensors of a state, in the order of their first occurrence."""

    def __init__(self):
        self.all: list[Tensor] = []
        self._numbers: dict[str, int] = {}

    def number(self, tensor: Tensor) -> int:
        known = self._numbers.setdefault(fingerprint(tensor), len(self.all))
        if known == len(self.all):
            self.all.append(tensor)
        return known


def _flatten(value: Any, tensors: _Tensors, place: str, depth: int) -> Any:
    """The value as JSON, every tensor replaced by a reference to ``tensors``."""
    if depth > MOST_NESTED:
        raise ValueError(f"{place} is nested more than {MOST_NESTED} deep; such a state cannot be stored.")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        number = float(value)
        return number if math.isfinite(number) else {"float": repr(number)}
    if isinstance(value, Tensor):
        return _reference(value, tensors, place)
    if isinstance(value, list | tuple):
        return {"list": [_flatten(item, tensors, f"{place}[{j}]", depth + 1) for j, item in enumerate(value)]}
    if isinstance(value, dict):
        for key in value:
            if isinstance(key, bool) or not isinstance(key, str | int):
                raise TypeError(f"{place} has the key {key!r}, expected text or a whole number.")
        return {"items": [[key, _flatten(v, tensors, f"{place}[{key!r}]", depth + 1)] for key, v in value.items()]}
    raise TypeError(
        f"{place} is a {type(value).__name__}, which cannot be stored; expected tensors, numbers, text, booleans, "
        "None, or dicts and lists of them."
    )


def _reference(tensor: Tensor, tensors: _Tensors, place: str) -> dict[str, Any]:
    if tensor.dtype not in NAMES or tensor.layout != torch.strided:
        raise TypeError(
            f"{place} is a tensor of {tensor.dtype}, {tensor.layout}; expected a dense one of real numbers."
        )
    tensor = tensor.detach().cpu()
    # Results of linear algebra can depend on the order in memory, in their last bits: columns first stays so.
    order = sorted(range(tensor.ndim), key=lambda dim: -tensor.stride(dim))
    if tensor.is_contiguous() or not tensor.permute(order).is_contiguous():
        return {"tensor": tensors.number(tensor.contiguous())}
    return {"tensor": tensors.number(tensor.permute(order)), "order": order}


def _spec(tensor: Tensor) -> _Spec:
    return _Spec(tensor.dtype, tuple(tensor.shape))


def _file_order(specs: list[_Spec]) -> list[int]:
    """Wide dtypes first: every tensor then starts at a multiple of its width."""
    return sorted(range(len(specs)), key=lambda number: -specs[number].dtype.itemsize)


def _header(metadata: dict[str, str], specs: list[_Spec]) -> bytes:
    """The file up to its tensors, with zeros for a digest."""
    offsets, end = {}, 0
    for number in _file_order(specs):
        offsets[number] = [end, end + specs[number].num_bytes]
        end = offsets[number][1]
    entries: dict[str, Any] = {"__metadata__": {"digest": "0" * 32, **metadata}}
    for number, spec in enumerate(specs):
        entries[f"t{number}"] = {
            "dtype": NAMES[spec.dtype],
            "shape": list(spec.shape),
            "data_offsets": offsets[number],
        }
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _bytes_of(tensor: Tensor) -> memoryview:
    return memoryview(tensor.contiguous().reshape(-1).view(torch.uint8).numpy())  # pyright: ignore[reportArgumentType]


def _digest(header: bytes, parts: Iterable[bytes | memoryview]) -> bytes:
    digest = hashlib.blake2b(header[: DIGEST.start], digest_size=16)
    digest.update(header[DIGEST.stop :])
    for part in parts:
        digest.update(part)
    return digest.hexdigest().encode()


# ---- reading ----


def load_state(path: str | os.PathLike[str], kind: str, version: int, remedy: str | None = None) -> State:
    """The state in a file, or ValueError where the file is not a whole one of this kind and version.

    Args:
        remedy: what the error tells its reader to do; None for what suits the cause.
    """
    path = Path(path)
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # to open a pipe would wait for somebody to write to it
            what = "a folder" if path.is_dir() else "a device or a pipe"
            raise _UnreadableError(f"it is {what}, not a file", f"give the path of a {kind}")
        with path.open("rb") as file:
            return _read(file, kind, version)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{path} does not exist; check the path.") from error
    except _UnreadableError as error:
        raise ValueError(f"{path} cannot be read: {error}; {remedy or error.remedy}.") from error
    except OSError as error:
        raise ValueError(
            f"{path} cannot be read: {error}; {remedy or 'check the path and its permissions'}."
        ) from error


def _damaged(how: str) -> _UnreadableError:
    return _UnreadableError(f"it is damaged ({how})", "take a copy of it, or save it again")


def _read(file: BinaryIO, kind: str, version: int) -> State:
    size = os.fstat(file.fileno()).st_size
    header = _checked_header(file, size, kind)
    metadata, specs = _parsed(header, size)
    if metadata["kind"] != kind:
        raise _UnreadableError(f"it is a {metadata['kind']} of cagp, expected a {kind}", "check the path")
    if metadata["version"] != str(version):
        newer = metadata["version"].isdecimal() and int(metadata["version"]) > version
        remedy = "update cagp" if newer else "use the version of cagp that wrote it"
        known = f"it is a {kind} in version {metadata['version']} of its format, this cagp knows version {version}"
        raise _UnreadableError(known, remedy)
    tensors: list[Tensor | None] = [None] * len(specs)
    for number in _file_order(specs):
        tensors[number] = _tensor(file, specs[number])
    try:
        state = _unflatten(json.loads(metadata["state"], parse_constant=_no_constant), tensors, set(), 0)
    except _UnreadableError:
        raise
    except (ValueError, RecursionError) as error:
        raise _damaged("its tree is not JSON, or nested too deep") from error
    if not isinstance(state, dict):
        raise _damaged("its tree is not a dict")
    return state


def _checked_header(file: BinaryIO, size: int, kind: str) -> bytes:
    """The file up to its tensors, once the digest of the whole file is right; the file is left at the tensors."""
    start = file.read(DIGEST.stop)
    length = int.from_bytes(start[:8], "little")
    if start[8 : DIGEST.start] != PREFIX:
        what = _looks_like(start, length <= size - 8)
        raise _UnreadableError(f"it is {what}, not a {kind} of cagp", f"give the path of a {kind} that cagp wrote")
    if not DIGEST.stop - 8 <= length <= min(size - 8, MOST_HEADER_BYTES):
        raise _damaged("it is shorter than its header")
    header = start + file.read(8 + length - len(start))
    if start[DIGEST] != _digest(header, iter(lambda: file.read(2**20), b"")):
        raise _damaged("its contents do not match its digest, or it was cut short")
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


def _parsed(header: bytes, size: int) -> tuple[dict[str, str], list[_Spec]]:
    """Metadata without the digest, and what each tensor is; their bytes together are the rest of the file."""
    try:
        entries = json.loads(header[8:])
        metadata = entries.pop("__metadata__")
        del metadata["digest"]
        specs = [_Spec(DTYPES[e["dtype"]], tuple(e["shape"])) for e in entries.values()]
        whole = all(type(dim) is int and dim >= 0 for spec in specs for dim in spec.shape)
        # That the same header results shows that nothing else was in it, and that the tensors lie without gaps.
        zeros = header[: DIGEST.start] + b"0" * 32 + header[DIGEST.stop :]
        right = whole and set(metadata) == {"kind", "version", "state"} and _header(metadata, specs) == zeros
        right = right and all(isinstance(text, str) for text in metadata.values())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _damaged("its header is not what cagp writes") from error
    if not right:
        raise _damaged("its header is not what cagp writes")
    if sum(spec.num_bytes for spec in specs) != size - len(header):
        raise _damaged("its tensors are not as long as its header says")
    # An empty tensor may have any sizes beside its zero, but not those that no index can count.
    if any(len(s.shape) > MOST_DIMENSIONS or math.prod(max(1, dim) for dim in s.shape) >= 2**60 for s in specs):
        raise _damaged("a tensor has an impossible shape")
    return metadata, specs


def _tensor(file: BinaryIO, spec: _Spec) -> Tensor:
    content = torch.empty(spec.num_bytes, dtype=torch.uint8)
    if file.readinto(content.numpy()) != spec.num_bytes:  # pyright: ignore[reportAttributeAccessIssue]
        raise _damaged("it changed while it was read")
    if spec.dtype == torch.bool and bool((content > 1).any()):
        raise _damaged("a boolean is neither 0 nor 1")
    return content.view(spec.dtype).reshape(spec.shape)


def _no_constant(text: str) -> None:
    raise _damaged(f"its tree holds {text}")


def _unflatten(node: Any, tensors: list[Tensor | None], used: set[int], depth: int) -> Any:
    if depth > MOST_NESTED:
        raise _damaged("its tree is nested too deep")
    match node:
        case None | bool() | int() | float() | str():
            return node
        case {"float": "nan" | "inf" | "-inf" as text} if len(node) == 1:
            return float(text)
        case {"tensor": int(number)} if 0 <= number < len(tensors):
            tensor = tensors[number]
            assert tensor is not None
            tensor = tensor.clone() if number in used else tensor  # no two places of a state share memory
            used.add(number)
            order = node.get("order", list(range(tensor.ndim)))
            if not isinstance(order, list) or sorted(order, key=str) != sorted(range(tensor.ndim), key=str):
                raise _damaged("a tensor has an impossible order")
            return tensor.permute([order.index(dim) for dim in range(tensor.ndim)])
        case {"list": list(values)} if len(node) == 1:
            return [_unflatten(value, tensors, used, depth + 1) for value in values]
        case {"items": list(pairs)} if len(node) == 1:
            state = {}
            for pair in pairs:
                match pair:
                    case [str() | int() as key, value] if not isinstance(key, bool) and key not in state:
                        state[key] = _unflatten(value, tensors, used, depth + 1)
                    case _:
                        raise _damaged("its tree has a dict that is none")
            return state
    raise _damaged("its tree refers to what is not there")
