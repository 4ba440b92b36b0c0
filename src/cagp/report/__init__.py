"""A page on how well a fitted model predicts test rows, and why: one HTML file that needs nothing else.

``rows`` asks the model, ``targets`` and ``input_effects`` compute; ``accuracy``, ``leakage``, ``error_bars``,
``uncertainty``, ``effect_figures`` and ``model_sections`` put it into words and figures; ``svg`` and ``html`` make the
page of them.
"""

from cagp.report.assembly import write_report

__all__ = ["write_report"]
