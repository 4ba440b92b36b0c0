"""Figures: Axes in, Axes out.

Arrays are numpy's. Nothing here touches matplotlib's global state.
"""

from cagp.plots.effects import VALUE_COLORS, category_effect, effect, fit_in_one_input, importance, relevance, surface
from cagp.plots.errors import ERROR_COLORS, coverage_by_group, degree_shape, map_of_rows, residuals
from cagp.plots.maps import ELEVATION_COLORS, STD_COLORS, Forecast, Map, poster, relief, scale_bar, spread, summit
from cagp.plots.over_time import Curve, Point, curves, methods_against_time, quality_against_time
from cagp.plots.quality import (
    Z95,
    calibration_curve,
    coverage_band,
    learning_curve,
    pit_histogram,
    predicted_against_actual,
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
    save,
    shortened,
    styled,
)
from cagp.plots.variance import Part, percent, variance_by_certainty, variance_parts, variance_shares

__all__ = [
    "AMBER",
    "BLUE",
    "ELEVATION_COLORS",
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
    "Curve",
    "Forecast",
    "Map",
    "Part",
    "Point",
    "Vector",
    "calibration_curve",
    "category_effect",
    "coverage_band",
    "coverage_by_group",
    "curves",
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
    "poster",
    "predicted_against_actual",
    "quality_against_time",
    "relevance",
    "relief",
    "residuals",
    "save",
    "scale_bar",
    "shortened",
    "spread",
    "styled",
    "summit",
    "surface",
    "variance_by_certainty",
    "variance_parts",
    "variance_shares",
]
