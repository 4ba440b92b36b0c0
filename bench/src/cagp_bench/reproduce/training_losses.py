"""Two training losses of CaGP-CG: the ELBO and the projected-data loss, by test NLL in training and by predictives."""

from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Any, Literal, final

import torch
from matplotlib.figure import Figure

from cagp import metrics
from cagp.methods import CaGPCG
from cagp.plots import MUTED, SMALL, styled
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

Loss = Literal["elbo", "projected"]
LOSSES: dict[Loss, str] = {"elbo": "ELBO", "projected": "projected-data loss"}
TRUTH = Truth(lengthscale=0.1, outputscale=1.0, noise=0.05)


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    num_seeds: int
    num_rows: int = 120
    num_test: int = 400
    num_actions: int = 12
    num_steps: int = 200
    every: int = 5  # steps between evaluations
    lr: float = 0.1
    grid: int = 200


SIZES = {
    "tiny": Size(1, 24, 20, 4, 6, 2, grid=12),
    "quick": Size(3),
    "full": Size(20, num_rows=500, num_test=2000, num_actions=32, num_steps=1000, every=10),
}


def measure(size: Size, loss: Loss, seed: int) -> dict[str, Any]:
    """Loss and test NLL in training, and the predictive of the last step on a grid."""
    every = torch.rand(size.num_rows + size.num_test, 1, generator=generator(seed), dtype=torch.float64)
    targets = draw(TRUTH, every, seed)
    n = size.num_rows
    X, y, X_test, y_test = every[:n], targets[:n], every[n:], targets[n:]
    prior = new_prior(1)
    method = CaGPCG(prior, size.num_actions, loss)

    def evaluate() -> dict[str, float]:
        mean, variance = method.condition(X, y).predict(X_test, noise=True)
        return {"nll": metrics.nll(y_test, mean, variance), "noise": noise_of(prior)}

    start = evaluate()
    settings = Settings(num_steps=size.num_steps, lr=size.lr, evaluate_every=size.every)
    result = trained(method, X, y, settings, evaluate=evaluate)
    steps = [step for step in result.steps if step.evaluation is not None]
    truth = exact(TRUTH.prior(1), X, y)
    found: dict[str, Any] = {
        "steps": [0, *(step.number for step in steps)],
        "nll": [start["nll"], *(step.evaluation["nll"] for step in steps if step.evaluation)],
        "noises": plain(torch.tensor([start["noise"], *(s.evaluation["noise"] for s in steps if s.evaluation)])),
        "losses": plain(torch.tensor([step.loss for step in result.steps])),
        "true_nll": metrics.nll(y_test, *truth.predict(X_test, noise=True)),
        "noise": noise_of(prior),
        "hyperparameters": method.hyperparameters(),
    }
    if seed == 0:
        grid = torch.linspace(0, 1, size.grid, dtype=torch.float64)[:, None]
        mean, variance = method.condition(X, y).predict(grid)
        true_mean, true_variance = truth.predict(grid)
        found |= {"x": plain(X[:, 0]), "y": plain(y), "grid": plain(grid[:, 0]), "mean": plain(mean)}
        found |= {"variance": plain(variance), "true_mean": plain(true_mean), "true_variance": plain(true_variance)}
        found["true_noise"] = TRUTH.noise
    return found


def _of(records: list[Record], loss: str, name: str) -> list[Any]:
    return [record[name] for record in select(records, loss=loss)]


def _smooths(records: list[Record]) -> Outcome | None:
    noise = {loss: _of(records, loss, "noise") for loss in LOSSES}
    if not all(noise.values()):
        return None
    elbo, projected = fmean(noise["elbo"]), fmean(noise["projected"])
    words = (
        f"noise variance {projected:.3f} with the projected-data loss, {elbo:.3f} with the ELBO, truth {TRUTH.noise:g}"
    )
    return Outcome(words, projected > elbo and projected > 1.5 * TRUTH.noise)


def _worse(records: list[Record]) -> Outcome | None:
    curves = {loss: _of(records, loss, "nll") for loss in LOSSES}
    if not all(curves.values()):
        return None
    last = {loss: fmean(curve[-1] for curve in found) for loss, found in curves.items()}
    best = fmean(min(curve) for curve in curves["projected"])
    rises = last["projected"] - best
    words = (
        f"test NLL {last['projected']:.3f} with the projected-data loss ({rises:.3f} above its best during training), "
        f"{last['elbo']:.3f} with the ELBO"
    )
    return Outcome(words, last["projected"] > last["elbo"] and rises > 0.01)


@final
class TrainingLosses(Experiment):
    """Figures S1 and S2."""

    title = "Two training losses of CaGP-CG"
    paper = (
        "Trained with the projected-data log marginal likelihood, CaGP generalises worse and worse: it takes too "
        "much for noise. With the ELBO the fit is much better. One figure shows the test NLL in training, another "
        "the predictives."
    )
    differs = "The paper does not give its synthetic data; these are draws of a Matérn 3/2 process on [0, 1]."
    source = "training-losses"
    claims = (
        Claim("The projected-data loss overestimates the noise and oversmooths", "Figures S1 and S2", _smooths),
        Claim(
            "With the projected-data loss, the test NLL gets worse in training; the ELBO ends lower",
            "Figure S1",
            _worse,
        ),
    )

    def tasks(self, size: str, tables: Tables) -> list[Task]:
        s = SIZES[size]
        common = {"experiment": self.source, "size": size, "options": {**options_of(s), **TRUTH._asdict()}}
        return [
            Task({**common, "loss": loss, "seed": seed}, partial(measure, s, loss, seed))
            for seed in range(s.num_seeds)
            for loss in LOSSES
        ]

    def draw(self, records: list[Record]) -> Figure:
        figure, axes = panels(1, 3, 4.2, 3.2)
        ax = axes[0, 0]
        truth = fmean(record["true_nll"] for record in records)
        for loss, words in LOSSES.items():
            found = select(records, loss=loss)
            for record in found:
                ax.plot(record["steps"], record["nll"], color=COLORS[loss], alpha=0.3, linewidth=0.8)
            if found:
                mean = [fmean(at) for at in zip(*(record["nll"] for record in found), strict=True)]
                ax.plot(found[0]["steps"], mean, color=COLORS[loss], linewidth=2, label=words)
        ax.axhline(truth, color=MUTED, linestyle="--", linewidth=1, label="exact, data-generating")
        ax.legend(fontsize=SMALL, frameon=False)
        titled(ax, "test NLL in training")
        styled(ax, "step", "nats per row")
        for ax, (loss, words) in zip(axes[0, 1:], LOSSES.items(), strict=True):
            for record in select(records, loss=loss, seed=0):
                predictive(ax, record, COLORS[loss])
                generating(ax, record)
                styled(ax, f"noise variance {record['noise']:.3f}", "", grid=False)
            ax.set_ylim(-4, 4)
            titled(ax, words, COLORS[loss])
        return figure

    def caption(self, records: list[Record]) -> str:
        s = records[0]["settings"]["options"]
        count = len(values(records, "seed"))
        truth = fmean(record["true_nll"] for record in records)
        return (
            f"Left: test NLL during training of CaGP-CG with {s['num_actions']} actions on {s['num_rows']} rows, for "
            f"{count} draws of the data (thin) and on average; the exact posterior with the data-generating "
            f"hyperparameters has {truth:.3f}. Right: predictives of the first draw after {s['num_steps']} steps, "
            "beside that with the data-generating hyperparameters (grey)."
        )


EXPERIMENT = TrainingLosses()
