"""The regressor that options ask for."""

import argparse
from typing import TYPE_CHECKING, Any

from cagp.cli.options import options_of
from cagp.cli.words import UsageError
from cagp.lazy import lazy_module
from cagp.likelihood_registry import GAUSSIAN, likelihoods_of
from cagp.recipes import OPTIONS, RECIPES, users_of

if TYPE_CHECKING:
    from cagp import estimators
else:
    estimators = lazy_module("cagp.estimators")


def check_options(arguments: argparse.Namespace, methods: list[str]) -> None:
    """Raise UsageError for an option that none of the methods uses."""
    for name in options_of(arguments):
        users = users_of(name)
        if not set(methods) & set(users):
            others = f"{methods[0]} does" if len(methods) == 1 else f"{', '.join(methods)} do"
            raise UsageError(f"{OPTIONS[name].flag} is for {', '.join(users)}; {others} not use it. Remove it.")


def check_likelihood(arguments: argparse.Namespace) -> None:
    """Raise UsageError for options that do not go with the likelihood."""
    name = arguments.likelihood
    counts = likelihoods_of("counts")
    if arguments.exposure is not None and name not in counts:
        raise UsageError(f"--exposure is for counts: give --likelihood {' or '.join(counts)}, too, or remove it.")
    if name == GAUSSIAN:
        return
    given = {
        "--classify": arguments.classify,
        "--noise": arguments.noise is not None,
        "--target-transform": arguments.target_transform == "log",
        "--copies": arguments.copies != "keep",
        **{
            OPTIONS[option].flag: True
            for option in ("local_scale", "effort", "n_inducing", "shards")
            if getattr(arguments, option, None) is not None
        },
    }
    others = [flag for flag, is_given in given.items() if is_given]
    if others:
        raise UsageError(f"{', '.join(others)} cannot be used with --likelihood {name}; remove it.")
    if arguments.method != "auto" and not RECIPES[arguments.method].takes_likelihoods:
        able = [method for method, recipe in RECIPES.items() if recipe.takes_likelihoods]
        raise UsageError(
            f"--method is {arguments.method}, with --likelihood {name} it is one of auto, {', '.join(able)}."
        )
    if arguments.target is not None and len(arguments.target) > 1:
        raise UsageError(f"--target names {len(arguments.target)} columns; --likelihood {name} takes one.")


def regressor(method: str, arguments: argparse.Namespace, **choices: Any) -> "estimators.CaGPRegressor":
    """A regressor that is not fitted yet, with the options that its method uses; ``choices`` are further parameters."""
    used = {option.name for option in RECIPES[method].options()}
    options = {name: value for name, value in options_of(arguments).items() if name in used}
    parameters = {
        "kernel": arguments.kernel,
        "mean": arguments.mean,
        "max_epochs": arguments.max_epochs,
        "max_time": arguments.max_time,
        "max_memory": arguments.max_memory,
        "device": arguments.device,
        "random_state": arguments.seed,
        "target": arguments.target_transform,
        "categories": tuple(arguments.categories),
        "copies": arguments.copies,
        "likelihood": getattr(arguments, "likelihood", GAUSSIAN),
        "exposure": getattr(arguments, "exposure", None),
    }
    return estimators.CaGPRegressor(method=method, **(parameters | options | choices))
