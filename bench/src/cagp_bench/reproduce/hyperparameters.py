"""Noise, outputscale and lengthscales of all methods during training."""

from typing import final

from matplotlib.figure import Figure

from cagp.plots import styled
from cagp_bench.reproduce import training_runs
from cagp_bench.reproduce.comparisons import learns_less_noise
from cagp_bench.reproduce.drawing import COLORS, panels, shared_legend, titled
from cagp_bench.reproduce.experiment import Claim, Experiment, Record, Tables, Task
from cagp_bench.reproduce.training_runs import METHODS, best_runs, scores, tables_of

SHOWN = {
    "noise": "noise variance",
    "outputscale": "outputscale",
    "lengthscale_1": "lengthscale 1",
    "lengthscale_2": "lengthscale 2",
    "lengthscale_3": "lengthscale 3",
}


@final
class Hyperparameters(Experiment):
    """Figure S5."""

    title = "Hyperparameters during training"
    paper = (
        "Noise, outputscale and the first three lengthscales of each method during training, at its best learning "
        "rate. SVGP typically learns a larger noise than the other methods, and often large lengthscales; CaGP-Opt "
        "learns less noise than SVGP."
    )
    differs = training_runs.DIFFERS
    source = training_runs.SOURCE
    claims = (
        Claim(
            "SVGP learns larger noise than CaGP-Opt (tables)",
            "Figure S5",
            lambda r: learns_less_noise(scores(r, "noise")),
        ),
    )

    def tasks(self, size: str, tables: Tables) -> list[Task]:
        return training_runs.tasks(size, tables)

    def draw(self, records: list[Record]) -> Figure:
        tables = tables_of(records)
        shown = {name: words for name, words in SHOWN.items() if any(name in record for record in records)}
        figure, axes = panels(len(shown), len(tables), 4.0, 2.0)
        for column, table in enumerate(tables):
            for ax, (name, words) in zip(axes[:, column], shown.items(), strict=True):
                for method in METHODS:
                    for run in (run for run in best_runs(records, table, method) if name in run):
                        points = [(s / run["step"][-1], v) for s, v in zip(run["step"], run[name], strict=True) if v]
                        ax.plot(*zip(*points, strict=True), color=COLORS[method], linewidth=1.5)
                ax.set_yscale("log")
                last = name == list(shown)[-1]
                styled(ax, "share of all training steps" if last else "", words if column == 0 else "")
            titled(axes[0, column], table)
        shared_legend(figure, [(name, COLORS[name]) for name in METHODS], 4)
        return figure

    def caption(self, records: list[Record]) -> str:
        floor = records[0]["settings"]["options"]["noise_floor"]
        return (
            f"{training_runs.in_words(records)}{training_runs.differs(records)} All variances are in standard units; "
            f"the noise cannot fall below {floor:g}."
        )


EXPERIMENT = Hyperparameters()
