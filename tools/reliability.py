"""Attacks on the files of cagp: kills, faults at every file operation, racing writers, forged files, hours of use.

    OMP_NUM_THREADS=1 python tools/reliability.py kills --count 1000
    OMP_NUM_THREADS=1 python tools/reliability.py stops
    OMP_NUM_THREADS=1 python tools/reliability.py races --seconds 60
    OMP_NUM_THREADS=1 python tools/reliability.py mutations --count 10000
    OMP_NUM_THREADS=1 python tools/reliability.py soak --minutes 30

Each prints what it did and what it found, and ends with exit code 1 if a promise of docs/reliability.md did not hold.
Work is done in processes that are forked after everything is imported: a kill falls into the work. Small cases run in
tests/test_reliability.py.
"""

import argparse
import builtins
import contextlib
import errno
import gc
import io
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pandas as pd
import torch

import cagp
from cagp import CaGPRegressor, files, storage
from cagp.cli import main as command
from cagp.estimators import GPRegressor
from cagp.memory import current_memory
from cagp.saved_summary import KIND, VERSION
from cagp.training import CHECKPOINT

torch.set_num_threads(1)  # forked processes have the thread that forked them, and no other

DONE, REFUSED, BROKEN, STOPPED = 0, 10, 11, 9
"""How a process ended: its work done; with an error that says why; with another error; stopped by a fault."""


def table(num_rows: int, seed: int = 0) -> pd.DataFrame:
    """Two numbers, a column of levels, and a target."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(rng.uniform(size=(num_rows, 2)), columns=["a", "b"])
    frame["c"] = rng.choice(["x", "y", "z"], num_rows)
    frame["y"] = np.sin(6 * frame["a"]) + frame["b"] + 0.1 * rng.normal(size=num_rows)
    return frame


def fitted(method: str = "local", num_rows: int = 60, **options: Any) -> GPRegressor:
    """A small model."""
    frame = table(num_rows)
    options = {"max_epochs": 2, "mean": "zero", **options}
    return CaGPRegressor(method, **options).fit(frame[["a", "b", "c"]], frame["y"])


def in_process(work: Callable[[], Any], limit: float | None = None) -> int:
    """The exit code of a forked process that does this; -SIGKILL after ``limit`` seconds."""
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        _child(work)
    end = None if limit is None else time.monotonic() + limit
    while True:
        ended, status = os.waitpid(child, 0 if end is None else os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if end is not None and time.monotonic() > end:
            os.kill(child, signal.SIGKILL)
            end = None
        time.sleep(0.001)


def _child(work: Callable[[], Any]) -> None:
    code = DONE
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        work()
    except (OSError, ValueError) as error:
        code = REFUSED if str(error) else BROKEN
    except BaseException:
        traceback.print_exc()
        code = BROKEN
    finally:
        os._exit(code)


def unfinished(folder: Path) -> list[str]:
    """Names of files that are being written, or were when a process was killed."""
    return [path.name for path in folder.rglob("*") if files.UNFINISHED.fullmatch(path.name)]


# ---- faults at file operations ----


class Faults:
    """Counts the file operations of a block; the one with number ``at`` fails, or stops the process.

    Args:
        how: an error number; "stop", which ends the process before the operation; or "torn", which ends it after half
            of a write.
    """

    FUNCTIONS = ("open", "fsync", "replace", "unlink", "chmod", "mkdir", "scandir", "stat", "rmdir")

    def __init__(self, folder: Path, at: int | None = None, how: int | str = "stop"):
        self.folder, self.at, self.how = str(folder), at, how
        self.count, self.names = 0, Counter()

    def concerns(self, path: Any) -> bool:
        """Whether an operation is one on the files of interest."""
        if isinstance(path, int):
            return True
        try:
            return os.path.abspath(os.fspath(path)).startswith(self.folder)
        except TypeError:
            return False

    def happen(self, name: str, torn: Callable[[], Any] | None = None) -> None:
        """Count an operation, and do what is to be done there."""
        self.count += 1
        self.names[name] += 1
        if self.count != self.at:
            return
        if isinstance(self.how, int):
            raise OSError(self.how, os.strerror(self.how))
        if self.how == "torn" and torn is not None:
            torn()
        os._exit(STOPPED)

    @contextlib.contextmanager
    def injected(self) -> Iterator["Faults"]:
        """Replace the functions that touch files, in this process."""
        faults, saved = self, {name: getattr(os, name) for name in self.FUNCTIONS}
        named_write, opened = files._Named.write, builtins.open

        def wrapped(name: str) -> Callable[..., Any]:
            def call(*arguments: Any, **options: Any) -> Any:
                if arguments and faults.concerns(arguments[0]):
                    faults.happen(name)
                return saved[name](*arguments, **options)

            return call

        def write(file: Any, content: Any) -> int:
            half = bytes(content)[: len(content) // 2]
            faults.happen("write", lambda: named_write(file, half))
            return named_write(file, content)

        class Read(io.FileIO):
            def readinto(self, buffer: Any) -> Any:
                faults.happen("read")
                return super().readinto(buffer)

            def readall(self) -> bytes:
                faults.happen("read")
                return super().readall()

        class Append(io.FileIO):
            def write(self, content: Any) -> Any:
                half = bytes(content)[: len(content) // 2]
                faults.happen("append", lambda: io.FileIO.write(self, half))
                return super().write(content)

        def open_file(path: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
            if isinstance(path, int) or not faults.concerns(path):
                return opened(path, mode, *arguments, **options)
            faults.happen("open")
            if mode == "rb":
                return io.BufferedReader(Read(path, "r"))
            if mode == "ab":
                return io.BufferedWriter(Append(path, "a"))
            return opened(path, mode, *arguments, **options)

        try:
            for name in self.FUNCTIONS:
                setattr(os, name, wrapped(name))
            files._Named.write = write  # pyright: ignore[reportAttributeAccessIssue]
            builtins.open = io.open = open_file  # pyright: ignore[reportAttributeAccessIssue]
            yield self
        finally:
            for name, function in saved.items():
                setattr(os, name, function)
            files._Named.write = named_write
            builtins.open = io.open = opened


class Case:
    """Work that writes files, and how to tell whether what is there is whole."""

    def __init__(self, name: str, folder: Path, work: Callable[[], Any], contents: Callable[[], Any]):
        self.name, self.folder, self.work, self.contents = name, folder, work, contents


def cases(folder: Path) -> list[Case]:
    """Saving in two ways, a fit with checkpoints, predictions and a report, each over an older result."""
    frame, old, new = table(60), fitted(), fitted(max_epochs=4)
    X = frame[["a", "b", "c"]]
    questions = folder / "questions.csv"
    X.to_csv(questions, index=False)

    def of_model(path: Path) -> Callable[[], Any]:
        return lambda: cagp.load(path).predict(X, return_std=True)[1].tobytes()

    found = []
    for rows in ("inside", "beside"):
        place = folder / f"save {rows}"
        place.mkdir()
        path = old.save(place / "m.cagp", rows=rows)
        found.append(Case(f"save, rows {rows}", place, lambda p=path, r=rows: new.save(p, rows=r), of_model(path)))

    place = folder / "checkpoints"
    place.mkdir()
    out = folder / "predict"
    out.mkdir()
    old.save(folder / "old.cagp")
    new.save(folder / "new.cagp")

    def predict(model: str, target: Path) -> None:
        _run(["predict", str(folder / model), str(questions), "--out", str(target), "--quiet"])

    for ending in ("csv", "parquet"):
        target = out / f"p.{ending}"
        predict("old.cagp", target)
        found.append(Case(f"predict, {ending}", out, lambda t=target: predict("new.cagp", t), target.read_bytes))

    page = folder / "report" / "r.html"
    page.parent.mkdir()
    old.report(X, frame["y"], page)
    found.append(
        Case("report", page.parent, lambda: new.report(X, frame["y"], page), lambda: len(page.read_bytes()) > 10_000)
    )

    def resume() -> None:
        fitted("opt", n_actions=6, max_epochs=60, checkpoint_dir=place)

    expected = fitted("opt", n_actions=6, max_epochs=60).predict(X).tobytes()

    def resumed() -> bool:
        return fitted("opt", n_actions=6, max_epochs=60, checkpoint_dir=place).predict(X).tobytes() == expected

    found.append(Case("checkpoint", place, resume, resumed))
    return found


def _run(arguments: list[str]) -> None:
    """A command; OSError with its words where it ends with exit code 1 or 2."""
    words = io.StringIO()
    with contextlib.redirect_stderr(words), contextlib.redirect_stdout(io.StringIO()):
        code = command(arguments)
    if code:
        raise OSError(f"exit code {code}: {words.getvalue()}")


def stops(most: int | None = None, only: str = "") -> int:
    """Let every single file operation fail or stop the process, one after the other; the number of broken promises.

    Args:
        most: operations of each case, drawn at random; None for all.
        only: a part of the names of cases.
    """
    bad = total = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for case in (case for case in cases(folder) if only in case.name):
            kept = folder / "kept"
            shutil.copytree(case.folder, kept, dirs_exist_ok=True)
            before = case.contents() if case.name != "checkpoint" else True

            def restore(case: Case = case, kept: Path = kept) -> None:
                shutil.rmtree(case.folder)
                shutil.copytree(kept, case.folder)

            restore()
            with Faults(case.folder).injected() as counted:
                case.work()
            after, outcomes = case.contents(), Counter()
            ways: list[int | str] = ["stop", "torn", errno.ENOSPC, errno.EIO, errno.EACCES]
            numbers = range(1, counted.count + 1)
            if most is not None and counted.count > most:
                numbers = sorted(random.Random(0).sample(numbers, most))
            for number in numbers:
                for how in ways if most is None else random.Random(number).sample(ways, 1):
                    restore()

                    def work(case: Case = case, number: int = number, how: int | str = how) -> None:
                        with Faults(case.folder, number, how).injected():
                            case.work()

                    code = in_process(work, 120)
                    total += 1
                    found = None
                    with contextlib.suppress(Exception):
                        found = case.contents()
                    whole = found is not None and found in (before, after)
                    if isinstance(how, int) and unfinished(case.folder):
                        whole = False  # an error leaves nothing behind, but a stop does
                    if code not in (DONE, REFUSED, STOPPED) or not whole:
                        bad += 1
                        print(f"{case.name}: operation {number}, {how}: exit code {code}, whole {whole}")
                    outcomes["new" if found == after else "old"] += 1
                    case.work() if code == STOPPED else None  # the next writer clears up
                    if unfinished(case.folder):
                        bad += 1
                        print(f"{case.name}: operation {number}, {how}: leaves {unfinished(case.folder)}")
            shutil.rmtree(kept)
            print(
                f"{case.name}: {counted.count} operations {dict(counted.names)}; afterwards {dict(outcomes)}",
                flush=True,
            )
    print(f"{total:,} faults, {bad} broken promises")
    return bad


# ---- kills ----


def kills(count: int, seed: int = 0) -> int:
    """Kill ``cagp fit --resume``, ``cagp predict`` and ``save`` at random moments; the number of broken promises."""
    rng, bad = random.Random(seed), 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        frame = table(60)
        frame.to_csv(folder / "t.csv", index=False)
        X = frame[["a", "b", "c"]]
        options = ["fit", str(folder / "t.csv"), "--target", "y", "--method", "opt", "--n-actions", "4", "--resume"]
        options += ["--max-epochs", "120", "--quiet", "--out"]

        def fit(path: Path) -> None:
            _run([*options, str(path)])

        fit(folder / "first.cagp")  # now everything is imported
        start = time.monotonic()
        assert in_process(lambda: fit(folder / "whole.cagp")) == DONE
        life = time.monotonic() - start
        expected = cagp.load(folder / "whole.cagp").predict(X, return_std=True)[1].tobytes()
        done, after_checkpoint, ended_before, results = 0, 0, 0, 0
        path = folder / "m.cagp"
        while done < int(0.6 * count):
            for _ in range(rng.randint(1, 5)):
                code = in_process(lambda: fit(path), rng.uniform(0, 1.05 * life))
                if code == DONE:
                    ended_before += 1
                    life *= 0.95
                    break
                done += 1
                has_checkpoint = any(folder.glob(f"m.cagp.checkpoints/**/{CHECKPOINT}"))
                after_checkpoint += has_checkpoint
                if code != -signal.SIGKILL or (path.exists() and cagp.load(path) is None):
                    bad += 1
                    print(f"fit: exit code {code}")
            start, fresh = time.monotonic(), not any(folder.glob("m.cagp.checkpoints/*"))
            code = in_process(lambda: fit(path))
            life = min(life, time.monotonic() - start) if fresh else life  # the first run of all is slower
            results += 1
            found = cagp.load(path).predict(X, return_std=True)[1].tobytes()
            if code != DONE or found != expected or unfinished(folder):
                bad += 1
                print(f"fit: exit code {code}, identical {found == expected}, left {unfinished(folder)}")
            path.unlink()
        print(
            f"fit --resume ({life:.2f} s): {done} kills, {after_checkpoint} of them after the first checkpoint; "
            f"{results} results compared; {ended_before} runs ended before their kill",
            flush=True,
        )

        old, new = fitted(), fitted(max_epochs=4)
        pd.concat([X] * 30).to_csv(folder / "q.csv", index=False)
        old.save(folder / "old.cagp")
        new.save(folder / "new.cagp")
        out, model = folder / "p.csv", folder / "s.cagp"

        def predict(which: str) -> None:
            _run(["predict", str(folder / which), str(folder / "q.csv"), "--out", str(out), "--quiet"])

        def save(which: GPRegressor) -> None:
            for _ in range(20):  # most of the life of one is over before a kill can reach it
                which.save(model, rows="beside")

        def of_model() -> bytes:
            return cagp.load(model).predict(X, return_std=True)[1].tobytes()

        works = (("predict --out", predict, "old.cagp", "new.cagp", out.read_bytes), ("save", save, old, new, of_model))
        for what, work, first, second, contents in works:
            wanted = []
            for which in (first, second):
                work(which)  # pyright: ignore[reportArgumentType]
                wanted.append(contents())
            start = time.monotonic()
            in_process(lambda w=work, s=second: w(s))  # pyright: ignore[reportArgumentType]
            life, done, states = time.monotonic() - start, 0, Counter()
            while done < int(0.2 * count):
                which = rng.choice([first, second])
                code = in_process(lambda w=work, x=which: w(x), rng.uniform(0, life))  # pyright: ignore
                done += code == -signal.SIGKILL
                found = contents()
                states["old" if found == wanted[0] else "new"] += 1
                if found not in wanted or code not in (DONE, -signal.SIGKILL):
                    bad += 1
                    print(f"{what}: exit code {code}, whole {found in wanted}")
            work(first)  # pyright: ignore[reportArgumentType]
            bad += len(unfinished(folder))
            print(f"{what} ({life:.2f} s): {done} kills; afterwards {dict(states)}, all whole", flush=True)
    print(f"{bad} broken promises")
    return bad


# ---- races ----


def races(seconds: float, writers: tuple[int, ...] = (2, 8)) -> int:
    """Processes that save to one path at once: what is there is one of their models, whole; the broken promises."""
    bad = 0
    X = table(60)[["a", "b", "c"]]
    for rows in ("inside", "beside"):
        for number in writers:
            with tempfile.TemporaryDirectory() as name:
                path = Path(name) / "m.cagp"
                models = [fitted(max_epochs=1 + j) for j in range(number)]
                answers = [model.predict(X).tobytes() for model in models]
                children, end = [], time.monotonic() + seconds / (2 * len(writers))

                def write(j: int, models: list[Any] = models, path: Path = path, rows: str = rows) -> None:
                    saves = 0
                    while time.monotonic() < end:  # noqa: B023
                        models[j].save(path, rows=rows)
                        if cagp.load(path).predict(X).tobytes() not in answers:  # noqa: B023
                            raise RuntimeError("what was loaded is none of the models")
                        saves += 1
                    (path.parent / f"count-{j}").write_text(str(saves))

                for j in range(number):
                    child = os.fork()
                    if child == 0:
                        _child(lambda j=j: write(j))
                    children.append(child)
                codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
                saves = sum(int((path.parent / f"count-{j}").read_text()) for j, code in enumerate(codes) if code == 0)
                final = cagp.load(path).predict(X).tobytes() in answers
                left = unfinished(path.parent)
                bad += sum(code != DONE for code in codes) + (not final) + len(left)
                print(
                    f"{number} writers, rows {rows}: {saves:,} saves, each loaded whole; exit codes {codes}; at the "
                    f"end one of their models {final}; left {left}",
                    flush=True,
                )
    print(f"{bad} broken promises")
    return bad


# ---- forged files ----

STRANGE = [None, True, -1, 0, 3, 2**40, 10**30, 0.0, -0.5, 1e300, float("nan"), float("inf"), "", "x", "U100000000"]
STRANGE += [[], {}, [[]], ["a", "a"], {"a": 1}, "../../etc/passwd", "float64", "object", "levels", "exact"]


NUMBERS = [0.0, -1.0, float("nan"), float("inf"), 1e300, 1e-300, -1e30]


def _mutated(value: Any, rng: random.Random) -> Any:
    """A value like this one, and different."""
    if isinstance(value, torch.Tensor):
        kind = rng.randrange(6)
        if kind == 0 and value.numel():
            value = value.clone()
            raw = value.view(-1) if value.is_contiguous() else value.reshape(-1)
            strange = (
                [0, -1, 1, 2**31, 10**9]
                if not value.is_floating_point()
                else [0.0, -1.0, np.nan, np.inf, 1e300, 1e-300, -1e30]
            )
            if value.dtype != torch.bool:
                raw[rng.randrange(len(raw))] = _within(rng.choice(strange), value.dtype)
            return raw.view(value.shape)
        if kind == 1:
            return value.to(rng.choice([torch.float32, torch.float64, torch.int64, torch.float16, torch.bool]))
        if kind == 2:
            return value.reshape(-1)[: rng.randrange(value.numel() + 1)]
        if kind == 3:
            return torch.cat([value.reshape(-1)] * 2)
        if kind == 4 and value.is_floating_point():
            return value * rng.choice([0.0, -1.0, 1e30, 1e-30, 1.5])
        return rng.choice(STRANGE)
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return rng.choice(STRANGE)
    if isinstance(value, int | float):
        return rng.choice([*STRANGE, value + 1, -value, value * 2, value * 1e10])
    if isinstance(value, list):
        return rng.choice([value[:-1], value + value, [*value, None], [], *STRANGE])
    if isinstance(value, dict) and value:
        key = rng.choice(list(value))
        smaller = {k: v for k, v in value.items() if k != key}
        return rng.choice([smaller, {**value, key: rng.choice(STRANGE)}, {**value, "more": 1}, *STRANGE])
    return rng.choice(STRANGE)


def _within(number: float, dtype: torch.dtype) -> float:
    """The number as a value of this dtype: infinite, or the nearest integer, where it has no such value."""
    if dtype.is_floating_point:
        return torch.tensor(number, dtype=torch.float64).to(dtype).item()
    about = torch.iinfo(dtype)
    return max(about.min, min(about.max, int(number)))


def _places(state: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths to all values of a state; of long lists, to the first few."""
    found = [place] if place else []
    if isinstance(state, dict):
        return found + [p for key, value in state.items() for p in _places(value, (*place, key))]
    if isinstance(state, list):
        return found + [p for key, value in enumerate(state[:3]) for p in _places(value, (*place, key))]
    return found


def _with(state: Any, place: tuple[Any, ...], change: Callable[[Any], Any]) -> Any:
    if not place:
        return change(state)
    copy = dict(state) if isinstance(state, dict) else list(state)
    copy[place[0]] = _with(copy[place[0]], place[1:], change)
    return copy


def _damaged(content: bytes, rng: random.Random) -> bytes:
    place, size = rng.randrange(len(content)), rng.choice([1, 2, 8, 64, 1000])
    return rng.choice(
        [
            content[:place] + bytes([content[place] ^ rng.randrange(1, 256)]) + content[place + 1 :],
            content[:place],
            content[:place] + rng.randbytes(size) + content[place:],
            content + rng.randbytes(size),
            content[:place] + content[place + size :],
        ]
    )


def mutations(count: int, seed: int = 0, megabytes: int = 1500, seconds: int = 5) -> int:
    """Damaged and forged models and checkpoints: ValueError, or finite answers; the number of broken promises.

    Args:
        megabytes: of further address space, for each file.
        seconds: of processor time for each file, which other work on the machine does not change.
    """
    outcomes: Counter[str] = Counter()
    bad = []
    X = table(20, seed=1)[["a", "b", "c"]]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sources = []
        makers: list[tuple[str, dict[str, Any]]] = [
            ("local", {}),
            ("exact", {}),
            ("opt", {"n_actions": 6}),
            ("hybrid", {"n_actions": 6}),
            ("cg", {"n_actions": 6}),
            ("sgpr", {"n_inducing": 8}),
            ("svgp", {"n_inducing": 8}),
            ("cggp", {}),
            ("local", {"mean": "trees"}),
        ]
        for j, (method, options) in enumerate(makers):
            path = fitted(method, **options).save(folder / f"{j}.cagp")
            sources.append((path, KIND, VERSION))
        fitted("opt", n_actions=6, max_epochs=60, checkpoint_dir=folder / "c")
        checkpoint = next((folder / "c").rglob(CHECKPOINT))
        sources += [(checkpoint, "checkpoint", 2)] * 3

        def answer(path: Path, kind: str) -> None:
            warnings.simplefilter("ignore")
            if kind == KIND:
                model = cagp.load(path)
                mean, std = model.predict(X, return_std=True)
                str([model.fit_report_, model.kernel_parts_, model.noise_std_, model.guarantee_])
            else:
                model = fitted("opt", n_actions=6, max_epochs=60, checkpoint_dir=folder / "c")
                mean, std = model.predict(X, return_std=True)
            if model.checkpoint_dir not in (None, folder / "c"):
                raise RuntimeError("a file says where a later fit writes")
            if not (np.isfinite(mean).all() and np.isfinite(std).all() and (std > 0).all()):
                raise ArithmeticError("an answer is not finite, or a deviation not positive")

        def limited(path: Path, kind: str, errors: Path) -> None:
            resource.setrlimit(resource.RLIMIT_AS, (_virtual() + megabytes * 2**20, resource.RLIM_INFINITY))
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
            try:
                answer(path, kind)
            except (ValueError, FileNotFoundError):
                raise
            except BaseException as error:
                errors.write_text(f"{type(error).__name__}: {error}")
                os._exit(BROKEN)

        for number in range(count):
            rng = random.Random(f"{seed} {number}")
            path, kind, version = rng.choice(sources)
            content = path.read_bytes()
            target = path if kind == "checkpoint" else folder / "forged.cagp"
            errors = folder / "error"
            errors.unlink(missing_ok=True)
            what = "damaged"
            history = path.with_name("history.jsonl")
            lines = history.read_bytes() if history.exists() else None
            if number % 2:
                state = storage.load_state(path, kind, version)
                for _ in range(rng.choice([1, 1, 1, 2, 3])):
                    place = rng.choice(_places(state))
                    what = f"forged {'.'.join(map(str, place))}"
                    state = _with(state, place, lambda value: _mutated(value, rng))  # noqa: B023
                with contextlib.suppress(Exception):
                    storage.save_state(target, state, kind, version)
            else:
                target.write_bytes(_damaged(content, rng))
            code = in_process(lambda: limited(target, kind, errors), 20 * seconds)  # noqa: B023
            word = {DONE: "answered", REFUSED: "ValueError"}.get(code, "broken")
            outcomes[
                f"{'forged' if number % 2 else 'damaged'} {'model' if kind == KIND else 'checkpoint'}: {word}"
            ] += 1
            if word == "broken":
                why = errors.read_text()[:300] if errors.exists() else f"exit code {code}"
                bad.append(f"{number}: {path.name}, {what}: {why}")
                print(bad[-1], flush=True)
            if number % 500 == 499:
                print(f"{number + 1:,} of {count:,} files, {len(bad)} broken promises so far", flush=True)
            if kind == "checkpoint":
                target.write_bytes(content)
                if lines is not None:
                    history.write_bytes(lines)
    for outcome, times in sorted(outcomes.items()):
        print(f"{outcome}: {times:,}")
    print(f"{count:,} files, {len(bad)} broken promises")
    return len(bad)


def _virtual() -> int:
    """Bytes of address space that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


# ---- hours ----


def soak(minutes: float) -> int:
    """Fit, predict, save and load in one process; 1 if memory keeps growing."""
    frame, rounds, began, sizes = table(200), 0, time.monotonic(), []
    X = frame[["a", "b", "c"]]
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "m.cagp"
        while time.monotonic() - began < 60 * minutes:
            method = ("local", "exact", "opt", "hybrid")[rounds % 4]
            model = CaGPRegressor(method, max_epochs=2, mean="zero", random_state=rounds).fit(X, frame["y"])
            model.predict(X, return_std=True)
            model.save(path, rows=("inside", "beside")[rounds // 4 % 2])
            cagp.load(path).predict(X)
            rounds += 1
            if rounds % 50 == 0:
                gc.collect()
                sizes.append(current_memory())
    first, last = np.mean(sizes[len(sizes) // 4 : len(sizes) // 2]), np.mean(sizes[3 * len(sizes) // 4 :])
    growth = (last - first) / 1e6
    print(
        f"{rounds:,} rounds in {(time.monotonic() - began) / 60:.0f} minutes: memory {first / 1e6:.1f} MB in the "
        f"second quarter, {last / 1e6:.1f} MB in the last ({growth:+.1f} MB)"
    )
    return int(growth > 20)


def main() -> int:
    """Run one of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_subparsers(dest="what", required=True)
    for name, options in {
        "kills": {"count": 1000},
        "stops": {"most": None},
        "races": {"seconds": 240.0},
        "mutations": {"count": 10_000},
        "soak": {"minutes": 30.0},
    }.items():
        sub = what.add_parser(name)
        for option, default in options.items():
            sub.add_argument(f"--{option}", type=float if isinstance(default, float) else int, default=default)
        if name == "stops":
            sub.add_argument("--only", default="")
        if name in ("kills", "mutations"):
            sub.add_argument("--seed", type=int, default=0)
    arguments = vars(parser.parse_args())
    return int(globals()[arguments.pop("what")](**arguments) > 0)


if __name__ == "__main__":
    sys.exit(main())
