"""What ``cagp bench tables``, ``cagp bench structures`` and suites can fit to a table. Imports no torch."""

from typing import Any, NamedTuple


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
