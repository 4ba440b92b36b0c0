"""Actions that move with the hyperparameters: pseudo-inputs, and Krylov spaces with exact gradients."""

from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from cagp.actions import ActionRule, ComputedActions
from cagp.checks import check_first_order, check_new_inputs
from cagp.engine import DEFAULT_MAX_BYTES, precise_product
from cagp.inducing import Choice, InducingPoints, choose_inducing_points
from cagp.iterative import Lanczos, Stopping, iterate
from cagp.linalg import NotPositiveDefiniteError
from cagp.prior import GP
from cagp.system import System

DEPENDENT = 1e-10
"""Singular values of k(X, Z) below this share of the largest one are round-off: pseudo-inputs that add nothing."""


@final
class PseudoInputActions(ActionRule):
    """S = D⁻¹k(X, Z) with learned pseudo-inputs Z: the projections of the targets that SGPR sees.

    SGPR's mean is a function of Sᵀy, too. Here inference from Sᵀy is exact: the mean has the smallest worst-case error
    of all such functions, and the variance says how large it is (docs/derivations.md, "Pseudo-inputs"). Where D is the
    same for all rows, S is k(X, Z).

    S is dense: time O(n² (d + m)) for m pseudo-inputs where SGPR takes O(n m²); memory O(n m).

    Args:
        Z: where the pseudo-inputs start; they are learned, unless ``pseudo_inputs.requires_grad_(False)``.
    """

    def __init__(self, Z: Float[Tensor, "m d"], max_bytes: int = DEFAULT_MAX_BYTES):
        super().__init__()
        self.pseudo_inputs = InducingPoints(Z)
        self.max_bytes = max_bytes

    @classmethod
    def from_data(
        cls, prior: GP, X: Float[Tensor, "n d"], num_actions: int, *, choice: Choice = "greedy", seed: int = 0
    ) -> "PseudoInputActions":
        """Pseudo-inputs that start where ``choose_inducing_points`` puts inducing points."""
        return cls(choose_inducing_points(prior, X, num_actions, choice, seed=seed))

    @property
    def num_actions(self) -> int:
        return len(self.pseudo_inputs)

    def actions(
        self, prior: GP, X: Float[Tensor, "n d"], y: Float[Tensor, " n"], row_noise: Float[Tensor, " n"] | None = None
    ) -> ComputedActions:
        Z = self.pseudo_inputs()
        check_new_inputs(Z, X.double(), "the pseudo-inputs")
        same_noise = prior.noise.of_all(row_noise) is not None
        precision = None if same_noise else 1 / prior.noise(X, row_noise)[:, None]
        # Only the span counts: a basis change is a constant, and makes the columns orthonormal.
        with torch.no_grad():
            S = precise_product(prior.kernel, X, Z)
            R = torch.linalg.qr(S if precision is None else precision * S, mode="r").R
            del S
            _, singular, Vt = torch.linalg.svd(R)
            if not bool(torch.isfinite(singular).all()) or not float(singular[0]) > 0:
                raise NotPositiveDefiniteError(
                    "k(X, Z) is zero or not finite: no pseudo-input is near a row. Start them from rows of X."
                )
            kept = singular > DEPENDENT * singular[0]
            basis = (Vt[kept] / singular[kept, None]).mT.contiguous()
        S = precise_product(prior.kernel, X, Z, basis, max_bytes=self.max_bytes)
        return ComputedActions(S if precision is None else precision * S)


@final
class KrylovActions(ActionRule):
    """The actions of CaGP-CG as a function of the hyperparameters, with their exact gradient.

    ``CaGPCG`` takes the same actions as constants. Here the gradient knows that they move with the hyperparameters. The
    span is that of p(K̂)(y - m) for polynomials p up to a degree, so the Lanczos coefficients may be taken as constants:
    the derivative of the recurrence is then linear, and its adjoint takes one product with K̂ per action
    (docs/derivations.md, "Gradients through Krylov spaces").

    Time of value and gradient: about twice that of ``CaGPCG``; memory O(n i), and n² if k(X, X) is kept.

    Args:
        num_actions: i, the budget; fewer if products with K̂ reach no more.
        max_bytes: k(X, X) is kept if it takes no more than this, and otherwise evaluated again for every product.
    """

    def __init__(self, num_actions: int, max_bytes: int = DEFAULT_MAX_BYTES):
        super().__init__()
        self._num_actions, self.max_bytes = num_actions, max_bytes

    @property
    def num_actions(self) -> int:
        return self._num_actions

    def actions(
        self, prior: GP, X: Float[Tensor, "n d"], y: Float[Tensor, " n"], row_noise: Float[Tensor, " n"] | None = None
    ) -> ComputedActions:
        stopping = Stopping(min(self._num_actions, X.shape[0]))
        options = {"reorthogonalise": True, "max_bytes": self.max_bytes, "check": False}
        found = iterate(prior, X, y, Lanczos(), stopping, row_noise, **options)
        Q = found.state.actions
        residual = y.double() - prior.mean(X.double())
        if not torch.is_grad_enabled() or not bool(residual.detach().any()):
            return ComputedActions(Q)  # without a residual the vectors start at ones
        before = Q[:, :-1].contiguous()
        products = prior.noise(X, row_noise)[:, None] * before
        if before.shape[1]:
            products = products + precise_product(prior.kernel, X, X, before, max_bytes=self.max_bytes)
        return ComputedActions(_KrylovBasis.apply(products, residual, Q, found.system))


class _KrylovBasis(torch.autograd.Function):
    """Q from K̂Q (all columns but the last) and y - m, whose values are known: only the gradient is new.

    q₁ ∝ y - m,   β_j q_{j+1} = K̂q_j - Σ_{k≤j} h_kj q_k   with constants h, β. With the cotangents Γ of Q:
        λ_j = Γ_j + K̂λ_{j+1}/β_j - Σ_{k≥j} h_jk λ_{k+1}/β_k,   made orthogonal to q_1, ..., q_j,
    since the loss depends on the span alone; the cotangent of (K̂Q)_j is λ_{j+1}/β_j, that of y - m is λ_1/‖y - m‖.
    """

    @staticmethod
    def forward(ctx, products: Tensor, residual: Tensor, Q: Tensor, system: System) -> Tensor:
        ctx.save_for_backward(products, residual, Q)
        ctx.system = system
        return Q.view_as(Q)

    @staticmethod
    def backward(ctx, *grad_outputs: Tensor):
        check_first_order()
        products, residual, Q = ctx.saved_tensors
        (grad,) = grad_outputs
        H = Q.mT @ products  # (i, i - 1), upper Hessenberg
        beta = H.diagonal(-1)
        scaled = torch.zeros_like(products)  # λ_{j+1}/β_j
        for j in range(Q.shape[1] - 1, -1, -1):
            last = grad[:, j].double()
            if j < products.shape[1]:
                last = last + ctx.system.product(scaled[:, j]) - scaled[:, j:] @ H[j, j:]
            own = Q[:, : j + 1]
            last = last - own @ (own.mT @ last)
            if j > 0:
                scaled[:, j - 1] = last / beta[j - 1]
        return scaled, last / residual.norm(), None, None
