"""Where SVGP puts its inducing points in 1 to 25 dimensions, and what its predictive variance there consists of."""

from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Any, final

import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor

from cagp.methods import SVGP
from cagp.plots import INK, SMALL, styled
from cagp.posteriors import Posterior
from cagp.training import Settings
from cagp_bench.reproduce.drawing import COLORS, panels, titled
from cagp_bench.reproduce.experiment import (
    Claim,
    Experiment,
    Outcome,
    Record,
    Tables,
    Task,
    generator,
    options_of,
    select,
    values,
)
from cagp_bench.reproduce.toy import Truth, draw, exact, new_prior, noise_of, trained

TRUTH = Truth(lengthscale=0.5, outputscale=1.0, noise=0.01)


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    num_seeds: int
    dimensions: tuple[int, ...]
    num_rows: int = 500
    num_inducing: int = 64
    num_steps: int = 300
    lr: float = 0.05


SIZES = {
    "tiny": Size(1, (1, 3), 30, 5, 5),
    "quick": Size(1, (1, 2, 3, 4, 8, 16, 25)),
    "full": Size(5, tuple(range(1, 26))),
}


@torch.no_grad()
def distance_to_data(
    Z: Float[Tensor, "m d"], X: Float[Tensor, "n d"], lengthscale: Float[Tensor, " d"], tile_rows: int = 256
) -> Float[Tensor, " m"]:
    """min_j ‖(z - x_j) / lengthscale‖ for each inducing point z; the paper reports its average. Time O(m n d)."""
    # Moving the origin to the data avoids a loss of digits far from it.
    origin, lengthscale = X.double().mean(0), lengthscale.to(X.device).double()
    points, rows = ((A.double() - origin) / lengthscale for A in (Z, X))
    mode = "donot_use_mm_for_euclid_dist"
    return torch.cat([torch.cdist(tile, rows, compute_mode=mode).amin(1) for tile in points.split(tile_rows)])


@torch.no_grad()
def variance_ratio(
    posterior: Posterior, X: Float[Tensor, "t d"], row_noise: Float[Tensor, " t"] | None = None
) -> Float[Tensor, " t"]:
    """k_post(x, x) / (k_post(x, x) + D(x)); near zero where the function is known well, whatever the noise."""
    with_noise = posterior.variance(X, noise=True, row_noise=row_noise)
    return posterior.variance(X).double() / with_noise.double()


def measure(size: Size, num_dims: int, seed: int) -> dict[str, Any]:
    """Distances of inducing points and of random points to the data, and shares of the predictive variance."""
    X, start, random = (
        torch.rand(count, num_dims, generator=generator(seed, num_dims, purpose), dtype=torch.float64)
        for purpose, count in enumerate((size.num_rows, size.num_inducing, size.num_inducing), start=1)
    )
    y = draw(TRUTH, X, seed)
    prior = new_prior(num_dims)
    method = SVGP(prior, start, gradient="joint", seed=seed)
    trained(method, X, y, Settings(num_steps=size.num_steps, lr=size.lr))
    learned, posterior = method.inducing_points().detach(), method.condition(X, y)
    lengthscale = prior.kernel.lengthscales(X.shape[1])
    assert lengthscale is not None
    return {
        "distance": float(distance_to_data(learned, X, lengthscale).mean()),
        "random_distance": float(distance_to_data(random, X, lengthscale).mean()),
        "ratio": float(variance_ratio(posterior, learned).mean()),
        "true_ratio": float(variance_ratio(exact(TRUTH.prior(num_dims), X, y), learned).mean()),
        "noise": noise_of(prior),
        "mean_lengthscale": float(lengthscale.mean()),
        "outputscale": float(prior.kernel.diag(X[:1]).detach()),
    }


def average(records: list[Record], num_dims: int, name: str) -> float:
    """The mean of a number over seeds."""
    return fmean(record[name] for record in select(records, dimension=num_dims))


def _ends(records: list[Record]) -> tuple[int, int] | None:
    found = sorted(values(records, "dimension"))
    return (found[0], found[-1]) if len(found) > 1 else None


def _farther(records: list[Record]) -> Outcome | None:
    if (ends := _ends(records)) is None:
        return None
    near, far = (average(records, d, "distance") for d in ends)
    closer = sum(
        average(records, d, "distance") < average(records, d, "random_distance") for d in values(records, "dimension")
    )
    words = (
        f"{near:.3f} lengthscales in {ends[0]} dimension, {far:.3f} in {ends[1]}; closer than random points in {closer}"
    )
    return Outcome(f"{words} of {len(values(records, 'dimension'))} dimensions", far > near)


def _dominated(records: list[Record]) -> Outcome | None:
    dims = [d for d in sorted(values(records, "dimension")) if d >= 4]
    if not dims:
        return None
    own, truth = (fmean(average(records, d, name) for d in dims) for name in ("ratio", "true_ratio"))
    return Outcome(
        f"posterior share of the predictive variance at the inducing points, mean over d ≥ 4: SVGP {own:.2f}, exact "
        f"GP with the data-generating hyperparameters {truth:.2f}",
        own < truth,
    )


def _noise(records: list[Record]) -> Outcome | None:
    dims = [d for d in sorted(values(records, "dimension")) if d >= 4]
    if not dims:
        return None
    larger = [average(records, d, "noise") > TRUTH.noise for d in dims]
    mean = fmean(average(records, d, "noise") for d in dims)
    return Outcome(
        f"above the data-generating noise variance ({TRUTH.noise:g}) in {sum(larger)} of {len(dims)} dimensions from "
        f"4 on, mean {mean:.3f}",
        all(larger),
    )


@final
class InducingPoints(Experiment):
    """Figure S3."""

    title = "SVGP's inducing points in higher dimensions"
    paper = (
        "(a) The average distance of SVGP's inducing points to the nearest row, in learned lengthscales, grows with "
        "the dimension; they lie closer than uniform random points. (b) At the inducing points, the predictive "
        "variance is dominated by the learned noise in higher dimensions, already in 4, other than that of an exact "
        "GP with the data-generating hyperparameters."
    )
    differs = (
        "The paper does not give the lengthscale and noise of its data; here the inputs are uniform in the unit "
        "cube, the lengthscale is 0.5 and the noise variance 0.01."
    )
    source = "inducing-points"
    claims = (
        Claim("SVGP's inducing points lie farther from the data in higher dimensions", "Figure S3a", _farther),
        Claim("SVGP's variance at its inducing points is mostly noise in higher dimensions", "Figure S3b", _dominated),
        Claim("SVGP learns larger noise than the data have (4 dimensions and more)", "Figure S3b", _noise),
    )

    def tasks(self, size: str, tables: Tables) -> list[Task]:
        s = SIZES[size]
        options = {k: v for k, v in options_of(s).items() if k != "dimensions"} | TRUTH._asdict()
        common = {"experiment": self.source, "size": size, "options": options}
        return [
            Task({**common, "dimension": d, "seed": seed}, partial(measure, s, d, seed))
            for seed in range(s.num_seeds)
            for d in s.dimensions
        ]

    def draw(self, records: list[Record]) -> Figure:
        figure, axes = panels(1, 2, 5.5, 3.6)
        lines = (
            ("distance", "random_distance", "uniform random points", "distance to the nearest row (lengthscales)"),
            (
                "ratio",
                "true_ratio",
                "exact GP, data-generating hyperparameters",
                "posterior share of the predictive variance",
            ),
        )
        dims = sorted(values(records, "dimension"))
        for ax, (own, other, words, title) in zip(axes[0], lines, strict=True):
            for name, color, label, style in ((own, COLORS["SVGP"], "SVGP", "-"), (other, INK, words, "--")):
                ax.plot(dims, [average(records, d, name) for d in dims], style, marker="o", markersize=4, color=color)
                ax.plot([], [], style, color=color, label=label)
            ax.legend(fontsize=SMALL, frameon=False)
            ax.set_ylim(0, None)
            titled(ax, title)
            styled(ax, "dimension", "")
        return figure

    def caption(self, records: list[Record]) -> str:
        o = records[0]["settings"]["options"]
        seeds = len(values(records, "seed"))
        return (
            f"{o['num_rows']} rows, {o['num_inducing']} inducing points, {o['num_steps']} steps of Adam on all "
            f"parameters together, mean of {seeds} {'seed' if seeds == 1 else 'seeds'}. Left: mean distance of "
            "inducing points, and of uniform random points, to the nearest row, in the lengthscales that SVGP "
            "learned. Right: mean share of the posterior variance in the predictive variance at the inducing points."
        )


EXPERIMENT = InducingPoints()
