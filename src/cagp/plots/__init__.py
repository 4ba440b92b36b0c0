"""Figures: Axes in, Axes out.

Arrays are numpy's. Nothing here touches matplotlib's global state.
"""

from cagp.plots.effects import (
    STD_COLORS,
    VALUE_COLORS,
    category_effect,
    effect,
    fit_in_one_input,
    importance,
    relevance,
    surface,
)
from cagp.plots.errors import ERROR_COLORS, coverage_by_group, degree_shape, map_of_rows, residuals
from cagp.plots.over_time import Point, methods_against_time
from cagp.plots.probabilities import confusion, reliability_diagram, trade_off
from cagp.plots.quality import (
    Z95,
    calibration_curve,
    coverage_band,
    learning_curve,
    pit_histogram,
    predicted_against_actual,
    rootogram,
)
from cagp.plots.style import (
    AMBER,
    BLUE,
    GREEN,
    INK,
    LINE_COLORS,
    MUTED,
    PURPLE,
    RED,
    SMALL,
    Vector,
    date_axis,
    shortened,
    styled,
    write_figure,
)
from cagp.plots.variance import Part, percent, variance_by_certainty, variance_parts, variance_shares

__all__ = [
    "AMBER",
    "BLUE",
    "ERROR_COLORS",
    "GREEN",
    "INK",
    "LINE_COLORS",
    "MUTED",
    "PURPLE",
    "RED",
    "SMALL",
    "STD_COLORS",
    "VALUE_COLORS",
    "Z95",
    "Part",
    "Point",
    "Vector",
    "calibration_curve",
    "category_effect",
    "confusion",
    "coverage_band",
    "coverage_by_group",
    "date_axis",
    "degree_shape",
    "effect",
    "fit_in_one_input",
    "importance",
    "learning_curve",
    "map_of_rows",
    "methods_against_time",
    "percent",
    "pit_histogram",
    "predicted_against_actual",
    "relevance",
    "reliability_diagram",
    "residuals",
    "rootogram",
    "shortened",
    "styled",
    "surface",
    "trade_off",
    "variance_by_certainty",
    "variance_parts",
    "variance_shares",
    "write_figure",
]
