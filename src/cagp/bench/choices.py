"""What a user can choose on the command line of a benchmark. Imports nothing."""

METHODS = ("local", "local-scale", "hybrid", "opt", "gpboost")
"""What ``cagp bench local`` fits to a table."""

NUM_ACTIONS = 512
BLOCKS = ("spatial", "ordered")
STARTS = ("neighbours", "data", "paper")
OBJECTIVES = ("loo", "ordered")
