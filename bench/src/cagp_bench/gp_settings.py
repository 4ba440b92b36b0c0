"""How a method of the paper is trained in a suite: one record of settings for all methods. Imports no torch."""

import math
from typing import Any, Literal, NamedTuple

Optimizer = Literal["adam", "lbfgs"]
LBFGS_ITERATIONS = 20
"""Iterations of L-BFGS in an epoch: those of a step of torch's, which the times of the paper's Table 1 agree with."""

Start = Literal["neighbours", "data", "paper"]


class GPSettings(NamedTuple):
    """What a run depends on besides its method, table and seed; a method ignores what does not concern it."""

    optimizer: Optimizer = "adam"
    lr: float | None = None  # None: the rates that this package states
    epochs: int = 300  # passes over the training rows; of L-BFGS, ``LBFGS_ITERATIONS``
    budget: int = 512  # actions, or inducing points
    neighbours: int = 32
    noise_floor: float = 1e-6
    start: Start = "paper"  # of the hyperparameters
    blocks: Literal["ordered", "spatial"] = "ordered"  # of CaGP-Opt; "ordered" with random weights is the paper's
    inducing: Literal["random", "greedy", "kmeans"] = "random"
    natural: bool = False  # natural gradients of SVGP; False: Adam for all, as in the paper
    batch_size: int = 1024  # of SVGP
    tolerance: float = 1e-4  # of conjugate gradients
    objective: Literal["loo", "ordered"] = "loo"  # of nearest rows
    calibrate: bool = False  # the noise, on validation rows
    validation: bool = True  # a tenth of the training rows, at most 2,000, is held out to choose the epoch
    evaluations: int = 25  # at most
    patience: int | None = None  # evaluations without a gain that end the fit
    double: bool = False  # float64
    fit_time: str | None = None  # ends training; evaluations do not count


def gp_settings(changes: dict[str, Any]) -> GPSettings:
    """The defaults with these changes; ValueError names a setting that does not exist."""
    unknown = sorted(set(changes) - set(GPSettings._fields))
    if unknown:
        raise ValueError(f"unknown setting {unknown[0]!r}; there are {', '.join(GPSettings._fields)}.")
    return GPSettings(**changes)


def steps_in_epoch(method: str, settings: GPSettings, num_rows: int) -> int:
    """SVGP takes a step for each minibatch, L-BFGS several; otherwise a step is an epoch."""
    if settings.optimizer == "lbfgs":
        return LBFGS_ITERATIONS
    return math.ceil(num_rows / settings.batch_size) if method == "svgp" else 1
