"""The methods that a user can choose, and their options. Nothing here imports torch: help and errors come at once."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, final

from cagp import limits
from cagp.likelihood_registry import GAUSSIAN
from cagp.recipes.options import OPTIONS

if TYPE_CHECKING:
    from cagp.methods import Method
    from cagp.prior import GP
    from cagp.recipes.task import Fitted, Task

SMALL = 10_000
"""Up to this many rows, methods that use float32 for speed use float64."""


@final
@dataclass(frozen=True)
class Recipe:
    """A method with values for its options; options that it does not use have their defaults.

    Its training code is loaded when it is needed, since it imports torch. The module has ``train(recipe, task)``; for
    any likelihood ``method(recipe, task, prior)``, and ``predicting_method`` if that differs; for rows on disk
    ``planned_bytes``.
    """

    name: str
    module: str  # with the training code
    words: str  # what was fitted, for reports: "Fitted: ..."
    summary: str  # one line for the help of the command line
    options: tuple[str, ...] = ()  # that the method uses
    fast_dtype: bool = False  # whether dtype="auto" is float32 beyond ``SMALL`` rows
    shares_rows: bool = False  # whether several processes can share the work of ``train``
    chooses_mean: bool = False  # whether ``train`` sees to the prior mean that the task asks for
    takes_likelihoods: bool = False  # whether it has a ``method`` for targets of any likelihood
    takes_chunks: bool = False  # whether rows may stay on disk
    trainer: "Callable[[Recipe, Task], Fitted] | None" = None  # instead of ``train`` of the module

    n_actions: int | str = OPTIONS["n_actions"].default
    n_neighbors: int | str = OPTIONS["n_neighbors"].default
    local_scale: float | str | None = OPTIONS["local_scale"].default
    objective: str = OPTIONS["objective"].default
    effort: str = OPTIONS["effort"].default
    n_inducing: int = OPTIONS["n_inducing"].default
    shards: bool = OPTIONS["shards"].default

    @property
    def values(self) -> dict[str, Any]:
        """The options that the method uses, with their values."""
        return {name: getattr(self, name) for name in self.options}

    def default_dtype(self, num_rows: int) -> str:
        """What ``dtype="auto"`` means for a table of this size."""
        return "float32" if self.fast_dtype and num_rows > SMALL else "float64"

    def train(self, task: "Task") -> "Fitted":
        """Learn hyperparameters from the rows of the task, and condition on them."""
        return (self.trainer or import_module(self.module).train)(self, task)

    def method(self, task: "Task", prior: "GP") -> "Method":
        """The method that learns hyperparameters where the noise of each row is known; see ``cagp.sites``."""
        return import_module(self.module).method(self, task, prior)

    def predicting_method(self, task: "Task", prior: "GP") -> "Method":
        """The method that predicts with the hyperparameters that ``method`` has learned."""
        code = import_module(self.module)
        return getattr(code, "predicting_method", code.method)(self, task, prior)

    def planned_bytes(self, num_rows: int, num_inputs: int, num_targets: int) -> dict[str, int]:
        """What training on rows that stay on disk holds in memory, by purpose."""
        return import_module(self.module).planned_bytes(self, num_rows, num_inputs, num_targets)


RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe(
            "auto",
            "cagp.recipes.auto",
            "the model that predicts held-out training rows best",
            f"exact up to {limits.EXACT_ROWS:,} rows; beyond, the model that predicts held-out training rows best",
            ("n_actions", "n_neighbors", "local_scale", "objective", "effort"),
            chooses_mean=True,
            shares_rows=True,
            takes_chunks=True,
        ),
        Recipe(
            "exact",
            "cagp.recipes.exact",
            "an exact Gaussian process (Cholesky factorisation)",
            "all rows, by Cholesky factorisation: a few thousand rows",
            takes_likelihoods=True,
        ),
        Recipe(
            "opt",
            "cagp.recipes.opt",
            "CaGP-Opt, a computation-aware Gaussian process with learned actions",
            "learned actions (CaGP-Opt)",
            ("n_actions", "n_neighbors"),
            fast_dtype=True,
            shares_rows=True,
            takes_likelihoods=True,
        ),
        Recipe(
            "cg",
            "cagp.recipes.cg",
            "CaGP-CG, a computation-aware Gaussian process with the actions of conjugate gradients",
            "the actions of conjugate gradients (CaGP-CG): time O(n²)",
            ("n_actions",),
            fast_dtype=True,
            takes_likelihoods=True,
        ),
        Recipe(
            "local",
            "cagp.recipes.local",
            "CaGP-Local, which predicts each test point from its nearest rows",
            "the nearest rows of each test point: any number of rows",
            ("n_neighbors", "local_scale", "objective", "shards"),
            shares_rows=True,
            takes_likelihoods=True,
            takes_chunks=True,
        ),
        Recipe(
            "hybrid",
            "cagp.recipes.local",
            "the hybrid of CaGP-Local and shared actions",
            "nearest rows, and actions that all test points share",
            ("n_actions", "n_neighbors", "local_scale", "objective"),
            shares_rows=True,
            takes_likelihoods=True,
        ),
        Recipe(
            "sgpr",
            "cagp.recipes.inducing",
            "SGPR, a Gaussian process seen through inducing points",
            "inducing points (SGPR)",
            ("n_inducing",),
            fast_dtype=True,
        ),
        Recipe(
            "svgp",
            "cagp.recipes.inducing",
            "SVGP, a variational Gaussian process with inducing points",
            "inducing points, trained on minibatches (SVGP)",
            ("n_inducing",),
            fast_dtype=True,
            shares_rows=True,
        ),
        Recipe(
            "cggp",
            "cagp.recipes.cg",
            "an exact Gaussian process with solves by conjugate gradients",
            "all rows, by conjugate gradients (CGGP): time O(n²)",
        ),
    )
}
"""The methods by their names, with the defaults of their options."""


def recipe_for(method: str, options: Mapping[str, Any]) -> Recipe:
    """The recipe of a method with these values of options.

    Raises ValueError for an unknown method, for a value that an option does not accept, and for an option that the
    method does not use, unless it has its default value.
    """
    if not isinstance(method, str) or method not in RECIPES:
        raise ValueError(f"method is {method!r}, expected one of {', '.join(RECIPES)}.")
    recipe, used = RECIPES[method], {}
    for name, value in options.items():
        OPTIONS[name].check(value)
        if name in recipe.values:
            used[name] = value.item() if hasattr(value, "item") else value  # grid searches give numbers of NumPy
        elif value != OPTIONS[name].default:
            raise ValueError(
                f"{name} is {value!r}, but method {method!r} does not use it ({name} is for "
                f"{', '.join(users_of(name))}). Remove {name}, or choose one of these methods."
            )
    return replace(recipe, **used)


def check_processes(recipe: Recipe, num_processes: int) -> None:
    """Raise ValueError where several processes are to share the work of a method that cannot be shared."""
    if num_processes > 1 and not recipe.shares_rows:
        able = ", ".join(f'"{name}"' for name, other in RECIPES.items() if other.shares_rows)
        raise ValueError(
            f'method is "{recipe.name}", which trains in one process, and {num_processes} were started; use one of '
            f"{able}, or start a single process."
        )


def method_words(method: str) -> str:
    """What a method is, in words; its name where this version of cagp does not know it."""
    return RECIPES[method].words if method in RECIPES else method


def users_of(option: str) -> list[str]:
    """The names of the methods that use an option."""
    return [name for name, recipe in RECIPES.items() if option in recipe.values]


def methods_for(kind: str) -> tuple[str, ...]:
    """The names of the methods for a kind of targets, see ``options.kind_of``."""
    return tuple(
        name for name, recipe in RECIPES.items() if kind == GAUSSIAN or name == "auto" or recipe.takes_likelihoods
    )
