"""Every other package that this one is measured beside, by name."""

import numpy as np
import pandas as pd
import torch

from cagp.posteriors import Prediction
from cagp.quantities import seconds_of
from cagp_bench import gpytorch_peers
from cagp_bench.choices import CONTENDERS
from cagp_bench.peers import PEERS, Outcome, Peer, encoded


def _gpytorch(kind: str) -> Peer:
    def outcome(
        X: pd.DataFrame, y: np.ndarray, X_test: pd.DataFrame, seed: int, seconds: float | None = None
    ) -> Outcome:
        # Large tables are in float32, as in GPyTorch's examples; the exact GP and SGPR need float64 to be factorised.
        dtype = torch.float32 if kind == "svgp" else torch.float64
        inputs, points = (part.to(dtype) for part in encoded(X, y, X_test))
        return gpytorch_peers.gpytorch_outcome(kind, inputs, torch.from_numpy(y).to(dtype), points, seed, seconds)

    settings = {"steps": gpytorch_peers.STEPS[kind], "rate": gpytorch_peers.RATES[kind]}
    return Peer(outcome, settings if kind == "exact" else {**settings, "inducing": gpytorch_peers.NUM_INDUCING})


ALL_PEERS = {**PEERS, **{f"gpytorch-{kind}": _gpytorch(kind) for kind in gpytorch_peers.RATES}}


def peer_outcome(
    name: str, X: pd.DataFrame, y: np.ndarray, X_test: pd.DataFrame, seed: int, fit_time: str | None = None
) -> Outcome:
    """What a peer learns from training rows and predicts for test rows, in the unit of the targets.

    Peers see standardised targets: LightGBM keeps them in float32, and what CatBoost learns depends on their scale.

    Args:
        fit_time: for the peers that can be limited; ValueError for the others.
    """
    if fit_time is not None and not CONTENDERS[name].takes_limit:
        able = ", ".join(key for key, contender in CONTENDERS.items() if contender.takes_limit)
        raise ValueError(f"{name} cannot end its fit after {fit_time}: give no limit, or take one of {able}.")
    limit = {} if fit_time is None else {"seconds": seconds_of(fit_time)}
    mean, std = float(y.mean()), float(y.std(ddof=1)) or 1.0
    outcome = ALL_PEERS[name].outcome(X, (y - mean) / std, X_test, seed, **limit)
    found = outcome.prediction
    return outcome._replace(prediction=Prediction(found.mean * std + mean, found.variance * std**2))
