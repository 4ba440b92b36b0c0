"""A table in regions, one for each process: for tables that no single machine can hold.

Each process holds the rows of its region and those within some distance of it, learns from the former with the latter
as neighbours, and answers the test points of its region. A neighbour that is missed only widens the error bar: actions
may be any unit vectors.
"""

import math
from collections.abc import Callable
from typing import NamedTuple, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from cagp.methods.cagp_local import OwnRows
from cagp.neighbours import NeighbourIndex
from cagp.posteriors import LocalPosterior, Posterior, Prediction
from cagp.posteriors.base import LeftOut
from cagp.prior import GP
from cagp.ranks import Ranks

Inputs = Float[Tensor, "n d"]
Targets = Float[Tensor, " n"]
Lengthscale = Float[Tensor, " d"]

SAMPLE = 20_000  # rows of the whole table from which regions are cut
REACHED = 0.99  # the share of rows whose neighbours lie within the default width of a halo, about


class Regions(NamedTuple):
    """Boxes that fill space without overlap; a row belongs to the box with lower ≤ x < upper."""

    lower: Float[Tensor, "r d"]
    upper: Float[Tensor, "r d"]
    unit: Lengthscale  # of distances

    @classmethod
    def cut(cls, X: Inputs, num_regions: int, lengthscale: Lengthscale | None = None) -> "Regions":
        """A k-d cut into regions with about as many of these rows each, along the column that is longest there."""
        if num_regions > X.shape[0]:
            raise ValueError(f"{num_regions} regions of {X.shape[0]} rows, expected no more regions than rows.")
        unit = torch.ones(X.shape[1], dtype=X.dtype, device=X.device) if lengthscale is None else lengthscale.to(X)
        boxes: list[tuple[Tensor, Tensor]] = []

        def divide(rows: Tensor, lower: Tensor, upper: Tensor, count: int) -> None:
            if count == 1:
                boxes.append((lower, upper))
                return
            column = int(((rows.amax(0) - rows.amin(0)) / unit).argmax())
            values = rows[:, column].sort().values
            value = values[len(rows) * (count // 2) // count]
            below = rows[:, column] < value
            first, second = upper.clone(), lower.clone()
            first[column] = second[column] = value
            # With many equal values a side can be empty: its regions then have no rows.
            divide(rows[below] if bool(below.any()) else rows[:1], lower, first, count // 2)
            divide(rows[~below], second, upper, count - count // 2)

        whole = torch.full_like(unit, torch.inf)
        divide(X, -whole, whole, num_regions)
        lower, upper = map(torch.stack, zip(*boxes, strict=True))
        return cls(lower, upper, unit)

    @classmethod
    def of_parts(cls, X: Inputs, ranks: Ranks, lengthscale: Lengthscale | None = None) -> "Regions":
        """A region for each process, cut from a sample of the rows of all processes; on all processes."""
        regions = cls.cut(sample_of_parts(X, ranks), ranks.size, lengthscale)
        return cls(**{name: values.to(X) for name, values in ranks.from_first(regions._asdict).items()})

    @property
    def num_regions(self) -> int:
        """The number of regions."""
        return len(self.lower)

    def of(self, X: Float[Tensor, "n d"]) -> Int[Tensor, " n"]:
        """The region of each row."""
        found = torch.zeros(X.shape[0], dtype=torch.int64, device=X.device)
        for region in range(1, self.num_regions):
            found[((self.lower[region] <= X) & (self.upper[region] > X)).all(1)] = region
        return found

    def near(self, X: Float[Tensor, "n d"], region: int, width: float) -> Bool[Tensor, " n"]:
        """Whether each row is at most ``width`` away from a region, in units of the lengthscales."""
        outside = torch.maximum(self.lower[region] - X, X - self.upper[region]).clamp_min(0)
        return (outside / self.unit).square().sum(1) <= width**2


def sample_of_parts(X: Float[Tensor, "n d"], ranks: Ranks, num_rows: int = SAMPLE) -> Float[Tensor, "m d"]:
    """At most about ``num_rows`` rows, evenly from the rows of all processes; on all processes."""
    share = min(1.0, num_rows / float(ranks.from_all(X.shape[0]).sum()))
    chosen = torch.linspace(0, max(X.shape[0] - 1, 0), math.ceil(share * X.shape[0])).long()
    return torch.cat(ranks.exchange([X[chosen.to(X.device)]] * ranks.size))


def halo_width(sample: Float[Tensor, "m d"], num_rows: int, num_neighbours: int, unit: Float[Tensor, " d"]) -> float:
    """How far neighbours are, about: a heuristic, in units of the lengthscales.

    Of a sample of m of n rows, the (k m / n)-th nearest is about as far as the k-th nearest of all rows.
    """
    k = max(1, min(len(sample) - 1, round(num_neighbours * len(sample) / num_rows)))
    few = sample[:: max(1, len(sample) // 1000)]
    nearest = NeighbourIndex(sample, unit).nearest(few, min(k + 1, len(sample)))  # the first is the row itself
    distance = ((sample[nearest[:, -1]] - few) / unit).square().sum(1).sqrt()
    return float(distance.double().quantile(REACHED))


class Shard(NamedTuple):
    """The rows that a process holds: those of its region first, then those near it.

    ``fit(method.with_own_rows(shard.own), shard.X, shard.y, shard.row_noise, ranks=ranks)`` trains the ``CaGPLocal``
    ``method``: all processes together minimise the mean over all rows of the table.
    """

    X: Inputs
    y: Targets
    row_noise: Targets | None
    own: OwnRows  # those of its region


def exchange_rows(
    regions: Regions, width: float, ranks: Ranks, X: Inputs, y: Targets, row_noise: Targets | None = None
) -> Shard:
    """The shard of this process, with a halo of this ``width`` in lengthscales; see ``halo_width``. On all processes,
    which together have each row of the table once.
    """
    known = [] if row_noise is None else [row_noise[:, None]]
    table = torch.cat([X, y[:, None], *known], 1)
    home = regions.of(X)
    each = range(regions.num_regions)
    own = torch.cat(ranks.exchange([table[home == region] for region in each]))
    near = torch.cat(ranks.exchange([table[(home != region) & regions.near(X, region, width)] for region in each]))
    counts = ranks.from_all(len(own))
    if not bool(counts.all()):
        raise ValueError(f"{int((counts == 0).sum())} of {ranks.size} regions have no rows; use fewer processes.")
    held, d = torch.cat([own, near]), X.shape[1]
    noise = None if row_noise is None else held[:, d + 1].contiguous()
    mine = OwnRows(len(own), len(own) / float(counts.sum()), ranks.rank)
    return Shard(held[:, :d].contiguous(), held[:, d].contiguous(), noise, mine)


def predict_in_regions(
    posterior: LocalPosterior, regions: Regions, ranks: Ranks, X: Float[Tensor, "n d"], *, noise: bool = False
) -> Prediction:
    """Means and variances of test points, the same on all processes, each by the ``posterior`` of its region."""
    held = posterior.X, posterior.local_scale, lambda _: posterior, posterior.max_bytes
    return RegionPosterior(posterior.prior, regions, ranks, *held).predict(X, noise=noise)


@final
class RegionPosterior(Posterior):
    """CaGP-Local in regions: each test point is answered by the process that has its region.

    Region r belongs to process r modulo the number of processes. All processes ask for the same test points, together.
    The variance at a test point is never below the exact one, as that of ``LocalPosterior``.

    Args:
        like: rows whose dtype, device and number of columns test points have; none are kept.
        open_region: the posterior of a region of this process, given its shard; asked for when it is first needed.
    """

    _width = 4

    def __init__(
        self,
        prior: GP,
        regions: Regions,
        ranks: Ranks,
        like: Float[Tensor, "_ d"],
        local_scale: float | None,
        open_region: Callable[[int], LocalPosterior],
        max_bytes: int,
    ):
        super().__init__(prior, like[:0], None, max_bytes)
        self.regions, self.ranks, self.local_scale = regions, ranks, local_scale
        self.has_local_scale, self.never_below_exact = local_scale is not None, local_scale is None
        self._open, self._opened = open_region, dict[int, LocalPosterior]()

    @property
    def own(self) -> list[int]:
        """The numbers of the regions of this process."""
        return list(range(self.ranks.rank, self.regions.num_regions, self.ranks.size))

    def of_region(self, region: int) -> LocalPosterior:
        """The posterior of a region of this process."""
        if region not in self._opened:
            self._opened[region] = self._open(region)
        return self._opened[region]

    def _moments(self, X: Tensor) -> tuple[Tensor, ...]:
        answers = torch.zeros(2 + self.has_local_scale, X.shape[0], dtype=torch.float64, device=X.device)
        home = self.regions.of(X)
        for region in self.own:
            mine = (home == region).nonzero()[:, 0]
            if len(mine):
                answers[:, mine] = torch.stack(self.of_region(region)._moments_in_tiles(X[mine])).double()
        return tuple(self.ranks.add_up(answers))

    def left_out(self, rows: Int[Tensor, " r"]) -> LeftOut | None:
        """No process has all rows."""
        raise ValueError(
            "a model in regions does not predict training rows without their own targets, since no process has all "
            "of them; pass calibration=(X, y) with rows that were not trained on."
        )

    def _covariance(self, X: Tensor, Z: Tensor | None) -> Tensor:
        raise ValueError(
            "a model in regions has no joint answers: test points of different regions share no rows. Ask for the "
            "mean and standard deviation of each."
        )
