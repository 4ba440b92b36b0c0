"""The regressor that options ask for."""

import argparse
from typing import Any

from cagp.cli.words import UsageError
from cagp.estimators import CaGPRegressor, CGGPRegressor, ExactGPRegressor, GPRegressor, SGPRRegressor, SVGPRegressor

METHODS = ("auto", "exact", "opt", "cg", "local", "hybrid", "sgpr", "svgp", "cggp")
USERS = {
    "actions": ("auto", "opt", "cg", "hybrid"),
    "neighbours": ("auto", "local", "hybrid"),
    "local_scale": ("auto", "local", "hybrid"),
    "inducing": ("sgpr", "svgp"),
}
"""The methods that have a use for an option."""

PARAMETERS = {
    "actions": "n_actions",
    "neighbours": "n_neighbors",
    "local_scale": "local_scale",
    "inducing": "n_inducing",
}
CLASSES: dict[str, type[GPRegressor]] = {
    "exact": ExactGPRegressor,
    "sgpr": SGPRRegressor,
    "svgp": SVGPRegressor,
    "cggp": CGGPRegressor,
}


def check_options(arguments: argparse.Namespace, methods: list[str]) -> None:
    """Raise UsageError for an option that none of the methods has a use for."""
    for option, users in USERS.items():
        if getattr(arguments, option) is not None and not set(methods) & set(users):
            raise UsageError(
                f"--{option.replace('_', '-')} is for {', '.join(users)}: {', '.join(methods)} has no use for it."
            )


def regressor(method: str, arguments: argparse.Namespace, **choices: Any) -> GPRegressor:
    """A regressor that is not fitted yet; ``choices`` are further parameters."""
    choices = {
        "kernel": arguments.kernel,
        "max_epochs": arguments.max_epochs,
        "max_time": arguments.max_time,
        "max_memory": arguments.max_memory,
        "random_state": arguments.seed,
        **choices,
    }
    for option, users in USERS.items():
        if method in users and getattr(arguments, option) is not None:
            value = getattr(arguments, option)
            choices[PARAMETERS[option]] = None if value == "none" else value
    if method in CLASSES:
        return CLASSES[method](**choices)
    return CaGPRegressor(method=method, **choices)  # pyright: ignore[reportArgumentType]
