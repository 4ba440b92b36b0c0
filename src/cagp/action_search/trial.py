"""One trial of a search, in a process of its own: read the task, fit, write one JSON file.

FOLDER/search.safetensors      data and settings: the task, read by every trial
FOLDER/trials/NAME.json        a finished trial
FOLDER/trials/NAME/            checkpoint and history of the fit, and what the process printed (log.txt)
"""

import json
import math
import os
import signal
import sys
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cagp import metrics
from cagp.action_search.search_result import Trial
from cagp.data import Split, split, standardized
from cagp.files import write_atomically
from cagp.kernels import named_kernel
from cagp.methods import CaGPOpt
from cagp.prior import GP
from cagp.starting import start_from_data
from cagp.training import fit
from cagp.training.checkpoints import load_checkpoint

TASK = "search.safetensors"
VALIDATION = 0.1  # share of the rows
COMPARED_ROWS = 10_000  # validation rows, already in random order, whose NLL a trial's file holds
INTERRUPTED = 130


def trial_path(folder: Path, num_actions: int, lr: float) -> Path:
    """The file of a finished trial; the folder of its fit has the same name without the suffix."""
    return folder / "trials" / f"{num_actions}-actions-rate-{lr!r}.json"


def rates(method: CaGPOpt, lr: float) -> dict[str, float]:
    """Learning rates of all groups: ``lr`` for the hyperparameters, the defaults for the others."""
    return {name: group.lr for name, group in method.parameter_groups().items()} | {"hyperparameters": lr}


def rows_of(num_rows: int, seed: int) -> Split:
    """Training rows, and validation rows (called test)."""
    return split(num_rows, VALIDATION, seed)


def run_trial(folder: Path, num_actions: int, lr: float) -> Trial | None:
    """Fit and judge one combination, from its checkpoint if it has one; None after Ctrl-C."""
    task = load_checkpoint(folder / TASK)
    settings: dict[str, Any] = task["settings"]
    rows = rows_of(len(task["y"]), settings["seed"])
    dtype = getattr(torch, settings["dtype"])
    (X, y), (X_validation, y_validation) = standardized(task["X"], task["y"], rows.train, rows.test, dtype=dtype)
    prior = start_from_data(GP(named_kernel(settings["kernel"], X.shape[1])), X, y)
    method = CaGPOpt.from_data(prior, X, num_actions)

    def evaluate() -> dict[str, float]:
        return {"nll": metrics.nll(y_validation, *method.condition(X, y).predict(X_validation, noise=True))}

    result = fit(
        method,
        X,
        y,
        lr=rates(method, lr),
        num_steps=settings["num_steps"],
        max_time=settings["max_time"],
        evaluate=evaluate,
        monitor="nll",
        checkpoint_dir=trial_path(folder, num_actions, lr).with_suffix(""),
    )
    if result.interrupted:
        return None
    if not result.steps:
        raise ArithmeticError(result.reason)
    prediction = method.condition(X, y).predict(X_validation, noise=True)
    row_nll: Tensor = metrics.row_nll(y_validation, *prediction)
    if not bool(torch.isfinite(row_nll).all()):
        raise ArithmeticError("the NLL of the validation rows is not finite")
    curve = [(s.seconds, nll) for s in result.steps if s.evaluation and (nll := s.evaluation["nll"]) is not None]
    return Trial(
        num_actions,
        lr,
        nll=float(row_nll.mean()),
        rmse=metrics.rmse(y_validation, prediction.mean),
        coverage=metrics.coverage(y_validation, *prediction),
        seconds=result.seconds,
        steps=len(result.steps),
        best_step=result.best_step,
        status=result.status.value,
        reason=result.reason,
        threads=torch.get_num_threads(),
        curve=curve or [(result.seconds, float(row_nll.mean()))],
        row_nll=row_nll[:COMPARED_ROWS].tolist(),
    )


def read_trial(path: Path) -> Trial:
    """A finished trial, or ValueError if the file is damaged."""
    try:
        return Trial(**json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} cannot be read: {error}; delete it to run that trial again.") from error


def main(folder: str, num_actions: str, lr: str, threads: str) -> int:
    """The whole process. It returns 0 when the trial's file is written, whether the fit succeeded or failed."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may ignore it
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(int(threads))
    path = trial_path(Path(folder), int(num_actions), float(lr))
    try:
        trial = run_trial(Path(folder), int(num_actions), float(lr))
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        text = f"{type(error).__name__}: {error}".splitlines()[0]
        trial = Trial(int(num_actions), float(lr), error=text, threads=int(threads))
    if trial is None:
        return INTERRUPTED
    numbers = {k: v for k, v in asdict(trial).items() if not (isinstance(v, float) and math.isnan(v))}
    write_atomically(path, json.dumps(numbers, allow_nan=False).encode())
    return 0


def _end_with_parent() -> None:
    """End this process when the search ends, however it ends: the other end of stdin is then closed."""
    os.read(sys.stdin.fileno(), 1)  # unbuffered: a thread inside sys.stdin would keep the interpreter from ending
    os._exit(1)
