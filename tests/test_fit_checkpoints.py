"""Checkpoints and histories: those of other fits and damaged ones are refused, and no write loses the last one."""

import json
import math
import os
import pickle
import random
from dataclasses import asdict, fields
from pathlib import Path

import pytest
import torch
from fit_problems import (
    CHECKPOINT,
    HISTORY,
    NOTHING,
    Bowl,
    CrashError,
    crash_at,
    history_of,
    method,
    wave,
    without_seconds,
)
from torch import Tensor

from cagp import GP, CaGPOpt, GaussianNoise, fit
from cagp.kernels import Matern32, Matern52, Scale
from cagp.training import Step

pytestmark = pytest.mark.usefixtures("global_generator_stays")


@pytest.fixture
def interrupted(tmp_path) -> Path:
    """The folder of a fit of ``wave(30)`` that ended after four of nine steps."""
    X, y = wave(30)
    with pytest.raises(CrashError):
        fit(method(X, 6), X, y, num_steps=9, checkpoint_dir=tmp_path, checkpoint_steps=2, callback=crash_at(5))
    return tmp_path


def go_on(folder: Path, X: Tensor | None = None, y: Tensor | None = None, m=None, row_noise=None, **changes):
    data = wave(30)
    X, y = data[0] if X is None else X, data[1] if y is None else y
    options = {"num_steps": 9, "checkpoint_steps": 2, **changes}
    return fit(method(X, 6) if m is None else m, X, y, row_noise, **options, checkpoint_dir=folder)


def test_a_checkpoint_of_the_same_fit_is_accepted(interrupted):
    assert len(go_on(interrupted).steps) == 9
    assert not list(interrupted.glob("*.part"))


@pytest.mark.parametrize(
    "changes",
    [
        {"num_steps": 10},
        {"lr": 0.2},
        {"schedule": "cosine"},
        {"optimizer": "lbfgs"},
        {"max_failures": 3},
    ],
    ids=str,
)
def test_a_checkpoint_of_other_settings_is_refused(changes, interrupted):
    before = (interrupted / CHECKPOINT).read_bytes(), (interrupted / HISTORY).read_bytes()
    with pytest.raises(ValueError, match=r"checkpoint\.safetensors belongs to another fit .*choose another folder"):
        go_on(interrupted, **changes)
    assert before == ((interrupted / CHECKPOINT).read_bytes(), (interrupted / HISTORY).read_bytes())


def test_a_checkpoint_of_other_data_is_refused(interrupted):
    X, y = wave(30)
    moved = X.clone()
    moved[7] = moved[7] * (1 + 1e-15) + 1e-15
    assert not torch.equal(moved, X)
    for change in ({"X": moved, "m": method(X, 6)}, {"y": -y}, {"row_noise": torch.zeros_like(y)}):
        with pytest.raises(ValueError, match="belongs to another fit"):
            go_on(interrupted, **change)


def test_a_checkpoint_of_other_starting_values_is_refused(interrupted):
    X, _ = wave(30)
    for other in (method(X, 5), CaGPOpt.from_data(GP(Scale(Matern32(1, 0.9))), X, 6)):
        with pytest.raises(ValueError, match="belongs to another fit"):
            go_on(interrupted, m=other)


@pytest.mark.parametrize("difference", ["loss", "kernel", "noise floor", "re-blocking"])
def test_a_checkpoint_of_another_method_is_refused(difference, interrupted):
    X, _ = wave(30)
    other = method(X, 6)
    if difference == "loss":
        other.loss = "projected"
    elif difference == "kernel":
        other = CaGPOpt.from_data(GP(Scale(Matern52(1))), X, 6)
    elif difference == "noise floor":
        raw = other.prior.noise.raw_noise.detach().clone()
        other.prior.noise = GaussianNoise(noise_floor=1e-2)
        other.prior.noise.raw_noise.data = raw
    else:
        other.reblock_at = (5,)
    with pytest.raises(ValueError, match="belongs to another fit"):
        go_on(interrupted, m=other)


@pytest.mark.thinned(5)
@pytest.mark.parametrize("share", [0.0, 1e-9, 0.001, 0.01, 0.3, 0.6, 0.9, 0.999])
def test_a_truncated_checkpoint_is_an_error_that_says_what_to_do(share, interrupted):
    path = interrupted / CHECKPOINT
    content = path.read_bytes()
    path.write_bytes(content[: math.ceil(share * len(content))])
    with pytest.raises(ValueError, match=r"checkpoint\.safetensors .*delete it to start from scratch"):
        go_on(interrupted)


def damaged(content: bytes, seed: int, first: int, last: int) -> bytes:
    """One bit of one byte between first and last is another."""
    r = random.Random(seed)
    place = r.randrange(first, last)
    return content[:place] + bytes([content[place] ^ 1 << r.randrange(8)]) + content[place + 1 :]


@pytest.mark.parametrize("part", ["length", "header", "tensors"])
def test_a_checkpoint_with_a_flipped_bit_is_an_error_that_says_what_to_do(part, interrupted):
    path, folder = interrupted / CHECKPOINT, interrupted
    content, history = path.read_bytes(), (folder / HISTORY).read_bytes()
    header = 8 + int.from_bytes(content[:8], "little")
    first, last = {"length": (0, 8), "header": (8, header), "tensors": (header, len(content))}[part]
    outcomes = {}
    for seed in range(8):
        (folder / HISTORY).write_bytes(history)
        path.write_bytes(damaged(content, seed, first, last))
        try:
            go_on(folder)
            outcomes[seed] = "went on"
        except Exception as error:
            if not (isinstance(error, ValueError) and CHECKPOINT in str(error) and "delete it" in str(error)):
                outcomes[seed] = repr(error)
    assert not outcomes


class Payload:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def test_a_checkpoint_is_never_executed(interrupted):
    path, marker = interrupted / CHECKPOINT, interrupted / "executed"
    path.write_bytes(pickle.dumps(Payload(marker)))
    with pytest.raises(ValueError, match="delete it to start from scratch"):
        go_on(interrupted)
    torch.save({"state": Payload(marker)}, path)
    with pytest.raises(ValueError, match="delete it to start from scratch"):
        go_on(interrupted)
    assert not marker.exists()


@pytest.mark.parametrize("damage", ["a line less", "a line cut off", "zeros", "no file"])
def test_a_history_that_does_not_suit_its_checkpoint_is_an_error_that_names_it(damage, interrupted):
    path = interrupted / HISTORY
    lines = path.read_text().splitlines(keepends=True)
    first = "".join(lines[:3])
    path.write_text(
        {"a line less": first, "a line cut off": first + lines[3][:20], "zeros": "\x00" * 50}.get(damage, "")
    )
    if damage == "no file":
        path.unlink()
    with pytest.raises(ValueError, match=r"history\.jsonl"):
        go_on(interrupted)


def test_a_line_cut_off_after_the_checkpoint_is_dropped(interrupted):
    path = interrupted / HISTORY
    assert len(path.read_text().splitlines()) == 5  # one more than the checkpoint
    path.write_bytes(path.read_bytes()[:-40])
    result = go_on(interrupted)
    assert history_of(interrupted) == without_seconds(result.steps)


def test_a_write_that_fails_leaves_the_old_checkpoint(interrupted, monkeypatch):
    def full(_) -> None:
        raise OSError(28, "No space left on device")

    before = (interrupted / CHECKPOINT).read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            go_on(interrupted)
    assert (interrupted / CHECKPOINT).read_bytes() == before
    assert len(go_on(interrupted).steps) == 9
    assert not list(interrupted.glob("*.part"))


def test_the_history_on_disk_is_the_documented_fields_as_json_lines(tmp_path):
    X, y = wave(30)
    m = method(X, 6, reblock_at=(3,))
    options = {"num_steps": 8, "evaluate_every": 4, "evaluate": lambda: {"score": 1.5}}
    result = fit(m, X, y, **options, checkpoint_dir=tmp_path)
    lines = [json.loads(line) for line in (tmp_path / HISTORY).read_text().splitlines()]
    assert lines == [asdict(step) for step in result.steps]
    assert [set(line) for line in lines] == [{field.name for field in fields(Step)}] * 8
    assert [line["evaluation"] for line in lines] == [None, None, None, {"score": 1.5}] * 2
    assert ["blocks" in " ".join(line["events"]) for line in lines] == [number == 4 for number in range(1, 9)]
    for line in lines:
        assert math.isclose(sum(line["terms"].values()), line["loss"], rel_tol=1e-12)
        assert set(line["terms"]) == {"negative_log_likelihood", "kl"}
        assert set(line["lr"]) == {"hyperparameters", "actions"}


def test_the_history_is_json_where_an_evaluation_is_not_a_number(tmp_path):
    fit(Bowl(), *NOTHING, num_steps=2, evaluate_every=1, evaluate=lambda: {"s": math.nan}, checkpoint_dir=tmp_path)
    assert len(history_of(tmp_path)) == 2


def test_a_fit_without_a_folder_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fit(Bowl(), *NOTHING, num_steps=60)
    assert not list(tmp_path.iterdir())
