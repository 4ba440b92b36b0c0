"""Loss and test error of all methods against training time, at the best learning rate of each."""

from typing import final

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cagp.plots import styled
from cagp_bench.reproduce import training_runs
from cagp_bench.reproduce.comparisons import Curve, matches_or_beats, paper_nll, ramps_up
from cagp_bench.reproduce.drawing import COLORS, panels, shared_legend, titled
from cagp_bench.reproduce.experiment import Claim, Experiment, Outcome, Record, Tables, Task
from cagp_bench.reproduce.training_runs import METHODS, best_runs, score, scores, tables_of


def _beside(records: list[Record], other: str, excepted: tuple[str, ...] = ()) -> Outcome | None:
    return matches_or_beats(scores(records, "nll"), other, excepted)


def _ramp(records: list[Record], method: str, expected: bool) -> Outcome | None:
    curves = {table: {name: _curve(records, table, name) for name in (method, "SVGP")} for table in tables_of(records)}
    return ramps_up({t: {k: c for k, c in found.items() if c} for t, found in curves.items()}, method, expected)


def _curve(records: list[Record], table: str, method: str) -> Curve:
    """Of the first seed at the best learning rate; empty without runs."""
    return [
        (seconds, value)
        for run in best_runs(records, table, method)[:1]
        for seconds, value in zip(run["seconds_so_far"], run["nll"], strict=True)
        if value is not None
    ]


@final
class LearningCurves(Experiment):
    """Figure 3."""

    title = "Learning curves"
    paper = (
        "Train and test loss of all methods against wall-clock time, at the best learning rate of each. CaGP-Opt is "
        "worse than SVGP early in training (a ramp-up phase), and then matches or surpasses it."
    )
    differs = training_runs.DIFFERS
    source = training_runs.SOURCE
    claims = (
        Claim("CaGP-Opt matches or beats SVGP at half the rank", paper_nll("SVGP"), lambda r: _beside(r, "SVGP")),
        Claim(
            "CaGP-Opt matches or beats SGPR at half the rank, except on bike",
            paper_nll("SGPR"),
            lambda r: _beside(r, "SGPR", ("bike",)),
        ),
        Claim("CaGP-Opt has a ramp-up phase early in training", "Figure 3", lambda r: _ramp(r, "CaGP-Opt", True)),
        Claim(
            "Our starting values and blocks remove the ramp-up phase",
            "not in the paper",
            lambda r: _ramp(r, "CaGP-Opt (ours)", False),
        ),
    )

    def tasks(self, size: str, tables: Tables) -> list[Task]:
        return training_runs.tasks(size, tables)

    def draw(self, records: list[Record]) -> Figure:
        tables = tables_of(records)
        rows = {"loss": "training loss", "nll": "test NLL", "rmse": "test RMSE"}
        figure, axes = panels(len(rows), len(tables), 4.0, 2.6)
        for column, table in enumerate(tables):
            for ax, (name, words) in zip(axes[:, column], rows.items(), strict=True):
                curves_of(ax, records, table, name)
                styled(ax, "training time (s)" if name == "rmse" else "", words if column == 0 else "")
            titled(axes[0, column], table)
        shared_legend(figure, [(name, COLORS[name]) for name in METHODS], 4)
        return figure

    def caption(self, records: list[Record]) -> str:
        best = []
        for table in tables_of(records):
            found = {name: s[0] for name in METHODS if (s := score(records, table, name, "nll")) is not None}
            best.append(f"{table}: " + ", ".join(f"{name} {value:.3f}" for name, value in found.items()))
        return (
            f"{training_runs.in_words(records)}{training_runs.differs(records)} The loss of each method is its own "
            "bound or estimate per row, and that of CaGP-Local the leave-one-out density of a minibatch. Test NLL at "
            f"the chosen epoch: {'; '.join(best)}."
        )


def curves_of(ax: Axes, records: list[Record], table: str, name: str, x: str = "seconds_so_far") -> None:
    """A line for each method and seed; the vertical axis leaves out what is far above all of the ends."""
    ends, lows = [], []
    for method in METHODS:
        for run in best_runs(records, table, method):
            points = [(t, v) for t, v in zip(run[x], run[name], strict=True) if v is not None]
            if not points:
                continue
            ax.plot(*zip(*points, strict=True), color=COLORS[method], linewidth=1.5, alpha=0.9)
            ends.append(points[-1][1])
            lows.append(min(value for _, value in points))
    ax.set_xscale("log" if x == "seconds_so_far" else "linear")
    if not ends:
        return
    low, high = min(lows), max(ends)
    if name == "rmse" and high > 5 * low:
        ax.set_yscale("log")
        return
    height = max(high - low, 0.1)
    ax.set_ylim(low - 0.05 * height, high + 0.6 * height)


EXPERIMENT = LearningCurves()
