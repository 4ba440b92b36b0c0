"""What a user can choose on the command line of a benchmark. Imports nothing of this package."""

from typing import Any, NamedTuple

SCALED = ("local", "opt")
"""What ``cagp bench scale`` takes a step of."""

PREDICTED: dict[str, int | None] = {
    "exact": 2_000,
    "local": None,
    "hybrid": None,
    "opt": None,
    "cg": 4_000,
    "sgpr": None,
    "svgp": None,
    "auto": None,
}
"""What ``cagp bench predict`` predicts with, and the most training rows that suit a method; None: any number."""

NUM_ACTIONS = 512


CLASSIFIERS = (
    *("default", "local", "trees", "hybrid", "opt", "exact"),
    *("lightgbm", "catboost", "hist", "gpboost", "sklearn-gp"),
)
"""What ``cagp bench classes`` fits to a table."""


COUNTING = (
    "negative-binomial",
    "lightgbm",
    "poisson",
    "poisson-trees",
    "negative-binomial-trees",
    "negative-binomial-auto",
    "catboost",
    "hist",
    "gpboost",
)
"""What ``cagp bench counts`` fits to a table; the first two unless others are named."""

ROBUST = (
    "gaussian",
    "student-t",
    "gaussian-one-scale",
    "gaussian-trees",
    "gaussian-auto",
    "student-t-trees",
    "student-t-auto",
)
"""What ``cagp bench outliers`` fits to a table; the first two unless others are named."""


class Contender(NamedTuple):
    """Something that learns from a table and predicts with error bars."""

    words: str
    options: dict[str, Any] | None = None  # of ``CaGPRegressor``; None where it is something else
    can_stop: bool = False  # of the others: training ends at a limit of time

    @property
    def takes_limit(self) -> bool:
        """Whether it can be told how long its fit may take."""
        return self.options is not None or self.can_stop


CONTENDERS = {
    "default": Contender("CaGPRegressor() without options", {}),
    "local": Contender('CaGPRegressor(method="local")', {"method": "local"}),
    "hybrid": Contender('CaGPRegressor(method="hybrid")', {"method": "hybrid"}),
    "opt": Contender('CaGPRegressor(method="opt")', {"method": "opt"}),
    "svgp": Contender('CaGPRegressor(method="svgp", n_inducing=1024)', {"method": "svgp", "n_inducing": 1024}),
    "svgp-512": Contender("the same with 512 inducing points", {"method": "svgp", "n_inducing": 512}),
    "thorough": Contender('CaGPRegressor(effort="thorough")', {"effort": "thorough"}),
    "once": Contender('CaGPRegressor(copies="once")', {"copies": "once"}),
    "lightgbm": Contender("LightGBM", can_stop=True),
    "catboost": Contender("CatBoost with the loss RMSEWithUncertainty", can_stop=True),
    "gpboost": Contender("GPBoost's Vecchia approximation"),
    "hist": Contender("HistGradientBoostingRegressor of scikit-learn"),
    "hist-quantiles": Contender("the same with error bars from two quantiles"),
    "sklearn-gp": Contender("the exact GP of scikit-learn, for up to 3,000 rows"),
    "gpytorch-exact": Contender("GPyTorch's exact GP, for up to 6,000 rows", can_stop=True),
    "gpytorch-sgpr": Contender("GPyTorch's SGPR with 512 inducing points", can_stop=True),
    "gpytorch-svgp": Contender("GPyTorch's SVGP with 512 inducing points", can_stop=True),
}
"""What ``cagp bench tables`` and ``cagp bench structures`` can fit."""

UNLIMITED = [name for name, contender in CONTENDERS.items() if not contender.takes_limit]
"""Those that cannot be told how long their fit may take."""
