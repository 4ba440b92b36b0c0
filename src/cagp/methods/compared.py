"""The methods that CaGP is compared with: the exact Gaussian process, by factorising K̂ or by conjugate gradients (CGGP;
Gardner et al., 2018), and inducing points with a Gaussian q(u), the best one (SGPR) or learned on minibatches (SVGP).
"""

import math
from typing import Any, Literal, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from cagp.actions import BlockActions, Partition
from cagp.checks import check_count, check_first_order
from cagp.dataset import Data
from cagp.engine import DEFAULT_MAX_BYTES, kernel_product, precise_product
from cagp.inducing import Choice, InducingPoints, InducingStatistics, choose_inducing_points, inducing_cholesky
from cagp.linalg import safe_cholesky
from cagp.memory import available_memory
from cagp.methods.base import HYPERPARAMETER_RATE, Method, RowNoise, Targets, trained
from cagp.posteriors import CaGPPosterior, CGPosterior, InducingPosterior
from cagp.prior import GP
from cagp.projection import project
from cagp.quantities import size
from cagp.system import Solver, System
from cagp.training import Batch, Coming, ParameterGroup, StepRows
from cagp.training.trainable import Inputs, Terms

MATRICES = 6
"""Float64 matrices of n x n values that objective and gradient, or conditioning, hold at once; measured."""

INDUCING_RATE, VARIATIONAL_RATE = 0.1, 0.1
"""Adam's learning rates of inducing points, in units of their own spread, and of q, where Adam moves it."""

Gradient = Literal["natural", "joint"]


@final
class CholeskyGP(Method):
    """Exact inference: the loss is -log p(y), the posterior is CaGP's with S = I. Time O(n³), memory O(n²).

    It raises MemoryError if the matrices would not fit into the memory available.
    """

    def __init__(self, prior: GP, max_bytes: int = DEFAULT_MAX_BYTES):
        super().__init__()
        self.prior, self.max_bytes = prior, max_bytes

    def check(self, data: Data) -> None:
        super().check(data)
        available = torch.cuda.mem_get_info(data.X.device)[0] if data.X.is_cuda else available_memory()
        needed, n = memory_needed(data.num_rows), data.num_rows
        if available is not None and needed > available:
            largest = math.isqrt(available // (MATRICES * 8))
            raise MemoryError(
                f"CholeskyGP needs about {needed / 1e9:.1f} GB for {n:,} rows, {available / 1e9:.1f} GB are available, "
                f"enough for about {largest:,} rows. Use fewer rows, or a method whose cost is linear in "
                "them: CaGPOpt, SGPR, SVGP; or CGGP, which needs no n x n matrix."
            )

    def terms(self, data: Data, batch: Batch) -> Terms:
        """-log p(y) / n, y ~ Normal(m(X), K̂), of all rows."""
        batch.check_all_rows("CholeskyGP")
        X, y, row_noise = data
        residual = y.double() - self.prior.mean(X.double())
        K = precise_product(self.prior.kernel, X, X)
        nll = _GaussianNLL.apply(K, self.prior.noise(X, row_noise), residual)
        return {"negative_log_marginal_likelihood": nll / data.num_rows}

    @torch.no_grad()
    def posterior(self, data: Data) -> CaGPPosterior:
        rows = torch.arange(data.num_rows + 1, device=data.X.device)
        unit_vectors = BlockActions(Partition(rows[:-1], rows), torch.ones_like(data.X[:, 0]))  # a block for each row
        projection = project(self.prior, unit_vectors, *data.tensors, self.max_bytes, check=False)
        return CaGPPosterior(self.prior, projection, self.max_bytes)

    def words(self, data: Data) -> str:
        return f"Exact GP on {data.num_rows:,} rows by Cholesky (about {size(memory_needed(data.num_rows))})"


class _GaussianNLL(torch.autograd.Function):
    """½(rᵀK̂⁻¹r + log|K̂| + n log 2π) with K̂ = K + D; ∂K = ½(K̂⁻¹ - wwᵀ), ∂D its diagonal, ∂r = w, w = K̂⁻¹r."""

    @staticmethod
    def forward(ctx, K: Tensor, noise: Tensor, residual: Tensor) -> Tensor:
        chol = safe_cholesky((K + K.mT).div_(2).diagonal_scatter(K.diagonal() + noise), "K̂")
        weights = torch.cholesky_solve(residual[:, None], chol)[:, 0]
        ctx.save_for_backward(chol, weights)
        return 0.5 * (residual @ weights + len(residual) * math.log(2 * math.pi)) + chol.diagonal().log().sum()

    @staticmethod
    def backward(ctx, *grad_outputs: Tensor):
        check_first_order()
        chol, weights = ctx.saved_tensors
        grad_K = torch.cholesky_inverse(chol).addr_(weights, weights, alpha=-1).mul_(0.5 * grad_outputs[0])
        return grad_K, grad_K.diagonal().clone(), grad_outputs[0] * weights


def memory_needed(num_rows: int) -> int:
    """Bytes that exact inference takes at its peak."""
    return MATRICES * 8 * num_rows**2


@final
class CGGP(Method):
    """Numerical approximation of the exact GP: -log p(y) with a log-determinant estimated from random probes.

    The probes are those of ``seed`` at every step, so the loss is a function of the parameters; its gradient is an
    unbiased estimate of that of -log p(y), not the derivative of the estimated loss. Time per step: one product of
    k(X, X) with ``num_probes`` + 1 columns for every iteration, O(n²) each; memory O(n (rank + probes)), and n² values
    if k(X, X) fits into ``max_bytes``. A solve that does not converge gives a ``CGWarning``.

    All of it is computed in float64: vectors in float32 leave residuals of about 1e-7 times the condition number.

    Args:
        tolerance: of the residuals of conjugate gradients, relative to the right-hand sides.
        num_probes: random vectors for the log-determinant; its standard error falls with their square root.
        precondition_rank: columns of the pivoted Cholesky factor in the preconditioner.
        max_bytes: limit for temporaries, and for keeping k(X, X).
    """

    def __init__(
        self,
        prior: GP,
        *,
        tolerance: float = 1e-4,
        num_probes: int = 16,
        precondition_rank: int = 100,
        max_iterations: int = 1000,
        seed: int = 0,
        max_bytes: int = DEFAULT_MAX_BYTES,
    ):
        super().__init__()
        check_count(num_probes, "num_probes", 2**31, "a size that can be computed")
        if not tolerance > 0:
            raise ValueError(f"tolerance is {tolerance}, expected a positive number.")
        self.prior = prior
        self.tolerance, self.num_probes, self.precondition_rank = tolerance, num_probes, precondition_rank
        self.max_iterations, self.seed, self.max_bytes = max_iterations, seed, max_bytes

    def terms(self, data: Data, batch: Batch) -> Terms:
        batch.check_all_rows("CGGP")
        n, (X, y, row_noise) = data.num_rows, data.double()
        solver = self._solver(X, row_noise)
        # Signs at random: of covariance I, and of less variance in quadratic forms than normal numbers.
        shape, generator = (n + solver.L.shape[1], self.num_probes), torch.Generator().manual_seed(self.seed)
        signs = torch.randint(2, shape, generator=generator, dtype=torch.float64) * 2 - 1
        quadratic, log_det = self.estimates(solver, X, y, row_noise, signs.to(X.device))
        return {
            "quadratic": 0.5 * quadratic / n,
            "log_determinant": 0.5 * log_det / n,
            "constant": torch.full_like(log_det, 0.5 * math.log(2 * math.pi)).detach(),
        }

    def estimates(
        self, solver: Solver, X: Inputs, y: Targets, row_noise: RowNoise, white: Float[Tensor, "p c"]
    ) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        """rᵀK̂⁻¹r and log|K̂| of float64 data, differentiable in the prior's parameters.

        One batch of conjugate gradients gives w = K̂⁻¹r and, for probes z of covariance M, the preconditioner, u = K̂⁻¹z:
            rᵀK̂⁻¹r = 2rᵀw - wᵀK̂w up to the square of w's error; with w constant this has the gradient, too;
            log|K̂| = log|M| + E[zᵀM^-½ log(M^-½K̂M^-½) M^-½z], by Lanczos quadrature from the iteration's coefficients;
            ∂log|K̂| = E[uᵀ ∂K̂ M⁻¹z].
        With all columns of √p I as ``white``, instead of random ones, the expectations are exact.
        """
        Z = solver.color(white)
        residual = y - self.prior.mean(X)
        result = solver.solve(torch.cat([residual.detach()[:, None], Z], 1), "right-hand sides of the loss")
        right = torch.cat([result.solution[:, :1], solver.precondition(Z)], 1)
        kernel_part = kernel_product(self.prior.kernel, X, X, right, max_bytes=self.max_bytes)
        noise = self.prior.noise(X, row_noise)
        forms = (result.solution * (kernel_part + noise[:, None] * right)).sum(0)
        quadratic = 2 * residual @ result.solution[:, 0] - forms[0]
        slope = forms[1:].mean()
        value = solver.precondition_log_det() + result.quadrature(torch.log)[1:].mean()
        return quadratic, value + (slope - slope.detach())

    def _solver(self, X: Tensor, row_noise: Tensor | None) -> Solver:
        system = System(self.prior, X, row_noise, self.max_bytes, check=False)
        return Solver(system, self.precondition_rank, self.tolerance, self.max_iterations)

    @torch.no_grad()
    def posterior(self, data: Data) -> CGPosterior:
        """The posterior with K̂⁻¹(y - m) computed, as a snapshot; ``representer_status`` says how the solve ended."""
        inputs, (_, y, row_noise) = data.X.to(torch.float64, copy=True), data.double()
        solver = self._solver(inputs, row_noise)
        representer = solver.solve((y - self.prior.mean(inputs))[:, None], "representer weights")
        return CGPosterior(data.X, solver, representer, self.max_bytes)

    def words(self, data: Data) -> str:
        return (
            f"CGGP on {data.num_rows:,} rows: conjugate gradients to {self.tolerance:.0e}, {self.num_probes} probes, "
            f"preconditioner of rank {min(self.precondition_rank, data.num_rows)}"
        )

    def findings(self, data: Data, input_names: tuple[str, ...] | None = None) -> list[str]:
        return super().findings(data.double(), input_names)


# ---- inducing points ----


@final
class SGPR(Method):
    """Variational inference through m inducing points (Titsias, 2009), on all rows at once. Time O(n m²), memory
    O(n m).

    Args:
        Z: where the inducing points start; they are learned, unless ``inducing_points.requires_grad_(False)``. Or the
            ``inducing_points`` of another method, to share them.
    """

    def __init__(self, prior: GP, Z: Float[Tensor, "m d"] | InducingPoints, max_bytes: int = DEFAULT_MAX_BYTES):
        super().__init__()
        self.prior, self.inducing_points, self.max_bytes = prior, InducingPoints.of(Z), max_bytes

    @classmethod
    def from_data(
        cls, prior: GP, X: Inputs, num_inducing: int, *, choice: Choice = "greedy", seed: int = 0, **choices: Any
    ) -> "SGPR":
        """SGPR whose inducing points start as ``choose_inducing_points`` finds them; ``choices`` go to the class."""
        return cls(prior, _start(prior, X, num_inducing, choice, seed), **choices)

    def terms(self, data: Data, batch: Batch) -> Terms:
        """-log Normal(y; m(X), Q + D) and ½ tr(D⁻¹(K - Q)) per row, Q = k(X, Z) k(Z, Z)⁻¹ k(Z, X).

        With U = L⁻¹k(Z, X), LLᵀ = k(Z, Z) and B = I + UD⁻¹Uᵀ: |Q + D| = |D||B|, and the quadratic form is
        rᵀD⁻¹r - cᵀB⁻¹c, c = UD⁻¹r. Of all rows.
        """
        batch.check_all_rows("SGPR")
        s = self.inducing_points.see(self.prior, data, self.max_bytes)
        chol = _inner(s)
        half = torch.linalg.solve_triangular(chol, s.targets[:, None], upper=False)[:, 0]
        nll = 0.5 * (s.log_noise + s.squares - half.square().sum()) + chol.diagonal().log().sum()
        trace = 0.5 * (s.prior_variance - s.gram.trace())
        return {"negative_log_likelihood": nll / data.num_rows, "trace": trace / data.num_rows}

    def check(self, data: Data) -> None:
        super().check(data)
        self.inducing_points.check(data.X)

    def parameter_groups(self) -> dict[str, ParameterGroup]:
        return {
            "hyperparameters": trained(self.prior, HYPERPARAMETER_RATE),
            "inducing_points": trained(self.inducing_points, INDUCING_RATE),
        }

    @torch.no_grad()
    def posterior(self, data: Data) -> InducingPosterior:
        """The posterior of the best q, v = L⁻¹u ~ Normal(B⁻¹c, B⁻¹)."""
        s = self.inducing_points.see(self.prior, data, self.max_bytes)
        chol, Z = _inner(s), self.inducing_points()
        mean = torch.cholesky_solve(s.targets[:, None], chol)[:, 0]
        root = torch.linalg.solve_triangular(chol, _eye_like(chol), upper=False).mT
        return InducingPosterior(self.prior, Z.to(data.X), s.chol, mean, root, self.max_bytes)

    def words(self, data: Data) -> str:
        return f"SGPR with {len(self.inducing_points):,} inducing points on {data.num_rows:,} rows"


@final
class SVGP(Method):
    """Variational inference through m inducing points (Hensman et al., 2013), one minibatch per step. Time
    O(b m² + m³), memory O(b m + m²).

    q is Normal(w, RRᵀ), R upper triangular, of the whitened v = L⁻¹u, LLᵀ = k(Z, Z); prior and q then agree at w = 0,
    R = I, where it starts.

    With natural gradients, a fit first moves q by one natural step on the rows of the step; its optimiser then moves
    the other parameters.

    Args:
        Z: as of ``SGPR``.
        gradient: "natural", or "joint": the optimiser moves w and R like the other parameters.
        natural_rate: step size of natural gradients in (0, 1]; at 1 and with all rows, one step finds the best q.
        batch_size: rows of a step, or all rows if there are fewer.
    """

    def __init__(
        self,
        prior: GP,
        Z: Float[Tensor, "m d"] | InducingPoints,
        *,
        gradient: Gradient = "natural",
        natural_rate: float = 0.1,
        batch_size: int = 1024,
        seed: int = 0,
        max_bytes: int = DEFAULT_MAX_BYTES,
    ):
        super().__init__()
        if gradient not in ("natural", "joint"):
            raise ValueError(f'gradient is {gradient!r}, expected "natural" or "joint".')
        check_count(batch_size, "batch_size", 2**31, "a size that can be computed")
        _check_rate(natural_rate)
        self.prior, self.inducing_points = prior, InducingPoints.of(Z)
        self.gradient, self.natural_rate = gradient, natural_rate
        self.batch_size, self.seed, self.max_bytes = batch_size, seed, max_bytes
        points, learn = self.inducing_points.points, gradient == "joint"
        self.whitened_mean = nn.Parameter(torch.zeros_like(points[:, 0]), learn)
        self.whitened_root = nn.Parameter(_eye_like(points), learn)

    @classmethod
    def from_data(
        cls, prior: GP, X: Inputs, num_inducing: int, *, choice: Choice = "greedy", seed: int = 0, **choices: Any
    ) -> "SVGP":
        """SVGP whose inducing points start as ``choose_inducing_points`` finds them; ``choices`` go to the class."""
        return cls(prior, _start(prior, X, num_inducing, choice, seed), seed=seed, **choices)

    def check(self, data: Data) -> None:
        super().check(data)
        self.inducing_points.check(data.X)

    def rows(self, step: int, num_rows: int) -> StepRows:
        b = self.batch_size
        if b >= num_rows:
            return StepRows(stochastic=True, divisible=True)
        # torch seeds with 32 bits.
        generator = torch.Generator().manual_seed((1_000_003 * self.seed + step) % 2**32)
        # A permutation costs O(n). With many rows, drawing a row twice is rare and does no harm.
        if num_rows <= 100 * b:
            drawn = torch.randperm(num_rows, generator=generator)[:b]
        else:
            drawn = torch.randint(num_rows, (b,), generator=generator)
        return StepRows(drawn, stochastic=True, divisible=True)

    @torch.no_grad()
    def before_step(self, data: Data, coming: Coming) -> Batch:
        """With natural gradients, move q by one step of size ``natural_rate`` on the rows of this step.

        Of several processes, each does so with all rows of the step: time O(b m² + m³), but no m x m matrix is sent.
        """
        if self.gradient == "natural":
            self._move(*self._statistics(data, coming.rows), self.natural_rate)
        return Batch(coming.part)

    def _statistics(self, data: Data, rows: Tensor | None) -> tuple[InducingStatistics, float]:
        """Sums over some rows, and what they are multiplied by to stand for all."""
        some = data if rows is None else data.take(rows)
        return self.inducing_points.see(self.prior, some, self.max_bytes), data.num_rows / some.num_rows

    def terms(self, data: Data, batch: Batch) -> Terms:
        """-E_q[log p(y | f)] and KL(q ‖ p) per row, the first estimated from the rows of the batch."""
        n = data.num_rows
        s, factor = self._statistics(data, batch.rows)
        w, R = self.whitened_mean, self.whitened_root.triu()
        # Σ E_q[(y - f)²] / D, with f = m + uᵀv + what u does not determine: sums over rows are in s.
        errors = s.squares - 2 * w @ s.targets + w @ s.gram @ w
        variances = s.prior_variance - s.gram.trace() + (R * (s.gram @ R)).sum()
        kl = 0.5 * (R.square().sum() + w @ w - len(w)) - R.diagonal().abs().log().sum()
        nll = 0.5 * factor * (errors + variances + s.log_noise)
        return {"negative_log_likelihood": nll / n, "kl": kl / n}

    @torch.no_grad()
    def natural_step(
        self, X: Inputs | Data, y: Targets | None = None, row_noise: RowNoise = None, rate: float = 1.0
    ) -> None:
        """Move q by one natural-gradient step on all these rows; with rate 1, to the best q."""
        _check_rate(rate)
        self._move(*self._statistics(self.checked(X, y, row_noise), None), rate)

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

    def parameter_groups(self) -> dict[str, ParameterGroup]:
        variational = [p for p in (self.whitened_mean, self.whitened_root) if p.requires_grad]
        return {
            "hyperparameters": trained(self.prior, HYPERPARAMETER_RATE),
            "inducing_points": trained(self.inducing_points, INDUCING_RATE),
            "variational": ParameterGroup(variational, VARIATIONAL_RATE),
        }

    @torch.no_grad()
    def posterior(self, data: Data) -> InducingPosterior:
        """The posterior of q as learned. Only the dtype and device of the data matter."""
        Z = self.inducing_points()
        chol = inducing_cholesky(self.prior, Z, data.X.dtype)
        q = self.whitened_mean, self.whitened_root.triu()
        return InducingPosterior(self.prior, Z.to(data.X), chol, *q, self.max_bytes)

    def words(self, data: Data) -> str:
        n = data.num_rows
        return (
            f"SVGP with {len(self.inducing_points):,} inducing points on {n:,} rows, {min(self.batch_size, n):,} a "
            f"step, {self.gradient} gradients of q"
        )


def _start(prior: GP, X: Tensor, num_inducing: int, choice: Choice, seed: int) -> Tensor:
    return choose_inducing_points(prior, X, num_inducing, choice, prior.kernel.lengthscales(X.shape[1]), seed)


def _inner(s: InducingStatistics) -> Tensor:
    """The Cholesky factor of B = I + UD⁻¹Uᵀ."""
    return safe_cholesky(_eye_like(s.gram) + s.gram, "I + UD⁻¹Uᵀ")


def _eye_like(A: Tensor) -> Tensor:
    return torch.eye(A.shape[0], dtype=A.dtype, device=A.device)


def _check_rate(rate: float) -> None:
    if not 0 < rate <= 1:
        raise ValueError(f"the rate of natural gradients is {rate}, expected more than 0 and at most 1.")
