"""The methods of the paper and ours as suites train them: how each is made from data, and what follows its fit."""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from cagp.actions import ActionRule, BlockActions
from cagp.inducing import choose_inducing_points
from cagp.iterative import Lanczos, Mix, Policy, UnitVectors
from cagp.kernels import Matern32, Scale
from cagp.methods import CGGP, SGPR, SVGP, CaGPCG, CaGPLocal, CaGPOpt, CholeskyGP, Method
from cagp.prior import GP, GaussianNoise
from cagp.starting import calibrate_noise, raise_noise, start_from_data, start_from_neighbours
from cagp_bench.action_rules import KrylovActions, PseudoInputActions
from cagp_bench.gp_settings import GPSettings
from cagp_bench.protocol import PAPER_START, new_method

ALL_SUPPORTED, SUPPORT_SIZE = 50_000, 32
"""Up to how many rows all of them carry weight in shared actions, and how many of each block beyond."""

Loss = Literal["elbo", "projected", "loo"]
Weights = Literal["constant", "random"]


class Rows(NamedTuple):
    """Standardised inputs and targets of some rows."""

    X: Tensor
    y: Tensor


class Finished(NamedTuple):
    """The method that predicts, and what was chosen after the fit."""

    method: Method
    details: dict[str, Any]


class GPMethod(NamedTuple):
    """A method by its words, how it is made, and what is done with it after the fit."""

    words: str
    make: Callable[[Rows, GPSettings, int], Method]  # training rows, settings, seed
    finish: Callable[[Method, Rows, Rows | None, GPSettings, int], Finished] = lambda m, *_: Finished(m, {})


def new_prior(data: Rows, settings: GPSettings, seed: int) -> GP:
    """A zero-mean process with a Matérn 3/2 kernel, a lengthscale for each input, at its starting values."""
    noise = GaussianNoise(PAPER_START, settings.noise_floor)
    prior = GP(Scale(Matern32(data.X.shape[1], PAPER_START), PAPER_START), noise=noise)
    if settings.start == "neighbours":
        return start_from_neighbours(prior, data.X, data.y, seed=seed)
    return start_from_data(prior, data.X, data.y) if settings.start == "data" else prior


def _exact(data: Rows, settings: GPSettings, seed: int) -> Method:
    return CholeskyGP(new_prior(data, settings, seed))


def _opt(data: Rows, settings: GPSettings, seed: int) -> Method:
    return new_method(data.X, data.y, settings.budget, settings.blocks, settings.start, seed, settings.noise_floor)


def _cg(data: Rows, settings: GPSettings, seed: int) -> Method:
    return CaGPCG(new_prior(data, settings, seed), settings.budget, relative_residual=settings.tolerance)


def _cggp(data: Rows, settings: GPSettings, seed: int) -> Method:
    return CGGP(
        new_prior(data, settings, seed), tolerance=settings.tolerance, max_iterations=settings.budget, seed=seed
    )


def _inducing(prior: GP, data: Rows, settings: GPSettings, seed: int) -> Tensor:
    if settings.inducing == "random":
        chosen = torch.randperm(len(data.y), generator=torch.Generator().manual_seed(seed))[: settings.budget]
        return data.X[chosen]
    return choose_inducing_points(prior, data.X, settings.budget, settings.inducing, seed=seed)


def _sgpr(data: Rows, settings: GPSettings, seed: int) -> Method:
    prior = new_prior(data, settings, seed)
    return SGPR(prior, _inducing(prior, data, settings, seed))


def _svgp(data: Rows, settings: GPSettings, seed: int) -> Method:
    prior = new_prior(data, settings, seed)
    gradient = "natural" if settings.natural else "joint"
    points = _inducing(prior, data, settings, seed)
    return SVGP(prior, points, gradient=gradient, batch_size=settings.batch_size, seed=seed)


def _local(data: Rows, settings: GPSettings, seed: int) -> Method:
    prior = new_prior(data, settings, seed)
    return CaGPLocal(prior, settings.neighbours, objective=settings.objective, seed=seed)


# ---- kinds of actions, all with the same start: that of CaGP-Local, and noise that suits the method's own loss ----


def _with_noise(method: Method, data: Rows, settings: GPSettings) -> Method:
    if settings.start == "neighbours":
        raise_noise(method, data.X, data.y)
    return method


def _blocks(data: Rows, settings: GPSettings, seed: int, *, weights: Weights, loss: Loss, learn: bool = True) -> Method:
    """CaGP-Opt whose blocks are cut once."""
    generator = torch.Generator().manual_seed(seed)
    choices = {"blocks": settings.blocks, "start": weights, "generator": generator}
    prior = new_prior(data, settings, seed)
    method = CaGPOpt.from_data(prior, data.X, settings.budget, loss=loss, reblock_at=(), **choices)
    method.actions.requires_grad_(learn)
    return _with_noise(method, data, settings)


def _by_rule(
    data: Rows,
    settings: GPSettings,
    seed: int,
    *,
    rule: Callable[[GP, Rows, GPSettings, int], ActionRule],
    loss: Loss = "elbo",
) -> Method:
    prior = new_prior(data, settings, seed)
    return _with_noise(CaGPOpt(prior, rule(prior, data, settings, seed), loss), data, settings)


def _pseudo_inputs(prior: GP, data: Rows, settings: GPSettings, seed: int) -> ActionRule:
    return PseudoInputActions(_inducing(prior, data, settings, seed))


def _krylov(prior: GP, data: Rows, settings: GPSettings, seed: int) -> ActionRule:
    return KrylovActions(settings.budget)


def _by_policy(data: Rows, settings: GPSettings, seed: int, *, policy: Callable[[int], Policy]) -> Method:
    """Actions of a policy, which is made for the budget; the whole budget is used."""
    prior = new_prior(data, settings, seed)
    return _with_noise(CaGPCG(prior, settings.budget, policy=policy(settings.budget)), data, settings)


def _sgpr_with_noise(data: Rows, settings: GPSettings, seed: int) -> Method:
    return _with_noise(_sgpr(data, settings, seed), data, settings)


POLICIES: dict[str, Callable[[int], Policy]] = {
    "lanczos": lambda budget: Lanczos(),
    "mix": lambda budget: Mix((Lanczos(), budget // 2), (UnitVectors("pivoted"), budget)),
    "pivoted": lambda budget: UnitVectors("pivoted"),
}


# ---- after the fit ----


def _calibrated(method: Method, train: Rows, held: Rows | None, settings: GPSettings, _: int) -> Finished:
    if settings.calibrate and held is not None:
        calibrate_noise(method, train.X, train.y, held.X, held.y)
    return Finished(method, {"calibrated": settings.calibrate})


def _with_shared_actions(method: Method, train: Rows, _: Rows | None, settings: GPSettings, seed: int) -> Finished:
    assert isinstance(method, CaGPLocal)
    generator = torch.Generator().manual_seed(seed)
    lengthscale = method.prior.kernel.lengthscales(train.X.shape[1])
    support = None if len(train.X) <= ALL_SUPPORTED else SUPPORT_SIZE
    choices = {"lengthscale": lengthscale, "support_size": support, "generator": generator}
    shared = BlockActions.from_data(train.X, settings.budget, **choices)
    return Finished(CaGPLocal(method.prior, settings.neighbours, shared=shared, seed=seed), {"i": settings.budget})


def _with_local_scale(method: Method, train: Rows, *_: Any) -> Finished:
    assert isinstance(method, CaGPLocal)
    choice = method.choose_local_scale(train.X, train.y)
    details = {"local_scale": choice.local_scale, "scale_rows": choice.num_rows, "scale_rows_nll": choice.nll}
    return Finished(method.with_local_scale(choice.local_scale), details)


GP_METHODS = {
    "exact": GPMethod("CholeskyGP", _exact),
    "opt": GPMethod("CaGP-Opt", _opt, _calibrated),
    "cg": GPMethod("CaGP-CG", _cg),
    "cggp": GPMethod("CGGP", _cggp),
    "sgpr": GPMethod("SGPR", _sgpr),
    "svgp": GPMethod("SVGP", _svgp),
    "local": GPMethod("CaGP-Local with one scale", _local),
    "local-scale": GPMethod("CaGP-Local with a local scale", _local, _with_local_scale),
    "hybrid": GPMethod("CaGP-Local beside constant shared actions", _local, _with_shared_actions),
    "blocks-constant": GPMethod("CaGP-Opt", partial(_blocks, weights="constant", loss="elbo"), _calibrated),
    "blocks-random": GPMethod("CaGP-Opt, random weights", partial(_blocks, weights="random", loss="elbo")),
    "blocks-fixed": GPMethod("constant block actions", partial(_blocks, weights="constant", loss="elbo", learn=False)),
    "blocks-loo": GPMethod(
        "CaGP-Opt, leave-one-out loss", partial(_blocks, weights="constant", loss="loo"), _calibrated
    ),
    "blocks-fixed-loo": GPMethod(
        "constant block actions, leave-one-out loss", partial(_blocks, weights="constant", loss="loo", learn=False)
    ),
    "pseudo-inputs": GPMethod("pseudo-input actions", partial(_by_rule, rule=_pseudo_inputs)),
    "pseudo-inputs-loo": GPMethod(
        "pseudo-input actions, leave-one-out loss", partial(_by_rule, rule=_pseudo_inputs, loss="loo")
    ),
    "krylov": GPMethod("CaGP-CG with gradients through its actions", partial(_by_rule, rule=_krylov)),
    "sgpr-noise": GPMethod("SGPR", _sgpr_with_noise),
    **{f"policy-{name}": GPMethod(name, partial(_by_policy, policy=policy)) for name, policy in POLICIES.items()},
}
"""What the protocol "gp" of a suite can train."""
