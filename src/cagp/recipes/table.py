"""The methods that a user can choose, and the one table of what can be set, in Python and on the command line.

Recipes, the checks of the estimators and the command line read it. Nothing here imports torch, so that help texts and
errors come at once.
"""

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import import_module
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, final

from cagp import kernel_registry, limits
from cagp.likelihood_registry import GAUSSIAN, LIKELIHOODS, likelihoods_of
from cagp.quantities import bytes_of, seconds_of

if TYPE_CHECKING:
    from cagp.methods import Method
    from cagp.prior import GP
    from cagp.recipes.task import Fitted, Task

SMALL = 10_000
"""Up to this many rows, methods that use float32 for speed use float64."""

DEFAULT_NEIGHBORS = 32
"""In training, unless the user or the method "auto" chooses otherwise."""

KINDS = (GAUSSIAN, "numbers", "counts", "classes")


def kind_of(likelihood: str) -> str:
    """The kind of the targets of a likelihood: with Gaussian noise, or what the registry says that it is for."""
    return GAUSSIAN if likelihood == GAUSSIAN else LIKELIHOODS[likelihood].targets


@dataclass(frozen=True)
class Option:
    """One option, in Python ``name=...`` and on the command line ``flag``."""

    name: str
    default: Any
    metavar: str  # what stands for its value in help texts; "" for a switch, which is False or True and takes no value
    help: str  # what it does, for the command line
    expected: str  # what a value must be, in words
    accepts: Callable[[Any], bool] = lambda _: True  # whether a value is one
    parse: Callable[[str], Any] = str  # a value from text; raises ValueError where the text is not one
    targets: tuple[str, ...] = KINDS  # the kinds of targets that it is for
    neutral: tuple[Any, ...] = ()  # values that are accepted with every kind of targets, because they ask for nothing
    only_flag: str | None = None  # its name on the command line where it differs from that in Python

    @property
    def flag(self) -> str:
        return self.only_flag or f"--{self.name.replace('_', '-')}"

    @property
    def is_switch(self) -> bool:
        return self.default is False

    def check(self, value: Any) -> None:
        """Raise ValueError unless ``value`` is one that the option accepts."""
        if not self.accepts(value):
            raise ValueError(f"{self.name} is {value!r}, expected {self.expected}.")


def _is_positive_integer(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 1


def _is_local_scale(value: Any) -> bool:
    if value is None or isinstance(value, str):
        return value in (None, "auto")
    return isinstance(value, Real) and not isinstance(value, bool) and 0 < float(value) < math.inf


def _one_of(name: str, choices: tuple[str, ...], metavar: str, help: str, expected: str = "", **more: Any) -> Option:
    """An option whose values are names."""
    listed = ", ".join(f'"{choice}"' for choice in choices[:-1]) + f' or "{choices[-1]}"'
    default = more.pop("default", choices[0])
    accepts = more.pop("accepts", lambda value: isinstance(value, str) and value in choices)
    return Option(name, default, metavar, help, expected or listed, accepts, **more)


def _switch(name: str, help: str) -> Option:
    """An option of Gaussian noise that is False or True."""
    return Option(name, False, "", help, "True or False", lambda value: isinstance(value, bool), targets=(GAUSSIAN,))


def _readable(read: Callable[[Any], Any]) -> Callable[[Any], bool]:
    """Whether ``read`` makes something of a value; None is always one."""

    def accepts(value: Any) -> bool:
        with suppress(ValueError, TypeError):
            return value is None or read(value) is not None
        return False

    return accepts


def _seed(text: str) -> int:
    if not text.isdecimal() or int(text) >= 2**31:
        raise ValueError(text)
    return int(text)


_REGRESSION = ", ".join((GAUSSIAN, *likelihoods_of("counts", "numbers")))
_INTEGER_OR_AUTO: dict[str, Any] = {
    "expected": 'a positive integer (or "auto")',
    "accepts": lambda value: value == "auto" if isinstance(value, str) else _is_positive_integer(value),
    "parse": lambda text: text if text == "auto" else int(text),
}

# ---- options of methods ----

N_ACTIONS = Option(
    "n_actions", "auto", "N", 'number of actions, or "auto": one for eight rows, at most 512', **_INTEGER_OR_AUTO
)
N_NEIGHBORS = Option(
    "n_neighbors",
    "auto",
    "K",
    'training rows that predict each row during training; predictions use twice as many; "auto" is 32, and the method '
    '"auto" also tries more in predictions',
    **_INTEGER_OR_AUTO,
)
OBJECTIVE = _one_of(
    "objective",
    ("auto", "loo", "ordered"),
    "NAME",
    'what hyperparameters are learned from: "loo", each row predicted from its nearest other rows, or "ordered", from '
    'the nearest rows before it in a random order (Vecchia); "auto" is loo, and the method "auto" compares both',
    targets=(GAUSSIAN,),
)
EFFORT = _one_of(
    "effort",
    ("fast", "default", "thorough"),
    "LEVEL",
    'how much is tried: "fast" (one model), "default" (several), or "thorough" (more models, and more steps of each)',
    default="default",
    targets=(GAUSSIAN,),
)
LOCAL_SCALE = Option(
    "local_scale",
    "auto",
    "N",
    'whether error bars adapt to the neighbours of a test point: "auto", "none" (one scale everywhere; the variance is '
    "then never below the exact one), or the number of neighbours that the learned scale weighs as much as",
    '"auto", None or a positive number of neighbours',
    _is_local_scale,
    lambda text: {"auto": "auto", "none": None}[text] if text in ("auto", "none") else float(text),
    targets=(GAUSSIAN,),
    neutral=(None,),
)
N_INDUCING = Option(
    "n_inducing", 512, "M", "number of inducing points", "a positive integer", _is_positive_integer, int, (GAUSSIAN,)
)
SHARDS = _switch(
    "shards", "cut the table into regions, one for each process that torchrun starts: no process holds all rows"
)

OPTIONS = {o.name: o for o in (N_ACTIONS, N_NEIGHBORS, LOCAL_SCALE, OBJECTIVE, EFFORT, N_INDUCING, SHARDS)}
"""Every option that some method has."""

# ---- parameters of every estimator, whatever the method ----

KERNEL = _one_of(
    "kernel",
    (kernel_registry.AUTO, *kernel_registry.NAMES),
    "KERNEL",
    f"one of {', '.join(kernel_registry.NAMES)}; auto is {kernel_registry.CHOICES[0]}, or what the method "
    '"auto" finds best',
    expected=f'"auto", one of {", ".join(kernel_registry.NAMES)}, or a kernel of cagp.kernels',
    # What is not a name must be a kernel: the estimators check that, since it takes torch to say so.
    accepts=lambda value: not isinstance(value, str) or value in (kernel_registry.AUTO, *kernel_registry.NAMES),
)
MEAN = _one_of(
    "mean",
    ("auto", "zero", "trees"),
    "MEAN",
    "the prior mean: zero, or trees (boosted trees, fitted out of fold; the Gaussian process models the residuals); "
    'auto is zero, or what the method "auto" finds best',
)
TARGET = _one_of(
    "target",
    ("auto", "identity", "log"),
    "NAME",
    "fit the target as it is (identity) or its logarithm (log); auto: the logarithm of a positive, skewed target where "
    "that predicts held-out training rows better",
    targets=(GAUSSIAN,),
    neutral=("identity",),
    only_flag="--target-transform",
)
COPIES_OF_ROWS = _one_of(
    "copies",
    ("keep", "once"),
    "WHAT",
    "rows that are copies of others, targets included: keep all of them, or count each row once, if new rows are not "
    "copies of old ones",
    targets=(GAUSSIAN,),
)
MAX_TIME = Option(
    "max_time",
    None,
    "TIME",
    'limit for the whole fit, e.g. "10min"',
    'a positive time, e.g. "90s", "10min", "2h", or a number of seconds (or None)',
    _readable(seconds_of),
)
MAX_MEMORY = Option(
    "max_memory",
    None,
    "SIZE",
    'what a fit may take, e.g. "4GB"; half of what is free unless it is given',
    'a size, e.g. "500MB", "4GB", or a number of bytes (or None)',
    _readable(bytes_of),
    bytes_of,
)
MAX_EPOCHS = Option(
    "max_epochs",
    None,
    "N",
    "passes over the rows; 300 steps, 100 for exact, unless it is given",
    "a positive integer (or None)",
    lambda value: value is None or _is_positive_integer(value),
    int,
)
DEVICE = Option("device", "cpu", "DEVICE", 'where to compute, e.g. "cuda"', "a device of torch")
DTYPE = _one_of("dtype", ("auto", "float32", "float64"), "DTYPE", "precision of the rows")
RANDOM_STATE = Option(
    "random_state",
    0,
    "N",
    "random seed of the split and of training",
    f"an integer from 0 to {2**31 - 1}",
    parse=_seed,  # in Python, scikit-learn checks what it takes for one
    only_flag="--seed",
)
LIKELIHOOD = _one_of(
    "likelihood",
    (GAUSSIAN, *LIKELIHOODS),
    "NAME",
    f"how targets vary about the function: one of {_REGRESSION}; poisson and negative_binomial are for counts, "
    "student_t for numbers with outliers",
    expected=f"one of {_REGRESSION}; of classes one of {', '.join(likelihoods_of('classes'))}",
)
EXPOSURE = Option(
    "exposure",
    None,
    "COLUMN",
    "for counts: a column that their mean is proportional to, e.g. hours of observation; it is not an input",
    "a column",
    targets=("counts",),
)
WARM_START = _switch("warm_start", "start where the last fit ended")

_MODEL = (KERNEL, MEAN, TARGET, COPIES_OF_ROWS, MAX_TIME, MAX_MEMORY, MAX_EPOCHS, DEVICE, DTYPE, RANDOM_STATE)
PARAMETERS = {o.name: o for o in (*OPTIONS.values(), *_MODEL, LIKELIHOOD, EXPOSURE, WARM_START)}
"""Everything that a user can set: the options of methods, and the parameters of every estimator."""


def check_values(values: Mapping[str, Any]) -> None:
    """Raise ValueError for a value that its parameter does not accept; names that the table lacks are not checked."""
    for name, value in values.items():
        if name in PARAMETERS:
            PARAMETERS[name].check(value)


def not_for(kind: str, values: Mapping[str, Any]) -> list[Option]:
    """The parameters among ``values`` that ask for something that this kind of targets does not have."""

    def asks(option: Option) -> bool:
        value, silent = values[option.name], (option.default, *option.neutral)
        return not any(value is other or (type(value) is type(other) and value == other) for other in silent)

    listed = [PARAMETERS[name] for name in values if name in PARAMETERS]
    return [option for option in listed if kind not in option.targets and asks(option)]


# ---- methods ----


@final
@dataclass(frozen=True)
class Recipe:
    """A method with values for its options; options that it does not use have their defaults.

    Its module is loaded when it is needed, since it imports torch. It has ``train(recipe, task)``; for any likelihood
    ``method(recipe, task, prior)``, and ``predicting_method`` if that differs; for rows on disk ``planned_bytes``.
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
            "cagp.recipes.direct",
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
            "cagp.recipes.direct",
            "SGPR, a Gaussian process seen through inducing points",
            "inducing points (SGPR)",
            ("n_inducing",),
            fast_dtype=True,
        ),
        Recipe(
            "svgp",
            "cagp.recipes.direct",
            "SVGP, a variational Gaussian process with inducing points",
            "inducing points, trained on minibatches (SVGP)",
            ("n_inducing",),
            fast_dtype=True,
            shares_rows=True,
        ),
        Recipe(
            "cggp",
            "cagp.recipes.direct",
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
    """The names of the methods for a kind of targets, see ``kind_of``."""
    return tuple(n for n, recipe in RECIPES.items() if kind == GAUSSIAN or n == "auto" or recipe.takes_likelihoods)
