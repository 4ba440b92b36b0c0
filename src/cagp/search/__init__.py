"""How many actions does a problem need? Fits over several budgets and learning rates, judged on held-out rows."""

from cagp.search.result import SearchResult, Trial
from cagp.search.runner import search

__all__ = ["SearchResult", "Trial", "search"]
