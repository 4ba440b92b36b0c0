"""What a user can choose: a recipe is a method, its options, and how it is trained."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, ClassVar

from cagp.recipes.options import Option

if TYPE_CHECKING:
    from cagp.methods import Method
    from cagp.prior import GP
    from cagp.recipes.task import Fitted, Task

SMALL = 10_000
"""Up to this many rows, methods that use float32 for speed use float64."""

REST_START = 0.4
"""What a prior mean leaves is rough: it starts with lengthscales this many times those that the data suggest."""


@dataclass(frozen=True)
class Recipe(ABC):
    """A method with values for its options. Options are the fields of the class, made by ``Option.field``."""

    name: ClassVar[str]
    words: ClassVar[str]  # what was fitted, for reports: "Fitted: ..."
    summary: ClassVar[str]  # one line for the help of the command line
    fast_dtype: ClassVar[bool] = False  # whether dtype="auto" is float32 beyond ``SMALL`` rows
    shares_rows: ClassVar[bool] = False  # whether several processes can share the work of ``train``
    chooses_mean: ClassVar[bool] = False  # whether ``train`` sees to the prior mean that the task asks for
    takes_likelihoods: ClassVar[bool] = False  # whether it has a ``method`` for targets of any likelihood

    @classmethod
    def options(cls) -> tuple[Option, ...]:
        """The options that this method uses."""
        return tuple(field.metadata["option"] for field in fields(cls))

    def default_dtype(self, num_rows: int) -> str:
        """What ``dtype="auto"`` means for a table of this size."""
        return "float32" if self.fast_dtype and num_rows > SMALL else "float64"

    def planned_bytes(self, num_rows: int, num_inputs: int, num_targets: int) -> dict[str, int] | None:
        """What training on rows that stay on disk holds in memory, by purpose; None: it needs them all in memory."""
        return None

    def method(self, task: "Task", prior: "GP") -> "Method":
        """The method that learns hyperparameters where the noise of each row is known; see ``cagp.sites``."""
        raise NotImplementedError(f"method {self.name!r} is for Gaussian noise alone.")

    def predicting_method(self, task: "Task", prior: "GP") -> "Method":
        """The method that predicts with the hyperparameters that ``method`` has learned."""
        return self.method(task, prior)

    @abstractmethod
    def train(self, task: "Task") -> "Fitted":
        """Learn hyperparameters from the rows of the task, and condition on them."""
