"""Answers from actions chosen for each question: its nearest rows, alone or beside actions that all questions share.

For a question x with rows N, conditioning on y_N is exact inference on the projections E_Nᵀy. With actions S that all
questions share, S_x = [S, E_N]: everything is first conditioned on Sᵀy, and what is left of the process on y_N. With
LLᵀ = SᵀK̂S and u(x) = L⁻¹Sᵀk(X, x), v_r = L⁻¹Sᵀ(k(X, x_r) + D_r e_r), a = L⁻¹Sᵀ(y - m):

    c = k(N, x) - v_N u(x)     C = k(N, N) + D_N - v_N v_Nᵀ     r = y_N - m_N - v_N a
    mean = m(x) + u(x)ᵀa + cᵀC⁻¹r                variance = k(x, x) - |u(x)|² - cᵀC⁻¹c
"""

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
    kernel_product,
    local_density,
    local_moments,
)
from cagp.linalg import safe_cholesky
from cagp.metrics import row_nll
from cagp.prior import GP, ZeroMean
from cagp.projection import Projection


class Moments(NamedTuple):
    """Mean and variance of the function at each question, and how its rows fit the prior, float64."""

    mean: Float[Tensor, " t"]
    variance: Float[Tensor, " t"]
    misfit: Float[Tensor, " t"]  # rᵀC⁻¹r: what is expected is ``num_rows``
    num_rows: Float[Tensor, " t"]  # that carry information


class SharedActions:
    """What the actions of all questions explain, for questions and for training rows.

    Args:
        projection: of the shared actions.
        support: their training rows, in the order of the projection's weights.
        max_bytes: limit for temporaries.
    """

    def __init__(
        self, prior: GP, projection: Projection, support: Int[Tensor, " m"], max_bytes: int = DEFAULT_MAX_BYTES
    ):
        targets = torch.linalg.solve_triangular(projection.chol, projection.targets[:, None], upper=False)[:, 0]
        self._hold(prior, projection.X, projection.W, projection.chol, targets, support, max_bytes)

    @classmethod
    def from_parts(
        cls,
        prior: GP,
        X: Float[Tensor, "m d"],
        W: Float[Tensor, "m i"] | BlockWeights,
        chol: Float[Tensor, "i i"],
        targets: Float[Tensor, " i"],
        support: Int[Tensor, " m"],
        max_bytes: int = DEFAULT_MAX_BYTES,
    ) -> "SharedActions":
        """Shared actions of a projection of which nothing else is known, as of a saved one; ``targets`` is a."""
        shared = cls.__new__(cls)
        shared._hold(prior, X, W, chol, targets, support, max_bytes)
        return shared

    def _hold(
        self,
        prior: GP,
        X: Tensor,
        W: Tensor | BlockWeights,
        chol: Tensor,
        targets: Tensor,
        support: Tensor,
        max_bytes: int,
    ) -> None:
        self.prior, self.support, self.max_bytes = prior, support, max_bytes
        self.X, self.W, self.chol, self.targets = X, W, chol, targets

    @property
    def num_actions(self) -> int:
        """i."""
        return self.chol.shape[0]

    def questions(self, X: Float[Tensor, "t d"]) -> Float[Tensor, "t i"]:
        """u(x) of each question, float64. Time O(t m d + t i²)."""
        KS = kernel_product(self.prior.kernel, X, self.X, self.W, max_bytes=self.max_bytes)
        return self._whitened(KS.double())

    def rows(
        self, X: Float[Tensor, "n d"], rows: Int[Tensor, " u"], noise: Float[Tensor, " u"]
    ) -> Float[Tensor, "u i"]:
        """v_r of these training rows, whose noise variances are ``noise``, float64. Time O(u m d + u i²)."""
        KS = kernel_product(self.prior.kernel, X[rows], self.X, self.W, max_bytes=self.max_bytes).double()
        slot = torch.full((X.shape[0],), -1, device=rows.device)
        slot[self.support] = torch.arange(len(self.support), device=rows.device)
        inside = (slot[rows] >= 0).nonzero()[:, 0]
        slots = slot[rows[inside]]
        if isinstance(self.W, BlockWeights):
            weights = self.W.values.double()[slots] * noise[inside]
            KS = KS.index_put((inside, self.W.columns()[slots]), weights, accumulate=True)
        else:
            KS = KS.index_add(0, inside, self.W.double()[slots] * noise[inside, None])
        return self._whitened(KS)

    def _whitened(self, KS: Tensor) -> Tensor:
        return torch.linalg.solve_triangular(self.chol, KS.mT, upper=False).mT


def local_answers(
    prior: GP,
    X: Float[Tensor, "n d"],
    y: Float[Tensor, " n"],
    row_noise: Float[Tensor, " n"] | None,
    questions: Float[Tensor, "t d"],
    neighbours: Int[Tensor, "t k"],
    shared: SharedActions | None = None,
    kept_rows: Float[Tensor, "n i"] | None = None,
    *,
    backend: Backend = "auto",
) -> Moments:
    """Mean and variance of the function at each question from its own rows, and from the shared actions if given.

    Mean and variance are differentiable once in the prior's parameters, the shared actions and the questions.

    Args:
        neighbours: rows of ``X`` for each question; -1 for none.
        kept_rows: v_r of all rows, where it is at hand already.
        backend: see ``local_moments``.

    Time O(t k² (k + d)), with i shared actions on m rows another O(t k² i) and O(u m d + u i²) for the u rows that
    occur, unless they are kept.
    """
    mean = prior.mean(questions).double()
    variance = prior.kernel.diag(questions).double()
    noise, residual = prior.noise.of_all(row_noise), y
    gram = cross = None
    if noise is None or shared is not None or not isinstance(prior.mean, ZeroMean):
        near = neighbours.clamp_min(0)
        flat = near.reshape(-1)
        noise = prior.noise.of_rows(X, flat, row_noise).view(near.shape)
        residual = (y.index_select(0, flat) - prior.mean.of_rows(X, flat)).double().view(near.shape)
        if shared is not None:
            u = shared.questions(questions)
            v = _rows_of(shared, X, row_noise, near, kept_rows)
            gram, cross = v @ v.mT, (v @ u[:, :, None])[:, :, 0]
            residual = residual - v @ shared.targets
            mean, variance = mean + u @ shared.targets, variance - u.square().sum(1)
    rows = (neighbours, noise, residual, gram, cross)
    found = local_moments(prior.kernel, questions, X, *rows, backend=backend)
    update, explained, misfit, num_rows = (value.double() for value in found)
    return Moments(mean + update, variance - explained, misfit, num_rows)


def local_nll(
    prior: GP,
    X: Float[Tensor, "n d"],
    y: Float[Tensor, " n"],
    row_noise: Float[Tensor, " n"] | None,
    rows: Int[Tensor, " t"],
    neighbours: Int[Tensor, "t k"],
    shared: SharedActions | None = None,
    *,
    backend: Backend = "auto",
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
    noise = prior.noise_variance(X[rows], None if row_noise is None else row_noise[rows])
    return row_nll(y[rows], found.mean, found.variance.clamp_min(0) + noise).sum()


def _rows_of(
    shared: SharedActions, X: Tensor, row_noise: Tensor | None, near: Tensor, kept_rows: Tensor | None
) -> Tensor:
    """v of every neighbour of every question, (t, k, i)."""
    if kept_rows is not None:
        return kept_rows[near]
    rows, place = near.unique(return_inverse=True)
    noise = shared.prior.noise_variance(X[rows], None if row_noise is None else row_noise[rows])
    return shared.rows(X, rows, noise)[place]


def greedy_rows(
    prior: GP,
    X: Float[Tensor, "n d"],
    row_noise: Float[Tensor, " n"] | None,
    questions: Float[Tensor, "t d"],
    candidates: Int[Tensor, "t m"],
    num_rows: int,
) -> Int[Tensor, "t k"]:
    """Of each question's candidates, the rows that reduce its variance most, one after the other.

    Given the rows chosen so far, a row with remaining variance g and remaining covariance h with the question takes
    h² / g off its variance. Candidates that have nothing left come last, in their order. Time O(t m k (k + d)), memory
    O(t m²).
    """
    near = X[candidates].double()
    flat = candidates.reshape(-1)
    noise = prior.noise_variance(X[flat], None if row_noise is None else row_noise[flat]).view(candidates.shape)
    C = prior.kernel(near, near) + torch.diag_embed(noise)
    variance = C.diagonal(dim1=1, dim2=2).clone()
    covariance = prior.kernel(questions[:, None].double(), near)[:, 0].clone()
    smallest = NEGLIGIBLE * torch.finfo(C.dtype).eps * variance
    every = torch.arange(len(questions), device=X.device)
    free = torch.ones_like(variance, dtype=torch.bool)
    columns, chosen = C.new_zeros(*candidates.shape, num_rows), []
    for j in range(num_rows):
        left = variance > smallest
        gain = torch.where(left, covariance.square() / variance.clamp_min(smallest), 0.0)
        best = torch.where(free, gain, -1.0).argmax(1)
        pivot, counts = variance[every, best], left[every, best]
        column = C[every, best] - (columns[:, :, :j] @ columns[every, best, :j, None])[:, :, 0]
        column = torch.where(counts[:, None], column / pivot.clamp_min(smallest[every, best]).sqrt()[:, None], 0.0)
        share = torch.where(counts, covariance[every, best] / pivot.clamp_min(smallest[every, best]).sqrt(), 0.0)
        columns[:, :, j] = column
        variance, covariance = variance - column.square(), covariance - column * share[:, None]
        free[every, best] = False
        chosen.append(candidates[every, best])
    return torch.stack(chosen, dim=1)


class Joint(NamedTuple):
    """Mean and covariance of the function at all questions together."""

    mean: Float[Tensor, " t"]
    covariance: Float[Tensor, "t t"]


def joint_answers(
    prior: GP,
    X: Float[Tensor, "n d"],
    y: Float[Tensor, " n"],
    row_noise: Float[Tensor, " n"] | None,
    questions: Float[Tensor, "t d"],
    rows: Int[Tensor, " k"],
    shared: SharedActions | None = None,
) -> Joint:
    """The function at all questions given the same rows (the union of theirs), and the shared actions if given.

    Time O((t + k)³), float64.
    """
    t = len(questions)
    everything = torch.cat([questions, X[rows]]).double()
    noise = prior.noise_variance(X[rows], None if row_noise is None else row_noise[rows])
    K = kernel_product(prior.kernel, everything, everything)
    mean = prior.mean(questions).double()
    residual = (y[rows] - prior.mean(X[rows])).double()
    prior_variance = K.diagonal()[t:] + noise
    if shared is not None:
        u, v = shared.questions(questions), shared.rows(X, rows, noise)
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
