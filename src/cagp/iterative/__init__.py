"""Algorithm S1: the computation-aware posterior, an action at a time, by policies that choose the actions."""

import math
import time
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from cagp.actions import DenseActions
from cagp.checks import check_data
from cagp.engine import DEFAULT_MAX_BYTES
from cagp.iterative.policies import (
    CGResiduals,
    GivenActions,
    KernelColumns,
    Lanczos,
    Mix,
    Policy,
    RandomActions,
    State,
    TopEigenvectors,
    UnitVectors,
    check_policy,
    next_action,
    top_eigenvectors,
)
from cagp.linalg import safe_cholesky
from cagp.posteriors import CaGPPosterior
from cagp.prior import GP
from cagp.projection import Projection, noise_gram
from cagp.system import System

ROUND_OFF = 10  # an action adds nothing if less than this many units of round-off of its variance are new


@dataclass(frozen=True)
class Stopping:
    """When to stop: at the first of these.

    Args:
        max_steps: actions in all, those of earlier calls included. None: as many as there are rows.
        relative_residual: ‖(y - m) - K̂v‖ <= this times ‖y - m‖.
        absolute_residual: ‖(y - m) - K̂v‖ <= this.
        max_seconds: of this call.
    """

    max_steps: int | None = None
    relative_residual: float = 0.0
    absolute_residual: float = 0.0
    max_seconds: float = math.inf

    def __post_init__(self) -> None:
        if self.max_steps is not None and self.max_steps < 1:
            raise ValueError(f"max_steps is {self.max_steps}, expected at least 1, or None.")
        for name in ("relative_residual", "absolute_residual", "max_seconds"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} is {getattr(self, name)}, expected zero or above.")


@dataclass(frozen=True)
class Status:
    """What the iterations did."""

    num_steps: int
    residual_norms: list[float]  # ‖(y - m) - K̂v‖ before the first step and after each
    converged: bool  # the residual is within its tolerance; so says a product with K̂, not the recurrence alone
    reason: str  # why they ended, in words
    num_dropped: int  # actions that were in the span of earlier ones
    seconds: float  # of all calls


@final
@dataclass(frozen=True)
class Iteration:
    """Some steps of the algorithm: a snapshot that gives the posterior, and from which further steps can be taken."""

    system: System
    policy: Policy
    state: State
    status: Status
    reorthogonalise: bool

    def resume(self, stopping: Stopping, policy: Policy | None = None) -> "Iteration":
        """This iteration with further steps, by the same policy or another: what one that never stopped would give."""
        state = self.state.copy()
        if policy is not None:
            check_policy(policy)
            state.memory = None
        return _run(self.system, policy or self.policy, state, stopping, self.reorthogonalise)

    @property
    def actions(self) -> DenseActions:
        """S with columns of unit length, for the batch algorithm."""
        return DenseActions(self._steps().actions)

    @property
    def orthonormal_actions(self) -> DenseActions:
        """An orthonormal basis of the span of S. Time O(n i²)."""
        return DenseActions(torch.linalg.qr(self._steps().directions).Q)

    def projection(self) -> Projection:
        """What the batch algorithm computes, from the products taken already. Time O(n i²).

        SᵀK̂S is factorised again in the basis of the search directions, where it is almost diagonal. So whatever
        conjugacy the iterations have lost, this is exact inference on Sᵀy, and no variance falls below the exact one.
        """
        system, state = self.system, self._steps()
        norms = state.directions.norm(dim=0)
        W = state.directions / norms
        KS = state.products / norms - system.noise[:, None] * W
        SKS = W.mT @ KS
        SKS, SDS = (SKS + SKS.mT) / 2, noise_gram(W, system.noise)
        chol = safe_cholesky(SKS + SDS, "SᵀK̂S")
        targets = W.mT @ state.targets
        weights = torch.cholesky_solve(targets[:, None], chol)[:, 0]
        return Projection(system.X, W, SKS, SDS, chol, targets, weights)

    def posterior(self) -> CaGPPosterior:
        """The posterior given the projections Sᵀy: what ``project`` and ``CaGPPosterior`` make of ``actions``."""
        return CaGPPosterior(self.system.prior, self.projection(), self.system.max_bytes)

    def _steps(self) -> State:
        if self.state.num_steps == 0:
            raise ValueError(f"no action was taken, so the posterior is the prior: {self.status.reason}")
        return self.state


def iterate(
    prior: GP,
    X: Float[Tensor, "n d"],
    y: Float[Tensor, " n"],
    policy: Policy,
    stopping: Stopping,
    row_noise: Float[Tensor, " n"] | None = None,
    *,
    reorthogonalise: bool = False,
    max_bytes: int = DEFAULT_MAX_BYTES,
    check: bool = True,
) -> Iteration:
    """Algorithm S1 (iterative version): steps of ``policy`` until ``stopping`` ends them.

    Args:
        reorthogonalise: make search directions K̂-conjugate a second time, and the residual orthogonal to all actions,
            for O(n i) more at step i. CG residuals otherwise lose their orthogonality as they converge, and soon add
            nothing.
        max_bytes: k(X, X) is kept if it takes no more than this, and otherwise evaluated again for every product.
        check: False if the data were checked before.

    Time, for step i: one product with K̂, O(n²) or O(n² d), and O(n i). Memory O(n i).
    """
    check_policy(policy)
    if check:
        check_data(X, y, row_noise)
        prior.noise.check(row_noise)
    with torch.no_grad():
        system = System(prior, X, row_noise, max_bytes, check=False)
        state = State(system, y.double() - system.prior.mean(X.double()))
    return _run(system, policy, state, stopping, reorthogonalise)


@torch.no_grad()
def _run(system: System, policy: Policy, state: State, stopping: Stopping, reorthogonalise: bool) -> Iteration:
    """Take steps, writing to ``state``."""
    start, reason, converged = time.perf_counter(), None, False
    while reason is None:
        converged, reason = _reason_to_stop(system, state, stopping, time.perf_counter() - start)
        reason = reason or _step(system, policy, state, reorthogonalise)
    state.seconds += time.perf_counter() - start
    status = Status(state.num_steps, list(state.residual_norms), converged, reason, state.num_dropped, state.seconds)
    return Iteration(system, policy, state, status, reorthogonalise)


def _step(system: System, policy: Policy, state: State, reorthogonalise: bool) -> str | None:
    """Lines 3 to 10; a reason to stop where the policy has no new action."""
    dropped = None
    while True:
        offer, state.memory = next_action(policy, system, state)
        if offer is None:
            return f"The policy has no further action after {state.num_steps} steps."
        if dropped is not None and torch.equal(offer, dropped):
            return f"The policy offers the same action again, which adds nothing to the {state.num_steps} taken."
        length = offer.norm()
        if float(length) > 0:  # a zero action is dropped like any other that adds nothing
            s = offer.double() / length
            z = system.product(s)
            # d = s - Cz, C = Σ d dᵀ over the directions so far; K̂d by the same combination.
            d, Kd = _conjugate(s, z, z, state)
            if reorthogonalise:
                d, Kd = _conjugate(d, Kd, Kd, state)
            eta = float(d @ Kd)  # = zᵀd, line 8
            if eta > ROUND_OFF * torch.finfo(z.dtype).eps * float(s @ z):
                break
        state.num_dropped += 1
        dropped = offer.clone()
    state.append(s, d / math.sqrt(eta), Kd / math.sqrt(eta), system.noise)
    state.last_product = z
    if reorthogonalise:
        state.correct()
    state.residual_norms.append(float(state.residual.norm()))
    return None


def _conjugate(d: Tensor, Kd: Tensor, inner: Tensor, state: State) -> tuple[Tensor, Tensor]:
    """``d`` without its components along earlier directions in the K̂ inner product, and K̂d."""
    components = state.directions.mT @ inner
    return d - state.directions @ components, Kd - state.products @ components


def _reason_to_stop(system: System, state: State, stopping: Stopping, seconds: float) -> tuple[bool, str | None]:
    """Whether the residual is within its tolerance, and why to stop, or None."""
    norm, scale = state.residual_norms[-1], state.residual_norms[0]
    tolerance = max(stopping.relative_residual * scale, stopping.absolute_residual)
    if tolerance > 0 and norm <= tolerance:
        # The recurrence drifts away from the residual it stands for: believe a product.
        state.residual = state.targets - system.product(state.weights)
        norm = state.residual_norms[-1] = float(state.residual.norm())
        if norm <= tolerance:
            share = f", {norm / scale:.1e} of its start" if scale > 0 else ""
            return True, f"The residual is {norm:.1e}{share}: within the tolerance after {state.num_steps} steps."
    limit = system.num_rows if stopping.max_steps is None else min(stopping.max_steps, system.num_rows)
    if state.num_steps >= limit:
        return False, f"Took all {state.num_steps} steps."
    if seconds >= stopping.max_seconds:
        return False, f"Reached the time limit of {stopping.max_seconds:g} s after {state.num_steps} steps."
    return False, None


__all__ = [
    "CGResiduals",
    "GivenActions",
    "Iteration",
    "KernelColumns",
    "Lanczos",
    "Mix",
    "Policy",
    "RandomActions",
    "State",
    "Status",
    "Stopping",
    "TopEigenvectors",
    "UnitVectors",
    "iterate",
    "top_eigenvectors",
]
