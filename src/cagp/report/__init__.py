"""A page on how well a fitted model predicts test rows, and why: one HTML file that needs nothing else.

``regression`` and ``classes`` compute what their pages show, from a ``Subject``: a model and the rows it is tested on.
``templates`` hold the words, and ``page`` fills them.
"""

from cagp.report.classes import write_class_report
from cagp.report.regression import write_report

__all__ = ["write_class_report", "write_report"]
