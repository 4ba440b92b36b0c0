"""The methods that a user can choose, and how each is trained.

``table`` lists the methods and ``options`` what can be set: regressors, the command line, reports and ``cagp info``
read them, and neither imports torch. ``train`` goes from a ``Task`` to a ``Fitted``; the other modules are its steps.
"""

from collections.abc import Mapping
from typing import Any

from cagp.likelihood_registry import GAUSSIAN
from cagp.recipes.base import Recipe
from cagp.recipes.options import OPTIONS, Option
from cagp.recipes.table import RECIPES


def recipe_for(method: str, options: Mapping[str, Any]) -> Recipe:
    """The recipe of a method with these values of options.

    Raises ValueError for an unknown method, for a value that an option does not accept, and for an option that the
    method does not use, unless it has its default value.
    """
    if not isinstance(method, str) or method not in RECIPES:
        raise ValueError(f"method is {method!r}, expected one of {', '.join(RECIPES)}.")
    recipe = RECIPES[method]
    used = {option.name for option in recipe.options()}
    for name, value in options.items():
        OPTIONS[name].check(value)
        if name not in used and value != OPTIONS[name].default:
            raise ValueError(
                f"{name} is {value!r}, but method {method!r} does not use it ({name} is for "
                f"{', '.join(users_of(name))}). Remove {name}, or choose one of these methods."
            )
    return recipe(**{name: _plain(value) for name, value in options.items() if name in used})


def check_processes(recipe: Recipe, num_processes: int) -> None:
    """Raise ValueError where several processes are to share the work of a method that cannot be shared."""
    if num_processes > 1 and not recipe.shares_rows:
        able = ", ".join(f'"{name}"' for name, other in RECIPES.items() if other.shares_rows)
        raise ValueError(
            f'method is "{recipe.name}", which trains in one process, and {num_processes} were started; use one of '
            f"{able}, or start a single process."
        )


def _plain(value: Any) -> Any:
    """Numbers of NumPy, as grid searches give them, as Python's."""
    return value.item() if hasattr(value, "item") else value


def method_words(method: str) -> str:
    """What a method is, in words; its name where this version of cagp does not know it."""
    return RECIPES[method].words if method in RECIPES else method


def users_of(option: str) -> list[str]:
    """The names of the methods that use an option."""
    return [name for name, recipe in RECIPES.items() if option in {o.name for o in recipe.options()}]


def methods_for(kind: str) -> tuple[str, ...]:
    """The names of the methods for a kind of targets, see ``options.KINDS``."""
    if kind == GAUSSIAN:
        return tuple(RECIPES)
    return ("auto", *(name for name, recipe in RECIPES.items() if recipe.takes_likelihoods))


SITES_GUARANTEE = (
    "Given the sites, the variance of the latent function is never below that of all rows with the same sites and "
    "hyperparameters."
)


def guarantee_words(
    never_below_exact: bool,
    has_local_scale: bool,
    on_log_scale: bool = False,
    is_average: bool = False,
    has_sites: bool = False,
) -> str:
    """What holds for the variance of a fitted model, in one sentence; for log targets, of their logarithm."""
    if has_sites:
        return SITES_GUARANTEE
    subject = "On the scale of the fit, the variance" if on_log_scale else "The variance"
    exact = "that of the exact Gaussian process"
    if is_average:
        exact = "that of the same average of the two exact Gaussian processes"
    if never_below_exact:
        return f"{subject} is never below {exact} with the same hyperparameters."
    if has_local_scale:
        return (
            f"{subject} can be below {exact}, since error bars follow a local scale; with local_scale=None it never is."
        )
    return f"{subject} can be below {exact} with the same hyperparameters."


def tried_in_words(tried: list[dict[str, Any]]) -> list[str]:
    """A line for each model that "auto" tried."""
    lines = []
    for trial in tried:
        if "nll" not in trial:
            lines.append(f"  {trial['model']}: {trial['outcome']}")
            continue
        gain = "" if trial["gain"] is None else f", gain {trial['gain']:+.3f} ± {trial['gain_error']:.3f}"
        scores = f"negative log density {trial['nll']:.3f}, CRPS {trial['crps']:.4f}{gain}"
        cost = f"{trial['steps']:,} steps, {trial['seconds']:.1f} s"
        lines.append(f"  {trial['model']}: {scores}; {cost}; {trial['outcome']}")
    return ["Tried, on held-out rows:", *lines] if lines else []


__all__ = [
    "OPTIONS",
    "RECIPES",
    "Option",
    "Recipe",
    "guarantee_words",
    "method_words",
    "methods_for",
    "recipe_for",
    "tried_in_words",
    "users_of",
]
