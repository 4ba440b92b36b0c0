"""Gaussian process regression for large data, with error bars that include what was not computed."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cagp import kernels, metrics, testing
    from cagp.estimators import (
        CaGPClassifier,
        CaGPRegressor,
        CGGPRegressor,
        ExactGPRegressor,
        SGPRRegressor,
        SVGPRegressor,
        load,
    )
    from cagp.iterative import iterate
    from cagp.losses import elbo
    from cagp.methods import CGGP, MAP, SGPR, SVGP, CaGPCG, CaGPLocal, CaGPOpt, CholeskyGP, Method
    from cagp.posteriors import Posterior, Prediction
    from cagp.prior import GP, ConstantMean, GaussianNoise, KnownNoise, LinearMean
    from cagp.ranks import Ranks
    from cagp.sites import WithLikelihood
    from cagp.starting import start_from_data
    from cagp.training import FitResult, FitStatus, Settings, fit

    __version__: str

# Where each public name lives. A name is imported when it is first used, so that ``import cagp`` costs nothing and
# ``cagp --help`` answers without loading torch.
_HOMES = {
    "estimators": "CGGPRegressor CaGPClassifier CaGPRegressor ExactGPRegressor SGPRRegressor SVGPRegressor load",
    "iterative": "iterate",
    "losses": "elbo",
    "methods": "CGGP MAP SGPR SVGP CaGPCG CaGPLocal CaGPOpt CholeskyGP Method",
    "posteriors": "Posterior Prediction",
    "prior": "GP ConstantMean GaussianNoise KnownNoise LinearMean",
    "ranks": "Ranks",
    "sites": "WithLikelihood",
    "starting": "start_from_data",
    "training": "FitResult FitStatus Settings fit",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}

__all__ = [
    "CGGP",
    "GP",
    "MAP",
    "SGPR",
    "SVGP",
    "CGGPRegressor",
    "CaGPCG",
    "CaGPClassifier",
    "CaGPLocal",
    "CaGPOpt",
    "CaGPRegressor",
    "CholeskyGP",
    "ConstantMean",
    "ExactGPRegressor",
    "FitResult",
    "FitStatus",
    "GaussianNoise",
    "KnownNoise",
    "LinearMean",
    "Method",
    "Posterior",
    "Prediction",
    "Ranks",
    "SGPRRegressor",
    "SVGPRegressor",
    "Settings",
    "WithLikelihood",
    "elbo",
    "fit",
    "iterate",
    "kernels",
    "load",
    "metrics",
    "start_from_data",
    "testing",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("importlib.metadata").version("cagp")
    if name in _HOME_OF:
        return getattr(import_module(f"cagp.{_HOME_OF[name]}"), name)
    if name in __all__:
        return import_module(f"cagp.{name}")
    raise AttributeError(f"module 'cagp' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
