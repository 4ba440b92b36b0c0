"""How many actions does a problem need? Fits over several budgets and learning rates, judged on held-out rows."""

from cagp.action_search.runner import search_num_actions
from cagp.action_search.search_result import SearchResult, Trial

__all__ = ["SearchResult", "Trial", "search_num_actions"]
