"""A page on how well a fitted model predicts test rows, and why: one HTML file that needs nothing else.

``pages`` computes what a page shows, from a ``Subject``: a model and the rows it is tested on.
``templates`` hold the words, and ``page`` fills them.
"""

from cagp.report.pages import write_class_report, write_report

__all__ = ["write_class_report", "write_report"]
