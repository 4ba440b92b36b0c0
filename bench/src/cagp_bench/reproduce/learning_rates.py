"""Test NLL during training for every learning rate of each method."""

import math
from typing import final

import matplotlib
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from cagp.plots import MUTED, SMALL, styled
from cagp_bench.reproduce import training_runs
from cagp_bench.reproduce.drawing import panels, titled
from cagp_bench.reproduce.experiment import Experiment, Record, Tables, Task, select, values
from cagp_bench.reproduce.training_runs import METHODS, best_runs, tables_of

COLOR_MAP = matplotlib.colormaps["viridis"]


def rate_in_words(rate: float | None) -> str:
    """A learning rate, or what stands for it."""
    return "its own" if rate is None else f"{rate:g}"


@final
class LearningRates(Experiment):
    """Figure S4."""

    title = "Learning rates"
    paper = (
        "Test error during training for every learning rate of each method. Some choices do not appear, since a few "
        "runs fail outright, for example where the rate is too large."
    )
    differs = training_runs.DIFFERS
    source = training_runs.SOURCE

    def tasks(self, size: str, tables: Tables) -> list[Task]:
        return training_runs.tasks(size, tables)

    def draw(self, records: list[Record]) -> Figure:
        tables, found = tables_of(records), {record["settings"]["method"] for record in records}
        methods = [name for name in METHODS if name in found]
        rates = sorted({rate for rate in values(records, "lr") if rate is not None}, reverse=True)
        colors: dict[float | None, str] = {
            rate: to_hex(COLOR_MAP(place / max(1, len(rates) - 0.5))) for place, rate in enumerate(rates)
        }
        colors[None] = "#22272b"
        figure, axes = panels(len(tables), len(methods), 2.3, 2.2)
        for number, (line, table) in enumerate(zip(axes, tables, strict=True)):
            lowest, highest = _range(select(records, table=table))
            for ax, method in zip(line, methods, strict=True):
                runs = select(records, table=table, method=method)
                if not runs:
                    ax.text(0.5, 0.5, "not run", transform=ax.transAxes, ha="center", color=MUTED, fontsize=SMALL)
                for record in runs:
                    s = record["settings"]
                    steps = zip(record["step"], record["nll"], strict=True)
                    points = [(step / record["step"][-1], v) for step, v in steps if v is not None]
                    style = "-" if s["optimizer"] == "adam" else "--"
                    ax.plot(*zip(*points, strict=True), color=colors[s["lr"]], linestyle=style, linewidth=1.4)
                ax.set(xlim=(-0.05, 1.05), ylim=(lowest, highest))
                styled(
                    ax,
                    "share of steps" if number == len(tables) - 1 else "",
                    f"{table}, test NLL" if ax is line[0] else "",
                )
                titled(ax, method if number == 0 else "")
        handles = [Line2D([], [], color=color, linewidth=2) for color in colors.values()]
        handles += [Line2D([], [], color="#22272b", linestyle=style) for style in ("-", "--")]
        labels = [*(f"rate {rate_in_words(rate)}" for rate in colors), "Adam", "L-BFGS"]
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False, fontsize=SMALL)
        return figure

    def caption(self, records: list[Record]) -> str:
        words = []
        for table in tables_of(records):
            best = {name: runs[0]["settings"] for name in METHODS if (runs := best_runs(records, table, name))}
            named = (f"{name} {rate_in_words(s['lr'])} ({s['optimizer']})" for name, s in best.items())
            words.append(f"{table}: {', '.join(named)}")
        return (
            f"{training_runs.in_words(records)}{training_runs.differs(records)} Chosen rates and optimisers: "
            f"{'; '.join(words)}. CaGP-Opt (ours) and CaGP-Local have rates of their own for each group of parameters."
        )


def _range(records: list[Record]) -> tuple[float, float]:
    """From the lowest value to somewhat above the ends of all curves but the worst quarter of them."""
    ends = sorted(next(v for v in reversed(r["nll"]) if v is not None) for r in records)
    lowest = min(v for record in records for v in record["nll"] if v is not None)
    highest = ends[math.ceil(0.75 * len(ends)) - 1]
    height = max(highest - lowest, 0.1)
    return lowest - 0.05 * height, highest + 0.5 * height


EXPERIMENT = LearningRates()
