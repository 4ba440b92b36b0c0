"""Files of states, priors and posteriors: what comes back is what went in, to the bit, and no damage goes unnoticed."""

import copy
import hashlib
import io
import json
import math
import os
import pickle
import random
import struct
import time
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from problems import KERNELS, make_prior
from safetensors import safe_open
from torch import Tensor, nn

import cagp
from cagp import CGGP, GP, SGPR, SVGP, CaGPCG, CaGPLocal, CaGPOpt, CholeskyGP, GaussianNoise, KnownNoise, LinearMean
from cagp import storage as storage_module
from cagp.actions import BlockActions, DenseActions
from cagp.kernels import RBF, Kernel, Linear, Matern32, Matern52, Scale
from cagp.parameters import Positive
from cagp.persistence import posterior_from_state, posterior_state, prior_from_state, prior_state, rows_stored
from cagp.posteriors import CGPosterior, Posterior
from cagp.prior import Mean
from cagp.storage import ALIGNMENT, BFLOAT16, PREFIX, fingerprint, read_state, write_atomically, write_state
from cagp.tensor_files import load_state, save_state, tensor_fingerprint

KIND, VERSION = "model", 3


def through_a_file(state, folder: Path, **choices):
    save_state(folder / "file", state, KIND, VERSION)
    return load_state(folder / "file", KIND, VERSION, **choices)


def bits(value):
    """Something that is equal for equal types and bits alone: 0.0 is not -0.0, 1 is not True."""
    if isinstance(value, Tensor):
        flat = value.detach().contiguous().reshape(-1)
        return ("tensor", value.dtype, tuple(value.shape), bytes(flat.view(torch.uint8).tolist()))
    if isinstance(value, dict):
        return ("dict", [(type(key), key, bits(item)) for key, item in value.items()])
    if isinstance(value, list | tuple):
        return ("list", [bits(item) for item in value])
    return (type(value), repr(value) if isinstance(value, float) else value)


# ---- storage ----

TENSORS = {
    "float64": torch.tensor([1 / 3, -0.0, math.inf, -math.inf, 5e-324], dtype=torch.float64),
    "float32": torch.tensor([[1 / 3, 1e-45], [-2.5, math.nan]]),
    "int64": torch.tensor([2**63 - 1, -(2**63)]),
    "int32": torch.tensor([[-7], [2**31 - 1]], dtype=torch.int32),
    "bool": torch.tensor([True, False, True]),
    "scalar": torch.tensor(math.pi, dtype=torch.float64),
    "empty": torch.empty(0),
    "empty matrix": torch.empty(3, 0, dtype=torch.float64),
    "transposed": torch.arange(12.0).view(3, 4).mT,
    "permuted": torch.arange(24.0).view(2, 3, 4).permute(2, 0, 1),
    "expanded": torch.tensor([2.5]).expand(4, 3),
    "every second": torch.arange(36.0).view(6, 6)[::2, 1::2],
    "column": torch.arange(12.0).view(3, 4)[:, 1],
    "parameter": nn.Parameter(torch.tensor([0.1, 0.2])),
    "bytes": torch.arange(256).to(torch.uint8),
    "float16": torch.tensor([[1 / 3, -0.0, math.inf], [math.nan, 6e-8, 65504]], dtype=torch.float16).mT,
    "bfloat16": torch.tensor([[1 / 3, -0.0, math.inf], [math.nan, 1e-40, 3e38]], dtype=torch.bfloat16).mT,
    "empty bfloat16": torch.empty(2, 0, dtype=torch.bfloat16),
    "int16": torch.tensor([2**15 - 1, -(2**15)], dtype=torch.int16),
    "int8": torch.tensor([127, -128], dtype=torch.int8),
}

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters())
    | st.sampled_from(list(TENSORS.values())),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=4),
    max_leaves=12,
)


@given(values)
def test_a_state_comes_back_to_the_bit(tmp_path_factory, value):
    folder = tmp_path_factory.getbasetemp()
    state = {"value": value}
    back = through_a_file(state, folder)
    assert bits(back) == bits({"value": value})


@pytest.mark.parametrize("name", TENSORS)
def test_every_tensor_comes_back_to_the_bit(name, tmp_path):
    assert bits(through_a_file({"a": TENSORS[name]}, tmp_path)) == bits({"a": TENSORS[name]})


def test_tensors_keep_their_order_in_memory_and_share_none(tmp_path):
    base = torch.arange(12.0).view(3, 4)
    back = through_a_file({"all": [base, base.mT, base[1], base, base.view(4, 3)]}, tmp_path)["all"]
    assert [t.stride() for t in back] == [(4, 1), (1, 4), (1,), (4, 1), (3, 1)]
    assert len({t.untyped_storage().data_ptr() for t in back}) == len(back)
    assert not back[0].requires_grad


def test_equal_tensors_are_written_once(tmp_path):
    X = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    save_state(tmp_path / "one", {"a": X, "b": 0}, KIND, VERSION)
    save_state(tmp_path / "two", {"a": X, "b": X.clone()}, KIND, VERSION)
    assert (tmp_path / "two").stat().st_size < (tmp_path / "one").stat().st_size + 100


def test_numpy_arrays_come_back_with_their_bits_and_order_and_share_no_memory(tmp_path):
    base = np.arange(12.0).reshape(3, 4)
    arrays = [base, base.T, base[::-1, ::2], base, np.array(1 / 3), np.zeros((0, 3)), np.array([True, False])]
    arrays += [np.array([[1, 2], [3, 4]], dtype=np.uint16).view(BFLOAT16), np.float16([1 / 3]), np.int8([-5])]
    write_state(tmp_path / "file", {"all": arrays}, KIND, VERSION)
    back = read_state(tmp_path / "file", KIND, VERSION)["all"]
    for found, expected in zip(back, arrays, strict=True):
        assert (found.dtype, found.shape, found.tobytes()) == (expected.dtype, expected.shape, expected.tobytes())
        assert found.flags.writeable
        assert found.size == 0 or found.__array_interface__["data"][0] % ALIGNMENT == 0
    assert back[1].strides == base.T.strides
    back[0][...] = 7
    assert back[3][0, 0] == back[1][0, 0] == 0


def test_tensors_and_arrays_of_the_same_bits_make_the_same_file(tmp_path):
    arrays = {name: t.detach().numpy() for name, t in TENSORS.items() if t.dtype != torch.bfloat16}
    save_state(tmp_path / "tensors", {name: TENSORS[name] for name in arrays}, KIND, VERSION)
    write_state(tmp_path / "arrays", arrays, KIND, VERSION)
    assert (tmp_path / "tensors").read_bytes() == (tmp_path / "arrays").read_bytes()
    assert fingerprint({"a": 1}, *arrays.values()) == tensor_fingerprint({"a": 1}, *(TENSORS[n] for n in arrays))


def test_a_tensor_has_the_fingerprint_that_checkpoints_of_all_versions_hold():
    """The digests are those of the first version, for values that no rounding touches."""
    parts = [torch.arange(6.0).view(2, 3).mT, torch.arange(3, dtype=torch.bfloat16), torch.tensor(True)]
    assert tensor_fingerprint({"lr": 0.5}, *parts) == "f3eb413aa1183857acf4c7b32ac4961c"


@pytest.mark.parametrize("value", [np.array([1j]), np.array(["a"]), np.array([None]), np.arange(3, dtype=">i4")])
def test_arrays_that_cannot_be_stored_are_named(value, tmp_path):
    with pytest.raises(TypeError, match=r"state\['a'\] is an array of .*, expected real numbers or booleans"):
        write_state(tmp_path / "file", {"a": value}, KIND, VERSION)
    with pytest.raises(TypeError, match=r"state\['a'\] is a Tensor, which cannot be stored"):
        write_state(tmp_path / "file", {"a": torch.ones(1)}, KIND, VERSION)


def test_any_reader_of_safetensors_reads_the_tensors(tmp_path):
    save_state(tmp_path / "file", dict(TENSORS), KIND, VERSION)
    with safe_open(str(tmp_path / "file"), framework="pt") as file:
        numbers = {int(key[1:]): file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        assert file.metadata()["kind"] == KIND
    stored = {tuple(t.shape): t for t in numbers.values() if t.dtype == torch.float32}
    assert torch.equal(stored[3, 3], TENSORS["every second"])
    assert torch.equal(stored[2, 3, 4], torch.arange(24.0).view(2, 3, 4))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({1, 2}, r"state\['a'\]\[1\] is a set, which cannot be stored"),
        (print, "is a builtin_function_or_method"),
        (torch.tensor([1j]), r"tensor of torch\.complex64"),
        (torch.eye(3).to_sparse(), r"torch\.sparse_coo"),
        ({(1, 2): 3}, r"key \(1, 2\), expected text or an integer"),
        ({True: 3}, "key True"),
    ],
)
def test_what_cannot_be_stored_is_named(value, message, tmp_path):
    with pytest.raises(TypeError, match=message):
        save_state(tmp_path / "file", {"a": [0, value]}, KIND, VERSION)
    assert not list(tmp_path.iterdir())


def test_a_state_that_contains_itself_is_an_error(tmp_path):
    state = {}
    state["again"] = [state]
    with pytest.raises(ValueError, match="nested more than 128 deep"):
        save_state(tmp_path / "file", state, KIND, VERSION)


def test_a_state_as_deep_as_allowed_comes_back(tmp_path):
    state = {"a": 1}
    for _ in range(127):
        state = {"a": state}
    assert through_a_file(state, tmp_path) == state


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    save_state(tmp_path / "file", {"a": 1}, KIND, VERSION)
    for name in ("fsync", "replace"):

        def full(*_) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(os, name, full)
            with pytest.raises(OSError, match="No space left"):
                save_state(tmp_path / "file", {"a": 2}, KIND, VERSION)
        assert load_state(tmp_path / "file", KIND, VERSION) == {"a": 1}
        assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_write_atomically_takes_bytes_or_pieces(tmp_path):
    write_atomically(tmp_path / "file", b"abc")
    assert (tmp_path / "file").read_bytes() == b"abc"
    write_atomically(tmp_path / "file", iter([b"de", memoryview(b"f")]))
    assert (tmp_path / "file").read_bytes() == b"def"


def test_a_folder_that_does_not_exist_is_named(tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match=r"x\.cagp cannot be written: the folder .*nodir does not exist"):
        save_state(tmp_path / "nodir" / "x.cagp", {"a": 1}, KIND, VERSION)
    with pytest.raises(IsADirectoryError, match="is a folder, expected the name of a file"):
        save_state(tmp_path, {"a": 1}, KIND, VERSION)
    assert not list(tmp_path.iterdir())
    monkeypatch.chdir(tmp_path)
    save_state("x.cagp", {"a": 1}, KIND, VERSION)
    assert load_state("x.cagp", KIND, VERSION) == {"a": 1}


# ---- files of earlier versions ----


OLD = Path(__file__).parent / "data"  # written by commit b6304b1, with the answers of that commit


@pytest.mark.parametrize("name", ["old-local", "old-sgpr", "old-exact"])
def test_an_old_file_loads_and_predicts_the_same(name):
    model = cagp.load(OLD / f"{name}.cagp")
    expected = json.loads((OLD / f"{name}.json").read_text())
    frame = pd.DataFrame(expected["inputs"])
    if "built" in frame:
        frame["built"] = pd.to_datetime(frame["built"])
    mean, std = model.predict(frame, return_std=True)
    np.testing.assert_allclose(mean, expected["mean"], rtol=1e-12)
    np.testing.assert_allclose(std, expected["std"], rtol=1e-12)
    np.testing.assert_allclose(model.noise_std_, expected["noise_std"], rtol=1e-12)
    np.testing.assert_allclose(model.lengthscales_, expected["lengthscales"], rtol=1e-12)


@pytest.mark.parametrize("name", ["old-local", "old-sgpr", "old-exact"])
def test_an_old_file_is_written_again_byte_for_byte(name, tmp_path):
    old, kind = OLD / f"{name}.cagp", "cagp model"
    save_state(tmp_path / "tensors", load_state(old, kind, 1), kind, 1)
    write_state(tmp_path / "arrays", read_state(old, kind, 1), kind, 1)
    assert (tmp_path / "tensors").read_bytes() == (tmp_path / "arrays").read_bytes() == old.read_bytes()


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
    "a version that is no number": (header(GOOD_TREE, version="x", t0=spec([2], [0, 8])), bytes(8)),
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
    save_state(path, {"posteriors": [posterior_state(small_model())], "name": "small"}, KIND, VERSION)
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


# ---- priors ----


def same_module(actual: nn.Module, expected: nn.Module) -> None:
    assert str(actual) == str(expected)
    assert bits(dict(actual.state_dict())) == bits(dict(expected.state_dict()))
    for part, other in zip(actual.modules(), expected.modules(), strict=True):
        plain = [{k: v for k, v in vars(m).items() if isinstance(v, int | float | str)} for m in (part, other)]
        assert plain[0] == plain[1]


def scrambled(prior: GP, seed: int) -> GP:
    """The prior with other raw values, none of them a round number."""
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in prior.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=g, dtype=torch.float64))
    return prior


@pytest.mark.parametrize("mean", ["zero", "constant", "linear"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_every_prior_of_the_package_comes_back_to_the_bit(kernel, mean, tmp_path):
    for known in (True, False):
        prior = make_prior(kernel, 3, 0.1, torch.Generator().manual_seed(1), mean=mean, known=known)
        prior = scrambled(prior, 2)
        if not known:
            prior.noise.noise_floor = 0.1 / 3
        back = prior_from_state(through_a_file(prior_state(prior), tmp_path))
        same_module(back, prior)
        X = torch.randn(4, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
        assert torch.equal(back.kernel(X, X), prior.kernel(X, X))
        assert torch.equal(back.mean(X), prior.mean(X))
        noises = [p.noise_variance(X, torch.ones_like(X[:, 0])) for p in (back, prior)]
        assert torch.equal(*noises)
        assert all(p.requires_grad for p in back.parameters())


def test_floors_of_kernels_are_kept(tmp_path):
    prior = GP(Scale(RBF(2)))
    prior.kernel.outputscale_floor = 0.25
    back = prior_from_state(through_a_file(prior_state(prior), tmp_path))
    assert torch.equal(back.kernel.outputscale, prior.kernel.outputscale)
    assert float(back.kernel.outputscale.detach()) == 1.25


class Periodic(Kernel):
    """A kernel as a user would write it, with a plain attribute and a buffer."""

    lengthscale = Positive()

    def __init__(self, period: float = 1.0, num_waves: int = 2):
        super().__init__()
        self.num_waves = num_waves
        self.lengthscale = 1.0
        self.register_buffer("period", torch.tensor(period, dtype=torch.float64))

    def forward(self, X: Tensor, Z: Tensor) -> Tensor:
        phase = self.num_waves * (X.unsqueeze(-2) - Z.unsqueeze(-3)) / self.period.to(X)
        return torch.exp(-(torch.sin(phase) / self.lengthscale.to(X)).square().sum(-1))


class TestKernelsOfYourOwn:
    def stored(self, tmp_path):
        prior = scrambled(GP(Scale(Periodic(1.7) + RBF(2))), 4)
        return prior, through_a_file(prior_state(prior), tmp_path)

    def test_one_of_the_same_structure_takes_the_parameters(self, tmp_path):
        prior, state = self.stored(tmp_path)
        given = Scale(Periodic(9.0) + RBF(2))
        before = bits(dict(given.state_dict()))
        back = prior_from_state(state, kernel=given)
        same_module(back, prior)
        assert bits(dict(given.state_dict())) == before  # a copy took them
        assert isinstance(back.kernel.kernel.parts[0], Periodic)

    def test_without_one_the_error_says_what_to_give(self, tmp_path):
        _, state = self.stored(tmp_path)
        message = (
            r"Periodic is a class of your own, .*: "
            r"cagp\.load\(path, kernel=Scale\(Sum\(Periodic\(\.\.\.\), RBF\(\.\.\.\)\)\)\)"
        )
        with pytest.raises(ValueError, match=message):
            prior_from_state(state)

    @pytest.mark.parametrize(
        ("kernel", "message"),
        [
            (Scale(Periodic()), r"kernel is Scale\(Periodic\(\.\.\.\)\), the stored one is Scale\(Sum"),
            (Scale(RBF(2) + Periodic()), "give one of the same structure"),
            (Scale(Periodic() + RBF(3)), r"stored RBF has tensors of shapes .*\(2,\).*the one given .*\(3,\)"),
            (Scale(Periodic(num_waves=3) + RBF(2)), "stored Periodic has num_waves = 2, the one given 3"),
        ],
        ids=str,
    )
    def test_another_structure_is_refused(self, kernel, message, tmp_path):
        _, state = self.stored(tmp_path)
        with pytest.raises(ValueError, match=message):
            prior_from_state(state, kernel=kernel)

    def test_a_class_that_has_a_name_of_ours_is_still_your_own(self, tmp_path):
        class RBF(Matern32):
            pass

        state = through_a_file(prior_state(GP(RBF(2))), tmp_path)
        with pytest.raises(ValueError, match="RBF is a class of your own"):
            prior_from_state(state)
        assert type(prior_from_state(state, RBF(2)).kernel) is RBF

    def test_a_posterior_of_one_answers_the_same(self, tmp_path):
        X, y, _, Z = data(30, torch.float64)
        posterior = CholeskyGP(GP(Scale(Periodic(2.3)) + Linear(3))).condition(X, y)
        back = posterior_from_state(
            through_a_file(posterior_state(posterior), tmp_path), kernel=Scale(Periodic()) + Linear(3)
        )
        same_answers(back, posterior, Z)


def test_a_kernel_of_ours_may_be_given_too(tmp_path):
    prior = scrambled(GP(Scale(RBF(2))), 5)
    state = through_a_file(prior_state(prior), tmp_path)
    same_module(prior_from_state(state, Scale(RBF(2))), prior)
    with pytest.raises(ValueError, match=r"kernel is RBF\(\.\.\.\), the stored one is Scale\(RBF"):
        prior_from_state(state, RBF(2))


def test_means_and_posteriors_of_your_own_are_refused_when_they_are_stored():
    class Wave(Mean):
        def forward(self, X: Tensor) -> Tensor:
            return torch.sin(X.sum(1))

    class Better(CGPosterior):
        pass

    with pytest.raises(ValueError, match="the mean is a Wave, a class of your own, which cannot be stored"):
        prior_state(GP(RBF(2), Wave()))
    X, y, _, _ = data(10, torch.float64)
    posterior = CGGP(GP(RBF(3))).condition(X, y)
    posterior.__class__ = Better
    with pytest.raises(ValueError, match="a posterior of class Better cannot be stored, expected CaGPPosterior or"):
        posterior_state(posterior)


# ---- posteriors ----


def data(n: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Inputs, targets, known noise and questions."""
    g = torch.Generator().manual_seed(n)
    X, Z = (torch.randn(m, 3, generator=g, dtype=torch.float64).to(dtype) for m in (n, 7))
    y = torch.sin(2 * X.sum(1)) + 0.1 * torch.randn(n, generator=g, dtype=torch.float64).to(dtype)
    return X, y, (0.05 + torch.rand(n, generator=g, dtype=torch.float64)).to(dtype), torch.cat([Z, X[:2]])


def new_prior(known: bool = False) -> GP:
    noise = KnownNoise() if known else GaussianNoise(0.07, 1e-4)
    return scrambled(GP(Scale(Matern32(3) + Linear(3) * RBF(3)), LinearMean(3), noise), 11)


def dense(X: Tensor) -> DenseActions:
    return DenseActions(torch.randn(len(X), 5, generator=torch.Generator().manual_seed(1)).to(X))


MAX_BYTES = 200_000
POSTERIORS = {
    "opt": lambda X, y, v: CaGPOpt.from_data(new_prior(), X, 12, max_bytes=MAX_BYTES).condition(X, y),
    "opt, some rows": lambda X, y, v: CaGPOpt.from_data(
        new_prior(), X, 12, support_size=4, generator=torch.Generator().manual_seed(0)
    ).condition(X, y, v),
    "dense": lambda X, y, v: CaGPOpt(new_prior(), dense(X)).condition(X, y, v),
    "cg actions": lambda X, y, v: CaGPCG(new_prior(known=True), 9).condition(X, y, v),
    "exact": lambda X, y, v: CholeskyGP(new_prior()).condition(X, y, v),
    "sgpr": lambda X, y, v: SGPR.from_data(new_prior(), X, 10, max_bytes=MAX_BYTES).condition(X, y, v),
    "svgp": lambda X, y, v: SVGP.from_data(new_prior(), X, 10).condition(X, y),
    "cggp": lambda X, y, v: CGGP(new_prior(), precondition_rank=7, max_bytes=MAX_BYTES).condition(X, y),
    "cggp, known rows": lambda X, y, v: CGGP(new_prior(known=True), tolerance=1e-6).condition(X, y, v),
    "local": lambda X, y, v: CaGPLocal(new_prior(), 6).condition(X, y),
    "local, known rows": lambda X, y, v: CaGPLocal(new_prior(known=True), 6).condition(X, y, v),
    "local by tree": lambda X, y, v: CaGPLocal(new_prior(), 6, index_kind="tree", max_bytes=MAX_BYTES).condition(X, y),
    "hybrid": lambda X, y, v: CaGPLocal(new_prior(), 6, shared=BlockActions.from_data(X, 8)).condition(X, y, v),
    "hybrid, dense": lambda X, y, v: CaGPLocal(new_prior(), 6, shared=dense(X)).condition(X, y),
    "shared alone": lambda X, y, v: CaGPLocal(new_prior(), 6, shared=BlockActions.from_data(X, 8)).condition(
        X, y, num_neighbours=0
    ),
}


def made(name: str, dtype: torch.dtype, n: int = 90) -> tuple[Posterior, Tensor]:
    X, y, row_noise, Z = data(n, dtype)
    return POSTERIORS[name](X, y, row_noise), Z


def answers(posterior: Posterior, Z: Tensor) -> list[Tensor]:
    generator = torch.Generator().manual_seed(5)
    noise = torch.full_like(Z[:, 0], 0.3)
    return [
        posterior.mean(Z),
        *posterior.predict(Z, noise=True, row_noise=noise),
        posterior.variance(Z),
        posterior.covariance(Z),
        posterior.covariance(Z[:3], Z[3:]),
        posterior.sample(Z, 3, generator=generator),
    ]


def same_answers(actual: Posterior, expected: Posterior, Z: Tensor) -> None:
    for a, b in zip(answers(actual, Z), answers(expected, Z), strict=True):
        assert bits(a) == bits(b)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", POSTERIORS)
def test_a_posterior_answers_with_the_same_bits(name, dtype, tmp_path):
    posterior, Z = made(name, dtype)
    back = posterior_from_state(through_a_file(posterior_state(posterior), tmp_path))
    assert type(back) is type(posterior)
    same_answers(back, posterior, Z)
    same_module(back.prior, posterior.prior)
    assert back.max_bytes == posterior.max_bytes
    assert rows_stored(back) == rows_stored(posterior)
    assert not any(p.requires_grad for p in back.prior.parameters())
    # What it is made of is the same, so that storing it again gives the same state.
    assert bits(posterior_state(back)) == bits(posterior_state(posterior))


@pytest.mark.parametrize("name", ["opt", "cggp", "hybrid", "local by tree"])
def test_rows_in_any_order_of_memory_give_the_same_bits(name, tmp_path):
    X, y, row_noise, Z = data(90, torch.float64)
    wide = torch.cat([X, X], 1)
    for other in (X.mT.contiguous().mT, wide[:, :3]):
        posterior = POSTERIORS[name](other, y, row_noise)
        same_answers(posterior_from_state(through_a_file(posterior_state(posterior), tmp_path)), posterior, Z)


def test_rows_stored():
    counts = {name: rows_stored(made(name, torch.float64)[0]) for name in POSTERIORS}
    assert counts["opt"] == counts["exact"] == counts["cggp"] == counts["hybrid"] == 90
    assert counts["sgpr"] == counts["svgp"] == 10
    assert counts["opt, some rows"] <= 48


def test_the_status_of_conjugate_gradients_is_kept(tmp_path):
    posterior, _ = made("cggp", torch.float64)
    back = posterior_from_state(through_a_file(posterior_state(posterior), tmp_path))
    assert bits(back.representer_status) == bits(posterior.representer_status)
    assert (back.tolerance, back.max_iterations) == (posterior.tolerance, posterior.max_iterations)


@pytest.mark.parametrize("name", ["local", "hybrid", "cggp, known rows"])
def test_changing_the_data_afterwards_changes_nothing(name, tmp_path):
    X, y, row_noise, Z = data(90, torch.float64)
    posterior = POSTERIORS[name](X, y, row_noise)
    before = [bits(a) for a in answers(posterior, Z)]
    for tensor in (X, y, row_noise):
        tensor.mul_(2)
    assert [bits(a) for a in answers(posterior, Z)] == before
    back = posterior_from_state(through_a_file(posterior_state(posterior), tmp_path))
    assert [bits(a) for a in answers(back, Z)] == before


def test_posteriors_of_several_targets_store_the_rows_once(tmp_path):
    X, y, _, _ = data(2000, torch.float64)
    states = [posterior_state(CaGPLocal(new_prior(), 6).condition(X, targets)) for targets in (y, y.cos())]
    for name, number in (("one", 1), ("two", 2)):
        save_state(tmp_path / name, {"posteriors": states[:number]}, KIND, VERSION)
    one, two = ((tmp_path / name).stat().st_size for name in ("one", "two"))
    assert two - one < 8 * len(y) + 8_000 < 8 * X.numel()


# ---- rounded rows ----


@pytest.mark.parametrize("name", POSTERIORS)
def test_rounded_rows_answer_nearly_the_same_in_the_dtype_of_the_data(name, tmp_path):
    posterior, Z = made(name, torch.float64)
    back = posterior_from_state(through_a_file(posterior_state(posterior, torch.float32), tmp_path))
    assert back.X.dtype == torch.float64
    if name not in ("sgpr", "svgp"):  # inducing points are not rounded
        assert torch.equal(back.X, posterior.X.float().double())
    for a, b in zip(answers(back, Z), answers(posterior, Z), strict=True):
        assert a.dtype == torch.float64
        if a.shape != (3, len(Z)):  # samples take any square root of a covariance
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", POSTERIORS)
def test_rounding_float32_rows_to_float32_changes_nothing(name):
    posterior, _ = made(name, torch.float32)
    for dtype in (torch.float32, torch.float64):
        state = posterior_state(posterior, dtype)
        rows = {k: v for k, v in state.items() if k != "row_noise"}  # conjugate gradients hold theirs in float64
        assert bits(rows) == bits({k: v for k, v in posterior_state(posterior).items() if k != "row_noise"})


def test_rounded_rows_take_half_the_room(tmp_path):
    X, y, row_noise, _ = data(2000, torch.float64)
    posterior = CaGPLocal(GP(Matern52(3)), 6).condition(X, y, row_noise)
    sizes = []
    for dtype in (None, torch.float32):
        save_state(tmp_path / "file", posterior_state(posterior, dtype), KIND, VERSION)
        sizes.append((tmp_path / "file").stat().st_size)
    assert sizes[1] < 0.55 * sizes[0]


def test_rows_beyond_the_range_are_refused():
    X, y, row_noise, _ = data(20, torch.float64)
    posterior = CaGPLocal(GP(Matern52(3)), 6).condition(X, 1e200 * y)
    with pytest.raises(ValueError, match=r"y has values beyond the range of torch\.float32; store it with dtype=None"):
        posterior_state(posterior, torch.float32)
    posterior = CaGPLocal(GP(Matern52(3), noise=KnownNoise()), 6).condition(X, y, 1e-60 * row_noise)
    with pytest.raises(ValueError, match="row_noise has values beyond the range"):
        posterior_state(posterior, torch.float32)
    with pytest.raises(ValueError, match=r"dtype is torch\.float16, expected torch\.float32"):
        posterior_state(posterior, torch.float16)


# ---- states that are none ----


def entries(state, path=()):
    """Every place in a state: the way to it."""
    items = state.items() if isinstance(state, dict) else enumerate(state) if isinstance(state, list) else ()
    for key, value in items:
        yield (*path, key)
        yield from entries(value, (*path, key))


def parent(state, path):
    for key in path[:-1]:
        state = state[key]
    return state


@pytest.mark.parametrize("name", ["opt", "dense", "sgpr", "cggp", "hybrid"])
def test_a_state_with_anything_missing_or_of_another_kind_is_refused(name, annotations_off, tmp_path):
    state = through_a_file(posterior_state(made(name, torch.float64, n=20)[0]), tmp_path)
    accepted = []
    for path in entries(state):
        value = parent(state, path)[path[-1]]
        for change in ("missing", "text", "a list", "another size"):
            other = copy.deepcopy(state)
            holder = parent(other, path)
            if change == "missing":
                if isinstance(holder, list):
                    continue  # a sum of fewer kernels is another one
                del holder[path[-1]]
            elif change == "another size":
                if not isinstance(value, Tensor) or (path[-2:-1] == ("representer",) and path[-1] != "solution"):
                    continue
                holder[path[-1]] = torch.cat([value.reshape(-1), value.reshape(-1)])
            else:
                holder[path[-1]] = "x" if change == "text" else [1, 2]
            try:
                posterior_from_state(other)
                accepted.append((path, change))
            except ValueError:
                pass
    floors = {("prior", "noise", "floors", "noise_floor")}  # one that is not there is the class's own
    assert {path for path, change in accepted if change == "missing"} <= floors
    assert not [(path, change) for path, change in accepted if change != "missing"]


@pytest.mark.parametrize("values", [[0, 30, 20], [0, 10, 21], [0, -5, 20], [1, 10, 20], [20]])
def test_weights_beyond_their_rows_are_refused(values):
    X, y, _, _ = data(20, torch.float64)
    state = posterior_state(CaGPOpt.from_data(new_prior(), X, 2).condition(X, y))
    assert len(state["W"]["offsets"]) == 3
    state["W"]["offsets"] = torch.tensor(values)
    with pytest.raises(ValueError, match="does not have 'offsets' as cagp stores it"):
        posterior_from_state(state)


def test_a_selection_of_neighbours_that_is_gone_is_refused_and_the_nearest_are_read():
    posterior, Z = made("local", torch.float64)
    state = posterior_state(posterior)
    assert state["selection"] == "nearest"
    same_answers(posterior_from_state(state), posterior, Z)
    with pytest.raises(ValueError, match=r"selects its neighbours by 'greedy', .* Fit the model again"):
        posterior_from_state(state | {"selection": "greedy"})


@pytest.mark.parametrize("row", [-1, 20, 2**40])
def test_shared_actions_beyond_the_rows_are_refused(row):
    state = posterior_state(made("hybrid", torch.float64, n=20)[0])
    state["shared"]["support"] = state["shared"]["support"].clone()
    state["shared"]["support"][0] = row
    with pytest.raises(ValueError, match="does not have 'support' as cagp stores it"):
        posterior_from_state(state)
