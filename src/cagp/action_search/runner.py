"""A search: runs the missing trials, each in a process of its own, a few at a time. Finished trials are kept."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from cagp.action_search.search_result import SearchResult, Trial
from cagp.action_search.trial import INTERRUPTED, TASK, read_trial, rows_of, trial_path
from cagp.checks import check_count, check_data
from cagp.data.scaling import without_missing
from cagp.files import locked_folder
from cagp.kernel_registry import NAMES
from cagp.training import Settings
from cagp.training.checkpoints import load_checkpoint, not_whole, save_checkpoint

POLL_SECONDS = 0.05
pause = time.sleep
GRACE_SECONDS = 10.0  # for a fit to write its checkpoint after Ctrl-C


def search_num_actions(
    X: Float[Tensor, "n d"],
    y: Float[Tensor, " n"],
    *,
    folder: Path | str,
    num_actions: Sequence[int] = (64, 128, 256, 512),
    lrs: Sequence[float] = (0.1, 0.2),
    kernel: str = "matern32",
    seed: int = 0,
    num_steps: int = 300,
    max_time: float | str | None = None,
    dtype: torch.dtype | None = None,
    jobs: int = 1,
    progress: bool = False,
) -> SearchResult:
    """Fit CaGP-Opt with every number of actions and every learning rate, and judge each on a tenth of the rows.

    The rows are split by ``seed``; inputs and targets are standardised with the training rows. Each trial runs in a
    process of its own. A trial that raises an error is a row with that error. So is a trial whose process crashes; the
    next call tries it again. A call with the same arguments runs what is missing in ``folder`` and resumes interrupted
    fits from their checkpoints. A call with more numbers of actions or rates runs the new ones only.

    Args:
        folder: where trials are kept, for one table and one choice of kernel, seed, steps, time and dtype.
        lrs: learning rates of the hyperparameters; the actions have their default rate.
        kernel: the name of a stationary kernel, e.g. "matern32"; it is scaled, with one lengthscale per input.
        num_steps: of each fit.
        max_time: of each fit, e.g. "10min".
        dtype: what trials compute in; None for the dtype of ``X``.
        jobs: trials at a time; torch's threads are divided between them. Times are comparable for equal ``jobs``.
        progress: print a line to stderr whenever a trial ends.
    """
    check_data(without_missing(X), y)
    rows = rows_of(len(y), seed)
    if not num_actions or not lrs:
        raise ValueError("num_actions and lrs need at least one value each.")
    for count in num_actions:
        check_count(count, "num_actions", len(rows.train), "the number of rows to train on")
    if not all(rate > 0 for rate in lrs):
        raise ValueError(f"lrs are {list(lrs)}, expected rates above zero.")
    if kernel not in NAMES:
        raise ValueError(f"kernel is {kernel!r}, expected one of {', '.join(NAMES)}.")
    if jobs < 1:
        raise ValueError(f"jobs is {jobs}, expected at least 1.")
    Settings(num_steps=num_steps, max_time=max_time)  # checks them
    dtype = X.dtype if dtype is None else dtype
    if dtype not in (torch.float32, torch.float64):
        raise ValueError(f"dtype is {dtype}, expected torch.float32 or torch.float64.")
    settings = {"kernel": kernel, "seed": seed, "num_steps": num_steps, "max_time": max_time}
    settings["dtype"] = str(dtype).removeprefix("torch.")

    folder = Path(folder)
    (folder / "trials").mkdir(parents=True, exist_ok=True)
    combinations = [(i, float(lr)) for i in sorted(set(num_actions)) for lr in sorted(set(lrs))]
    with locked_folder(folder, "another search"):
        _prepare(folder, X, y, settings)
        crashes = _run_missing(folder, combinations, jobs, progress)
    trials = [crashes[c] if c in crashes else read_trial(trial_path(folder, *c)) for c in combinations]
    return SearchResult(trials, folder, len(rows.train))


def _prepare(folder: Path, X: Tensor, y: Tensor, settings: dict[str, Any]) -> None:
    """Write the task for the trials, or make sure that the one in the folder is the same."""
    path = folder / TASK
    X, y = X.detach().cpu(), y.detach().cpu()
    if not path.exists():
        save_checkpoint(path, {"settings": settings, "X": X, "y": y})
        return
    task = load_checkpoint(path)
    stored = task.get("settings")
    if not isinstance(stored, dict) or not all(isinstance(task.get(name), Tensor) for name in ("X", "y")):
        raise not_whole(path, "it has no data or no settings")
    differences = [f"{k} = {stored.get(k)!r}, not {v!r}" for k, v in settings.items() if stored.get(k) != v]
    if not (_same(task["X"], X) and _same(task["y"], y)):
        differences.insert(0, "other data")
    if differences:
        raise ValueError(
            f"{folder} belongs to another search ({'; '.join(differences)}); choose another folder, or delete it to "
            "start from scratch."
        )


def _same(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and torch.equal(a, b)


# ---- processes ----

Combination = tuple[int, float]


class _Running(NamedTuple):
    process: subprocess.Popen[bytes]
    log: Path


def _run_missing(folder: Path, combinations: list[Combination], jobs: int, progress: bool) -> dict[Combination, Trial]:
    """Run the trials that have no file yet, and return those whose process crashed."""
    waiting = [c for c in combinations if not trial_path(folder, *c).exists()]
    total, done = len(combinations), len(combinations) - len(waiting)
    jobs = min(jobs, max(1, len(waiting)))
    threads = max(1, torch.get_num_threads() // jobs)

    def say(text: str) -> None:
        if progress:
            print(f"search: {text}", file=sys.stderr, flush=True)

    trials = "1 trial" if total == 1 else f"{total} trials"
    say(f"{trials}, {done} done before; {jobs} at a time, threads for each: {threads}")
    running: dict[Combination, _Running] = {}
    crashes: dict[Combination, Trial] = {}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                combination = waiting.pop(0)
                running[combination] = _start(folder, combination, threads)
            pause(POLL_SECONDS)
            for combination in [c for c, r in running.items() if r.process.poll() is not None]:
                ended = running.pop(combination)
                _stop([ended.process])
                done += 1
                path = trial_path(folder, *combination)
                if path.exists():
                    trial = read_trial(path)
                else:
                    trial = crashes[combination] = Trial(*combination, error=_crash(ended), threads=threads)
                say(f"{done}/{total} {_in_words(trial)}")
    except KeyboardInterrupt:
        say(f"interrupted with {done} of {total} trials done; the same call resumes here")
        raise
    finally:
        _stop([r.process for r in running.values()])
    return crashes


def _start(folder: Path, combination: Combination, threads: int) -> _Running:
    num_actions, lr = combination
    log = trial_path(folder, num_actions, lr).with_suffix("") / "log.txt"
    log.parent.mkdir(exist_ok=True)
    code = "import sys; from cagp.action_search.trial import main; sys.exit(main(*sys.argv[1:]))"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", code, str(folder), str(num_actions), repr(lr), str(threads)],
            stdin=subprocess.PIPE,  # open as long as this process lives: the trial ends when it closes
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)},
            start_new_session=True,  # Ctrl-C comes from here, once
        )
    return _Running(process, log)


def _stop(processes: list[subprocess.Popen[bytes]]) -> None:
    """End processes as Ctrl-C does, so that fits write their checkpoints; kill those that take too long."""
    try:
        for process in processes:
            process.send_signal(signal.SIGINT)
        deadline = time.monotonic() + GRACE_SECONDS
        for process in processes:
            process.wait(max(0.0, deadline - time.monotonic()))
    except (KeyboardInterrupt, subprocess.TimeoutExpired):
        pass  # a second Ctrl-C, or too slow
    for process in processes:
        process.kill()
        process.wait()
        assert process.stdin is not None
        process.stdin.close()


def _crash(ended: _Running) -> str:
    code = ended.process.returncode
    lines = ended.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    last = f": {lines[-1]}" if lines else ""
    if code == -signal.SIGKILL:
        return f"the process was killed (out of memory?){last}"
    if code < 0:
        return f"the process crashed ({signal.Signals(-code).name}){last}"
    if code == INTERRUPTED:
        return "the process was interrupted"
    return f"the process ended with exit code {code}{last}"


def _in_words(trial: Trial) -> str:
    start = f"{trial.num_actions:,} actions at rate {trial.lr:g}"
    if trial.error is not None:
        return f"{start} failed: {trial.error}"
    return f"{start}: NLL {trial.nll:.3f} after {trial.steps} steps in {trial.seconds:.0f} s"
