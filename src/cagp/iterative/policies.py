"""Policies: which linear combination of the targets to look at next.

A policy of your own is a class with one method: docs/iterative.md has an example that trains. It may use all that has
been computed so far; it sees the targets only through the residual. What it needs to remember goes into its memory, not
into the object: the same object then serves several runs, and a run that resumes does what one that never stopped does.
"""

import copy
from abc import ABC, abstractmethod
from typing import Any, Literal, NamedTuple, final

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh
from torch import Tensor

from cagp.checks import check_count, check_matrix, check_new_inputs
from cagp.system import System

Order = Literal["given", "random", "pivoted"]

Memory = Any
"""What a policy remembers from one action to the next; None at its first."""

Offer = tuple[Tensor | None, Memory]
"""The next action (n,), of any length, or None if there is none; and the policy's memory after it."""

NEGLIGIBLE, LANCZOS_ROUND_OFF = 1e-10, 100
"""A target is known already if no more than this share of its variance is left; a Lanczos vector shorter than this many
units of round-off has left the space that products with K̂ can reach."""


class State:
    """The steps taken so far. Everything is float64; columns are kept as rows of growing buffers.

    With d the search directions, scaled to dᵀK̂d = 1: C = Σ d dᵀ is the approximation of K̂⁻¹ (``directions`` is its
    root), ``weights`` = C(y - m) the representer weights v, ``residual`` = (y - m) - K̂v.

    Memory O(n i): three matrices of the size of S.
    """

    def __init__(self, system: System, targets: Float[Tensor, " n"]):
        self.targets: Float[Tensor, " n"] = targets.detach().double()  # y - m(X)
        self.residual: Float[Tensor, " n"] = self.targets.clone()
        self.weights: Float[Tensor, " n"] = torch.zeros_like(self.targets)
        self.kernel_variance: Float[Tensor, " n"] = system.kernel_diagonal()  # of the function at the rows, so far
        self.target_variance: Float[Tensor, " n"] = self.kernel_variance + system.noise  # of y, given Sᵀy
        self.last_product: Float[Tensor, " n"] | None = None  # K̂ s of the last action
        self.residual_norms: list[float] = [float(self.residual.norm())]
        self.num_dropped = 0
        self.seconds = 0.0
        self.memory: Any = None  # the policy's own
        self.num_steps = 0  # i, the number of actions taken
        self._columns = targets.new_empty(3, 8, len(targets), dtype=torch.float64)  # actions, directions, products

    @property
    def actions(self) -> Float[Tensor, "n i"]:
        """S with columns of unit length, in the order in which they were taken."""
        return self._columns[0, : self.num_steps].mT

    @property
    def directions(self) -> Float[Tensor, "n i"]:
        """d, scaled to dᵀK̂d = 1: the same span as S."""
        return self._columns[1, : self.num_steps].mT

    @property
    def products(self) -> Float[Tensor, "n i"]:
        """K̂ d."""
        return self._columns[2, : self.num_steps].mT

    def append(self, action: Tensor, direction: Tensor, product: Tensor, noise: Tensor) -> None:
        """Take a step along ``direction``, for which dᵀK̂d = 1, with ``product`` = K̂d (lines 9 and 10)."""
        observation = direction @ self.residual
        self.weights = self.weights + observation * direction
        self.residual = self.residual - observation * product
        self.kernel_variance = self.kernel_variance - (product - noise * direction).square()
        self.target_variance = self.target_variance - product.square()
        if self.num_steps == self._columns.shape[1]:  # twice the room: constant cost per column on average
            self._columns = torch.cat([self._columns, torch.empty_like(self._columns)], 1)
        self._columns[:, self.num_steps] = torch.stack([action, direction, product])
        self.num_steps += 1

    def correct(self) -> None:
        """Take out of the residual what round-off left of it in the span of the actions. Time O(n i)."""
        left = self.directions.mT @ self.residual
        self.weights = self.weights + self.directions @ left
        self.residual = self.residual - self.products @ left

    def copy(self) -> "State":
        """Another state with the same contents, which steps of this one leave alone. Memory O(n i)."""
        twin = copy.copy(self)  # the vectors are replaced by steps, never written to
        twin.residual_norms = list(self.residual_norms)
        twin._columns = self._columns.clone()
        return twin


class Policy(ABC):
    """Chooses the actions of the iterative algorithm, one at a time."""

    orthogonal: bool = False
    """Whether the actions of a run are orthogonal to each other by construction. A loss that needs well-conditioned
    actions takes an orthonormal basis of their span otherwise."""

    @abstractmethod
    def action(self, system: System, state: State, memory: Memory) -> Offer:
        """The next action, given the steps so far. The loop drops actions in the span of earlier ones."""

    def description(self) -> Any:
        """The class and its attributes: a checkpoint belongs to a fit with the same ones."""
        return [f"{type(self).__module__}.{type(self).__qualname__}", vars(self)]


def check_policy(policy: Any) -> None:
    """Raise ValueError unless this is a policy."""
    if not isinstance(policy, Policy):
        raise ValueError(f"policy is {_in_words(policy)}, expected a policy, e.g. cagp.iterative.Lanczos().")


def next_action(policy: Policy, system: System, state: State) -> Offer:
    """What ``policy.action`` offers after the steps in ``state``, checked."""
    answer, n, device = policy.action(system, state, state.memory), system.num_rows, state.residual.device
    returned = f"{type(policy).__name__}.action returned"
    if not isinstance(answer, tuple) or len(answer) != 2:
        raise ValueError(
            f"{returned} {_in_words(answer)}, expected a pair of the next action, a tensor of shape ({n},) or None, "
            "and the policy's memory."
        )
    offer, memory = answer
    if offer is None:
        return None, memory
    is_tensor = isinstance(offer, Tensor)
    if not (is_tensor and offer.shape == (n,) and offer.is_floating_point() and offer.device == device):
        raise ValueError(
            f"{returned} {_in_words(offer)} as its action; expected floating-point numbers of shape ({n},) on {device}."
        )
    if not bool(torch.isfinite(offer).all()):
        raise ValueError(f"{returned} an action with NaN or infinite values; expected finite numbers.")
    return offer, memory


def _in_words(value: Any) -> str:
    """What something is, for messages."""
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}, {value.dtype}, on {value.device}"
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return "None" if value is None else f"an object of class {type(value).__name__}"


@final
class CGResiduals(Policy):
    """s = r, the residual of the representer weights: the mean is that of conjugate gradients (CaGP-CG).

    There is none once the mean has converged to round-off.
    """

    orthogonal = True

    def action(self, system: System, state: State, memory: Memory) -> Offer:
        round_off = torch.finfo(torch.float64).eps * float(state.targets.norm())
        return (state.residual if float(state.residual.norm()) > round_off else None), None


@final
class Lanczos(Policy):
    """The Lanczos vectors of K̂, each orthogonal to all before: K̂ times the last one, orthogonalised.

    They start at a given vector, or at the residual, or at ones if the residual is zero. Started at the residual they
    span what the CG residuals span (section "Gradient / Residual Policy"); unlike these they do not end when the mean
    has converged to round-off. Time O(n i) per action besides the product.
    """

    orthogonal = True

    def __init__(self, start_vector: Float[Tensor, " n"] | None = None):
        self.start_vector = start_vector

    def action(self, system: System, state: State, memory: Memory) -> Offer:
        first, asked = memory or (state.num_steps, 0)
        memory = first, asked + 1
        if asked == 0:
            if self.start_vector is not None:
                return self.start_vector.to(state.residual), memory
            residual, _ = CGResiduals().action(system, state, None)
            return torch.ones_like(state.residual) if residual is None else residual, memory
        own, w = state.actions[:, first:], state.last_product
        if w is None or state.num_steps < first + asked:
            return None, memory  # the last vector was dropped: there is nothing to continue from
        length = w.norm()
        for _ in range(2):  # twice is enough (Kahan, Parlett)
            w = w - own @ (own.mT @ w)
        if float(w.norm()) <= LANCZOS_ROUND_OFF * torch.finfo(torch.float64).eps * float(length):
            return None, memory
        return w, memory


@final
class UnitVectors(Policy):
    """s = e_r: look at single targets. This is the partial Cholesky factorisation of K̂ and the exact GP on its rows.

    Time O(n (d + i)) per action, if the other actions are unit vectors too.

    Args:
        order: "given" (that of ``rows``), "random" (by ``seed``) or "pivoted" (by the function's posterior variance).
        rows: the rows to choose from; None for all.
    """

    def __init__(self, order: Order = "given", rows: Int[Tensor, " k"] | None = None, seed: int = 0):
        if order not in ("given", "random", "pivoted"):
            raise ValueError(f'order is {order!r}, expected "given", "random" or "pivoted".')
        self.order, self.rows, self.seed = order, rows, seed

    def action(self, system: System, state: State, memory: Memory) -> Offer:
        rows, asked = memory or (self._in_order(system), 0)
        if self.order == "pivoted":
            # e_rᵀ(K̂ - K̂CK̂)e_r is zero for rows chosen before: their function values may be uncertain, they cannot help.
            before = system.kernel_diagonal() + system.noise
            left = rows[(state.target_variance > NEGLIGIBLE * before)[rows]]
            chosen = left[state.kernel_variance[left].argmax()][None] if len(left) else left
        else:
            chosen = rows[asked : asked + 1]
        if len(chosen) == 0:
            return None, memory
        return torch.zeros_like(state.residual).index_fill(0, chosen, 1), (rows, asked + 1)

    def _in_order(self, system: System) -> Tensor:
        n = system.num_rows
        rows = torch.arange(n) if self.rows is None else self.rows.cpu()
        if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < n:
            raise ValueError(f"rows go from {int(rows.min())} to {int(rows.max())}, expected row numbers below {n}.")
        if self.order == "random":
            rows = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(self.seed))]
        return rows.to(system.X.device)


@final
class RandomActions(Policy):
    """s with independent entries, "gaussian" or "rademacher" (±1); the j-th depends on ``seed`` and j alone."""

    def __init__(self, distribution: Literal["gaussian", "rademacher"] = "gaussian", seed: int = 0):
        if distribution not in ("gaussian", "rademacher"):
            raise ValueError(f'distribution is {distribution!r}, expected "gaussian" or "rademacher".')
        self.distribution, self.seed = distribution, seed

    def action(self, system: System, state: State, memory: Memory) -> Offer:
        asked = memory or 0
        # torch's generator uses 32 bits of its seed: mix both numbers into them.
        mixed = int(np.random.SeedSequence(self.seed, spawn_key=(asked,)).generate_state(1)[0])
        n, generator = system.num_rows, torch.Generator().manual_seed(mixed)
        if self.distribution == "gaussian":
            s = torch.randn(n, generator=generator, dtype=torch.float64)
        else:
            s = 2.0 * torch.randint(0, 2, (n,), generator=generator).double() - 1
        return s.to(state.residual.device), asked + 1


@final
class GivenActions(Policy):
    """The columns of a matrix S (n, i), in their order."""

    def __init__(self, S: Float[Tensor, "n i"]):
        check_matrix(S, "S")
        self.S = S

    def action(self, system: System, state: State, memory: Memory) -> Offer:
        if self.S.shape[0] != system.num_rows:
            raise ValueError(f"S has {self.S.shape[0]} rows, expected {system.num_rows}: one for each row of X.")
        asked = memory or 0
        return (self.S[:, asked].to(state.residual) if asked < self.S.shape[1] else None), asked + 1


@final
class KernelColumns(Policy):
    """s = k(X, z) for each pseudo-input z, a row of ``Z``: what inducing-point methods look at."""

    def __init__(self, Z: Float[Tensor, "m d"]):
        check_matrix(Z, "Z")
        self.Z = Z

    def action(self, system: System, state: State, memory: Memory) -> Offer:
        check_new_inputs(self.Z, system.X, "Z")
        asked = memory or 0
        return (system.columns(self.Z[asked : asked + 1])[:, 0] if asked < len(self.Z) else None), asked + 1


@final
class Mix(Policy):
    """First ``count`` actions of one policy, then of the next: ``Mix((CGResiduals(), 10), (UnitVectors(), 5))``.

    When a policy has no further action, the next one takes over early.
    """

    def __init__(self, *parts: tuple[Policy, int]):
        for _, count in parts:
            if count < 1:
                raise ValueError(f"a policy of Mix has {count} actions, expected at least 1.")
        self.parts = parts

    def action(self, system: System, state: State, memory: Memory) -> Offer:
        part, asked, inner = memory or (0, 0, None)
        for policy, count in self.parts[part:]:
            if asked < count:
                s, inner = policy.action(system, state, inner)
                if s is not None:
                    return s, (part, asked + 1, inner)
            part, asked, inner = part + 1, 0, None
        return None, (part, asked, inner)


@final
class TopEigenvectors(Policy):
    """The leading eigenvectors of K̂, which minimise the posterior's entropy (Lemma "information-theoretic policy").

    With a noise variance per row they are the leading solutions of K s = λ D s, which do (docs/derivations.md). All are
    computed at the start, as ``top_eigenvectors`` says.
    """

    def __init__(self, num_actions: int, dense_up_to: int = 2000, tolerance: float = 1e-6, seed: int = 0):
        self.num_actions, self.dense_up_to, self.tolerance, self.seed = num_actions, dense_up_to, tolerance, seed

    def action(self, system: System, state: State, memory: Memory) -> Offer:
        if memory is None:
            memory = top_eigenvectors(system, self.num_actions, self.dense_up_to, self.tolerance, self.seed).vectors, 0
        S, asked = memory
        return (S[:, asked] if asked < S.shape[1] else None), (S, asked + 1)


class TopEigenvectorsResult(NamedTuple):
    """Leading solutions of K s = λ D s, largest first, and how far they are from being so."""

    values: Float[Tensor, " i"]  # λ
    vectors: Float[Tensor, "n i"]  # s = D^-½ u, with u orthonormal
    residual_norms: Float[Tensor, " i"]  # ‖D^-½KD^-½ u - λ u‖
    num_products: int  # with K; 0 where the matrix was factorised


@torch.no_grad()
def top_eigenvectors(
    system: System, count: int, dense_up_to: int = 2000, tolerance: float = 1e-6, seed: int = 0
) -> TopEigenvectorsResult:
    """The leading ``count`` eigenvectors of K̂; of K s = λ D s where the noise differs between rows.

    Up to ``dense_up_to`` rows exactly, in time O(n³). Beyond, to a relative ``tolerance`` of the eigenvalues by Lanczos
    iterations with restarts (ARPACK), in a few times ``count`` products with K.
    """
    n = system.num_rows
    check_count(count, "the number of eigenvectors", n, "the number of rows of X")
    root, num_products = system.noise.sqrt(), 0
    if n <= dense_up_to or count > n // 2:
        M = system.kernel_matrix() / root / root[:, None]
        values, U = torch.linalg.eigh((M + M.mT) / 2)
        values, U = values.flip(0)[:count], U.flip(1)[:, :count]
    else:

        def multiply(v: np.ndarray) -> np.ndarray:
            nonlocal num_products
            num_products += 1
            column = torch.from_numpy(np.ascontiguousarray(v).reshape(n)).to(root.device)
            product = system.product(column / root) / root - column  # D^-½ K̂ D^-½ = I + M: one vector, one block
            return product.cpu().numpy()

        start = torch.randn(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).numpy()
        operator = LinearOperator((n, n), matvec=multiply, dtype=np.float64)  # pyright: ignore[reportCallIssue]
        try:
            found, vectors = eigsh(operator, k=count, which="LA", v0=start, tol=tolerance)  # pyright: ignore[reportArgumentType]
        except ArpackNoConvergence as error:
            found = f"{len(error.eigenvalues)} of {count} eigenvectors converged to {tolerance:g}"
            raise RuntimeError(f"{found}; raise tolerance, or take fewer.") from error
        values = torch.from_numpy(found[::-1].copy()).to(root)
        U = torch.from_numpy(vectors[:, ::-1].copy()).to(root)
    S = U / root[:, None]
    residual_norms = (system.kernel_products(S) / root[:, None] - values * U).norm(dim=0)
    return TopEigenvectorsResult(values, S, residual_norms, num_products)
