"""A page on how well a fitted model predicts test rows, and why: one HTML file that needs nothing else.

``evidence`` asks the model and counts, ``figures`` draws, ``sections`` says it in words, ``page`` is the frame around.
"""

from cagp.report.sections import write_report

__all__ = ["write_report"]
