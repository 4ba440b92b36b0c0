"""Coverage error of 95 % intervals during training."""

from typing import final

from matplotlib.figure import Figure

from cagp.plots import styled
from cagp.reproduce import training_runs
from cagp.reproduce.drawing import COLORS, panels, shared_legend, titled
from cagp.reproduce.experiment import Claim, Experiment, Outcome, Record, Tables, Task, on_tables
from cagp.reproduce.training_runs import best_runs, score, tables_of

SHOWN = ("SVGP", "CaGP-Opt", "CaGP-Opt (ours)", "CaGP-Local")


def _below(records: list[Record]) -> Outcome | None:
    words, verdicts, gaps = [], [], []
    for table in tables_of(records):
        found = {name: s[0] for name in SHOWN if (s := score(records, table, name, "coverage_error")) is not None}
        if "CaGP-Opt" in found and "SVGP" in found:
            verdicts.append(found["CaGP-Opt"] < found["SVGP"])
            gaps.append(abs(found["CaGP-Opt"] - found["SVGP"]))
            words.append(f"{table} " + ", ".join(f"{name} {value:.1%}" for name, value in found.items()))
    outcome = on_tables([text.replace("%", " %") for text in words], verdicts)
    if outcome is not None and max(gaps) < 2 * _spread(records):
        return Outcome(f"{outcome.ours}; differences that small are chance", None)
    return outcome


def _spread(records: list[Record]) -> float:
    """The standard deviation of a coverage of 95 % with as many test rows as there are."""
    return (0.95 * 0.05 / min(record["num_test"] for record in records)) ** 0.5


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
            f"alone moves a coverage by about {100 * _spread(records):.1f} percentage points (one standard deviation)."
        )


EXPERIMENT = Coverage()
