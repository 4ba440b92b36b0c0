"""Coverage error of 95 % intervals during training."""

from typing import final

from matplotlib.figure import Figure

from cagp.plots import styled
from cagp_bench.reproduce import training_runs
from cagp_bench.reproduce.comparisons import coverage_chance, covers_better
from cagp_bench.reproduce.drawing import COLORS, panels, shared_legend, titled
from cagp_bench.reproduce.experiment import Claim, Experiment, Outcome, Record, Tables, Task
from cagp_bench.reproduce.training_runs import best_runs, scores, tables_of

SHOWN = ("SVGP", "CaGP-Opt", "CaGP-Opt (ours)", "CaGP-Local")


def _below(records: list[Record]) -> Outcome | None:
    chance = coverage_chance(min(record["num_test"] for record in records))
    return covers_better(scores(records, "coverage_error", SHOWN), dict.fromkeys(tables_of(records), chance))


@final
class Coverage(Experiment):
    """Figure 4."""

    title = "Coverage error of 95 % intervals during training"
    paper = (
        "The difference between 95 % and the share of test targets inside the 95 % intervals of CaGP-Opt and SVGP on "
        "the table Power, during training. After training, CaGP-Opt's is smaller."
    )
    differs = training_runs.DIFFERS
    source = training_runs.SOURCE
    claims = (Claim("CaGP-Opt's coverage error is below SVGP's after training", "Figure 4, on Power", _below),)

    def tasks(self, size: str, tables: Tables) -> list[Task]:
        return training_runs.tasks(size, tables)

    def draw(self, records: list[Record]) -> Figure:
        tables = tables_of(records)
        figure, axes = panels(1, len(tables), 4.0, 3.0)
        for ax, table in zip(axes[0], tables, strict=True):
            for name in SHOWN:
                for run in best_runs(records, table, name):
                    points = zip(run["step"], run["coverage_error"], strict=True)
                    shares = [(step / run["step"][-1], 100 * v) for step, v in points if v is not None]
                    ax.plot(*zip(*shares, strict=True), color=COLORS[name], linewidth=1.8)
            ax.set_ylim(0, None)
            titled(ax, table)
            styled(ax, "share of all training steps", "coverage error (%)" if ax is axes[0, 0] else "")
        shared_legend(figure, [(name, COLORS[name]) for name in SHOWN])
        return figure

    def caption(self, records: list[Record]) -> str:
        fewest = min(record["num_test"] for record in records)
        return (
            f"{training_runs.in_words(records)}{training_runs.differs(records)} With {fewest:,} test rows, chance "
            f"alone moves a coverage by about {100 * coverage_chance(fewest):.1f} percentage points (one standard "
            "deviation)."
        )


EXPERIMENT = Coverage()
