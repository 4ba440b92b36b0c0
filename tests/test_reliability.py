"""What files survive: faults, kills, other writers, forgers. tools/reliability.py does the same in large numbers."""

import errno
import hashlib
import importlib.util
import os
import resource
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import cagp
from cagp import files
from cagp.cli import main
from cagp.files import checked_destination, locked_folder, replacing, write_atomically
from cagp.saved_summary import KIND, VERSION
from cagp.storage import DIGEST, _header, load_state, save_state
from cagp.training.history import History, Step

TOOL = Path(__file__).resolve().parents[1] / "tools" / "reliability.py"
spec = importlib.util.spec_from_file_location("reliability", TOOL)
assert spec is not None
assert spec.loader is not None
reliability = importlib.util.module_from_spec(spec)
spec.loader.exec_module(reliability)

MORE = int(os.environ.get("CAGP_ATTACKS", "1"))
"""How many times as many attacks as usual."""

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals, forks and locks are those of POSIX")


@pytest.fixture(scope="module")
def model():
    return reliability.fitted()


# ---- attacks ----


@pytest.mark.slow
def test_damaged_and_forged_files_are_refused_or_answer(capsys):
    assert reliability.mutations(40 * MORE) == 0, capsys.readouterr().out


@pytest.mark.slow
def test_a_fault_at_any_file_operation_leaves_the_old_file_or_the_new_one(capsys):
    assert reliability.stops(most=3 * MORE) == 0, capsys.readouterr().out


@pytest.mark.slow
def test_racing_writers_leave_a_whole_file(capsys):
    assert reliability.races(4.0 * MORE) == 0, capsys.readouterr().out


@pytest.mark.slow
def test_kills_at_random_moments_lose_nothing(capsys):
    assert reliability.kills(10 * MORE) == 0, capsys.readouterr().out


# ---- names, links, devices ----


def test_files_of_the_user_stay_and_those_of_killed_writers_go(tmp_path):
    mine = tmp_path / "m.part"
    mine.write_text("mine")
    left, living = tmp_path / ".cagp-0123456789abcdef.part", tmp_path / "other"
    left.write_text("left behind")
    with replacing(living) as file:
        file.write(b"1")
        (part,) = (path for path in tmp_path.glob(".cagp-*") if path != left)
        write_atomically(tmp_path / "m", b"new")
        assert part.exists()
        assert not left.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m", "m.part", "other"]
    assert mine.read_text() == "mine"


def test_links_stay_and_lead_to_the_new_file(tmp_path):
    (tmp_path / "far").mkdir()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "far" / "file")
    for content in (b"one", b"two"):  # first there is no file behind the link
        write_atomically(link, content)
        assert link.is_symlink()
        assert (tmp_path / "far" / "file").read_bytes() == content
    round_trip = tmp_path / "circle"
    round_trip.symlink_to(round_trip)
    with pytest.raises(OSError, match="circle cannot be written"):
        write_atomically(round_trip, b"")


@pytest.mark.parametrize("path", ["/dev/null", "pipe"])
def test_devices_and_pipes_stay(path, tmp_path, model, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    before = os.stat(path).st_mode
    for write in (lambda: write_atomically(path, b"x"), lambda: model.save(path)):
        with pytest.raises(ValueError, match="is a device, a pipe or a socket"):
            write()
    with pytest.raises(ValueError, match=r"cannot be written|is a device"):
        cagp.data.TableWriter(path)  # pyright: ignore[reportAttributeAccessIssue]
    assert os.stat(path).st_mode == before


def test_a_new_file_has_the_permissions_of_the_old_one(tmp_path):
    write_atomically(tmp_path / "m", b"1")
    os.chmod(tmp_path / "m", 0o600)
    write_atomically(tmp_path / "m", b"2")
    assert stat.S_IMODE(os.stat(tmp_path / "m").st_mode) == 0o600


def test_a_folder_that_vanishes_is_named(tmp_path):
    folder = tmp_path / "gone"
    folder.mkdir()

    def write():
        with replacing(folder / "file") as file:
            file.write(b"1")
            next(folder.glob(".cagp-*")).unlink()
            folder.rmdir()

    with pytest.raises(FileNotFoundError, match="file cannot be written: No such file"):
        write()
    with pytest.raises(FileNotFoundError, match=r"the folder .*gone does not exist; create it first"):
        checked_destination(folder / "file")


def test_a_full_disk_is_named_and_the_old_file_stays(tmp_path, model):
    path = model.save(tmp_path / "m.cagp")
    before = path.read_bytes()

    def write() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        with pytest.raises(OSError, match=r"m\.cagp cannot be written: File too large") as caught:
            model.save(path)
        assert caught.value.errno == errno.EFBIG

    assert reliability.in_process(write) == reliability.DONE
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["m.cagp"]


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root can become another user")
def test_a_folder_without_permission_is_named(tmp_path, model):
    path = model.save(tmp_path / "m.cagp")
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == 0 and str(folder).startswith("/tmp/"):
            os.chmod(folder, 0o755)

    def write() -> None:
        os.setuid(65534)
        with pytest.raises(
            PermissionError, match=r"m\.cagp cannot be written: Permission denied; check the permissions"
        ):
            model.save(path)

    assert reliability.in_process(write) == reliability.DONE
    assert os.listdir(tmp_path) == ["m.cagp"]


# ---- checkpoints ----


def test_a_second_fit_in_the_same_folder_is_told(tmp_path):
    frame = reliability.table(60)
    regressor = cagp.CaGPRegressor("opt", n_actions=4, max_epochs=3, mean="zero", checkpoint_dir=tmp_path)
    regressor.fit(frame[["a", "b"]], frame["y"])
    (checkpoint,) = tmp_path.rglob("checkpoint.safetensors")
    with (
        locked_folder(checkpoint.parent, "this test"),
        pytest.raises(ValueError, match="is in use by another fit; wait for it, or choose another folder"),
    ):
        regressor.fit(frame[["a", "b"]], frame["y"])
    regressor.fit(frame[["a", "b"]], frame["y"])


def test_a_second_command_is_told_and_changes_nothing(tmp_path, capsys):
    reliability.table(60).to_csv(tmp_path / "t.csv", index=False)
    folder = tmp_path / "m.cagp.checkpoints"
    folder.mkdir()
    with locked_folder(folder, "this test"):
        assert main(["fit", str(tmp_path / "t.csv"), "--target", "y", "--out", str(tmp_path / "m.cagp")]) == 1
        assert "is in use by another fit" in capsys.readouterr().err
        assert (folder / files.LOCK).exists()


def step(number: int) -> Step:
    return Step(number, 1.0, {"a": 1.0}, {"b": 0.1}, 1.0, {"c": [1.0]}, 0.1)


def test_a_doubled_history_is_noticed(tmp_path):
    history = History(tmp_path / "history.jsonl")
    history.write()
    for number in (1, 2, 3):
        history.append(step(number))
    history.sync()
    lines = (tmp_path / "history.jsonl").read_bytes()
    (tmp_path / "history.jsonl").write_bytes(lines[: len(lines) // 3] + lines)
    with pytest.raises(ValueError, match="another fit writes to it, too"):
        history.sync()
    with pytest.raises(ValueError, match="step 1 is where step 2 should be; two fits may have written to it"):
        History(tmp_path / "history.jsonl").load(3)


def test_a_history_that_ctrl_c_left_short_is_completed(tmp_path):
    history = History(tmp_path / "history.jsonl")
    history.write()
    history.append(step(1))
    history.steps.append(step(2))  # Ctrl-C came before it was written
    history.sync()
    again = History(tmp_path / "history.jsonl")
    again.load(2)
    assert again.steps == [step(1), step(2)]


# ---- what a file can make loading do ----


def test_references_to_one_tensor_take_its_memory_once(tmp_path):
    path = tmp_path / "file"
    save_state(path, {"all": [torch.zeros(10_000, dtype=torch.float64)] * 5_000}, KIND, VERSION)
    assert path.stat().st_size < 3e5  # copies would take 400 MB
    back = load_state(path, KIND, VERSION)["all"]
    assert len(back) == 5_000
    assert len({tensor.data_ptr() for tensor in back}) == 1


def test_kernels_with_more_parameters_than_the_file_means_are_refused(tmp_path, model):
    path = model.save(tmp_path / "m.cagp")
    state = load_state(path, KIND, VERSION)
    kernel = state["posteriors"][0]["prior"]["kernel"]
    big = {**kernel["parts"][0], "tensors": {"raw_lengthscale": torch.zeros(50_000, dtype=torch.float64)}}
    many = {"class": "Sum", "own": False, "tensors": {}, "floors": {}, "parts": [big] * 1000}
    state["posteriors"][0]["prior"]["kernel"] = many
    save_state(path, state, KIND, VERSION)
    assert path.stat().st_size < 3e6
    with pytest.raises(ValueError, match=r"m\.cagp cannot be loaded: .*far more parameters"):
        cagp.load(path)


def test_a_header_that_would_take_gigabytes_is_refused_before_it_is_parsed(tmp_path):
    tree = "[" + "[]," * 3_000_000 + "[]]"
    header = _header({"kind": KIND, "version": str(VERSION), "state": tree}, [])
    place = DIGEST
    digest = hashlib.blake2b(header[: place.start] + header[place.stop :], digest_size=16).hexdigest().encode()
    path = tmp_path / "file"
    path.write_bytes(header[: place.start] + digest + header[place.stop :])
    with pytest.raises(ValueError, match="its tree is far larger than cagp writes one"):
        load_state(path, KIND, VERSION, tensors=False)


FORGED = {
    "a dtype of gigabytes": ({"target_dtype": "U100000000"}, "target_dtype"),
    "a scale of zero": (("scaler", "target_std", 0.0), "target_std"),
    "an infinite mean": (("scaler", "input_mean", float("inf")), "input_mean"),
    "an unknown method": ({"methods": ["x"]}, "methods"),
    "a wrong number of rows": ({"num_rows": -1}, "num_rows"),
    "no targets": ({"target_names": []}, "target_names"),
    "a report that is none": ({"report": None}, "report"),
}


@pytest.mark.parametrize("name", FORGED)
def test_values_that_save_does_not_write_are_refused(name, tmp_path, model):
    path = model.save(tmp_path / "m.cagp")
    state = load_state(path, KIND, VERSION)
    change, word = FORGED[name]
    if isinstance(change, dict):
        state.update(change)
    else:
        part, key, value = change
        state[part][key] = torch.full_like(state[part][key], value)
    save_state(path, state, KIND, VERSION)
    with pytest.raises(ValueError, match=rf"m\.cagp cannot be loaded: the state does not have '{word}' as cagp"):
        cagp.load(path)


def test_a_file_does_not_say_where_a_later_fit_writes(tmp_path):
    frame = reliability.table(60)
    folder = tmp_path / "checkpoints"
    regressor = reliability.fitted(checkpoint_dir=folder)
    path = regressor.save(tmp_path / "m.cagp")
    state = load_state(path, KIND, VERSION)
    assert "checkpoint_dir" not in state["parameters"]
    state["parameters"]["checkpoint_dir"] = str(tmp_path / "forged")
    save_state(path, state, KIND, VERSION)
    loaded = cagp.load(path)
    assert loaded.checkpoint_dir is None
    loaded.fit(frame[["a", "b", "c"]], frame["y"])
    assert not (tmp_path / "forged").exists()


# ---- rows beside ----


def test_a_kill_between_two_files_loses_neither_model(tmp_path, model, monkeypatch):
    from cagp.estimators import saved

    X = reliability.table(60)[["a", "b", "c"]]
    other = reliability.fitted(num_rows=50)
    path = model.save(tmp_path / "m.cagp", rows="beside")

    def killed(*_):
        raise KeyboardInterrupt

    for name, expected in (("save_state", model), ("rename_durably", other)):
        original, calls = getattr(saved, name), []

        def at_the_model(*arguments, original=original, calls=calls, name=name):
            calls.append(arguments)
            return killed() if name == "rename_durably" or len(calls) == 2 else original(*arguments)

        with monkeypatch.context() as patch:
            patch.setattr(saved, name, at_the_model)
            with pytest.raises(KeyboardInterrupt):
                other.save(path, rows="beside")
        assert (tmp_path / "m.cagp.rows.new").exists()
        np.testing.assert_array_equal(cagp.load(path).predict(X), expected.predict(X))
    model.save(path, rows="beside")
    assert sorted(os.listdir(tmp_path)) == ["m.cagp", "m.cagp.rows"]
    np.testing.assert_array_equal(cagp.load(path).predict(X), model.predict(X))


# ---- signals ----

START = "import sys; print('ready', flush=True); from cagp.__main__ import main; sys.exit(main())"


@pytest.mark.parametrize("delay", [0.0, 0.05, 0.3])
def test_ctrl_c_during_start_up_prints_no_traceback(delay, tmp_path):
    arguments = ["fit", str(tmp_path / "none.csv"), "--target", "y"]
    process = subprocess.Popen(
        [sys.executable, "-c", START, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    time.sleep(delay)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    if process.returncode == 130:
        assert errors == "cagp: interrupted\n"
    else:  # it came after the command, or before the first line of it
        assert process.returncode in (1, 2, -signal.SIGINT)
        assert "Traceback" not in errors or 'File "<string>", line 1, in <module>' in errors


@pytest.mark.slow
@pytest.mark.parametrize(("which", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_signals_in_training_and_in_writing(which, code, tmp_path, monkeypatch, capsys):
    frame = reliability.table(60)
    frame.to_csv(tmp_path / "t.csv", index=False)
    options = ["fit", str(tmp_path / "t.csv"), "--target", "y", "--method", "opt", "--n-actions", "4", "--quiet"]
    options += ["--max-epochs", "70", "--out"]
    assert main([*options, str(tmp_path / "whole.cagp")]) == 0
    append, out = History.append, tmp_path / "m.cagp"

    def signalled(history, step):
        append(history, step)
        if step.number == 60:
            os.kill(os.getpid(), which)

    with monkeypatch.context() as patch:
        patch.setattr(History, "append", signalled)
        assert main([*options, str(out)]) == code
    words = capsys.readouterr().err
    assert ("terminated; what is not finished was not written" in words) == (which == signal.SIGTERM)
    assert main([*options, str(out), "--resume"]) == 0
    X = frame[["a", "b", "c"]]
    np.testing.assert_array_equal(cagp.load(out).predict(X), cagp.load(tmp_path / "whole.cagp").predict(X))

    write = files._Named.write

    def in_writing(file, content):
        os.kill(os.getpid(), which)
        return write(file, content)

    predictions = tmp_path / "p.csv"
    predictions.write_text("old")
    with monkeypatch.context() as patch:
        patch.setattr(files._Named, "write", in_writing)
        assert main(["predict", str(out), str(tmp_path / "t.csv"), "--out", str(predictions), "--quiet"]) == code
    assert predictions.read_text() == "old"
    assert reliability.unfinished(tmp_path) == []
    assert len(pd.read_csv(tmp_path / "t.csv")) == 60
