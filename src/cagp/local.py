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
from torch import Tensor

from cagp.engine import DEFAULT_MAX_BYTES, BlockWeights, kernel_product, local_moments
from cagp.linalg import safe_cholesky
from cagp.prior import GP
from cagp.projection import Projection


class Moments(NamedTuple):
    """Mean and variance of the function at each question, float64."""

    mean: Float[Tensor, " t"]
    variance: Float[Tensor, " t"]


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
        self.prior, self.projection, self.support, self.max_bytes = prior, projection, support, max_bytes
        self.targets = torch.linalg.solve_triangular(projection.chol, projection.targets[:, None], upper=False)[
            :, 0
        ]  # a

    def questions(self, X: Float[Tensor, "t d"]) -> Float[Tensor, "t i"]:
        """u(x) of each question, float64. Time O(t m d + t i²)."""
        p = self.projection
        KS = kernel_product(self.prior.kernel, X, p.X, p.W, max_bytes=self.max_bytes)
        return self._whitened(KS.double())

    def rows(
        self, X: Float[Tensor, "n d"], rows: Int[Tensor, " u"], noise: Float[Tensor, " u"]
    ) -> Float[Tensor, "u i"]:
        """v_r of these training rows, whose noise variances are ``noise``, float64. Time O(u m d + u i²)."""
        p = self.projection
        KS = kernel_product(self.prior.kernel, X[rows], p.X, p.W, max_bytes=self.max_bytes).double()
        slot = torch.full((X.shape[0],), -1, device=rows.device)
        slot[self.support] = torch.arange(len(self.support), device=rows.device)
        inside = (slot[rows] >= 0).nonzero()[:, 0]
        slots = slot[rows[inside]]
        if isinstance(p.W, BlockWeights):
            weights = p.W.values.double()[slots] * noise[inside]
            KS = KS.index_put((inside, p.W.columns()[slots]), weights, accumulate=True)
        else:
            KS = KS.index_add(0, inside, p.W.double()[slots] * noise[inside, None])
        return self._whitened(KS)

    def _whitened(self, KS: Tensor) -> Tensor:
        return torch.linalg.solve_triangular(self.projection.chol, KS.mT, upper=False).mT


def local_answers(
    prior: GP,
    X: Float[Tensor, "n d"],
    y: Float[Tensor, " n"],
    row_noise: Float[Tensor, " n"] | None,
    questions: Float[Tensor, "t d"],
    neighbours: Int[Tensor, "t k"],
    shared: SharedActions | None = None,
    kept_rows: Float[Tensor, "n i"] | None = None,
) -> Moments:
    """Mean and variance of the function at each question from its own rows, and from the shared actions if given.

    Differentiable once in the prior's parameters, the shared actions and the questions.

    Args:
        neighbours: rows of ``X`` for each question; -1 for none.
        kept_rows: v_r of all rows, where it is at hand already.

    Time O(t k² (k + d)), with i shared actions on m rows another O(t k² i) and O(u m d + u i²) for the u rows that
    occur, unless they are kept.
    """
    present = neighbours >= 0
    near = neighbours.clamp_min(0)
    flat = near.reshape(-1)
    inputs = X[flat]
    noise = prior.noise_variance(inputs, None if row_noise is None else row_noise[flat]).view(near.shape)
    residual = (y[flat] - prior.mean(inputs)).double().view(near.shape)
    mean = prior.mean(questions).double()
    variance = prior.kernel.diag(questions).double()
    gram = cross = None
    if shared is not None:
        u = shared.questions(questions)
        v = _rows_of(shared, X, row_noise, near, kept_rows)
        gram, cross = v @ v.mT, (v @ u[:, :, None])[:, :, 0]
        residual = residual - v @ shared.targets
        mean, variance = mean + u @ shared.targets, variance - u.square().sum(1)
    if bool(present.any()):
        update, explained = local_moments(prior.kernel, questions, X, neighbours, noise, residual, gram, cross)
        mean, variance = mean + update.double(), variance - explained.double()
    return Moments(mean, variance)


def _rows_of(
    shared: SharedActions, X: Tensor, row_noise: Tensor | None, near: Tensor, kept_rows: Tensor | None
) -> Tensor:
    """v of every neighbour of every question, (t, k, i)."""
    if kept_rows is not None:
        return kept_rows[near]
    rows, place = near.unique(return_inverse=True)
    noise = shared.prior.noise_variance(X[rows], None if row_noise is None else row_noise[rows])
    return shared.rows(X, rows, noise)[place]


def joint_answers(
    prior: GP,
    X: Float[Tensor, "n d"],
    row_noise: Float[Tensor, " n"] | None,
    questions: Float[Tensor, "t d"],
    rows: Int[Tensor, " k"],
    shared: SharedActions | None = None,
) -> Float[Tensor, "t t"]:
    """The covariance of all questions given the same rows (the union of theirs). Time O((t + k)³), float64."""
    everything = torch.cat([questions, X[rows]]).double()
    noise = prior.noise_variance(X[rows], None if row_noise is None else row_noise[rows])
    K = kernel_product(prior.kernel, everything, everything)
    if shared is not None:
        whitened = torch.cat([shared.questions(questions), shared.rows(X, rows, noise)])
        K = K - whitened @ whitened.mT
    t = len(questions)
    C = K[t:, t:] + torch.diag(noise)
    root = torch.linalg.solve_triangular(safe_cholesky(C, "C"), K[t:, :t], upper=False)
    return K[:t, :t] - root.mT @ root
