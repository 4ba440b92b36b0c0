"""Actions of CaGP-CG and CaGP-Opt beside the leading eigenvectors, and their Grassmann distance during training."""

from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Any, final

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from cagp.actions import Actions
from cagp.diagnostics import action_matrix, eigenspace_alignment
from cagp.iterative import top_eigenvectors
from cagp.methods import CaGPCG, CaGPOpt
from cagp.plots import SMALL, styled
from cagp.prior import GP
from cagp.system import System
from cagp.training import Settings
from cagp_bench.reproduce.drawing import COLORS, titled
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
from cagp_bench.reproduce.toy import Truth, draw, new_prior, trained

METHODS = ("CaGP-CG", "CaGP-Opt", "CaGP-Opt (ours)")
TRUTH = Truth(lengthscale=0.3, outputscale=1.0, noise=0.01)
SHOWN = 5


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    num_seeds: int
    num_rows: int = 300
    num_actions: int = 20
    num_steps: int = 150
    every: int = 10
    lr: float = 0.1


SIZES = {
    "tiny": Size(1, 24, 5, 6, 2),
    "quick": Size(2),
    "full": Size(10, num_rows=1000, num_actions=50, num_steps=1000, every=20),
}


def measure(size: Size, name: str, seed: int) -> dict[str, Any]:
    """Distances of the actions, and of random ones, to the eigenspace in training; for seed 0, some actions."""
    X = 2 * torch.rand(size.num_rows, 2, generator=generator(seed), dtype=torch.float64) - 1
    y = draw(TRUTH, X, seed)
    prior = new_prior(2)
    method: CaGPCG | CaGPOpt
    if name == "CaGP-CG":
        method = CaGPCG(prior, size.num_actions)
    elif name == "CaGP-Opt":
        choices = {"blocks": "ordered", "start": "random", "generator": generator(seed, 2)}
        method = CaGPOpt.from_data(prior, X, size.num_actions, **choices)
    else:
        method = CaGPOpt.from_data(prior, X, size.num_actions)
    others = torch.randn(size.num_rows, size.num_actions, generator=generator(seed, 3), dtype=torch.float64)

    def evaluate() -> dict[str, float]:
        system = System(prior, X)
        found, random = (eigenspace_alignment(system, S) for S in (_actions(method, X, y), others))
        return {
            "distance": found.distance,
            "information": found.information,
            "random": random.distance,
            "random_information": random.information,
        }

    start = evaluate()
    settings = Settings(num_steps=size.num_steps, lr=size.lr, evaluate_every=size.every)
    result = trained(method, X, y, settings, evaluate=evaluate)
    steps = [(0, start), *((step.number, step.evaluation) for step in result.steps if step.evaluation)]
    curves = {key: [float(f"{values[key]:.5g}") for _, values in steps] for key in start}
    found: dict[str, Any] = {"steps": [number for number, _ in steps], **curves}
    found |= {"largest": float(np.sqrt(size.num_actions) * np.pi / 2), "hyperparameters": method.hyperparameters()}
    if seed == 0:
        found |= {"x": plain(X, 4), "actions": plain(_actions(method, X, y)[:, :SHOWN].mT.abs(), 3)}
        found["eigenvectors"] = plain(_eigenvectors(prior, X).mT.abs(), 3)
    return found


def _actions(method: CaGPCG | CaGPOpt, X: Tensor, y: Tensor) -> Tensor:
    actions = method.iteration(X, y).orthonormal_actions if isinstance(method, CaGPCG) else method.actions
    assert isinstance(actions, Actions)
    return action_matrix(actions)


def _eigenvectors(prior: GP, X: Tensor) -> Tensor:
    vectors = top_eigenvectors(System(prior, X), SHOWN).vectors
    return vectors / vectors.norm(dim=0)


def _ordered(records: list[Record]) -> Outcome | None:
    last = {
        name: fmean(r["distance"][-1] for r in found) for name in METHODS if (found := select(records, method=name))
    }
    if len(last) < len(METHODS):
        return None
    last["random"] = fmean(record["random"][-1] for record in records)
    words = ", ".join(f"{name} {value:.2f}" for name, value in last.items())
    ours = f"Grassmann distance after training (at most {records[0]['largest']:.2f}): {words}"
    return Outcome(ours, last["CaGP-CG"] < last["CaGP-Opt"] < last["random"])


def _ours(records: list[Record]) -> Outcome | None:
    shares = {
        name: fmean(r["information"][-1] for r in found) for name in METHODS if (found := select(records, method=name))
    }
    if len(shares) < len(METHODS):
        return None
    shares["random"] = fmean(record["random_information"][-1] for record in records)
    words = ", ".join(f"{name} {value:.0%}" for name, value in shares.items()).replace("%", " %")
    holds = shares["CaGP-CG"] > shares["CaGP-Opt"] > shares["random"]
    return Outcome(f"share of the information of the eigenvectors: {words}", holds)


@final
class Policies(Experiment):
    """Figure 2."""

    title = "Actions, and their distance to the leading eigenvectors"
    paper = (
        "Left: magnitudes of the five leading eigenvectors and of the first five actions of CaGP-CG and CaGP-Opt at "
        "each row of a two-dimensional data set. Right: Grassmann distance between the span of the actions and the "
        "leading eigenspace during training. CG actions are closer to it than learned ones, and both are closer than "
        "random ones."
    )
    differs = (
        "The paper does not give its data; these are draws of a Matérn 3/2 process on a square. CaGP-Opt has the "
        "paper's blocks (consecutive rows, random weights); CaGP-Opt (ours) has blocks of nearby rows with equal "
        "weights."
    )
    source = "policies"
    claims = (
        Claim(
            "CG actions are closer to the eigenspace than learned ones, both closer than random ones",
            "Figure 2",
            _ordered,
        ),
        Claim("The same order by mutual information with the function", "not measured", _ours),
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
        figure = Figure(figsize=(14, 7), layout="constrained")
        left, right = figure.subfigures(1, 2, width_ratios=[1.75, 1], squeeze=False)[0]
        shown = {name: found[0] for name in METHODS if (found := select(records, method=name, seed=0))}
        first = next(iter(shown.values()))
        rows = {"eigenvectors": (first["x"], first["eigenvectors"])}
        rows |= {name: (record["x"], record["actions"]) for name, record in shown.items()}
        axes = left.subplots(len(rows), SHOWN, squeeze=False)
        for line, (name, (x, vectors)) in zip(axes, rows.items(), strict=True):
            for ax, vector in zip(line, vectors, strict=True):
                points, size = np.array(x), np.array(vector)
                order = np.argsort(size)  # the largest on top
                ax.scatter(*points[order].T, c=size[order] / size.max(), s=7, cmap="viridis", vmin=0, vmax=1)
                ax.set(xticks=[], yticks=[], aspect="equal")
            titled(line[0], name, COLORS.get(name, "#22272b"))
        ax = right.subplots()
        for name in METHODS:
            for record in select(records, method=name):
                ax.plot(record["steps"], record["distance"], color=COLORS[name], linewidth=1.8)
        for record in select(records, method="CaGP-Opt"):
            ax.plot(record["steps"], record["random"], color=COLORS["random"], linewidth=1.2, linestyle="--")
        for name in (*METHODS, "random"):
            ax.plot([], [], color=COLORS[name], label=name, linestyle="--" if name == "random" else "-")
        ax.set_ylim(0, None)
        ax.legend(fontsize=SMALL, frameon=False)
        titled(ax, "distance to the leading eigenspace")
        styled(ax, "step", "Grassmann distance")
        return figure

    def caption(self, records: list[Record]) -> str:
        s = records[0]["settings"]["options"]
        return (
            f"{s['num_rows']} rows, {s['num_actions']} actions, {s['num_steps']} steps of Adam, "
            f"{len(values(records, 'seed'))} draws of the data. Left, for the first draw after training: magnitudes "
            "of the five leading eigenvectors (at the hyperparameters of CaGP-CG) and of the first five actions; "
            "yellow is large. Right: the Grassmann distance between actions and as many leading eigenvectors at the "
            "same hyperparameters; dashed: Gaussian random vectors, at the hyperparameters of CaGP-Opt."
        )


EXPERIMENT = Policies()
