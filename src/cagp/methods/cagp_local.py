"""CaGP-Local: each test point is answered from its nearest rows, alone or beside actions that all test points share."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cagp.actions import Actions
from cagp.checks import check_count
from cagp.engine import DEFAULT_MAX_BYTES, backend_for
from cagp.local_inference import SharedActions, local_nll
from cagp.methods.base import HYPERPARAMETER_RATE, Method, RowNoise, Targets, drawn_rows, trained
from cagp.methods.common import ACTION_RATE, dtype_name, prior_findings
from cagp.methods.local_scale import SCALE_ROWS, ScaleChoice, choose_local_scale
from cagp.neighbours import IndexKind, NeighbourIndex
from cagp.posteriors import LocalPosterior, Prediction
from cagp.posteriors.nearest_rows import checked_scale
from cagp.prior import GP
from cagp.projection import check_projection, project
from cagp.training import ParameterGroup
from cagp.training.trainable import Inputs, Rows, Terms

Objective = Literal["loo", "ordered"]
OBJECTIVES: dict[Objective, str] = {"loo": "leave-one-out", "ordered": "ordered"}

DEFAULT_REFRESH_AT = (5, 10, 20, 40, 80, 160)
"""Steps before which neighbours are looked up again, in units of the lengthscales learned so far; see docs/local.md."""

KEPT_NEIGHBOURS = 2**22
"""Up to this many neighbours of all rows together are kept from step to step: beyond, few rows are drawn twice."""


@dataclass(frozen=True)
class _Index:
    """An index, and what it was made for."""

    X: Tensor
    version: int  # of X, which counts changes in place
    lengthscale: Tensor
    index: NeighbourIndex


@dataclass(frozen=True)
class _Near:
    """Neighbours that were found with an index, for the training rows that were asked for."""

    index: NeighbourIndex
    rows: Tensor  # (n, k), int32
    is_known: Tensor  # (n,)


@dataclass
class _Memo:
    """The last index, neighbours and order, kept because they are expensive. They never change a result."""

    index: _Index | None = None
    order: Tensor | None = field(default=None)
    near: _Near | None = None


@final
class CaGPLocal(Method):
    """A computation-aware GP whose actions depend on the test point: unit vectors at its nearest rows.

    The hyperparameters are learned on minibatches of rows, each predicted from other rows alone, at a cost that does
    not depend on n. With shared actions (learned or constant ones of CaGP-Opt) it is the hybrid.

    Args:
        prior: mean, kernel and noise, learned.
        num_neighbours: rows for each row predicted in training; fewer if there are fewer.
        num_neighbours_predict: rows for each test point; None for twice as many as in training.
        shared: actions that all test points condition on first; None for none.
        local_scale: None for one scale everywhere, as learned. A number ν: in predictions, kernel and noise around a
            test point are multiplied by what its k neighbours say about them; the learned scale counts as much as ν
            neighbours. See ``choose_local_scale``.
        objective: "loo" predicts each row from its nearest others; "ordered" from its nearest among the rows before
            it in a random order, which makes the sum a proper log density of all targets (Vecchia).
        batch_size: rows in a step.
        seed: of the minibatches and the order.
        index_kind: how neighbours are found, see ``cagp.neighbours``.
        refresh_at: steps of a fit, counted from 0, before which neighbours are looked up again, besides the first;
            None for never: neighbours stay those of ``search_lengthscale``.
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
        index_kind: IndexKind = "auto",
        refresh_at: Sequence[int] | None = DEFAULT_REFRESH_AT,
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
        self.local_scale = checked_scale(local_scale)
        self.objective_name: Objective = objective
        self.batch_size, self.seed = batch_size, seed
        self.index_kind: IndexKind = index_kind
        self.refresh_at = None if refresh_at is None else tuple(refresh_at)
        self.max_bytes = max_bytes
        lengthscale = prior.kernel.lengthscales()
        # Neighbours are those of these lengthscales; a checkpoint holds them, so that a resumed fit finds the same.
        self.register_buffer("search_lengthscale", torch.ones(0) if lengthscale is None else lengthscale.clone())
        self._memo = _Memo()

    # ---- training ----

    def check(self, X: Tensor, y: Tensor, row_noise: Tensor | None = None) -> None:
        """Raise ValueError unless the data fit together, and suit the prior's noise and the shared actions."""
        if self.shared is None:
            super().check(X, y, row_noise)
        else:
            check_projection(self.prior, self.shared, X, y, row_noise)

    def minibatch(self, step: int, num_rows: int) -> Int[Tensor, " b"] | None:
        """The rows of a step, drawn with replacement by ``seed`` and the step; None if a step uses all rows."""
        eligible = None if self.shared is None else self._training_rows(num_rows)
        available = num_rows if eligible is None else len(eligible)
        if self.batch_size >= available:
            return None
        drawn = drawn_rows(self.seed, step, available, self.batch_size)
        return drawn if eligible is None else eligible[drawn.to(eligible.device)]

    def divisible_rows(self, num_rows: int) -> Int[Tensor, " b"] | None:
        """All rows; with shared actions, those whose targets no action touches."""
        return self._training_rows(num_rows)

    def prepare(
        self, X: Inputs, y: Targets, row_noise: RowNoise, *, step: int, share: float, flat: bool, rows: Rows | None
    ) -> str | None:
        """From now on, if that is due, take neighbours in units of the lengthscales learned so far."""
        lengthscale = self.prior.kernel.lengthscales()
        if self.refresh_at is not None and step in (0, *self.refresh_at) and lengthscale is not None:
            self.search_lengthscale = lengthscale.clone()
        return None

    def _training_rows(self, num_rows: int) -> Tensor:
        """Rows that may be predicted in training: with shared actions, those whose targets no action touches."""
        if self.shared is None:
            return torch.arange(num_rows)
        outside = torch.ones(num_rows, dtype=torch.bool, device=self.shared.support.device)
        outside[self.shared.support] = False
        if not bool(outside.any()):
            raise ValueError(
                "every row carries weight in the shared actions, so that none can be predicted without its own target; "
                "give the actions a support_size, or train without them and condition with them."
            )
        return outside.nonzero()[:, 0]

    def objective_terms(self, X: Inputs, y: Targets, row_noise: RowNoise = None, *, rows: Rows | None = None) -> Terms:
        """The mean negative log predictive density of ``rows``, each predicted from other rows.

        Args:
            rows: None for all rows; with shared actions, for all whose targets no action touches.
        """
        rows = (self._training_rows(X.shape[0]) if rows is None else rows).to(X.device)
        total = torch.zeros((), dtype=torch.float64, device=X.device)
        k, num_actions = self.num_neighbours, 0 if self.shared is None else self.shared.num_actions
        tile = max(1, self.max_bytes // (8 * 8 * k * (k + 8 + num_actions)))
        shared = None if self.shared is None else self._seen(self.prior, self.shared, X, y, row_noise)
        for part in rows.split(tile):
            total = total + local_nll(self.prior, X, y, row_noise, part, self.neighbours_of(X, part), shared)
        return {"negative_log_density": total / len(rows)}

    def neighbours_of(self, X: Inputs, rows: Rows) -> Int[Tensor, "b k"]:
        """The rows that each of these training rows is predicted from in training; -1 for none."""
        k = min(self.num_neighbours, X.shape[0] - 1)
        if k == 0:
            return rows.new_full((len(rows), 1), -1)
        index = self._index(X, self.search_lengthscale)
        if k * X.shape[0] > KEPT_NEIGHBOURS:
            return self._looked_up(index, X, rows, k)
        near = self._memo.near
        if near is None or near.index is not index or near.rows.shape[1] != k:
            with torch.inference_mode(False):  # later steps may fill it in another mode
                found = torch.empty(X.shape[0], k, dtype=torch.int32, device=X.device)
                near = _Near(index, found, torch.zeros(X.shape[0], dtype=torch.bool, device=X.device))
            self._memo.near = near
        new = rows[~near.is_known[rows]].unique()
        if len(new):
            near.rows[new] = self._looked_up(index, X, new, k).to(near.rows.dtype)
            near.is_known[new] = True
        return near.rows[rows].long()

    def _looked_up(self, index: NeighbourIndex, X: Tensor, rows: Tensor, k: int) -> Tensor:
        if self.objective_name == "ordered":
            return index.earlier(rows, self._positions(X), k)
        return index.nearest(X[rows], k, left_out=rows)

    def _index(self, X: Tensor, lengthscale: Tensor | None) -> NeighbourIndex:
        """The index of the rows of ``X`` in units of these lengthscales; the last one is kept."""
        unit = torch.ones(0) if lengthscale is None else lengthscale
        # An inference tensor does not count its changes: its index is never known to be up to date.
        version, known = -1 if X.is_inference() else X._version, self._memo.index
        current = known is not None and known.X is X and known.version == version >= 0
        if known is None or not current or not torch.equal(known.lengthscale, unit):
            lengthscale, kind = unit if len(unit) else None, self.index_kind
            self._memo.index = self._memo.near = None
            if known is not None and current and known.index.tree is not None:
                index = known.index.with_lengthscale(X, lengthscale)
            else:
                kind, known = known.index.kind if known is not None and current else kind, None
                index = NeighbourIndex(X, lengthscale, kind)  # the old one is gone: two may not fit into memory
            self._memo.index = known = _Index(X, version, unit.detach().clone(), index)
        return known.index

    def _positions(self, X: Tensor) -> Tensor:
        """The place of every row in a random order, which depends on the seed and the number of rows alone."""
        known = self._memo.order
        if known is None or len(known) != X.shape[0] or known.device != X.device:
            generator = torch.Generator().manual_seed(self.seed)
            with torch.inference_mode(False):  # the index knows it again by its version
                self._memo.order = known = torch.randperm(X.shape[0], generator=generator).to(X.device)
        return known

    def _seen(
        self, prior: GP, shared: Actions, X: Tensor, y: Tensor, row_noise: Tensor | None, support: Tensor | None = None
    ) -> SharedActions:
        """What the shared actions see of the data."""
        projection = project(prior, shared, X, y, row_noise, self.max_bytes, check=False)
        return SharedActions(prior, projection, shared.support if support is None else support, self.max_bytes)

    def parameter_groups(self) -> dict[str, ParameterGroup]:
        """The parameters to train, by the learning rate they share."""
        return {
            "hyperparameters": trained(self.prior, HYPERPARAMETER_RATE),
            "actions": trained(self.shared, ACTION_RATE),
        }

    # ---- answers ----

    @torch.no_grad()
    def condition(
        self,
        X: Float[Tensor, "n d"],
        y: Float[Tensor, " n"],
        row_noise: Float[Tensor, " n"] | None = None,
        *,
        num_neighbours: int | None = None,
        shares_rows: bool = False,
    ) -> LocalPosterior:
        """The posterior given the data, as a snapshot that further training does not change.

        Args:
            num_neighbours: rows for each test point; None for ``num_neighbours_predict``.
            shares_rows: hold the data themselves, which nobody may change any more, instead of copies.
        """
        self.check(X, y, row_noise)
        k = self.num_neighbours_predict if num_neighbours is None else num_neighbours
        if k < 0:
            raise ValueError(f"num_neighbours is {k}, expected 0 (shared actions alone) or more.")
        prior = copy.deepcopy(self.prior).requires_grad_(False)
        index = self._index(X, prior.kernel.lengthscales())
        shared = None
        if self.shared is not None:
            shared = self._seen(prior, self.shared, X, y, row_noise, self.shared.support.clone())
        options = {"max_bytes": self.max_bytes, "local_scale": self.local_scale, "shares_rows": shares_rows}
        return LocalPosterior(prior, X, y, row_noise, min(k, X.shape[0]), index, shared, **options)

    @torch.no_grad()
    def marginals(self, X: Inputs, y: Targets, row_noise: RowNoise = None) -> Prediction:
        """Mean and variance of the function at each row, from its nearest rows, of which it is one itself.

        There are as many others as in training, by the index of training: it is called again and again.
        """
        shared = None if self.shared is None else self._seen(self.prior, self.shared, X, y, row_noise)
        index, k = self._index(X, self.search_lengthscale), min(self.num_neighbours + 1, X.shape[0])
        options = {"max_bytes": self.max_bytes, "shares_rows": True}
        return LocalPosterior(self.prior, X, y, row_noise, k, index, shared, **options).predict(X)

    def choose_local_scale(
        self,
        X: Inputs,
        y: Targets,
        row_noise: RowNoise = None,
        *,
        num_rows: int = SCALE_ROWS,
        held_out: tuple[Tensor, Tensor, Tensor | None] | None = None,
    ) -> ScaleChoice:
        """The local scale with which rows are predicted best from their neighbours, at the present hyperparameters.

        Nothing changes: ``with_local_scale`` gives a method that uses it. Shared actions play no part, since they have
        seen the rows.

        Args:
            num_rows: rows that choose, at most.
            held_out: inputs, targets and known noise of rows that choose, predicted from those of ``X``. None: some of
                the rows of ``X`` do, each predicted from the others.
        """
        self.check(X, y, row_noise)
        index, k = self._index(X, self.prior.kernel.lengthscales()), self.num_neighbours_predict
        options = {"seed": self.seed, "max_bytes": self.max_bytes, "num_rows": num_rows, "held_out": held_out}
        return choose_local_scale(self.prior, X, y, row_noise, index, k, **options)

    def with_local_scale(self, local_scale: float | None) -> "CaGPLocal":
        """The same method with this local scale; the two share prior, actions and nothing else that changes."""
        return self._like_this(self.prior, local_scale, self.refresh_at)

    def with_prior(self, prior: GP, refresh_at: Sequence[int] | None = None) -> "CaGPLocal":
        """The same method for another prior, with the neighbours of this one until they are looked up again."""
        return self._like_this(prior, self.local_scale, refresh_at)

    def _like_this(self, prior: GP, local_scale: float | None, refresh_at: Sequence[int] | None) -> "CaGPLocal":
        method = CaGPLocal(
            prior,
            self.num_neighbours,
            num_neighbours_predict=self.num_neighbours_predict,
            shared=self.shared,
            local_scale=local_scale,
            objective=self.objective_name,
            batch_size=self.batch_size,
            seed=self.seed,
            index_kind=self.index_kind,
            refresh_at=refresh_at,
            max_bytes=self.max_bytes,
        )
        method.search_lengthscale = self.search_lengthscale.clone()
        method._memo = _Memo(self._memo.index, self._memo.order, self._memo.near)
        return method

    def findings(self, X: Inputs, y: Targets, input_names: tuple[str, ...] | None = None) -> list[str]:
        """What a user should know about the fitted method, in words."""
        kind = self._index(X, self.search_lengthscale).kind
        beside = "" if self.shared is None else f" beside {self.shared.num_actions:,} shared actions"
        summary = (
            f"CaGP-Local with {self.num_neighbours} neighbours{beside} ({self.num_neighbours_predict} in predictions) "
            f"on {X.shape[0]:,} rows, {OBJECTIVES[self.objective_name]} objective, minibatches of "
            f"{self.batch_size:,} rows, neighbours by {kind}, kernels by {backend_for(self.prior.kernel, X)}, "
            f"{dtype_name(X)}."
        )
        return [summary, *prior_findings(self.prior, X, y, input_names)]
