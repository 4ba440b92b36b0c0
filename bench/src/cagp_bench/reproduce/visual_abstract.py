"""The visual abstract: exact GP, SVGP and CaGPs on one-dimensional data with a gap, beside the process itself."""

from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Any, final

import torch
from matplotlib.figure import Figure
from torch import Tensor

from cagp.methods import SVGP, CaGPCG, CaGPLocal, CaGPOpt, CholeskyGP, Method
from cagp.plots import INK, SMALL, styled
from cagp.prior import GP
from cagp.training import Settings
from cagp_bench.reproduce.drawing import COLORS, generating, panels, predictive, titled
from cagp_bench.reproduce.experiment import (
    Claim,
    Experiment,
    Outcome,
    Record,
    Tables,
    Task,
    generator,
    options_of,
    plain,
    select,
    values,
)
from cagp_bench.reproduce.toy import Truth, draw, exact, new_prior, noise_of, trained

METHODS = ("CholeskyGP", "SVGP", "CaGP-CG", "CaGP-Opt", "CaGP-Local")
GAP = (0.4, 0.75)
"""Where there are hardly any rows; the inputs are in [0, 1]."""

FEW = 3
"""Rows in the gap."""

MUCH_CLOSER = 0.75
"""A method is much closer than another if its divergence is less than this share of the other's."""

LEAST_GAIN = 0.02
"""Shares of the variance that differ by less count as equal."""

ROUND_OFF = 1e-9
"""Variances that differ by less than this share of the prior variance count as equal."""


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    num_seeds: int
    num_rows: int = 80
    rank: int = 8  # actions, inducing points, neighbours
    num_steps: int = 300
    grid: int = 160


SIZES = {"tiny": Size(1, 20, 4, 6, 12), "quick": Size(5), "full": Size(50, num_steps=1000, grid=300)}
TRUTH = Truth(lengthscale=0.15, outputscale=1.0, noise=0.05)


def rows(size: Size, seed: int) -> tuple[Tensor, Tensor]:
    """Inputs on both sides of the gap and a few in it, in float64 and in random order, and a draw of the process."""
    low, high = GAP
    u = torch.rand(size.num_rows, 1, generator=generator(seed), dtype=torch.float64)
    outside = (low + 1 - high) * u
    X = torch.where(outside < low, outside, outside + high - low)
    X[:FEW] = low + (high - low) * u[:FEW]
    X = X[torch.randperm(size.num_rows, generator=generator(seed, 3))]
    return X, draw(TRUTH, X, seed)


def new_method(name: str, prior: GP, X: Tensor, rank: int, seed: int) -> Method:
    """A method with the budget ``rank``."""
    if name == "CholeskyGP":
        return CholeskyGP(prior)
    if name == "SVGP":  # evenly spaced: some inducing points start in the gap
        return SVGP(prior, torch.linspace(0, 1, rank, dtype=torch.float64)[:, None], natural_rate=0.5, seed=seed)
    if name == "CaGP-CG":
        return CaGPCG(prior, rank)
    if name == "CaGP-Opt":
        choices = {"blocks": "ordered", "start": "random", "generator": generator(seed, 2)}
        return CaGPOpt.from_data(prior, X, rank, **choices)
    return CaGPLocal(prior, rank, num_neighbours_predict=rank, seed=seed)


def measure(size: Size, name: str, seed: int) -> dict[str, Any]:
    """Learned hyperparameters and predictives, their distance to the process, and whether any variance is too low."""
    X, y = rows(size, seed)
    prior = new_prior(1)
    method = new_method(name, prior, X, size.rank, seed)
    settings = Settings(num_steps=size.num_steps)
    if name == "CholeskyGP":
        settings = Settings(optimizer="lbfgs", num_steps=min(100, size.num_steps))
    result = trained(method, X, y, settings)
    grid = torch.linspace(0, 1, size.grid, dtype=torch.float64)[:, None]
    posterior, truth = method.condition(X, y), exact(TRUTH.prior(1), X, y)
    mean, variance = posterior.predict(grid)
    true_mean, true_variance = truth.predict(grid)
    noise, scale = noise_of(prior), float(prior.kernel.diag(grid[:1]).detach())
    least = float((variance - exact(prior, X, y).variance(grid)).min()) / scale
    found: dict[str, Any] = {
        "kl": _divergence(true_mean, true_variance + TRUTH.noise, mean, variance + noise),
        "noise": noise,
        "hyperparameters": method.hyperparameters(),
        "least_excess": least,  # of the variance over the exact one at the same hyperparameters, per prior variance
        "gap_share": float((variance / (variance + noise))[_in_gap(grid)].mean()),
        "true_gap_share": float((true_variance / (true_variance + TRUTH.noise))[_in_gap(grid)].mean()),
        "steps": len(result.steps),
    }
    if isinstance(method, SVGP):
        Z = method.inducing_points().detach()
        found["inducing_points"] = plain(Z[:, 0])
        inside = Z[_in_gap(Z)]
        if len(inside):
            least, best = posterior.variance(inside), exact(prior, X, y).variance(inside)
            found |= {"inside_share": float((least / scale).min()), "inside_ratio": float((least / best).min())}
    if seed == 0:  # what is drawn
        found |= {"x": plain(X[:, 0]), "y": plain(y), "grid": plain(grid[:, 0]), "mean": plain(mean)}
        found |= {"variance": plain(variance), "true_mean": plain(true_mean), "true_variance": plain(true_variance)}
        found["true_noise"] = TRUTH.noise
    return found


def _in_gap(X: Tensor) -> Tensor:
    low, high = GAP
    return (X[:, 0] > low + 0.05) & (X[:, 0] < high - 0.05)


def _divergence(mean: Tensor, variance: Tensor, other_mean: Tensor, other_variance: Tensor) -> float:
    """The average of KL(Normal(mean, variance) ‖ Normal(other)) over points."""
    ratio = variance / other_variance
    return float((0.5 * (ratio - 1 - ratio.log() + (mean - other_mean).square() / other_variance)).mean())


def average(records: list[Record], method: str, name: str) -> float | None:
    """The mean of a number over seeds; None without records."""
    found = [record[name] for record in select(records, method=method) if record.get(name) is not None]
    return fmean(found) if found else None


def _closeness(records: list[Record]) -> Outcome | None:
    found = {name: average(records, name, "kl") for name in ("SVGP", "CaGP-CG", "CaGP-Opt")}
    if None in found.values():
        return None
    kl: dict[str, float] = {name: value for name, value in found.items() if value is not None}
    words = ", ".join(f"{name} {value:.3f}" for name, value in kl.items())
    ours = f"KL divergence from the data-generating predictive, in nats, mean of {_num_seeds(records)}: {words}"
    return Outcome(ours, max(kl["CaGP-CG"], kl["CaGP-Opt"]) < MUCH_CLOSER * kl["SVGP"])


def _gap(records: list[Record]) -> Outcome | None:
    found = {name: average(records, name, "gap_share") for name in ("SVGP", "CaGP-CG", "CaGP-Opt", "CaGP-Local")}
    truth = average(records, "SVGP", "true_gap_share")
    if None in found.values() or truth is None:
        return None
    shares: dict[str, float] = {name: value for name, value in found.items() if value is not None}
    words = ", ".join(f"{name} {value:.0%}" for name, value in shares.items()).replace("%", " %")
    holds = shares["SVGP"] + LEAST_GAIN < min(shares["CaGP-CG"], shares["CaGP-Opt"])
    start = "share of the predictive variance in the gap that is not noise"
    return Outcome(f"{start}: data-generating {truth:.0%}, ".replace("%", " %") + words, holds)


def _at_inducing_points(records: list[Record]) -> Outcome | None:
    found = select(records, method="SVGP")
    inside = [record for record in found if "inside_share" in record]
    if not found:
        return None
    start = f"an inducing point lies in the gap with {len(inside)} of {len(found)} seeds"
    if not inside:
        return Outcome(start, None)
    shares, ratios = ([record[name] for record in inside] for name in ("inside_share", "inside_ratio"))
    words = (
        f"the variance there is {100 * min(shares):.0f} to {100 * max(shares):.0f} % of the prior variance, "
        f"{min(ratios):.2f} to {max(ratios):.2f} times that of the exact GP with the same hyperparameters"
    )
    return Outcome(f"{start}; {words}", max(ratios) < 1)


def _noise(records: list[Record]) -> Outcome | None:
    pairs = {name: {r["settings"]["seed"]: r["noise"] for r in select(records, method=name)} for name in METHODS}
    seeds = sorted(pairs["SVGP"].keys() & pairs["CaGP-Opt"].keys())
    if not seeds:
        return None
    larger = sum(pairs["SVGP"][seed] > pairs["CaGP-Opt"][seed] for seed in seeds)
    words = ", ".join(f"{n} {average(records, n, 'noise'):.3f}" for n in METHODS if pairs[n])
    return Outcome(
        f"SVGP's is larger than CaGP-Opt's with {larger} of {len(seeds)} seeds; means (truth {TRUTH.noise:g}): {words}",
        larger > len(seeds) / 2,
    )


def _never_below(records: list[Record]) -> Outcome | None:
    least = {
        name: min(r["least_excess"] for r in select(records, method=name))
        for name in ("CaGP-CG", "CaGP-Opt", "CaGP-Local", "SVGP")
        if select(records, method=name)
    }
    if len(least) < 4:
        return None
    words = ", ".join(f"{name} {value:.1e}" for name, value in least.items())
    return Outcome(
        f"smallest difference to the exact variance at the same hyperparameters, per prior variance: {words}",
        min(value for name, value in least.items() if name != "SVGP") > -ROUND_OFF,
    )


def _num_seeds(records: list[Record]) -> str:
    count = len(values(records, "seed"))
    return f"{count} {'seed' if count == 1 else 'seeds'}"


@final
class VisualAbstract(Experiment):
    """Figure 1."""

    title = "Predictive distributions after model selection"
    paper = (
        "Exact GP, SVGP, CaGP-CG and CaGP-Opt on one-dimensional data, each with hyperparameters learned its own "
        "way. No method recovers the data-generating process; the two CaGPs come much closer than SVGP. SVGP has "
        "almost no posterior variance near its inducing point where data are missing, and takes most deviations for "
        "noise."
    )
    differs = (
        "The paper does not give its data; these are draws of a Matérn 3/2 process with two groups of rows and three "
        "rows between them. SVGP takes natural-gradient steps. CaGP-Local is ours."
    )
    source = "visual-abstract"
    claims = (
        Claim("CaGP-CG and CaGP-Opt are much closer to the data-generating process than SVGP", "Figure 1", _closeness),
        Claim("CaGP expresses more posterior variance than SVGP where data are sparse", "Figure 1", _gap),
        Claim("SVGP is overconfident at inducing points where data are sparse", "Figure 1", _at_inducing_points),
        Claim("SVGP learns larger noise (one dimension)", "Figure 1", _noise),
        Claim("CaGP's variance is never below the exact one", "a theorem, in the supplement", _never_below),
    )

    def tasks(self, size: str, tables: Tables) -> list[Task]:
        s = SIZES[size]
        common = {"experiment": self.source, "size": size, "options": {**options_of(s), **TRUTH._asdict()}}
        return [
            Task({**common, "method": name, "seed": seed}, partial(measure, s, name, seed))
            for seed in range(s.num_seeds)
            for name in METHODS
        ]

    def draw(self, records: list[Record]) -> Figure:
        shown = [(name, found[0]) for name in METHODS if (found := select(records, method=name, seed=0))]
        figure, axes = panels(1, len(shown), 3.1, 3.0)
        for ax, (name, record) in zip(axes[0], shown, strict=True):
            predictive(ax, record, COLORS[name])
            generating(ax, record)
            if "inducing_points" in record:
                ax.plot(
                    record["inducing_points"], [-3.7] * len(record["inducing_points"]), "^", color=INK, markersize=5
                )
            ax.set_ylim(-4, 4)
            ax.set_xlim(-0.02, 1.02)
            titled(ax, name, COLORS[name])
            noise, kl = average(records, name, "noise"), average(records, name, "kl")
            assert noise is not None
            assert kl is not None
            styled(ax, f"noise variance {noise:.3f}, KL {kl:.3f}", "", grid=False)
            ax.xaxis.label.set_fontsize(SMALL)
        return figure

    def caption(self, records: list[Record]) -> str:
        s = records[0]["settings"]["options"]
        found = {name: average(records, name, "kl") for name in METHODS}
        words = ", ".join(f"{name} {value:.3f}" for name, value in found.items() if value is not None)
        return (
            f"{s['num_rows']} rows, {s['rank']} actions, inducing points (triangles) or neighbours. Dark: 95 % of the "
            "function; light: 95 % of new targets; grey: the predictive with the data-generating hyperparameters, "
            f"noise variance {s['noise']:g}. Drawn is seed 0; numbers below the panels are means of "
            f"{_num_seeds(records)}: the learned noise variance, and the KL divergence from the data-generating "
            f"predictive in nats per point of the grid ({words})."
        )


EXPERIMENT = VisualAbstract()
