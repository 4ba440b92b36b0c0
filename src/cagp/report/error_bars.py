"""The section on whether the error bars are right."""

from cagp import plots
from cagp.report.html import number, share, side_by_side, table
from cagp.report.svg import Drawing
from cagp.report.targets import CountShares, Target, mean_coverage_error
from cagp.report.verdicts import verdict


def _rootogram(draw: Drawing, target: Target, counts: CountShares) -> str:
    """How many rows have each count, beside how many should."""
    zeros = counts.observed[0], counts.expected[0]
    first = "a count of 0" if counts.width == 1 else f"counts below {counts.width}"
    picture = draw(
        lambda ax: plots.rootogram(ax, counts.start, counts.width, counts.observed, counts.expected, target.name),
        f"Hanging rootogram of {target.name}: square roots of observed and expected numbers of rows for each count.",
        "Bars hang from the curve of expected rows and should end at zero. A bar that ends below zero: more rows have "
        "this count than predicted; above zero: fewer. Between the dashed lines, the difference may be chance.",
    )
    rows = table(
        ["Rows", "Observed", "Expected"],
        [[f"With {first}", number(float(zeros[0])), number(float(zeros[1]))]],
        "Expected numbers are sums of predicted probabilities. The histogram above uses places that are drawn at "
        "random between the probabilities on either side of a count (the randomised probability integral transform).",
    )
    return side_by_side(picture, rows)


def calibration_figures(draw: Drawing, target: Target) -> list[str]:
    """The calibration curve and the histogram of the probability integral transform."""
    data = target.normal
    error, expected = mean_coverage_error(*data)
    pictures = side_by_side(
        draw(
            lambda ax: plots.calibration_curve(ax, *data),
            f"Observed against nominal coverage of central intervals for {target.name}.",
            "Below the diagonal, the intervals contain fewer values than they should: they are too narrow. Above it, "
            "they are too wide.",
        ),
        draw(
            lambda ax: plots.pit_histogram(ax, *data),
            f"Histogram of the probability integral transform for {target.name}.",
            "It should be flat. A U shape means error bars that are too narrow, a hill too wide ones, and a slope "
            "predictions that are too high or too low on average.",
        ),
    )
    if target.counts is not None:
        pictures = pictures + _rootogram(draw, target, target.counts)
    return [
        "<p>A 95 % interval should contain 95 % of the actual values, a 50 % interval half of them. If the predictions "
        "are right and the rows independent, the whole curve lies in the grey band 19 times in 20, and so does each "
        f"bar. Here the curve {'stays in' if verdict(target).is_right else 'leaves'} the band. The coverage "
        f"error, the difference between nominal and observed coverage, is {share(error)} on average over 19 levels; "
        f"for right predictions, about {share(expected)} is expected.</p>",
        pictures,
    ]
