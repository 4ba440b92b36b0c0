"""A page on how well a fitted model predicts test rows, and why: one HTML file that needs nothing else.

``subject`` finds the model, ``rows`` asks it, ``columns`` describes the user's table; ``targets``, ``verdicts`` and
``input_effects`` compute. ``accuracy``, ``leakage``, ``choice_section``, ``error_bars``, ``groups``, ``residuals``,
``worst_rows``, ``map_section``, ``importance``, ``effect_figures``, ``uncertainty`` and ``model_sections`` put it into
words and figures; ``svg`` and ``html`` make the page of them. ``class_page`` is the page on a classifier.
"""

from cagp.report.assembly import write_report
from cagp.report.class_page import write_class_report

__all__ = ["write_class_report", "write_report"]
