"""SVGP: inducing points with a learned Gaussian q(u), trained on minibatches (Hensman et al., 2013)."""

from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from cagp.checks import check_data
from cagp.engine import DEFAULT_MAX_BYTES, backend_for
from cagp.inducing import (
    Choice,
    InducingPoints,
    InducingStatistics,
    choose_inducing_points,
    inducing_cholesky,
    see_through,
)
from cagp.linalg import safe_cholesky
from cagp.methods.base import Method
from cagp.methods.common import lengthscale_of, prior_findings
from cagp.posteriors import InducingPosterior
from cagp.prior import GP

BATCH_SIZE = 1024
NATURAL_RATE = 0.1

Gradient = Literal["natural", "joint"]


class SVGP(Method):
    """Variational inference through m inducing points, on a minibatch a step. Time O(b m² + m³), memory O(b m + m²).

    q is Normal(w, RRᵀ), R upper triangular, of the whitened v = L⁻¹u, LLᵀ = k(Z, Z); prior and q then agree at w = 0,
    R = I, where it starts.

    A fit calls ``adapt`` before every step: the objective is then that of the rows drawn for this step, by ``seed`` and
    the step alone. With natural gradients, the first objective evaluated with gradients after ``adapt`` moves q by one
    ``natural_step`` on these rows, and is the objective there; the optimiser of the fit moves the other parameters.
    Without ``adapt``, the objective is that of all rows, and moves nothing.

    Args:
        prior: mean, kernel and noise, learned.
        Z: where the inducing points start; they are learned, unless ``inducing_points.requires_grad_(False)``.
        gradient: "natural", or "joint": w and R are parameters of the fit like the others.
        natural_rate: step size of natural gradients in (0, 1]; at 1 and with all rows, one step finds the best q.
        batch_size: rows of a step; all, where there are no more.
        seed: of the rows drawn.
        max_bytes: limit for temporaries.
    """

    stochastic = True

    def __init__(
        self,
        prior: GP,
        Z: Float[Tensor, "m d"],
        *,
        gradient: Gradient = "natural",
        natural_rate: float = NATURAL_RATE,
        batch_size: int = BATCH_SIZE,
        seed: int = 0,
        max_bytes: int = DEFAULT_MAX_BYTES,
    ):
        super().__init__()
        if gradient not in ("natural", "joint"):
            raise ValueError(f'gradient is {gradient!r}, expected "natural" or "joint".')
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}, expected at least 1.")
        _check_rate(natural_rate)
        self.prior = prior
        self.inducing_points = InducingPoints(Z)
        self.gradient, self.natural_rate = gradient, natural_rate
        self.batch_size, self.seed, self.max_bytes = batch_size, seed, max_bytes
        m, learn = Z.shape[0], gradient == "joint"
        self.whitened_mean = nn.Parameter(torch.zeros(m, dtype=torch.float64, device=Z.device), learn)
        self.whitened_root = nn.Parameter(torch.eye(m, dtype=torch.float64, device=Z.device), learn)
        self._step: int | None = None  # of the fit, whose rows the objective takes
        self._natural_step_is_due = False

    @classmethod
    def from_data(
        cls,
        prior: GP,
        X: Float[Tensor, "n d"],
        num_inducing: int,
        *,
        choice: Choice = "greedy",
        seed: int = 0,
        **choices,
    ) -> "SVGP":
        """SVGP whose inducing points start as ``choose_inducing_points`` finds them; ``choices`` go to the class."""
        Z = choose_inducing_points(prior, X, num_inducing, choice, lengthscale_of(prior.kernel), seed)
        return cls(prior, Z, seed=seed, **choices)

    def adapt(self, X: Float[Tensor, "n d"], step: int, share: float, flat: bool) -> str | None:
        """Choose the rows of this step."""
        self._step = step
        self._natural_step_is_due = self.gradient == "natural"
        return None

    def objective_terms(
        self, X: Float[Tensor, "n d"], y: Float[Tensor, " n"], row_noise: Float[Tensor, " n"] | None = None
    ) -> dict[str, Float[Tensor, ""]]:
        """-E_q[log p(y | f)] and KL(q ‖ p) per row, the first estimated from the rows of this step."""
        check_data(X, y, row_noise)
        n, rows = X.shape[0], self._rows(X)
        X, y, row_noise = X[rows], y[rows], None if row_noise is None else row_noise[rows]
        s = see_through(self.prior, self.inducing_points(), X, y, row_noise, self.max_bytes)
        factor = n / len(rows)
        if self._natural_step_is_due and torch.is_grad_enabled():
            self._move(s, factor, self.natural_rate)
            self._natural_step_is_due = False
        w, R = self.whitened_mean, self.whitened_root.triu()
        # Σ E_q[(y - f)²] / D, with f = m + uᵀv + what u does not determine: sums over rows are in s.
        errors = s.squares - 2 * w @ s.targets + w @ s.gram @ w
        variances = s.prior_variance - s.gram.trace() + (R * (s.gram @ R)).sum()
        kl = 0.5 * (R.square().sum() + w @ w - len(w)) - R.diagonal().abs().log().sum()
        nll = 0.5 * factor * (errors + variances + s.log_noise)
        return {"negative_log_likelihood": nll / n, "kl": kl / n}

    def _rows(self, X: Tensor) -> Int[Tensor, " b"]:
        n, b = X.shape[0], self.batch_size
        if self._step is None or b >= n:
            return torch.arange(n, device=X.device)
        # torch seeds with 32 bits.
        generator = torch.Generator().manual_seed((1_000_003 * self.seed + self._step) % 2**32)
        # A permutation costs O(n); where rows are many, drawing one twice is rare, and does no harm.
        few = n <= 100 * b
        rows = torch.randperm(n, generator=generator)[:b] if few else torch.randint(n, (b,), generator=generator)
        return rows.to(X.device)

    @torch.no_grad()
    def natural_step(
        self,
        X: Float[Tensor, "n d"],
        y: Float[Tensor, " n"],
        row_noise: Float[Tensor, " n"] | None = None,
        rate: float = 1.0,
    ) -> None:
        """Move q by one natural-gradient step on all these rows; with rate 1, to the best q there is."""
        _check_rate(rate)
        self._move(see_through(self.prior, self.inducing_points(), X, y, row_noise, self.max_bytes), 1.0, rate)

    @torch.no_grad()
    def _move(self, s: InducingStatistics, factor: float, rate: float) -> None:
        """θ ← θ - rate · ∂loss/∂η in the natural parameters θ = (Λw, Λ) of q, Λ = (RRᵀ)⁻¹, η its expectations.

        The likelihood is Gaussian, so the gradient is θ - θ*, θ* = (Σ ur/D, I + Σ uuᵀ/D) the natural parameters of the
        best q for these rows, their sums scaled to all rows: a step is a mean of precisions, and Λ stays positive.
        """
        inverse = torch.linalg.solve_triangular(self.whitened_root.triu(), _eye_like(s.gram), upper=True)
        precision = inverse.mT @ inverse
        natural_mean = precision @ self.whitened_mean
        precision = (1 - rate) * precision + rate * (_eye_like(s.gram) + factor * s.gram)
        natural_mean = (1 - rate) * natural_mean + rate * factor * s.targets
        chol = safe_cholesky(precision, "the precision of q")
        self.whitened_mean.copy_(torch.cholesky_solve(natural_mean[:, None], chol)[:, 0])
        self.whitened_root.copy_(torch.linalg.solve_triangular(chol, _eye_like(chol), upper=False).mT)

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """Parameters by the learning rate they share."""
        return {
            "hyperparameters": [p for p in self.prior.parameters() if p.requires_grad],
            "inducing_points": [p for p in self.inducing_points.parameters() if p.requires_grad],
            "variational": [p for p in (self.whitened_mean, self.whitened_root) if p.requires_grad],
        }

    @torch.no_grad()
    def condition(
        self, X: Float[Tensor, "n d"], y: Float[Tensor, " n"], row_noise: Float[Tensor, " n"] | None = None
    ) -> InducingPosterior:
        """The posterior of q as learned, as a snapshot; of the data only their dtype and device matter."""
        check_data(X, y, row_noise)
        Z = self.inducing_points()
        chol = inducing_cholesky(self.prior, Z, X.dtype)
        return InducingPosterior(
            self.prior, Z.to(X), chol, self.whitened_mean, self.whitened_root.triu(), self.max_bytes
        )

    def findings(self, X: Float[Tensor, "n d"], y: Float[Tensor, " n"]) -> list[str]:
        """What a user should know of the fitted method, in words."""
        return [
            f"SVGP with {len(self.inducing_points):,} inducing points on {X.shape[0]:,} rows, "
            f"{min(self.batch_size, X.shape[0]):,} a step, {self.gradient} gradients of q, kernel by "
            f"{backend_for(self.prior.kernel, X)}, {X.dtype}.",
            *prior_findings(self.prior, X, y, self.input_names),
        ]


def _eye_like(A: Tensor) -> Tensor:
    return torch.eye(A.shape[0], dtype=A.dtype, device=A.device)


def _check_rate(rate: float) -> None:
    if not 0 < rate <= 1:
        raise ValueError(f"the rate of natural gradients is {rate}, expected more than 0 and at most 1.")
