"""Files that are foreign, forged or damaged are refused, and nothing in them is executed."""

import hashlib
import io
import json
import os
import pickle
import random
import struct
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from persistence_problems import KIND, VERSION, bits, data

from cagp import GP, CaGPLocal, GaussianNoise, LinearMean
from cagp import storage as storage_module
from cagp.actions import BlockActions
from cagp.kernels import Matern32, Scale
from cagp.posteriors import Posterior
from cagp.storage import ALIGNMENT, PREFIX, load_state, save_state

# ---- files that are not what was asked for ----


class Payload:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def foreign(name: str, marker: Path) -> bytes:
    if name.startswith("pickle"):
        return pickle.dumps(Payload(marker), protocol=int(name[-1]))
    buffer = io.BytesIO()
    if name == "zip":
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr("a.txt", "b")
    elif name == "torch":
        torch.save({"a": Payload(marker)}, buffer)
    elif name == "safetensors":
        from safetensors.torch import save

        return save({"a": torch.ones(3)}, {"version": "1"})
    else:
        return {
            "png": b"\x89PNG\r\n\x1a\n" + bytes(100),
            "empty": b"",
            "text": b"a,b\n1,2\n" * 20,
            "short text": b"a",
            "noise": random.Random(0).randbytes(500),
            "zeros": bytes(500),
            "only a length": struct.pack("<Q", 2**62),
            "huge length": struct.pack("<Q", 2**62) + PREFIX + b"0" * 500,
            "tiny length": struct.pack("<Q", 3) + PREFIX + b"0" * 500,
        }[name]
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("png", "it is a PNG image, not a model of cagp; give the path of a model that cagp wrote"),
        ("zip", "it is a zip archive"),
        ("torch", "it is a zip archive .*torch.save"),
        ("pickle 2", "it is a pickle, which is never opened"),
        ("pickle 4", "it is a pickle, which is never opened"),
        ("pickle 0", "it is a text file"),
        ("empty", "it is empty, not a model of cagp"),
        ("text", "it is a text file, not a model"),
        ("short text", "it is a text file"),
        ("safetensors", "it is a safetensors file of another program"),
        ("noise", ".*of an unknown format"),
        ("zeros", ".*of an unknown format"),
        ("only a length", ".*of an unknown format"),
        ("huge length", "it is damaged .*shorter than its header"),
        ("tiny length", "it is damaged .*shorter than its header"),
    ],
)
def test_a_foreign_file_is_named_and_never_executed(name, message, tmp_path, no_pickle):
    path, marker = tmp_path / "file", tmp_path / "executed"
    path.write_bytes(foreign(name, marker))
    with pytest.raises(ValueError, match=rf"file cannot be read: {message}"):
        load_state(path, KIND, VERSION)
    with pytest.raises(ValueError, match=r"cannot be read: .*; delete it to start from scratch"):
        load_state(path, KIND, VERSION, remedy="delete it to start from scratch")
    assert not marker.exists()


def test_what_is_no_file_at_all(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere does not exist; check the path"):
        load_state(tmp_path / "nowhere", KIND, VERSION)
    with pytest.raises(ValueError, match="it is a folder, not a file; give the path of a model"):
        load_state(tmp_path, KIND, VERSION)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="it is a device or a pipe"):  # without waiting for a writer
        load_state(tmp_path / "pipe", KIND, VERSION)
    with pytest.raises(ValueError, match="it is a device or a pipe"):
        load_state("/dev/zero", KIND, VERSION)


def test_another_kind_and_other_versions(tmp_path):
    path = tmp_path / "file"
    save_state(path, {"a": 1}, "checkpoint", VERSION)
    with pytest.raises(ValueError, match="it is a checkpoint of cagp, expected a model; check the path"):
        load_state(path, KIND, VERSION)
    with pytest.raises(ValueError, match="it is a checkpoint of cagp, expected a model; check the path"):
        load_state(path, "cagp model", VERSION)
    path.write_text("text")
    with pytest.raises(ValueError, match="a text file, not a model of cagp; give the path of a model that cagp wrote"):
        load_state(path, "cagp model", VERSION)
    save_state(path, {"a": 1}, KIND, VERSION + 1)
    with pytest.raises(ValueError, match="version 4 of its format, this cagp knows version 3; update cagp"):
        load_state(path, KIND, VERSION)
    save_state(path, {"a": 1}, KIND, VERSION - 1)
    with pytest.raises(ValueError, match=r"version 2 .* use the version of cagp that wrote it"):
        load_state(path, KIND, VERSION)


# ---- files with a fitting digest whose content is not ours ----


def forged(path: Path, entries: str, data: bytes) -> None:
    """Write header and data, whatever they are, under a fitting digest."""
    text = entries.encode()
    text += b" " * (-len(text) % 8)
    start = struct.pack("<Q", len(text)) + text
    place = 8 + len(PREFIX)
    assert start[8:place] == PREFIX
    digest = hashlib.blake2b(start[:place] + start[place + 32 :] + data, digest_size=16).hexdigest().encode()
    path.write_bytes(start[:place] + digest + start[place + 32 :] + data)


def header(tree, kind=KIND, version=str(VERSION), **tensors) -> str:
    tree = tree if isinstance(tree, str) else json.dumps(tree)
    metadata = {"digest": "0" * 32, "kind": kind, "version": version, "state": tree}
    return json.dumps({"__metadata__": metadata, **tensors}, separators=(",", ":"))


def spec(shape, offsets, dtype="F32"):
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


GOOD_TREE = {"items": [["a", {"tensor": 0}]]}
GOOD = header(GOOD_TREE, t0=spec([2], [0, 8]))
FORGERIES = {
    "no such tensor": (header({"items": [["a", {"tensor": 1}]]}, t0=spec([2], [0, 8])), bytes(8)),
    "a negative tensor": (header({"items": [["a", {"tensor": -1}]]}, t0=spec([2], [0, 8])), bytes(8)),
    "a named tensor": (header({"items": [["a", {"tensor": "t0"}]]}, t0=spec([2], [0, 8])), bytes(8)),
    "an order too long": (header({"items": [["a", {"tensor": 0, "order": [0, 1]}]]}, t0=spec([2], [0, 8])), bytes(8)),
    "an order of text": (header({"items": [["a", {"tensor": 0, "order": "0"}]]}, t0=spec([2], [0, 8])), bytes(8)),
    "a deep tree": (header('{"list":[' * 100_000 + "]}" * 100_000), b""),
    "a tree a little too deep": (header('{"list":[' * 140 + "]}" * 140), b""),
    "a deep header": (header(GOOD_TREE)[:-1] + ',"t0":' + "[" * 100_000 + "]" * 100_000 + "}", b""),
    "a tree that is no JSON": (header("{"), b""),
    "a tree that is no dict": (header({"list": []}), b""),
    "a tree of an unknown node": (header({"items": [["a", {"object": "os.system"}]]}), b""),
    "an empty node": (header({"items": [["a", {}]]}), b""),
    "a plain list": (header({"items": [["a", [1]]]}), b""),
    "pairs that are none": (header({"items": [["a"]]}), b""),
    "a key that is none": (header({"items": [[None, 1]]}), b""),
    "a key twice": (header({"items": [["a", 1], ["a", 2]]}), b""),
    "a NaN outside its node": (header('{"items": [["a", NaN]]}'), b""),
    "a strange float": (header({"items": [["a", {"float": "1_0"}]]}), b""),
    "an endless number": (header('{"items": [["a", ' + "9" * 10_000 + "]]}"), b""),
    "a shape beyond the file": (header(GOOD_TREE, t0=spec([2**40], [0, 2**42])), bytes(8)),
    "a shape below the file": (header(GOOD_TREE, t0=spec([1], [0, 4])), bytes(8)),
    "offsets that differ from the shape": (header(GOOD_TREE, t0=spec([1], [0, 8])), bytes(8)),
    "a gap": (header(GOOD_TREE, t0=spec([1], [4, 8])), bytes(8)),
    "tensors on top of each other": (header(GOOD_TREE, t0=spec([2], [0, 8]), t1=spec([2], [0, 8])), bytes(8)),
    "a negative shape": (header(GOOD_TREE, t0=spec([-1, -2], [0, 8])), bytes(8)),
    "a shape of floats": (header(GOOD_TREE, t0=spec([2.0], [0, 8])), bytes(8)),
    "a shape that is none": (header(GOOD_TREE, t0=spec(2, [0, 8])), bytes(8)),
    "sizes beyond any index": (header(GOOD_TREE, t0=spec([2**40, 0, 2**40], [0, 0])), b""),
    "dimensions without end": (header(GOOD_TREE, t0=spec([1] * 1000, [0, 4])), bytes(4)),
    "an unknown dtype": (header(GOOD_TREE, t0=spec([2], [0, 8], "F31")), bytes(8)),
    "a boolean of two": (header(GOOD_TREE, t0=spec([2], [0, 2], "BOOL")), b"\x01\x02"),
    "an entry that is none": (header(GOOD_TREE, t0=3), bytes(8)),
    "another name": (header(GOOD_TREE, x=spec([2], [0, 8])), bytes(8)),
    "more in an entry": (header(GOOD_TREE, t0=spec([2], [0, 8]) | {"more": 1}), bytes(8)),
    "more in the metadata": (GOOD.replace('"kind"', '"more":"x","kind"'), bytes(8)),
    "the metadata twice": (GOOD[:-1] + ',"__metadata__":{}}', bytes(8)),
    "spaces in the header": (GOOD.replace('"t0":', '"t0": '), bytes(8)),
    "more spaces after the header": (GOOD + " " * 64, bytes(8)),
    "a kind that is no text": (header(GOOD_TREE, kind=3, t0=spec([2], [0, 8])), bytes(8)),
    "a version that is not a number": (header(GOOD_TREE, version="x", t0=spec([2], [0, 8])), bytes(8)),
    "a state that is no text": (GOOD.replace(json.dumps(json.dumps(GOOD_TREE)), "3"), bytes(8)),
    "no state": (GOOD.replace('"state"', '"other"'), bytes(8)),
    "no JSON": (GOOD[:-1], bytes(8)),
    "no text": (GOOD[:-1] + ',"\udcff":1}', bytes(8)),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forged_file_is_refused(name, tmp_path, no_pickle, monkeypatch):
    entries, data = FORGERIES[name]
    if name == "no text":
        entries = entries.replace("\udcff", "\\udcff")
    path, sizes = tmp_path / "file", [0]
    forged(path, GOOD, bytes(8))
    assert bits(load_state(path, KIND, VERSION)) == bits({"a": torch.zeros(2)})  # the forger knows the trade
    empty = np.empty
    monkeypatch.setattr(np, "empty", lambda size, **k: sizes.append(size) or empty(size, **k))
    forged(path, entries, data)
    with pytest.raises(ValueError, match=r"file cannot be read: it is (damaged|a model in version x)"):
        load_state(path, KIND, VERSION)
    assert max(sizes) <= len(data) + ALIGNMENT


# ---- damage ----


@pytest.fixture
def no_pickle(monkeypatch):
    """Whoever unpickles fails the test."""

    def unpickled(*_, **__):
        raise AssertionError("something was unpickled")

    for module, name in ((pickle, "load"), (pickle, "loads"), (pickle, "Unpickler"), (torch, "load")):
        monkeypatch.setattr(module, name, unpickled)


def damaged(content: bytes, r: random.Random) -> bytes:
    """The content with a byte changed, cut short, with bytes added, or with zeros in a range; never the same."""
    while True:
        place, size = r.randrange(len(content)), r.choice([1, 2, 8, 64, 1000])
        result = r.choice(
            [
                content[:place] + bytes([content[place] ^ r.randrange(1, 256)]) + content[place + 1 :],
                content[:place],
                content[:place] + r.randbytes(size) + content[place:],
                content[:place] + bytes(len(content[place : place + size])) + content[place + size :],
                content + r.randbytes(size),
                content[:place] + content[place + size :],
            ]
        )
        if result != content:
            return result


def small_model() -> Posterior:
    X, y, row_noise, _ = data(24, torch.float64)
    prior = GP(Scale(Matern32(3)), LinearMean(3), GaussianNoise(0.1, 1e-3))
    return CaGPLocal(prior, 4, shared=BlockActions.from_data(X, 3)).condition(X, y, row_noise)


def test_a_thousand_damaged_models_are_all_refused(tmp_path, no_pickle):
    path = tmp_path / "model"
    save_state(path, {"posteriors": [small_model().state()], "name": "small"}, KIND, VERSION)
    content, r, start = path.read_bytes(), random.Random(0), time.perf_counter()
    outcomes = []
    for number in range(1000):
        path.write_bytes(damaged(content, r))
        try:
            load_state(path, KIND, VERSION)
            outcomes.append((number, "read"))
        except ValueError as error:
            if not str(error).startswith(f"{path} cannot be read: it is "):
                outcomes.append((number, error))
    assert not outcomes
    assert time.perf_counter() - start < 60
    path.write_bytes(content)
    load_state(path, KIND, VERSION)


def test_every_byte_of_a_file_counts(tmp_path):
    path = tmp_path / "file"
    save_state(path, {"a": torch.arange(3.0), "b": [1.5, "x", None]}, KIND, VERSION)
    content = path.read_bytes()
    assert b"}}   " in content or b"}} " in content  # padding of the header is among them
    unnoticed = []
    for place in range(len(content)):
        for flip in (0x01, 0x20, 0xFF):  # 0x20 turns a lower-case letter into an upper-case one, a space into NUL
            path.write_bytes(content[:place] + bytes([content[place] ^ flip]) + content[place + 1 :])
            try:
                load_state(path, KIND, VERSION)
                unnoticed.append((place, flip))
            except ValueError:
                pass
    assert not unnoticed


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "file"
    save_state(path, {"a": torch.arange(300_000.0)}, KIND, VERSION)
    parsed = storage_module._parsed

    def cut(*arguments):
        os.truncate(path, 1000)
        return parsed(*arguments)

    monkeypatch.setattr(storage_module, "_parsed", cut)
    with pytest.raises(ValueError, match="it changed while it was read"):
        load_state(path, KIND, VERSION)
