"""At each test point, exact inference on the targets of its nearest rows, alone or beside shared actions."""

import copy
from collections.abc import Sequence
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cagp import fields
from cagp.checks import check_new_inputs
from cagp.dataset import Data
from cagp.engine import DEFAULT_MAX_BYTES
from cagp.local_inference import (
    Joint,
    Moments,
    SharedActions,
    joint_answers,
    left_out_answers,
    local_answers,
    local_weights,
)
from cagp.neighbours import NeighbourIndex
from cagp.posteriors.base import LeftOut, Points, Posterior, Rounding, Sharing
from cagp.prior import GP, ZeroMean
from cagp.storage import State

KEPT_BYTES = 2**31
"""What the hybrid posterior may keep of the shared actions for all rows; otherwise it is computed when needed."""


def scale_around(found: Moments, closeness: Tensor, local_scale: float) -> Tensor:
    """(ν + rᵀC⁻¹r) / (ν + k), the posterior mean of a scale with an inverse gamma prior of mean one; far off, one."""
    return 1 + closeness * ((local_scale + found.misfit) / (local_scale + found.num_rows) - 1)


def closeness(prior: GP, points: Tensor, X: Tensor, neighbours: Tensor) -> Tensor:
    """1 - (1 - ρ)⁴ with the correlation ρ of the function at each test point and its first row; zero if it has none.

    It is close to one among the rows, even if these are a lengthscale apart, and falls to zero far from all of them.
    """
    first = neighbours[:, 0]
    row = X[first.clamp_min(0)]
    covariance = prior.kernel(points[:, None], row[:, None])[:, 0, 0].double()
    size = (prior.kernel.diag(points).double() * prior.kernel.diag(row).double()).sqrt()
    return torch.where(first >= 0, 1 - (1 - covariance.abs() / size) ** 4, 0.0)


@final
class LocalPosterior(Posterior):
    """At each test point x, exact inference on the projections S_xᵀy: those of its nearest rows and of shared actions.

    With one scale everywhere, the variance at a test point is never below the exact posterior's. With a local scale it
    is that variance times a factor that the point's neighbours suggest, which can be less than one.

    Different test points use different projections. A joint covariance or joint samples take the union of their rows,
    at most ``MOST_JOINT_ROWS``, so the diagonal of the covariance can be smaller than ``variance``.
    """

    MOST_JOINT_ROWS = 8192

    def __init__(
        self,
        prior: GP,
        data: Data,
        num_neighbours: int,
        index: NeighbourIndex,
        shared: SharedActions | None = None,
        max_bytes: int = DEFAULT_MAX_BYTES,
        local_scale: float | None = None,
        *,
        shares_rows: bool = False,
    ):
        X, y, row_noise = data
        super().__init__(prior, X, None, max_bytes, shares_rows=shares_rows)
        self.local_scale = local_scale
        self.has_local_scale, self.never_below_exact = local_scale is not None, local_scale is None
        self.y, self.row_noise = y.detach(), None if row_noise is None else row_noise.detach()
        if not shares_rows:
            self.y, self.row_noise = self.y.clone(), None if self.row_noise is None else self.row_noise.clone()
        self.num_neighbours = num_neighbours
        k = max(1, num_neighbours)
        self._width = k * (k + 8) + (0 if shared is None else k * shared.num_actions)
        if shared is not None and num_neighbours and 8 * X.shape[0] * shared.num_actions <= KEPT_BYTES:
            shared = shared.keeping(self.X, self.prior.noise_variance(self.X, self.row_noise))
        self.index, self.shared = index, shared

    def _state(self, rows: Rounding) -> State:
        index, shared = self.index, None
        if self.shared is not None:
            shared = {name: getattr(self.shared, name) for name in ("support", "W", "chol", "targets", "max_bytes")}
            shared |= {"W": rows(self.shared.W, "W"), "max_bytes": int(self.shared.max_bytes)}
        return {
            "X": rows(self.X, "X"),
            "y": rows(self.y, "y"),
            "row_noise": rows(self.row_noise, "row_noise"),
            "num_neighbours": self.num_neighbours,
            "local_scale": self.local_scale,
            "search": {"method": index.kind, "lengthscale": index.lengthscale, "origin": index.origin},
            "shared": shared,
        }

    @classmethod
    def _from_state(cls, state: State, prior: GP, X: Tensor, max_bytes: int, sharing: Sharing) -> "LocalPosterior":
        positive = fields.that(lambda values: bool((values > 0).all()), fields.numbers("d"))
        of_index = {"method": fields.text, "lengthscale": fields.optional(positive), "origin": fields.float64("d")}
        table = {
            "y": fields.numbers("n"),
            "row_noise": fields.optional(fields.numbers("n")),
            "num_neighbours": fields.integer(0, len(X)),
            "local_scale": fields.optional(fields.real(above=0.0)),
            "search": fields.record(of_index),
            "shared": fields.optional(fields.made_by(lambda stored: _shared_from_state(stored, prior, X, sharing))),
        }
        y, noise, k, scale, search, shared = fields.checked(state, table, {"n": len(X), "d": X.shape[1]}).values()
        data = Data(X, y.to(X.dtype), None if noise is None else noise.to(X.dtype))
        index = sharing.index(X, search["lengthscale"], search["method"], search["origin"])
        return cls(prior, data, k, index, shared, max_bytes, scale, shares_rows=True)

    def _neighbours(self, X: Tensor) -> Tensor:
        if self.num_neighbours == 0:
            return torch.full((X.shape[0], 1), -1, device=X.device)
        return self.index.nearest(X, self.num_neighbours)

    def _moments(self, X: Tensor) -> tuple[Tensor, ...]:
        near = self._neighbours(X)
        found = local_answers(self.prior, self.X, self.y, self.row_noise, X, near, self.shared)
        if self.local_scale is None:
            return found.mean, found.variance
        scale = scale_around(found, closeness(self.prior, X, self.X, near), self.local_scale)
        return found.mean, scale * found.variance, scale

    @torch.no_grad()
    def left_out(self, rows: Int[Tensor, " r"]) -> LeftOut | None:
        """Each row from its own neighbours, and from shared actions without its weight in them."""
        return LeftOut(*self._in_tiles(self._left_out, rows))

    def _left_out(self, rows: Tensor) -> LeftOut:
        X, k = self.X[rows], min(self.num_neighbours, len(self.X) - 1)
        near = rows.new_full((len(rows), 1), -1) if k == 0 else self.index.nearest(X, k, left_out=rows)
        found = left_out_answers(self.prior, self.X, self.y, self.row_noise, rows, near, self.shared)
        known = 0.0 if self.row_noise is None else self.row_noise[rows].double()
        variance = found.variance.clamp_min(0) + self.prior.noise.learned(X)
        if self.local_scale is not None:  # it multiplies all but what is known of the noise
            variance = scale_around(found, closeness(self.prior, X, self.X, near), self.local_scale) * variance
        return LeftOut(self.y[rows].double() - found.mean, variance + known)

    def order(self, X: Points) -> Int[Tensor, " t"] | None:
        """By place, if what shared actions say about a row is computed when needed.

        The neighbours of near test points are much the same rows, and each row costs as much as many test points.
        """
        if self.shared is None or self.shared.kept is not None or self.num_neighbours == 0:
            return None
        return self.index.spatial_order(X)

    def joint(self, X: Points) -> Joint:
        """Mean and covariance of all test points together, given all their neighbours: what ``sample`` draws from."""
        check_new_inputs(X, self.X)
        mean, covariance = self._joint(X)
        return Joint(mean.to(X), covariance.to(X))

    def _joint(self, points: Tensor) -> Joint:
        rows = self._neighbours(points).unique()
        rows = rows[rows >= 0]
        if len(rows) > self.MOST_JOINT_ROWS:
            raise ValueError(
                f"joint answers at {len(points):,} rows need {len(rows):,} training rows together, the limit is "
                f"{self.MOST_JOINT_ROWS:,}; ask for fewer rows at once, or for fewer neighbours."
            )
        joint = joint_answers(self.prior, self.X, self.y, self.row_noise, points, rows, self.shared)
        scale = self.scale(points)
        if scale is None:
            return joint
        return joint._replace(covariance=joint.covariance * (scale[:, None] * scale).sqrt())

    def _joint_mean(self, X: Tensor, offset: Tensor | None = None) -> Tensor:
        mean = self._joint(X).mean
        return mean if offset is None else mean + offset

    def _covariance(self, X: Tensor, Z: Tensor | None) -> Tensor:
        if Z is None:
            return self._joint(X).covariance
        return self._joint(torch.cat([X, Z])).covariance[: len(X), len(X) :]


def _shared_from_state(state: State, prior: GP, X: Tensor, sharing: Sharing) -> SharedActions:
    def are_different_rows(rows: Tensor) -> bool:
        return bool(((rows >= 0) & (rows < len(X))).all()) and len(rows.unique()) == len(rows)

    table = {
        "support": fields.that(are_different_rows, fields.tensor("n", dtype=torch.int64)),
        "W": sharing.weights(X.dtype),
        "chol": fields.factor("i"),
        "targets": fields.float64("i"),
        "max_bytes": fields.integer(),
    }
    support, W, chol, targets, max_bytes = fields.checked(state, table).values()
    prior = copy.deepcopy(prior).requires_grad_(False)
    return SharedActions(prior, X[support], W, chol, targets, support, max_bytes)


@torch.no_grad()
def predict_columns(posteriors: Sequence[Posterior], X: Points) -> tuple[Float[Tensor, "t q"], Float[Tensor, " t"]]:
    """The mean of each function and the variance of all, float64, of posteriors that differ in their targets alone.

    With nearest rows alone, one factorisation for each test point serves all of them. The actions of conjugate
    gradients depend on the targets, and so do their variances: the largest counts.
    """
    nearest = [
        p
        for p in posteriors
        if isinstance(p, LocalPosterior) and p.shared is None and p.num_neighbours > 0  # nearest rows alone
        if p.local_scale is None and isinstance(p.prior.mean, ZeroMean)
    ]
    if len(posteriors) == 1 or len(nearest) < len(posteriors):
        means, variances = zip(*(posterior.predict(X) for posterior in posteriors), strict=True)
        return torch.stack(means, 1).double(), torch.stack(variances, 1).double().amax(1)
    first, targets = nearest[0], torch.stack([posterior.y.double() for posterior in nearest], 1)
    k, noise, parts = first.num_neighbours, first.prior.noise_variance(first.X, first.row_noise), []
    for points in X.split(max(1, first.max_bytes // (4 * 8 * k * (k + 8 + targets.shape[1])))):
        near = first.index.nearest(points, k)
        flat = near.clamp_min(0)
        weights, variance = local_weights(first.prior, first.X, noise[flat], points, near)
        parts.append(((weights[:, None, :] @ targets[flat])[:, 0], variance))
    mean, variance = (torch.cat(column) for column in zip(*parts, strict=True))
    return mean, variance
