"""States in files: what comes back is what went in, to the bit, and what cannot be stored is named."""

import math
import os

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from persistence_problems import KIND, VERSION, bits, through_a_file
from safetensors import safe_open
from torch import nn

from cagp.storage import ALIGNMENT, BFLOAT16, fingerprint, load_state, save_state, write_atomically

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


@pytest.mark.slow
@given(values)
def test_a_state_comes_back_to_the_bit(tmp_path_factory, value):
    folder = tmp_path_factory.getbasetemp()
    state = {"value": value}
    back = through_a_file(state, folder)
    assert bits(back) == bits({"value": value})


@pytest.mark.parametrize("name", TENSORS)
def test_every_tensor_comes_back_to_the_bit(name, tmp_path):
    assert bits(through_a_file({"a": TENSORS[name]}, tmp_path)) == bits({"a": TENSORS[name]})


def test_tensors_keep_their_order_in_memory_and_equal_ones_share_it(tmp_path):
    base = torch.arange(12.0).view(3, 4)
    back = through_a_file({"all": [base, base.mT, base[1], base, base.view(4, 3)]}, tmp_path)["all"]
    assert [t.stride() for t in back] == [(4, 1), (1, 4), (1,), (4, 1), (3, 1)]
    assert len({t.untyped_storage().data_ptr() for t in back}) == 3  # of three different ones
    assert not back[0].requires_grad


def test_equal_tensors_are_written_once(tmp_path):
    X = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    save_state(tmp_path / "one", {"a": X, "b": 0}, KIND, VERSION)
    save_state(tmp_path / "two", {"a": X, "b": X.clone()}, KIND, VERSION)
    assert (tmp_path / "two").stat().st_size < (tmp_path / "one").stat().st_size + 100


def test_numpy_arrays_come_back_with_their_bits_and_order(tmp_path):
    base = np.arange(12.0).reshape(3, 4)
    arrays = [base, base.T, base[::-1, ::2], base, np.array(1 / 3), np.zeros((0, 3)), np.array([True, False])]
    arrays += [np.array([[1, 2], [3, 4]], dtype=np.uint16).view(BFLOAT16), np.float16([1 / 3]), np.int8([-5])]
    save_state(tmp_path / "file", {"all": arrays}, KIND, VERSION)
    back = load_state(tmp_path / "file", KIND, VERSION, tensors=False)["all"]
    for found, expected in zip(back, arrays, strict=True):
        assert (found.dtype, found.shape, found.tobytes()) == (expected.dtype, expected.shape, expected.tobytes())
        assert found.flags.writeable
        assert found.size == 0 or found.__array_interface__["data"][0] % ALIGNMENT == 0
    assert back[1].strides == base.T.strides
    assert np.shares_memory(back[0], back[3])
    assert not np.shares_memory(back[0], back[2])


def test_tensors_and_arrays_of_the_same_bits_make_the_same_file(tmp_path):
    arrays = {name: t.detach().numpy() for name, t in TENSORS.items() if t.dtype != torch.bfloat16}
    save_state(tmp_path / "tensors", {name: TENSORS[name] for name in arrays}, KIND, VERSION)
    save_state(tmp_path / "arrays", arrays, KIND, VERSION)
    assert (tmp_path / "tensors").read_bytes() == (tmp_path / "arrays").read_bytes()
    assert fingerprint({"a": 1}, *arrays.values()) == fingerprint({"a": 1}, *(TENSORS[n] for n in arrays))


def test_a_tensor_has_the_fingerprint_that_checkpoints_of_all_versions_hold():
    """The digests are those of the first version, for values that no rounding touches."""
    parts = [torch.arange(6.0).view(2, 3).mT, torch.arange(3, dtype=torch.bfloat16), torch.tensor(True)]
    assert fingerprint({"lr": 0.5}, *parts) == "f3eb413aa1183857acf4c7b32ac4961c"


@pytest.mark.parametrize("value", [np.array([1j]), np.array(["a"]), np.array([None]), np.arange(3, dtype=">i4")])
def test_arrays_that_cannot_be_stored_are_named(value, tmp_path):
    with pytest.raises(TypeError, match=r"state\['a'\] is an array of .*, expected real numbers or booleans"):
        save_state(tmp_path / "file", {"a": value}, KIND, VERSION)


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
