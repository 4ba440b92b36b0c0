"""Predictions from actions chosen for each test point: its nearest rows, alone or beside shared actions.

For a test point x with rows N, conditioning on y_N is exact inference on the projections E_Nᵀy. With actions S that all
test points share, S_x = [S, E_N]: the process is first conditioned on Sᵀy, and the result on y_N. With LLᵀ = SᵀK̂S and
u(x) = L⁻¹Sᵀk(X, x), v_r = L⁻¹Sᵀ(k(X, x_r) + D_r e_r), a = L⁻¹Sᵀ(y - m):

    c = k(N, x) - v_N u(x)     C = k(N, N) + D_N - v_N v_Nᵀ     r = y_N - m_N - v_N a
    mean = m(x) + u(x)ᵀa + cᵀC⁻¹r                variance = k(x, x) - |u(x)|² - cᵀC⁻¹c
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from scipy.linalg.lapack import dpstrf  # pyright: ignore[reportAttributeAccessIssue]
from torch import Tensor

from cagp.engine import (
    DEFAULT_MAX_BYTES,
    NEGLIGIBLE,
    Backend,
    BlockWeights,
    local_density,
    local_moments,
    precise_product,
)
from cagp.linalg import safe_cholesky
from cagp.metrics import row_nll
from cagp.prior import GP, ZeroMean
from cagp.projection import Projection


class Moments(NamedTuple):
    """Mean and variance of the function at each test point, and how well its rows fit the prior, float64."""

    mean: Float[Tensor, " t"]
    variance: Float[Tensor, " t"]
    misfit: Float[Tensor, " t"]  # rᵀC⁻¹r, which is ``num_rows`` in expectation
    num_rows: Float[Tensor, " t"]  # that carry information


@dataclass(frozen=True, eq=False)
class SharedActions:
    """What the actions that all test points share explain, of test points and of training rows."""

    prior: GP
    X: Float[Tensor, "m d"]  # inputs of the support
    W: Float[Tensor, "m i"] | BlockWeights  # S on the support
    chol: Float[Tensor, "i i"]  # L
    targets: Float[Tensor, " i"]  # a
    support: Int[Tensor, " m"]  # the training rows, in the order of W
    max_bytes: int = DEFAULT_MAX_BYTES
    kept: Float[Tensor, "n i"] | None = None  # v_r of all rows, if it was computed before

    @classmethod
    def of(cls, prior: GP, projection: Projection, support: Int[Tensor, " m"], max_bytes: int) -> "SharedActions":
        """The shared actions of a projection, with no more than ``max_bytes`` of temporaries."""
        targets = torch.linalg.solve_triangular(projection.chol, projection.targets[:, None], upper=False)[:, 0]
        return cls(prior, projection.X, projection.W, projection.chol, targets, support, max_bytes)

    @property
    def num_actions(self) -> int:
        """i."""
        return self.chol.shape[0]

    def at_points(self, X: Float[Tensor, "t d"]) -> Float[Tensor, "t i"]:
        """u(x) of each test point, float64. Time O(t m d + t i²)."""
        return self._whitened(precise_product(self.prior.kernel, X, self.X, self.W, max_bytes=self.max_bytes))

    def rows(
        self, X: Float[Tensor, "n d"], rows: Int[Tensor, " u"], noise: Float[Tensor, " u"]
    ) -> Float[Tensor, "u i"]:
        """v_r of these training rows, whose noise variances are ``noise``, float64. Time O(u m d + u i²)."""
        KS = precise_product(self.prior.kernel, X[rows], self.X, self.W, max_bytes=self.max_bytes)
        return self._whitened(KS + noise[:, None] * self._weights(rows, X.shape[0]))

    def keeping(self, X: Float[Tensor, "n d"], noise: Float[Tensor, " n"]) -> "SharedActions":
        """The same with v_r of all rows, computed in parts to keep temporaries small."""
        kept = torch.empty(len(X), self.num_actions, dtype=torch.float64, device=X.device)
        for part in torch.arange(len(X), device=X.device).split(max(1, self.max_bytes // (32 * self.num_actions))):
            kept[part] = self.rows(X, part, noise[part])
        return replace(self, kept=kept)

    def of_neighbours(self, X: Tensor, row_noise: Tensor | None, near: Int[Tensor, "t k"]) -> Float[Tensor, "t k i"]:
        """v of every neighbour of every test point."""
        if self.kept is not None:
            return self.kept[near]
        rows, place = near.unique(return_inverse=True)
        return self.rows(X, rows, self.prior.noise.of_rows(X, rows, row_noise))[place]

    def weights_of(self, rows: Int[Tensor, " u"], num_rows: int) -> Float[Tensor, "u i"]:
        """S at these training rows, float64, whitened: L⁻¹ times each row of S. Time O(u i²)."""
        return self._whitened(self._weights(rows, num_rows))

    def _weights(self, rows: Tensor, num_rows: int) -> Tensor:
        """S at these training rows, float64; zeros for rows that carry no weight."""
        slot = torch.full((num_rows,), -1, device=rows.device)
        slot[self.support] = torch.arange(len(self.support), device=rows.device)
        inside = (slot[rows] >= 0).nonzero()[:, 0]
        slots = slot[rows[inside]]
        found = torch.zeros(len(rows), self.num_actions, dtype=torch.float64, device=rows.device)
        if isinstance(self.W, BlockWeights):
            return found.index_put((inside, self.W.columns()[slots]), self.W.values.double()[slots])
        return found.index_copy(0, inside, self.W.double()[slots])

    def _whitened(self, KS: Tensor) -> Tensor:
        return torch.linalg.solve_triangular(self.chol, KS.mT, upper=False).mT


def local_answers(
    prior: GP,
    X: Float[Tensor, "n d"],
    y: Float[Tensor, " n"],
    row_noise: Float[Tensor, " n"] | None,
    points: Float[Tensor, "t d"],
    neighbours: Int[Tensor, "t k"],
    shared: SharedActions | None = None,
    *,
    backend: Backend | None = None,
) -> Moments:
    """Mean and variance of the function at each test point from its own rows, and from the shared actions if given.

    Mean and variance are differentiable once in the prior's parameters, the shared actions and the test points.

    Args:
        neighbours: rows of ``X`` for each of the test points ``points``; -1 for none.

    Time O(t k² (k + d)). With i shared actions on m rows, add O(t k² i), and O(u m d + u i²) for the u rows that
    occur, unless they are kept.
    """
    mean = prior.mean(points.double())
    variance = prior.kernel.diag(points.double())
    noise, residual = prior.noise.of_all(row_noise), y
    gram = cross = None
    if noise is None or shared is not None or not isinstance(prior.mean, ZeroMean):
        near = neighbours.clamp_min(0)
        flat = near.reshape(-1)
        noise = prior.noise.of_rows(X, flat, row_noise).view(near.shape)
        residual = (y.index_select(0, flat).double() - prior.mean.of_rows(X, flat)).view(near.shape)
        if shared is not None:
            u = shared.at_points(points)
            v = shared.of_neighbours(X, row_noise, near)
            gram, cross = v @ v.mT, (v @ u[:, :, None])[:, :, 0]
            residual = residual - v @ shared.targets
            mean, variance = mean + u @ shared.targets, variance - u.square().sum(1)
    found = local_moments(prior.kernel, points, X, neighbours, noise, residual, gram, cross, backend=backend)
    return Moments(mean + found.mean, variance - found.explained, found.misfit, found.num_rows)


class RowWeights(NamedTuple):
    """What each test point's rows weigh in its mean, and its variance, which are the same for all targets; float64."""

    weights: Float[Tensor, "t k"]  # C⁻¹c: the mean is Σ_r w_r (y_r - m_r)
    variance: Float[Tensor, " t"]


@torch.no_grad()
def local_weights(
    prior: GP,
    X: Float[Tensor, "n d"],
    noise: Float[Tensor, "t k"] | Float[Tensor, ""],
    points: Float[Tensor, "t d"],
    neighbours: Int[Tensor, "t k"],
) -> RowWeights:
    """The weights of the rows N of each test point: one factorisation serves the means of any number of targets.

    Time O(t k² (k + d)).
    """
    with torch.enable_grad():  # the slope of the mean in a residual is its weight
        residual = torch.zeros(neighbours.shape, dtype=torch.float64, device=X.device, requires_grad=True)
        found = local_moments(prior.kernel, points, X, neighbours, noise, residual)
        (weights,) = torch.autograd.grad(found.mean.sum(), residual)
    variance = prior.kernel.diag(points.double()).detach() - found.explained.detach()
    return RowWeights(torch.where(neighbours >= 0, weights, 0.0), variance.clamp_min(0))


def left_out_answers(
    prior: GP,
    X: Float[Tensor, "n d"],
    y: Float[Tensor, " n"],
    row_noise: Float[Tensor, " n"] | None,
    rows: Int[Tensor, " t"],
    neighbours: Int[Tensor, "t k"],
    shared: SharedActions | None = None,
) -> Moments:
    """The function at training rows, each from its neighbours and from the shared actions S, without its own target.

    Without the row i, the actions are S' = S - eᵢsᵢᵀ with sᵢ the i-th row of S. To condition on (S', eᵢ) is to
    condition on (S, eᵢ), from which yᵢ is then taken back. With p = L⁻¹sᵢ, covariance R and residual r given S,

        1/τ = |p|² + (1 - vᵢ·p)²/Rᵢᵢ       e = τ (p·a + (1 - vᵢ·p) rᵢ/Rᵢᵢ)       β = v_N p + (1 - vᵢ·p) R_Nᵢ/Rᵢᵢ

    are variance and error of yᵢ given S', and the slope of y_N in yᵢ. Given S', the neighbours have the covariance
    R_NN - R_Nᵢ R_iN/Rᵢᵢ + τββᵀ among each other, τβ with yᵢ, and the residual r_N - R_Nᵢ rᵢ/Rᵢᵢ + βe.

    Args:
        neighbours: of each of these rows of ``X``, without itself; -1 for none.

    NaN where S alone determines the target. Time as for ``local_answers``, and O(t i²) with i shared actions.
    """
    if shared is None:
        return local_answers(prior, X, y, row_noise, X[rows], neighbours)
    near = neighbours.clamp_min(0)
    v, own_v = (shared.of_neighbours(X, row_noise, part) for part in (near, rows[:, None]))
    own_v, own = own_v[:, 0], X[rows]
    noise = prior.noise(X, row_noise)
    residual = y.double() - prior.mean.of_rows(X, torch.arange(len(X), device=X.device))
    own_noise, own_residual = noise[rows], residual[rows] - own_v @ shared.targets
    p = shared.weights_of(rows, X.shape[0])
    cross = prior.kernel(X[near].double(), own[:, None].double())[:, :, 0]  # k(N, xᵢ)
    K = prior.kernel.diag(own.double()) + own_noise
    R = K - own_v.square().sum(1)
    smallest = NEGLIGIBLE * torch.finfo(torch.float64).eps * K
    R = torch.where(smallest < R, R, torch.nan)
    to_own = cross - (v @ own_v[:, :, None])[:, :, 0]  # R_Nᵢ
    left = (1 - (own_v * p).sum(1)) / R
    variance = 1 / (p.square().sum(1) + left.square() * R)
    error = variance * (p @ shared.targets + left * own_residual)
    slope = (v @ p[:, :, None])[:, :, 0] + left[:, None] * to_own
    gram = v @ v.mT + to_own[:, :, None] * to_own[:, None] / R[:, None, None]
    gram = gram - variance[:, None, None] * slope[:, :, None] * slope[:, None]
    rest = residual[near] - v @ shared.targets - to_own * (own_residual / R)[:, None] + slope * error[:, None]
    known = torch.isfinite(error)[:, None]  # the engine takes numbers only
    rest, covered = (torch.where(known, part, 0.0) for part in (rest, cross - variance[:, None] * slope))
    gram = torch.where(known[:, :, None], gram, 0.0)
    found = local_moments(prior.kernel, own, X, neighbours, noise[near], rest, gram, covered)
    mean = y[rows].double() - error + found.mean
    return Moments(mean, variance - own_noise - found.explained, found.misfit, found.num_rows)


def local_nll(
    prior: GP,
    X: Float[Tensor, "n d"],
    y: Float[Tensor, " n"],
    row_noise: Float[Tensor, " n"] | None,
    rows: Int[Tensor, " t"],
    neighbours: Int[Tensor, "t k"],
    shared: SharedActions | None = None,
    *,
    backend: Backend | None = None,
) -> Float[Tensor, ""]:
    """Negative log density of the targets of ``rows``, each predicted from its neighbours, summed; see
    ``local_answers``.

    With prior mean zero, one noise variance and a compiled kernel, value and gradient take one sweep.
    """
    noise = prior.noise.of_all(row_noise)
    if noise is not None and shared is None and isinstance(prior.mean, ZeroMean):
        density = local_density(prior.kernel, X, y, rows, neighbours, noise, backend=backend)
        if density is not None:
            return density
    found = local_answers(prior, X, y, row_noise, X[rows], neighbours, shared, backend=backend)
    noise = prior.noise.of_rows(X, rows, row_noise)
    return row_nll(y[rows], found.mean, found.variance.clamp_min(0) + noise).sum()


class Joint(NamedTuple):
    """Mean and covariance of the function at all test points together."""

    mean: Float[Tensor, " t"]
    covariance: Float[Tensor, "t t"]


def joint_answers(
    prior: GP,
    X: Float[Tensor, "n d"],
    y: Float[Tensor, " n"],
    row_noise: Float[Tensor, " n"] | None,
    points: Float[Tensor, "t d"],
    rows: Int[Tensor, " k"],
    shared: SharedActions | None = None,
) -> Joint:
    """The function at all test points given the same rows (the union of theirs), and the shared actions if given.

    Time O((t + k)³), float64.
    """
    t = len(points)
    everything = torch.cat([points, X[rows]])
    noise = prior.noise.of_rows(X, rows, row_noise)
    K = precise_product(prior.kernel, everything, everything)
    mean = prior.mean(points.double())
    residual = y[rows].double() - prior.mean(X[rows].double())
    prior_variance = K.diagonal()[t:] + noise
    if shared is not None:
        u, v = shared.at_points(points), shared.rows(X, rows, noise)
        whitened = torch.cat([u, v])
        K = K - whitened @ whitened.mT
        mean, residual = mean + u @ shared.targets, residual - v @ shared.targets
    C, cross = K[t:, t:] + torch.diag(noise), K[t:, :t]
    kept = _informative(C, prior_variance)
    root = torch.linalg.solve_triangular(
        safe_cholesky(C[kept][:, kept], "C"), torch.cat([cross, residual[:, None]], dim=1)[kept], upper=False
    )
    return Joint(mean + root[:, :t].mT @ root[:, t], K[:t, :t] - root[:, :t].mT @ root[:, :t])


def _informative(C: Tensor, prior_variance: Tensor) -> Tensor:
    """Rows of ``C`` without those that the others and the shared actions determine to round-off: fewer actions.

    Cholesky with pivoting, on the scale of the prior variances. Time O(k³).
    """
    if len(C) == 0:
        return torch.arange(0, device=C.device)
    scale = prior_variance.detach().rsqrt()
    scaled = (scale[:, None] * C.detach() * scale).cpu().numpy()
    _, order, rank, _ = dpstrf(scaled, tol=NEGLIGIBLE * torch.finfo(torch.float64).eps, lower=1)
    return torch.from_numpy(order[:rank] - 1).long().sort().values.to(C.device)
