"""What every estimator can be asked for, as one checked value: kernel, prior mean, limits, where to compute."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state

from cagp.estimators.fitted_model import FittedModel
from cagp.kernels import Kernel
from cagp.memory import default_memory_limit
from cagp.quantities import bytes_of
from cagp.recipes.options import check_values

DTYPES = {"float32": torch.float32, "float64": torch.float64}


@final
@dataclass(frozen=True)
class FitOptions:
    """The parameters of a fit besides its method and likelihood; ``CaGPRegressor`` says what they mean."""

    kernel: str | Kernel = "auto"
    mean: str = "auto"
    target: str = "identity"
    copies: str = "keep"
    categories: Sequence[Any] = ()
    exposure: Any = None
    max_epochs: int | None = None
    max_time: float | str | None = None
    max_memory: int | str | None = None
    device: str | torch.device = "cpu"
    dtype: str = "auto"
    random_state: Any = 0
    verbose: bool = False
    checkpoint_dir: str | Path | None = None
    last: FittedModel | None = None  # the fit at whose hyperparameters this one starts

    @classmethod
    def of(cls, estimator: BaseEstimator, anywhere: bool = False) -> "FitOptions":
        """The parameters of an estimator, checked; ValueError for one that is not right.

        Args:
            anywhere: the fit may have been on another computer, with devices that this one lacks.
        """
        given, names = estimator.get_params(deep=False), {field.name for field in fields(cls)}
        last = getattr(estimator, "fitted_", None) if given.get("warm_start", False) else None
        options = cls(**{name: value for name, value in given.items() if name in names}, last=last)
        check_values({field.name: getattr(options, field.name) for field in fields(options)})
        if not isinstance(options.kernel, str | Kernel):
            kernel = type(options.kernel).__name__
            raise ValueError(f"kernel is a {kernel}, expected a name or a kernel of cagp.kernels.")
        if not anywhere:
            _check_device(options.device)
        return options

    @property
    def memory(self) -> int:
        """Bytes that the fit may take."""
        return default_memory_limit() if self.max_memory is None else bytes_of(self.max_memory)

    @property
    def seed(self) -> int:
        """Of everything random; it differs from call to call where ``random_state`` is a generator."""
        return seed_of(self.random_state)


def _check_device(device: str | torch.device) -> None:
    try:
        parsed = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f'device is {device!r}, expected a device of torch, e.g. "cpu" or "cuda".') from error
    try:
        torch.empty(1, device=parsed)
    except (RuntimeError, AssertionError) as error:  # torch asserts that it was built for CUDA
        reason = str(error).splitlines()[0].rstrip(".")
        raise ValueError(
            f"device is {str(device)!r}, which this computer or this build of torch does not have ({reason}); use "
            '"cpu".'
        ) from error


def seed_of(random_state: Any) -> int:
    """A seed from what scikit-learn calls a random state."""
    if isinstance(random_state, int | np.integer):
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31 - 1))
