"""The regressor that options ask for."""

import argparse
from typing import TYPE_CHECKING, Any

from cagp.cli.options import options_of
from cagp.cli.words import UsageError
from cagp.lazy import lazy_module
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
    }
    return estimators.CaGPRegressor(method=method, **(parameters | options | choices))
