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
    """Partial effects of the most relevant inputs, the fit if there is one input, or maps if there are two."""
    j, name = target.number, shortened(target.name, 28)
    if isinstance(learned, Surface):
        return _maps(draw, target, learned)
    if not learned:
        return ["<p>No input varies among the test rows, or none can be drawn.</p>"]
    if learned[0].num_background == 0:
        picture = draw(
            partial(_only, target=target, effect=learned[0]),
            f"{name} as a function of {learned[0].axis.name}.",
            "",
            3.2,
        )
        return [
            side_by_side(
                picture,
                "<p>The prediction as a function of the only input, within the range of the test rows. The function "
                "lies in the shaded band with probability 95 %, a new observation between the dashed lines.</p>",
            )
        ]
    limits = common_limits(
        [float((e.mean - Z95 * e.std)[:, j].min()) for e in learned],
        [float((e.mean + Z95 * e.std)[:, j].max()) for e in learned],
    )

    def one(ax: Axes, effect: Effect) -> None:
        _one_effect(ax, effect, j)
        ax.set_ylim(limits)
        ax.set_ylabel(shortened(target.name, 26), parse_math=False)

    drawn = [
        draw(partial(one, effect=e), f"Partial effect of {e.axis.name} on {name}, with a 95 % band.", "", 2.4)
        for e in learned
    ]
    which = "This is the input" if len(learned) == 1 else f"These are the {len(learned)} most relevant inputs"
    background = count(learned[0].num_background, "test row")
    return [
        f"<p>{which} that can be drawn. Each line is the mean prediction for {background}, drawn at random, if all of "
        "them had this value of the input and kept their other inputs. The band is ± 1.96 times the mean standard "
        "deviation of the function (without noise) at these rows, so it is at least as wide as the 95 % interval of "
        "the line. Inputs range from the 1 % to the 99 % quantile of the test rows, and marks at the bottom are test "
        "rows. All figures have the same vertical scale. If inputs are correlated, some of these combinations do not "
        "occur in practice.</p>",
        side_by_side(*drawn),
    ]


def _one_effect(ax: Axes, effect: Effect, j: int) -> None:
    axis = effect.axis
    if axis.kind == "levels":
        plots.category_effect(ax, [str(n) for n in axis.nodes], effect.mean[:, j], effect.std[:, j], axis.name)
        return
    marks = axis.rows[sample(len(axis.rows), 80)]
    marks = marks[(marks >= axis.values[0]) & (marks <= axis.values[-1])]
    plots.effect(ax, axis.values, effect.mean[:, j], effect.std[:, j], marks, axis.name)
    if axis.kind == "date":
        plots.date_axis(ax)


def _only(ax: Axes, target: Target, effect: Effect) -> None:
    axis, j = effect.axis, target.number
    if axis.kind == "levels":
        _one_effect(ax, effect, j)
    else:
        chosen = sample(len(target.y), 2000)
        points = axis.rows[chosen], target.y[chosen]
        moments = effect.mean[:, j], effect.std[:, j], effect.observation_std[:, j]
        plots.fit_in_one_input(ax, axis.values, *moments, points, axis.name)
        if axis.kind == "date":
            plots.date_axis(ax)
    ax.set_ylabel(shortened(target.name, 26), parse_math=False)


def _maps(draw: Drawing, target: Target, learned: Surface) -> list[str]:
    (first, second), j = learned.axes, target.number
    chosen = sample(len(target.y), 600)
    points = first.rows[chosen], second.rows[chosen]

    def one(ax: Axes, values: np.ndarray, label: str, colors: Colormap) -> None:
        names = first.name, second.name
        plots.surface(ax, first.values, second.values, values, label, colors, points, names)

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
