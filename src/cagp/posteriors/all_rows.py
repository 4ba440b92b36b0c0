"""Posteriors whose projections all test points share: of CaGP and exact inference, inducing points, and CGGP."""

from typing import ClassVar, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cagp.checks import check_new_inputs
from cagp.engine import DEFAULT_MAX_BYTES, BlockWeights, kernel_product, precise_product
from cagp.fields import Fields, checked, factor, float64, integer, numbers, optional, real, record, tensor
from cagp.linalg import CGResult, row_moments
from cagp.posteriors.base import LeftOut, Posterior, Rounding, Sharing
from cagp.prior import GP
from cagp.projection import Projection
from cagp.storage import State
from cagp.system import Solver, System


@final
class CaGPPosterior(Posterior):
    """Exact inference on the projections Sᵀy (eq. computation-aware GP posterior); with S = I, the exact GP.

    The variance is never below the exact posterior's, and never grows when actions are added. A mean costs O(t m d),
    a variance O(t m d + t i²), a covariance of t with u rows memory O(t u + (t + u) i).
    """

    never_below_exact = True

    def __init__(
        self, prior: GP, projection: Projection, max_bytes: int = DEFAULT_MAX_BYTES, *, shares_rows: bool = False
    ):
        W, self.chol, self.weights = projection.W, projection.chol.detach(), projection.weights.detach()
        self.num_actions = self._width = len(self.chol)  # i, the rank of the update from prior to posterior
        # The representer weights Sṽ on the support: a mean costs one kernel product with a vector.
        if isinstance(W, BlockWeights):
            self.W = W._replace(values=W.values.detach())
            representer = W._replace(values=self.W.values.double()).expand(self.weights)
        else:
            self.W = W.detach()
            representer = self.W.double() @ self.weights
        super().__init__(prior, projection.X, representer, max_bytes, shares_rows=shares_rows)

    def _state(self, rows: Rounding) -> State:
        return {"X": rows(self.X, "X"), "W": rows(self.W, "W"), "chol": self.chol, "weights": self.weights}

    @classmethod
    def _from_state(cls, state: State, prior: GP, X: Tensor, max_bytes: int, sharing: Sharing) -> "CaGPPosterior":
        fields = {"W": sharing.weights(X.dtype), "chol": factor("i"), "weights": float64("i")}
        rest = dict.fromkeys(("SKS", "SDS", "targets"), X.new_empty(0))  # which predictions do not need
        projection = Projection(X=X, **checked(state, fields, {"n": len(X)}), **rest)
        return cls(prior, projection, max_bytes, shares_rows=True)

    def _moments(self, X: Tensor) -> tuple[Tensor, Tensor]:
        KS = precise_product(self.prior.kernel, X, self.X, self.W, max_bytes=self.max_bytes)
        update, explained = row_moments(KS, self.chol, self.weights)
        return self.prior.mean(X.double()) + update, self.prior.kernel.diag(X.double()) - explained

    def left_out(self, rows: Int[Tensor, " r"]) -> LeftOut | None:
        """For as many actions as rows, that is for exact inference: [K̂⁻¹(y - m)]ᵢ / [K̂⁻¹]ᵢᵢ and 1 / [K̂⁻¹]ᵢᵢ. O(n³)."""
        if self.num_actions != len(self.X):
            return None
        W = torch.diag(self.W.values) if isinstance(self.W, BlockWeights) else self.W  # a block for each row
        root = torch.linalg.solve_triangular(self.chol, W.double().mT, upper=False)  # K̂⁻¹ = rootᵀ root
        precision = root.square().sum(0)[rows]
        assert self._representer is not None
        return LeftOut(self._representer[rows] / precision, 1 / precision)

    def _covariance(self, X: Tensor, Z: Tensor | None) -> Tensor:
        """k(X, Z) - k(X, X_train) S (SᵀK̂S)⁻¹ Sᵀ k(X_train, Z)."""
        root = self._root(X)
        other = root if Z is None else self._root(Z)
        return precise_product(self.prior.kernel, X, X if Z is None else Z) - root.mT @ other

    def _root(self, X: Tensor) -> Tensor:
        """L⁻¹ Sᵀk(X_train, X), float64."""
        KS = precise_product(self.prior.kernel, X, self.X, self.W, max_bytes=self.max_bytes)
        return torch.linalg.solve_triangular(self.chol, KS.mT, upper=False)


@final
class InducingPosterior(Posterior):
    """The variational posterior through inducing points: q(v) = Normal(mean, RRᵀ) of v = L⁻¹u, LLᵀ = k(Z, Z).

    With u(x) = L⁻¹k(Z, x): mean m(x) + u(x)ᵀ``whitened_mean``, covariance k(x, z) - u(x)ᵀu(z) + u(x)ᵀRRᵀu(z). The
    variance can be smaller than the exact posterior's. A mean costs O(t m d), a variance O(t m d + t m²).

    Args:
        Z: the inducing points, in the dtype of the data.
        chol: L in float64.
        whitened_root: R, any square root of the covariance of v.
    """

    FIELDS: ClassVar[Fields] = {"chol": factor("m"), "whitened_mean": float64("m"), "whitened_root": float64("m", "m")}

    def __init__(
        self,
        prior: GP,
        Z: Float[Tensor, "m d"],
        chol: Float[Tensor, "m m"],
        whitened_mean: Float[Tensor, " m"],
        whitened_root: Float[Tensor, "m m"],
        max_bytes: int = DEFAULT_MAX_BYTES,
        *,
        shares_rows: bool = False,
    ):
        self.chol, self.whitened_mean, self.whitened_root = (
            part.detach() if shares_rows else part.detach().clone() for part in (chol, whitened_mean, whitened_root)
        )
        self._width = len(chol)
        representer = torch.linalg.solve_triangular(self.chol.mT, self.whitened_mean[:, None], upper=True)[:, 0]
        super().__init__(prior, Z, representer, max_bytes, shares_rows=shares_rows)

    def _state(self, rows: Rounding) -> State:
        # X is not rounded: ``chol`` is of its covariance.
        return {"X": self.X, **{name: getattr(self, name) for name in self.FIELDS}}

    @classmethod
    def _from_state(cls, state: State, prior: GP, X: Tensor, max_bytes: int, sharing: Sharing) -> "InducingPosterior":
        return cls(prior, X, **checked(state, cls.FIELDS, {"m": len(X)}), max_bytes=max_bytes, shares_rows=True)

    def _moments(self, X: Tensor) -> tuple[Tensor, Tensor]:
        U = self._whitened(X)
        lost = U.square().sum(0) - (self.whitened_root.mT @ U).square().sum(0)
        mean = self.prior.mean(X.double()) + self.whitened_mean @ U
        return mean, self.prior.kernel.diag(X.double()) - lost

    def _covariance(self, X: Tensor, Z: Tensor | None) -> Tensor:
        U = self._whitened(X)
        V = U if Z is None else self._whitened(Z)
        K = precise_product(self.prior.kernel, X, X if Z is None else Z)
        return K - U.mT @ V + (self.whitened_root.mT @ U).mT @ (self.whitened_root.mT @ V)

    def _whitened(self, X: Tensor) -> Tensor:
        """L⁻¹k(Z, X), float64."""
        KZ = precise_product(self.prior.kernel, X, self.X, max_bytes=self.max_bytes)
        return torch.linalg.solve_triangular(self.chol, KZ.mT, upper=False)


@final
class CGPosterior(Posterior):
    """The exact posterior with every solve by preconditioned conjugate gradients, up to their tolerance.

    With s = K̂⁻¹k(X_train, x) up to an error e, the variance k(x, x) - 2 sᵀk(X_train, x) + sᵀK̂s exceeds the exact one
    by eᵀK̂e: second order in the error, and never negative. A solve that does not converge gives a ``CGWarning``.
    A mean costs O(t n d); a variance, for every test point, as many products of K̂ with a vector as the solve has
    iterations, O(n²) each.

    Args:
        X: the training inputs, in their own dtype; answers are computed in float64.
        solver: for K̂ of these inputs in float64; its system is a copy that nothing else changes.
        representer: the solution K̂⁻¹(y - m(X)) and its status.
    """

    never_below_exact = True

    def __init__(
        self,
        X: Float[Tensor, "n d"],
        solver: Solver,
        representer: CGResult,
        max_bytes: int = DEFAULT_MAX_BYTES,
        *,
        shares_rows: bool = False,
    ):
        super().__init__(solver.system.prior, X, representer.solution[:, 0], max_bytes, shares_rows=shares_rows)
        self.solver, self.representer_status = solver, representer
        self._width = 2 * X.shape[0]  # the iteration holds five vectors for every test point

    REPRESENTER: ClassVar[Fields] = {
        "solution": float64("n", 1),
        "num_iterations": integer(),
        **dict.fromkeys(("converged", "broke_down"), tensor(1, dtype=torch.bool)),
        **dict.fromkeys(("residual_norms", "squared_norms"), float64(1)),
        **dict.fromkeys(("diagonal", "off_diagonal"), float64("iterations", 1)),
    }
    FIELDS: ClassVar[Fields] = {
        "row_noise": optional(numbers("n")),
        "rank": integer(),
        "system_max_bytes": integer(),
        "tolerance": real(above=0.0, below=1.0),
        "max_iterations": integer(1, 10**6),
        "representer": record(REPRESENTER),
    }

    def _state(self, rows: Rounding) -> State:
        solver, system = self.solver, self.solver.system
        return {
            "X": rows(self.X, "X"),
            "row_noise": rows(system.row_noise, "row_noise"),
            "rank": solver.rank,
            "system_max_bytes": int(system.max_bytes),
            "tolerance": float(solver.tolerance),
            "max_iterations": solver.max_iterations,
            "representer": self.representer_status._asdict(),
        }

    @classmethod
    def _from_state(cls, state: State, prior: GP, X: Tensor, max_bytes: int, sharing: Sharing) -> "CGPosterior":
        row_noise, rank, kept_bytes, *limits, found = checked(state, cls.FIELDS, {"n": len(X)}).values()
        row_noise = None if row_noise is None else row_noise.double()
        solver = Solver(System(prior, sharing.rows(X, torch.float64), row_noise, kept_bytes), rank, *limits)
        return cls(X, solver, CGResult(**found), max_bytes, shares_rows=True)

    def solve(self, X: Float[Tensor, "t d"]) -> CGResult:
        """K̂⁻¹k(X_train, X), what the variance at ``X`` is made of, with its status."""
        check_new_inputs(X, self.X)
        return self._solve(self._cross(X))

    def _moments(self, X: Tensor) -> tuple[Tensor, Tensor]:
        cross = self._cross(X)
        S = self._solve(cross).solution
        explained = (S * (2 * cross - self.solver.system.products(S))).sum(0)
        mean = self.prior.mean(X.double()) + self.representer_status.solution[:, 0] @ cross
        return mean, self.prior.kernel.diag(X.double()) - explained

    def _covariance(self, X: Tensor, Z: Tensor | None) -> Tensor:
        cross = self._cross(X)
        S = self._solve(cross).solution
        other = cross if Z is None else self._cross(Z)
        T = S if Z is None else self._solve(other).solution
        K = kernel_product(self.prior.kernel, X.double(), (X if Z is None else Z).double())
        return K - cross.mT @ T - S.mT @ other + S.mT @ self.solver.system.products(T)

    def _cross(self, X: Tensor) -> Tensor:
        """k(X_train, X), float64."""
        return kernel_product(self.prior.kernel, X.double(), self.solver.system.X).mT

    def _solve(self, cross: Tensor) -> CGResult:
        return self.solver.solve(cross.detach(), "columns of the variance")
