"""The estimator that options ask for, and what does not go together."""

import argparse
from collections.abc import Sequence

from cagp.cli.commands import parameters_of
from cagp.cli.console import UsageError
from cagp.estimators import CaGPClassifier, CaGPRegressor
from cagp.likelihood_registry import GAUSSIAN, likelihoods_of
from cagp.recipes import OPTIONS, RECIPES, methods_for, users_of
from cagp.recipes.options import kind_of, not_for

CLASSES = "classes"


def kind_of_targets(arguments: argparse.Namespace) -> str:
    """What the targets are, see ``cagp.recipes.options.kind_of``."""
    if getattr(arguments, "classify", False):
        return CLASSES
    return kind_of(getattr(arguments, "likelihood", GAUSSIAN))


def check_model(arguments: argparse.Namespace, methods: Sequence[str]) -> None:
    """Raise UsageError for options that do not go with the kind of targets, or that none of the methods uses."""
    kind, values = kind_of_targets(arguments), parameters_of(arguments)
    asked = "--classify" if kind == CLASSES else f"--likelihood {values.get('likelihood', GAUSSIAN)}"
    if kind == CLASSES and kind_of(values.get("likelihood", "logit")) != CLASSES:
        raise UsageError(f"--classify cannot be used with --likelihood {values['likelihood']}; remove it.")
    if "exposure" in values and kind in (GAUSSIAN, "numbers"):
        counts = " or ".join(likelihoods_of("counts"))
        raise UsageError(f"--exposure is for counts: give --likelihood {counts}, too, or remove it.")
    able = methods_for(kind)
    if kind != GAUSSIAN:
        others = [*(["--noise"] if arguments.noise is not None else []), *(o.flag for o in not_for(kind, values))]
        if others:
            raise UsageError(f"{', '.join(others)} cannot be used with {asked}; remove it.")
        if wrong := [method for method in methods if method not in able]:
            raise UsageError(f"--method is {wrong[0]}, with {asked} it is one of {', '.join(able)}.")
        if arguments.target is not None and len(arguments.target) > 1:
            raise UsageError(f"--target names {len(arguments.target)} columns; {asked} takes one.")
        methods = able if "auto" in methods else methods
    for name in OPTIONS.keys() & values:
        users = users_of(name)
        if not set(methods) & set(users):
            others = f"{methods[0]} does" if len(methods) == 1 else f"{', '.join(methods)} do"
            raise UsageError(f"{OPTIONS[name].flag} is for {', '.join(users)}; {others} not use it. Remove it.")


def estimator(method: str, arguments: argparse.Namespace, **more: object) -> CaGPRegressor | CaGPClassifier:
    """An estimator that is not fitted yet, with the options that its method uses; ``more`` are further parameters."""
    make = CaGPClassifier if kind_of_targets(arguments) == CLASSES else CaGPRegressor
    used = RECIPES[method].values.keys() | (make().get_params().keys() - OPTIONS)
    values = {name: value for name, value in parameters_of(arguments).items() if name in used}
    return make(method, **{**values, "categories": tuple(arguments.categories), **more})  # pyright: ignore
