"""CaGP-Local: each test point is answered from its nearest rows, alone or beside actions that all test points share."""

import copy
import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple, final

import torch
from jaxtyping import Int
from torch import Tensor

from cagp.actions import Actions
from cagp.checks import check_count
from cagp.comparison import Gains
from cagp.dataset import Data
from cagp.engine import DEFAULT_MAX_BYTES
from cagp.local_inference import Moments, SharedActions, local_answers, local_nll
from cagp.methods.base import ACTION_RATE, HYPERPARAMETER_RATE, Method, RowNoise, Targets, drawn_rows, trained
from cagp.metrics import row_nll
from cagp.neighbours import IndexKind, NeighbourIndex, OrderedIndex
from cagp.posteriors import LocalPosterior, Prediction
from cagp.posteriors.nearest_rows import closeness, scale_around
from cagp.prior import GP
from cagp.projection import check_actions, project
from cagp.training import Batch, Coming, ParameterGroup, StepRows
from cagp.training.trainable import Inputs, Rows, Terms

Objective = Literal["loo", "ordered"]
OBJECTIVES: dict[Objective, str] = {"loo": "leave-one-out", "ordered": "ordered"}

KEPT_NEIGHBOURS = 2**19
"""Up to this many, the neighbours of all rows are looked up where units change, and not those of each step: steps draw
most rows several times. A heuristic."""

LOCAL_SCALES = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)
"""What ``CaGPLocal.choose_local_scale`` tries."""

SCALE_ROWS = 10_000
"""Rows that choose among the scales: many, because a few improbable ones weigh much."""


class ScaleChoice(NamedTuple):
    """The choice of a local scale, with the mean negative log density of rows, each predicted from others."""

    local_scale: float | None
    nll: float
    nll_without: float
    num_rows: int


class Lookup(NamedTuple):
    """How the training rows that each row is predicted from are looked up."""

    index: NeighbourIndex
    ordered: OrderedIndex | None  # None: among all other rows
    k: int  # 0 for a single row, which has no neighbours
    every: Int[Tensor, "n k"] | None = None  # those of all rows; None with many rows, of which few are drawn twice

    def of(self, X: Inputs, rows: Rows) -> Int[Tensor, "b k"]:
        """The rows that each of these is predicted from; -1 for none."""
        return self.found(X, rows) if self.every is None else self.every[rows]

    def found(self, X: Inputs, rows: Rows) -> Int[Tensor, "b k"]:
        """The same, by a search."""
        if self.k == 0:
            return rows.new_full((len(rows), 1), -1)
        if self.ordered is not None:
            return self.ordered.earlier(rows, self.k)
        return self.index.nearest(X[rows], self.k, left_out=rows)


class OwnRows(NamedTuple):
    """The first rows are this process's own, the others are neighbours alone: see ``cagp.shards``."""

    num_rows: int
    share: float  # of all rows of the table
    rank: int  # of the process, from which its rows of a step are drawn


@final
class CaGPLocal(Method):
    """A computation-aware GP whose actions depend on the test point: unit vectors at its nearest rows.

    The hyperparameters are learned on minibatches of rows, each predicted from other rows alone, at a cost that does
    not depend on n. With shared actions (learned or constant ones of CaGP-Opt) it is the hybrid.

    Args:
        num_neighbours: rows for each row predicted in training; fewer if there are fewer.
        num_neighbours_predict: rows for each test point; None for twice as many as in training.
        shared: actions that all test points condition on first; None for none.
        local_scale: None for one scale everywhere, as learned. A number ν: in predictions, kernel and noise around a
            test point are multiplied by what its k neighbours say about them; the learned scale counts as much as ν
            neighbours. See ``choose_local_scale``.
        objective: "loo" predicts each row from its nearest others; "ordered" from its nearest among the rows before
            it in a random order, which makes the sum a proper log density of all targets (Vecchia).
        index_kind: how neighbours are found, see ``cagp.neighbours``.
        refresh_at: steps of a fit, counted from 0, before which neighbours are looked up again in units of the present
            lengthscales, besides the first; None for never: neighbours stay those of ``search_lengthscale``.
        own_rows: of a process that holds a part of the table; None where every process has all rows.
    """

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
        refresh_at: Sequence[int] | None = (5, 10, 20, 40, 80, 160),
        own_rows: OwnRows | None = None,
        max_bytes: int = DEFAULT_MAX_BYTES,
    ):
        super().__init__()
        if objective not in OBJECTIVES:
            raise ValueError(f'objective is {objective!r}, expected "loo" or "ordered".')
        for name, value in (("num_neighbours", num_neighbours), ("batch_size", batch_size)):
            check_count(value, name, 2**31, "a size that can be computed")
        if local_scale is not None and not 0 < local_scale < math.inf:
            raise ValueError(f"local_scale is {local_scale}, expected None or a positive number of neighbours.")
        if own_rows is not None and shared is not None:
            raise ValueError("shared actions have rows that no single process holds; leave shared or own_rows out.")
        self.prior, self.num_neighbours = prior, num_neighbours
        self.num_neighbours_predict = 2 * num_neighbours if num_neighbours_predict is None else num_neighbours_predict
        self.shared, self.local_scale = shared, local_scale
        self.objective_name: Objective = objective
        self.batch_size, self.seed = batch_size, seed
        self.index_kind: IndexKind = index_kind
        self.refresh_at = None if refresh_at is None else tuple(refresh_at)
        self.own_rows, self.max_bytes = own_rows, max_bytes
        lengthscale = prior.kernel.lengthscales()
        # Neighbours are those of these lengthscales; a checkpoint holds them, so that a resumed fit finds the same.
        self.register_buffer("search_lengthscale", torch.ones(0) if lengthscale is None else lengthscale.clone())

    def check(self, data: Data) -> None:
        super().check(data)
        if self.shared is not None:
            check_actions(self.shared, data.X)

    def rows(self, step: int, num_rows: int) -> StepRows:
        if self.own_rows is not None:
            available, share, rank = self.own_rows
            count = round(self.batch_size * share)
            rows = torch.arange(available)
            if count < available:
                rows = drawn_rows(self.seed + 7_919 * rank, step, available, max(1, count))
            return StepRows(rows, stochastic=True, divisible=True, share=share)
        rows = None if self.shared is None else self._training_rows(num_rows)
        available = num_rows if rows is None else len(rows)
        if self.batch_size < available:
            drawn = drawn_rows(self.seed, step, available, self.batch_size)
            rows = drawn if rows is None else rows[drawn.to(rows.device)]
        return StepRows(rows, stochastic=True, divisible=True)

    def before_step(self, data: Data, coming: Coming) -> Batch:
        """The rows of the step, and how neighbours are found: where that is due, by the present lengthscales."""
        lengthscale = self.prior.kernel.lengthscales()
        if self.refresh_at is not None and coming.step in (0, *self.refresh_at) and lengthscale is not None:
            self.search_lengthscale = lengthscale.clone()
        lookup: Lookup | None = None if coming.last is None else coming.last.prepared
        if lookup is None or not _is_unit(lookup.index.lengthscale, self.search_lengthscale):
            lookup = self.lookup(data)
            if self.own_rows is None and lookup.k * data.num_rows <= KEPT_NEIGHBOURS:
                lookup = lookup._replace(every=lookup.found(data.X, torch.arange(data.num_rows, device=data.X.device)))
        return Batch(coming.part, lookup)

    def lookup(self, data: Data) -> Lookup:
        """What finds the neighbours of training rows, in units of ``search_lengthscale``."""
        index, ordered = self._index(data, self.search_lengthscale), None
        if self.objective_name == "ordered":
            # A random order, which depends on the seed and the number of rows alone.
            order = torch.randperm(data.num_rows, generator=torch.Generator().manual_seed(self.seed))
            ordered = index.ordered(order.to(data.X.device))
        return Lookup(index, ordered, min(self.num_neighbours, data.num_rows - 1))

    def _index(self, data: Data, unit: Tensor | None) -> NeighbourIndex:
        return data.index(unit if unit is not None and len(unit) else None, self.index_kind)

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

    def terms(self, data: Data, batch: Batch) -> Terms:
        """The mean of -log p of rows, each predicted from others; of none whose target a shared action touches."""
        num_actions = 0 if self.shared is None else self.shared.num_actions
        tile = max(1, self.max_bytes // (8 * 8 * self.num_neighbours * (self.num_neighbours + 8 + num_actions)))
        shared = self._seen(self.prior, data)
        total, num_rows = torch.zeros((), dtype=torch.float64, device=data.X.device), 0
        for rows, near in self.tiles(data, batch, tile):
            total, num_rows = total + local_nll(self.prior, *data.tensors, rows, near, shared), num_rows + len(rows)
        return {"negative_log_density": total / num_rows}

    def tiles(self, data: Data, batch: Batch, tile: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The rows of a batch and their neighbours, ``tile`` rows at a time."""
        rows = (self._training_rows(data.num_rows) if batch.rows is None else batch.rows).to(data.X.device)
        lookup: Lookup = batch.prepared or self.lookup(data)
        yield from ((part, lookup.of(data.X, part)) for part in rows.split(tile))

    def _seen(self, prior: GP, data: Data) -> SharedActions | None:
        """What the shared actions see of the data; None if there are none."""
        if self.shared is None:
            return None
        projection = project(prior, self.shared, *data.tensors, self.max_bytes, check=False)
        return SharedActions.of(prior, projection, self.shared.support.clone(), self.max_bytes)

    def parameter_groups(self) -> dict[str, ParameterGroup]:
        actions = trained(self.shared, ACTION_RATE)
        return {"hyperparameters": trained(self.prior, HYPERPARAMETER_RATE), "actions": actions}

    @torch.no_grad()
    def posterior(self, data: Data, *, num_neighbours: int | None = None, shares_rows: bool = False) -> LocalPosterior:
        """The posterior given the data.

        Args:
            num_neighbours: rows for each test point; None for ``num_neighbours_predict``.
            shares_rows: hold the data themselves, which must not change any more, instead of copies.
        """
        k = self.num_neighbours_predict if num_neighbours is None else num_neighbours
        if k < 0:
            raise ValueError(f"num_neighbours is {k}, expected 0 (shared actions alone) or more.")
        prior = copy.deepcopy(self.prior).requires_grad_(False)
        index = self._index(data, prior.kernel.lengthscales())
        given = prior, data, min(k, data.num_rows), index, self._seen(prior, data)
        return LocalPosterior(*given, self.max_bytes, self.local_scale, shares_rows=shares_rows)

    @torch.no_grad()
    def marginals(self, data: Data) -> Prediction:
        """From as many nearest rows as in training and the row itself, by the index of training."""
        index, k = self._index(data, self.search_lengthscale), min(self.num_neighbours + 1, data.num_rows)
        posterior = LocalPosterior(
            self.prior, data, k, index, self._seen(self.prior, data), self.max_bytes, shares_rows=True
        )
        return posterior.predict(data)

    @torch.no_grad()
    def choose_local_scale(
        self,
        X: Inputs | Data,
        y: Targets | None = None,
        row_noise: RowNoise = None,
        *,
        num_rows: int = SCALE_ROWS,
        held_out: Data | tuple[Tensor, Tensor, Tensor | None] | None = None,
    ) -> ScaleChoice:
        """The local scale with which rows are predicted best from their neighbours, at the present hyperparameters.

        Rows, each predicted from others alone, choose among ``LOCAL_SCALES``. If the best does not gain the margin of
        ``cagp.comparison``, the choice is None: one scale everywhere. Nothing changes: ``with_local_scale`` gives a
        method that uses it. Shared actions play no part, since they have seen the rows.

        Args:
            num_rows: rows that choose, at most.
            held_out: inputs, targets and known noise of rows that choose, predicted from those of ``X``. None: some of
                the rows of ``X`` do, each predicted from the others.
        """
        data, prior = self.checked(X, y, row_noise), self.prior
        asked_X, asked_y, asked_noise = data if held_out is None else held_out
        generator = torch.Generator().manual_seed(self.seed)
        rows = torch.randperm(len(asked_X), generator=generator)[:num_rows].to(data.X.device)
        k = min(self.num_neighbours_predict, data.num_rows - (held_out is None))
        if k == 0:
            raise ValueError("a local scale needs neighbours; expected num_neighbours_predict and rows to have some.")
        points, index = asked_X[rows], self._index(data, prior.kernel.lengthscales())
        near = index.nearest(points, k, left_out=rows if held_out is None else None)
        tile = max(1, self.max_bytes // (4 * 8 * k * (k + 8)))
        tiles = [
            local_answers(prior, *data.tensors, part, of_part)
            for part, of_part in zip(points.split(tile), near.split(tile), strict=True)
        ]
        moments = Moments(*(torch.cat(columns) for columns in zip(*tiles, strict=True)))
        close = closeness(prior, points, data.X, near)
        noise = 0.0 if asked_noise is None else asked_noise[rows].double()
        variance = moments.variance.clamp_min(0) + prior.noise.learned(points)

        def nll(scale: Tensor | float) -> Tensor:
            return row_nll(asked_y[rows], moments.mean, scale * variance + noise)

        without = nll(1.0)
        nlls = {value: nll(scale_around(moments, close, value)) for value in LOCAL_SCALES}
        best = min(nlls, key=lambda value: float(nlls[value].mean()))
        gains, before = without - nlls[best], float(without.mean())
        if Gains(gains).exceed("local scale"):
            return ScaleChoice(best, before - float(gains.mean()), before, len(rows))
        return ScaleChoice(None, before, before, len(rows))

    def with_local_scale(self, local_scale: float | None) -> "CaGPLocal":
        """The same method with this local scale; the two share prior and actions."""
        return self._like_this(local_scale=local_scale)

    def with_prior(self, prior: GP, refresh_at: Sequence[int] | None = None) -> "CaGPLocal":
        """The same method for another prior, with the neighbours of this one until they are looked up again."""
        return self._like_this(prior=prior, refresh_at=refresh_at)

    def with_own_rows(self, own_rows: OwnRows) -> "CaGPLocal":
        """The same method for a process that holds a part of the table."""
        return self._like_this(own_rows=own_rows)

    def _like_this(self, **changes: Any) -> "CaGPLocal":
        names = ("prior", "num_neighbours", "num_neighbours_predict", "shared", "local_scale", "batch_size", "seed")
        options = {name: getattr(self, name) for name in (*names, "index_kind", "refresh_at", "own_rows", "max_bytes")}
        method = CaGPLocal(**{**options, "objective": self.objective_name, **changes})
        method.search_lengthscale = self.search_lengthscale.clone()
        return method

    def words(self, data: Data) -> str:
        if self.own_rows is not None:
            return ""  # a part of the table says little about all of it
        kind = self._index(data, self.search_lengthscale).kind
        beside = "" if self.shared is None else f" beside {self.shared.num_actions:,} shared actions"
        return (
            f"CaGP-Local with {self.num_neighbours} neighbours{beside} ({self.num_neighbours_predict} in predictions) "
            f"on {data.num_rows:,} rows, {OBJECTIVES[self.objective_name]} objective, minibatches of "
            f"{self.batch_size:,} rows, neighbours by {kind}"
        )


def _is_unit(lengthscale: Tensor | None, unit: Tensor) -> bool:
    """Whether an index of this lengthscale is one in these units; an empty vector stands for none."""
    return len(unit) == 0 if lengthscale is None else torch.equal(lengthscale, unit)
