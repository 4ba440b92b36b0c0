"""CaGP-Local: every question is answered from its nearest rows, alone or beside actions that all questions share."""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from cagp.actions import Actions
from cagp.checks import check_count, check_data, check_new_inputs
from cagp.engine import DEFAULT_MAX_BYTES, backend_for
from cagp.local_inference import Joint, Moments, SharedActions, joint_answers, local_answers, local_nll
from cagp.methods.base import Method
from cagp.methods.common import is_gain, lengthscale_of, prior_findings
from cagp.metrics import row_nll
from cagp.neighbours import IndexKind, NeighbourIndex
from cagp.posteriors import Posterior
from cagp.prior import GP
from cagp.projection import project

Objective = Literal["loo", "ordered"]

DEFAULT_REFRESH_AT = (5, 10, 20, 40, 80, 160)
"""Steps before which neighbours are sought anew in units of the lengthscales learned so far; see docs/local.md."""

LOCAL_SCALES = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)
"""What ``learn_local_scale`` tries."""

SCALE_ROWS, SCALE_GAIN = 10_000, 0.01
"""Rows that choose among them, many because a few improbable ones weigh much, and the nats per row that the best must
gain over one scale everywhere, not by chance."""

KEPT_BYTES = 2**31
"""What the hybrid posterior may keep of the shared actions for all training rows; beyond, it is computed when asked."""


@dataclass(frozen=True)
class _Index:
    """A search, and what it was made for."""

    X: Tensor
    lengthscale: Tensor
    search: NeighbourIndex


class ScaleChoice(NamedTuple):
    """What ``learn_local_scale`` found: mean negative log density of rows, each predicted from others."""

    local_scale: float | None
    nll: float
    nll_without: float
    num_rows: int


class CaGPLocal(Method):
    """A computation-aware GP whose actions depend on the question: unit vectors at its nearest rows.

    The hyperparameters are learned on minibatches of rows, each predicted from other rows alone, at a cost that does
    not depend on n. With shared actions (learned or constant ones of CaGP-Opt) it is the hybrid.

    Args:
        prior: mean, kernel and noise, learned.
        num_neighbours: rows per question in training, fewer where there are not so many.
        num_neighbours_predict: rows per question in predictions; None for twice as many as in training.
        shared: actions that all questions condition on first; None for none.
        local_scale: None for one scale everywhere, as learned. A number ν: in predictions, kernel and noise around a
            question are multiplied by what its k neighbours say of them, the learned scale counting as much as ν
            neighbours; see ``learn_local_scale``.
        objective: "loo" predicts each row from its nearest others; "ordered" from its nearest among the rows before
            it in a random order, which makes the sum a proper log density of all targets (Vecchia).
        batch_size: rows in a step.
        seed: of the minibatches and the order.
        search: how neighbours are found, see ``NeighbourIndex``.
        refresh_at: steps of a fit, counted from 0, before which neighbours are sought anew, besides the first.
        max_bytes: limit for temporaries.
    """

    stochastic = True
    search_lengthscale: Tensor

    def __init__(
        self,
        prior: GP,
        num_neighbours: int = 32,
        *,
        num_neighbours_predict: int | None = None,
        shared: Actions | None = None,
        local_scale: float | None = None,
        objective: Objective = "loo",
        batch_size: int = 1024,
        seed: int = 0,
        search: IndexKind = "auto",
        refresh_at: Sequence[int] = DEFAULT_REFRESH_AT,
        max_bytes: int = DEFAULT_MAX_BYTES,
    ):
        super().__init__()
        if objective not in ("loo", "ordered"):
            raise ValueError(f'objective is {objective!r}, expected "loo" or "ordered".')
        for name, value in (("num_neighbours", num_neighbours), ("batch_size", batch_size)):
            check_count(value, name, 2**31, "a size that can be computed")
        self.prior = prior
        self.num_neighbours = num_neighbours
        self.num_neighbours_predict = 2 * num_neighbours if num_neighbours_predict is None else num_neighbours_predict
        self.shared = shared
        self.local_scale = _checked_scale(local_scale)
        self.objective_name = objective
        self.batch_size, self.seed = batch_size, seed
        self.search: IndexKind = search
        self.refresh_at = tuple(refresh_at)
        self.max_bytes = max_bytes
        lengthscale = lengthscale_of(prior.kernel)
        # Neighbours are those of these lengthscales; a checkpoint holds them, so that a resumed fit finds the same.
        self.register_buffer("search_lengthscale", torch.ones(0) if lengthscale is None else lengthscale.clone())
        self._index: _Index | None = None
        self._order: Tensor | None = None
        self._step: int | None = None

    # ---- training ----

    def adapt(self, X: Float[Tensor, "n d"], step: int, share: float, flat: bool) -> str | None:
        """Choose the rows of this step, and seek neighbours anew where that is due."""
        self._step = step
        lengthscale = lengthscale_of(self.prior.kernel)
        if step in (0, *self.refresh_at) and lengthscale is not None:
            self.search_lengthscale = lengthscale.clone()
        return None

    def _training_rows(self, X: Tensor) -> Tensor:
        """Rows that may be predicted in training: with shared actions, those whose targets no action touches."""
        every = torch.arange(X.shape[0], device=X.device)
        if self.shared is None:
            return every
        outside = torch.ones(X.shape[0], dtype=torch.bool, device=X.device)
        outside[self.shared.support] = False
        if not bool(outside.any()):
            raise ValueError(
                "every row carries weight in the shared actions, so that none can be predicted without its own target; "
                "give the actions a support_size, or train without them and condition with them."
            )
        return every[outside]

    def _rows(self, X: Tensor) -> Int[Tensor, " b"]:
        """The rows of this step, drawn with replacement; all where a step has room for them, or before any step."""
        rows = None if self.shared is None else self._training_rows(X)
        num_rows = X.shape[0] if rows is None else len(rows)
        if self._step is None or self.batch_size >= num_rows:
            return self._training_rows(X)
        generator = torch.Generator().manual_seed(self.seed + 1_000_003 * (self._step + 1))
        drawn = torch.randint(num_rows, (self.batch_size,), generator=generator).to(X.device)
        return drawn if rows is None else rows[drawn]

    def objective_terms(
        self, X: Float[Tensor, "n d"], y: Float[Tensor, " n"], row_noise: Float[Tensor, " n"] | None = None
    ) -> dict[str, Float[Tensor, ""]]:
        """The mean negative log predictive density of the rows of this step; before any step, of all rows."""
        check_data(X, y, row_noise)
        rows = self._rows(X)
        total = torch.zeros((), dtype=torch.float64, device=X.device)
        k, num_actions = self.num_neighbours, 0 if self.shared is None else self.shared.num_actions
        tile = max(1, self.max_bytes // (8 * 8 * k * (k + 8 + num_actions)))
        shared = self._project(X, y, row_noise)
        for part in rows.split(tile):
            total = total + local_nll(self.prior, X, y, row_noise, part, self._neighbours(X, part), shared)
        return {"negative_log_density": total / len(rows)}

    def _neighbours(self, X: Tensor, rows: Tensor) -> Tensor:
        """The rows that each of these training rows is predicted from."""
        k = min(self.num_neighbours, X.shape[0] - 1)
        if k == 0:
            return rows.new_full((len(rows), 1), -1)
        index = self._search(X)
        if self.objective_name == "ordered":
            return index.earlier(rows, self._positions(X), k)
        return index.nearest(X[rows], k, left_out=rows)

    def _search(self, X: Tensor, lengthscale: Tensor | None = None) -> NeighbourIndex:
        """The index of the rows of ``X`` for these lengthscales, by default those of training; the last one is kept."""
        known, unit = self._index, self.search_lengthscale if lengthscale is None else lengthscale
        if known is None or known.X is not X or not torch.equal(known.lengthscale, unit):
            search = NeighbourIndex(X, unit if len(unit) else None, self.search)
            self._index = known = _Index(X, unit.detach().clone(), search)
        return known.search

    def _positions(self, X: Tensor) -> Tensor:
        """The place of every row in a random order, which depends on the seed and the number of rows alone."""
        known = self._order
        if known is None or len(known) != X.shape[0] or known.device != X.device:
            generator = torch.Generator().manual_seed(self.seed)
            self._order = known = torch.randperm(X.shape[0], generator=generator).to(X.device)
        return known

    def _project(self, X: Tensor, y: Tensor, row_noise: Tensor | None) -> SharedActions | None:
        if self.shared is None:
            return None
        projection = project(self.prior, self.shared, X, y, row_noise, self.max_bytes)
        return SharedActions(self.prior, projection, self.shared.support, self.max_bytes)

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """Parameters by the learning rate they share."""
        actions = [] if self.shared is None else [p for p in self.shared.parameters() if p.requires_grad]
        return {"hyperparameters": [p for p in self.prior.parameters() if p.requires_grad], "actions": actions}

    # ---- answers ----

    @torch.no_grad()
    def condition(
        self,
        X: Float[Tensor, "n d"],
        y: Float[Tensor, " n"],
        row_noise: Float[Tensor, " n"] | None = None,
        *,
        num_neighbours: int | None = None,
    ) -> "LocalPosterior":
        """The posterior given the data, as a snapshot that further training leaves alone.

        Args:
            num_neighbours: rows per question; None for ``num_neighbours_predict``.
        """
        check_data(X, y, row_noise)
        k = self.num_neighbours_predict if num_neighbours is None else num_neighbours
        if k < 0:
            raise ValueError(f"num_neighbours is {k}, expected 0 (shared actions alone) or more.")
        prior = copy.deepcopy(self.prior).requires_grad_(False)
        search = self._search(X, lengthscale_of(prior.kernel))
        shared = None
        if self.shared is not None:
            projection = project(prior, self.shared, X, y, row_noise, self.max_bytes)
            shared = SharedActions(prior, projection, self.shared.support.clone(), self.max_bytes)
        return LocalPosterior(
            prior, X, y, row_noise, min(k, X.shape[0]), search, shared, self.max_bytes, self.local_scale
        )

    @torch.no_grad()
    def learn_local_scale(
        self, X: Float[Tensor, "n d"], y: Float[Tensor, " n"], row_noise: Float[Tensor, " n"] | None = None
    ) -> ScaleChoice:
        """Choose ``local_scale`` by how well rows are predicted from their neighbours, at the present hyperparameters.

        ``SCALE_ROWS`` rows, each predicted from others alone, choose among ``LOCAL_SCALES``; where the best gains less
        than ``SCALE_GAIN`` nats per row, or might by chance, the scale stays the same everywhere. Shared actions are
        left aside: they have seen the rows.
        """
        check_data(X, y, row_noise)
        generator = torch.Generator().manual_seed(self.seed)
        rows = torch.randperm(X.shape[0], generator=generator)[:SCALE_ROWS].to(X.device)
        k = min(self.num_neighbours_predict, X.shape[0] - 1)
        if k == 0:
            raise ValueError("a local scale needs neighbours; expected num_neighbours_predict and rows to have some.")
        near = self._search(X, lengthscale_of(self.prior.kernel)).nearest(X[rows], k, left_out=rows)
        tile = max(1, self.max_bytes // (4 * 8 * k * (k + 8)))
        tiles = [
            local_answers(self.prior, X, y, row_noise, X[part], of_part)
            for part, of_part in zip(rows.split(tile), near.split(tile), strict=True)
        ]
        found = Moments(*(torch.cat(columns) for columns in zip(*tiles, strict=True)))
        closeness = _closeness(self.prior, X[rows], X, near)
        known = 0.0 if row_noise is None else row_noise[rows].double()
        variance = found.variance.clamp_min(0) + self.prior.noise.learned(X[rows])

        def nll(scale: Tensor | float) -> Tensor:
            return row_nll(y[rows], found.mean, scale * variance + known)

        without = nll(1.0)
        nlls = {value: nll(_scale_around(found, closeness, value)) for value in LOCAL_SCALES}
        best = min(nlls, key=lambda value: float(nlls[value].mean()))
        gains = without - nlls[best]
        self.local_scale = best if is_gain(gains, SCALE_GAIN) else None
        before = float(without.mean())
        after = before if self.local_scale is None else before - float(gains.mean())
        return ScaleChoice(self.local_scale, after, before, len(rows))

    def findings(self, X: Float[Tensor, "n d"], y: Float[Tensor, " n"]) -> list[str]:
        """What a user should know of the fitted method, in words."""
        beside = "" if self.shared is None else f" beside {self.shared.num_actions:,} shared actions"
        summary = (
            f"CaGP-Local with {self.num_neighbours} neighbours{beside} ({self.num_neighbours_predict} in predictions) "
            f"on {X.shape[0]:,} rows, {self.objective_name} objective, minibatches of {self.batch_size:,} rows, "
            f"neighbours by {self._search(X).kind}, kernels by {backend_for(self.prior.kernel, X)}, {X.dtype}."
        )
        return [summary, *prior_findings(self.prior, X, y, self.input_names)]


def _checked_scale(local_scale: float | None) -> float | None:
    if local_scale is not None and not 0 < local_scale < math.inf:
        raise ValueError(f"local_scale is {local_scale}, expected None or a positive number of neighbours.")
    return local_scale


def _scale_around(found: Moments, closeness: Tensor, local_scale: float) -> Tensor:
    """(ν + rᵀC⁻¹r) / (ν + k), the posterior mean of a scale with an inverse gamma prior of mean one; far off, one."""
    return 1 + closeness * ((local_scale + found.misfit) / (local_scale + found.num_rows) - 1)


def _closeness(prior: GP, questions: Tensor, X: Tensor, neighbours: Tensor) -> Tensor:
    """1 - (1 - ρ)⁴ with the correlation ρ of the function at each question and at the first of its rows; zero for none.

    It is close to one among the rows, also where these are a lengthscale apart, and falls to zero far from all of them.
    """
    first = neighbours[:, 0]
    row = X[first.clamp_min(0)]
    covariance = prior.kernel(questions[:, None], row[:, None])[:, 0, 0].double()
    size = (prior.kernel.diag(questions).double() * prior.kernel.diag(row).double()).sqrt()
    return torch.where(first >= 0, 1 - (1 - covariance.abs() / size) ** 4, 0.0)


class LocalPosterior(Posterior):
    """At each question x, exact inference on the projections S_xᵀy: those of its nearest rows and of shared actions.

    With one scale everywhere, the variance at a question is never below the exact posterior's. With a local scale it is
    that variance times what the question's neighbours say, which can be less than one.

    Different questions use different projections: a joint covariance or joint samples take the union of the questions'
    rows, at most ``MOST_JOINT_ROWS``, so that its diagonal can be smaller than ``variance``.
    """

    MOST_JOINT_ROWS = 8192

    def __init__(
        self,
        prior: GP,
        X: Float[Tensor, "n d"],
        y: Float[Tensor, " n"],
        row_noise: Float[Tensor, " n"] | None,
        num_neighbours: int,
        search: NeighbourIndex,
        shared: SharedActions | None = None,
        max_bytes: int = DEFAULT_MAX_BYTES,
        local_scale: float | None = None,
    ):
        super().__init__(prior, X, X.new_zeros(X.shape[0]), max_bytes)
        self.local_scale = _checked_scale(local_scale)
        self.y = y.detach().clone()
        self.row_noise = None if row_noise is None else row_noise.detach().clone()
        self.num_neighbours = num_neighbours
        self.search, self.shared = search, shared
        self._kept = None
        if shared is not None and num_neighbours and 8 * X.shape[0] * shared.num_actions <= KEPT_BYTES:
            self._kept = self._rows_kept(shared)

    def _rows_kept(self, shared: SharedActions) -> Tensor:
        """What the shared actions say about every training row, computed a part at a time: temporaries stay small."""
        noise = self.prior.noise_variance(self.X, self.row_noise)
        kept = torch.empty(len(self.X), shared.num_actions, dtype=torch.float64, device=self.X.device)
        tile = max(1, self.max_bytes // (4 * 8 * shared.num_actions))
        for part in torch.arange(len(self.X), device=self.X.device).split(tile):
            kept[part] = shared.rows(self.X, part, noise[part])
        return kept

    @property
    def _width(self) -> int:
        k = max(1, self.num_neighbours)
        return k * (k + 8) + (0 if self.shared is None else k * self.shared.num_actions)

    def _neighbours(self, X: Tensor) -> Tensor:
        if self.num_neighbours == 0:
            return torch.full((X.shape[0], 1), -1, device=X.device)
        return self.search.nearest(X, self.num_neighbours)

    def _moments(self, X: Tensor) -> tuple[Tensor, ...]:
        near = self._neighbours(X)
        found = local_answers(self.prior, self.X, self.y, self.row_noise, X, near, self.shared, self._kept)
        if self.local_scale is None:
            return found.mean, found.variance
        scale = _scale_around(found, _closeness(self.prior, X, self.X, near), self.local_scale)
        return found.mean, scale * found.variance, scale

    def scale(self, X: Float[Tensor, "t d"]) -> Float[Tensor, " t"] | None:
        check_new_inputs(X, self.X)
        return self._moments_in_tiles(X)[2] if self.local_scale is not None else None

    def order(self, X: Float[Tensor, "t d"]) -> Int[Tensor, " t"] | None:
        """By place, where shared actions are computed when asked.

        The neighbours of near questions are much the same rows, and each row costs as much as many questions.
        """
        if self.shared is None or self._kept is not None or self.num_neighbours == 0:
            return None
        return self.search.spatial_order(X)

    def mean(self, X: Float[Tensor, "t d"]) -> Float[Tensor, " t"]:
        """The mean at each question; it costs as much as mean and variance."""
        check_new_inputs(X, self.X)
        return self.predict(X).mean

    def joint(self, X: Float[Tensor, "t d"]) -> Joint:
        """Mean and covariance of all rows together, given the union of their neighbours; what ``sample`` draws from."""
        check_new_inputs(X, self.X)
        mean, covariance = self._joint(X)
        return Joint(mean.to(X), covariance.to(X))

    def _joint(self, questions: Tensor) -> Joint:
        rows = self._neighbours(questions).unique()
        rows = rows[rows >= 0]
        if len(rows) > self.MOST_JOINT_ROWS:
            raise ValueError(
                f"joint answers at {len(questions):,} rows need {len(rows):,} training rows together, the limit is "
                f"{self.MOST_JOINT_ROWS:,}; ask for fewer rows at once, or for fewer neighbours."
            )
        joint = joint_answers(self.prior, self.X, self.y, self.row_noise, questions, rows, self.shared)
        scale = self.scale(questions)
        if scale is None:
            return joint
        return joint._replace(covariance=joint.covariance * (scale[:, None] * scale).sqrt())

    def _joint_mean(self, X: Tensor) -> Tensor:
        return self._joint(X).mean

    def _covariance(self, X: Tensor, Z: Tensor | None) -> Tensor:
        if Z is None:
            return self._joint(X).covariance
        return self._joint(torch.cat([X, Z])).covariance[: len(X), len(X) :]
