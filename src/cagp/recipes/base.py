"""What a user can choose: a recipe is a method with values for its options. Its training code is loaded when needed."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields
from importlib import import_module
from typing import TYPE_CHECKING, ClassVar, TypeVar

from cagp.recipes.options import Option

if TYPE_CHECKING:
    from cagp.methods import Method
    from cagp.prior import GP
    from cagp.recipes.task import Fitted, Task

SMALL = 10_000
"""Up to this many rows, methods that use float32 for speed use float64."""


@dataclass(frozen=True)
class Recipe(ABC):
    """A method with values for its options. Options are the fields of the class, made by ``Option.field``.

    The classes of ``table`` have ``train`` from the module that ``trained_by`` names; a class of your own defines it.
    """

    name: ClassVar[str]
    words: ClassVar[str]  # what was fitted, for reports: "Fitted: ..."
    summary: ClassVar[str]  # one line for the help of the command line
    module: ClassVar[str]  # with the training code, see ``trained_by``
    fast_dtype: ClassVar[bool] = False  # whether dtype="auto" is float32 beyond ``SMALL`` rows
    shares_rows: ClassVar[bool] = False  # whether several processes can share the work of ``train``
    chooses_mean: ClassVar[bool] = False  # whether ``train`` sees to the prior mean that the task asks for
    takes_likelihoods: ClassVar[bool] = False  # whether it has a ``method`` for targets of any likelihood
    takes_chunks: ClassVar[bool] = False  # whether rows may stay on disk

    @classmethod
    def options(cls) -> tuple[Option, ...]:
        """The options that this method uses."""
        return tuple(field.metadata["option"] for field in fields(cls))

    def default_dtype(self, num_rows: int) -> str:
        """What ``dtype="auto"`` means for a table of this size."""
        return "float32" if self.fast_dtype and num_rows > SMALL else "float64"

    @abstractmethod
    def train(self, task: "Task") -> "Fitted":
        """Learn hyperparameters from the rows of the task, and condition on them."""

    def method(self, task: "Task", prior: "GP") -> "Method":
        """The method that learns hyperparameters where the noise of each row is known; see ``cagp.sites``."""
        if not self.takes_likelihoods:
            raise NotImplementedError(f"method {self.name!r} is for Gaussian noise alone.")
        return import_module(self.module).method(self, task, prior)

    def predicting_method(self, task: "Task", prior: "GP") -> "Method":
        """The method that predicts with the hyperparameters that ``method`` has learned."""
        return getattr(import_module(self.module), "predicting_method", type(self).method)(self, task, prior)

    def planned_bytes(self, num_rows: int, num_inputs: int, num_targets: int) -> dict[str, int] | None:
        """What training on rows that stay on disk holds in memory, by purpose; None: it needs them all in memory."""
        return (
            import_module(self.module).planned_bytes(self, num_rows, num_inputs, num_targets)
            if self.takes_chunks
            else None
        )


RecipeClass = TypeVar("RecipeClass", bound=type[Recipe])


def trained_by(module: str) -> Callable[[RecipeClass], RecipeClass]:
    """Take the training code of a recipe from a module, which is loaded when it is needed: it imports torch.

    The module has ``train(recipe, task)``; for any likelihood ``method(recipe, task, prior)``, and
    ``predicting_method`` if that differs; for rows on disk ``planned_bytes``.
    """

    def decorate(recipe: RecipeClass) -> RecipeClass:
        recipe.module = module
        recipe.train = lambda self, task: import_module(module).train(self, task)
        return recipe

    return decorate
