"""The section on what the inputs do to the prediction."""

from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Colormap

from cagp import plots
from cagp.plots import Z95, shortened
from cagp.report.html import count, side_by_side
from cagp.report.input_effects import Effect, Surface
from cagp.report.rows import sample
from cagp.report.svg import Drawing, common_limits
from cagp.report.targets import Target


def effect_figures_of(draw: Drawing, target: Target, learned: list[Effect] | Surface) -> list[str]:
    """Accumulated effects of the most important columns, the fit if there is one column, or maps if there are two."""
    j, name = target.number, shortened(target.name, 28)
    if isinstance(learned, Surface):
        return _maps(draw, target, learned)
    if not learned:
        return ["<p>No input varies among the test rows.</p>"]
    if learned[0].is_alone:
        return _only(draw, target, learned[0])
    limits = common_limits(
        [float((e.mean - Z95 * e.std)[:, j].min()) for e in learned],
        [float((e.mean + Z95 * e.std)[:, j].max()) for e in learned],
    )

    def one(ax: Axes, effect: Effect) -> None:
        ax.axhline(0, color=plots.INK, linewidth=0.9, linestyle=(0, (4, 3)))
        _one_effect(ax, effect, j)
        ax.set_ylim(limits)
        ax.set_ylabel(f"change of {shortened(target.name, 15)}", parse_math=False)

    drawn = [
        draw(partial(one, effect=e), f"Accumulated effect of {e.column.name} on {name}, with a band.", "", 2.4)
        for e in learned
    ]
    which = "This is the column" if len(learned) == 1 else f"These are the {len(learned)} columns that matter most"
    most = count(max(effect.num_rows for effect in learned), "test row")
    paragraphs = [
        f"{which}. A line shows how the prediction changes with the value of a column, compared with its average: an "
        f"accumulated local effect over at most {most}. Each row is moved a little, to both ends of the bin of values "
        "that it lies in; the mean changes across the bins are added up. So no row gets a combination of inputs that "
        "is far from those that occur, and what correlated columns do is not counted twice. All figures have the same "
        "vertical scale; marks at the bottom are test rows.",
        "The band is ± 1.96 times the mean standard deviation of the function (without noise) at rows near this value. "
        "It shows where the model knows the function well. It is not an interval of the line, which is an average and "
        "usually better known.",
    ]
    if any(effect.column.kind == "levels" for effect in learned):
        paragraphs.append(
            "For text and categories, rows are moved to the other levels. The change between two levels is the mean "
            "over the rows that have one of the two, and pairs of levels count more if the other columns of their rows "
            "are alike."
        )
    return [f"<p>{'</p><p>'.join(paragraphs)}</p>", side_by_side(*drawn)]


def _one_effect(ax: Axes, effect: Effect, j: int) -> None:
    column = effect.column
    if column.kind == "levels":
        names = [column.levels[int(code)] for code in effect.nodes]
        plots.category_effect(ax, names, effect.mean[:, j], effect.std[:, j], column.name)
        return
    marks = column.values[sample(len(column.values), 80)]
    marks = marks[(marks >= effect.nodes[0]) & (marks <= effect.nodes[-1])]
    plots.effect(ax, effect.nodes, effect.mean[:, j], effect.std[:, j], marks, column.label)
    if column.kind == "date":
        plots.date_axis(ax)


def _only(draw: Drawing, target: Target, effect: Effect) -> list[str]:
    def one(ax: Axes) -> None:
        column, j = effect.column, target.number
        assert effect.observation_std is not None
        if column.kind == "levels":
            _one_effect(ax, effect, j)
        else:
            chosen = sample(len(target.y), 2000)
            points = column.values[chosen], target.y[chosen]
            moments = effect.mean[:, j], effect.std[:, j], effect.observation_std[:, j]
            plots.fit_in_one_input(ax, effect.nodes, *moments, points, column.label)
            if column.kind == "date":
                plots.date_axis(ax)
        ax.set_ylabel(shortened(target.name, 26), parse_math=False)

    return [
        side_by_side(
            draw(one, f"{shortened(target.name, 28)} as a function of {effect.column.name}.", "", 3.2),
            "<p>The prediction as a function of the only input, within the range of the test rows. The function lies "
            "in the shaded band with probability 95 %, a new observation between the dashed lines.</p>",
        )
    ]


def _maps(draw: Drawing, target: Target, learned: Surface) -> list[str]:
    (first, second), j = learned.columns, target.number
    chosen = sample(len(target.y), 600)
    points = first.values[chosen], second.values[chosen]

    def one(ax: Axes, values: np.ndarray, label: str, colors: Colormap) -> None:
        plots.surface(ax, *learned.nodes, values, label, colors, points, (first.name, second.name))

    name = shortened(target.name, 24)
    drawings = [("prediction", learned.mean, name, plots.VALUE_COLORS)]
    drawings += [("standard deviation", learned.std, f"std of {name}", plots.STD_COLORS)]
    return [
        "<p>The prediction as a function of both inputs, and the standard deviation of the function (without noise). "
        "The model knows least where the second map is bright. Dots are test rows.</p>",
        side_by_side(
            *(
                draw(
                    partial(one, values=values[:, :, j], label=label, colors=colors),
                    f"Map of the {what} of {target.name} over {first.name} and {second.name}.",
                    what.capitalize(),
                    3.1,
                )
                for what, values, label, colors in drawings
            )
        ),
    ]
