"""The model before it sees data: GP = mean + kernel + noise. Parameters only, never data."""

from abc import ABC, abstractmethod
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from cagp.checks import check_row_noise
from cagp.fields import checked, mapping
from cagp.kernels import Kernel
from cagp.parameters import Positive
from cagp.storage import State
from cagp.stored_modules import module_from_state, module_state


class Mean(nn.Module, ABC):
    """The prior mean function."""

    @abstractmethod
    def forward(self, X: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
        """m(X), in the dtype of ``X``."""

    def of_rows(self, X: Float[Tensor, "n d"], rows: Int[Tensor, " m"]) -> Float[Tensor, " m"]:
        """m(X[rows]) in float64; a mean that does not use the inputs need not gather them."""
        return self(X[rows].double())


class ZeroMean(Mean):
    """m(x) = 0."""

    def forward(self, X: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
        return X.new_zeros(X.shape[0])

    def of_rows(self, X: Float[Tensor, "n d"], rows: Int[Tensor, " m"]) -> Float[Tensor, " m"]:
        return X.new_zeros(1, dtype=torch.float64).expand(rows.shape[0])


class ConstantMean(Mean):
    """m(x) = constant, learned."""

    def __init__(self, constant: float = 0.0):
        super().__init__()
        self.constant = nn.Parameter(torch.tensor(constant, dtype=torch.float64))

    def forward(self, X: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
        return self.constant.to(X).expand(X.shape[0])

    def of_rows(self, X: Float[Tensor, "n d"], rows: Int[Tensor, " m"]) -> Float[Tensor, " m"]:
        return self.constant.to(X.device).expand(rows.shape[0])


class LinearMean(Mean):
    """m(x) = slope · x + constant, learned."""

    def __init__(self, num_dims: int):
        super().__init__()
        self.slope = nn.Parameter(torch.zeros(num_dims, dtype=torch.float64))
        self.constant = nn.Parameter(torch.tensor(0.0, dtype=torch.float64))

    def forward(self, X: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
        if X.shape[1] != len(self.slope):
            raise ValueError(f"X has {X.shape[1]} columns, the linear mean was made for num_dims = {len(self.slope)}.")
        return X @ self.slope.to(X) + self.constant.to(X)

    def plain_arguments(self) -> dict[str, Any]:
        """What makes a mean with as many slopes."""
        return {"num_dims": len(self.slope)}


class Noise(nn.Module, ABC):
    """The variance D of the targets about the function, one value per row."""

    @abstractmethod
    def forward(self, X: Float[Tensor, "n d"], row_noise: Float[Tensor, " n"] | None = None) -> Float[Tensor, " n"]:
        """D in float64; ``row_noise`` holds the known part of each row's variance, and is not checked here."""

    def check(self, row_noise: Tensor | None) -> None:
        """Raise ValueError unless these known variances, already checked to be zero or above, suit this noise."""

    def of_rows(
        self, X: Float[Tensor, "n d"], rows: Int[Tensor, " m"], row_noise: Float[Tensor, " n"] | None = None
    ) -> Float[Tensor, " m"]:
        """D of X[rows]; noise that does not use the inputs need not gather them."""
        return self(X[rows], None if row_noise is None else row_noise[rows])

    def of_all(self, row_noise: Float[Tensor, " n"] | None = None) -> Float[Tensor, ""] | None:
        """D if it is the same for all rows; None if it may differ."""
        return None

    def learned(self, X: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
        """D without the known part of each row: the part that a local scale multiplies."""
        return self(X)


class GaussianNoise(Noise):
    """D = noise + row_noise: one learned variance for all rows, on top of the known one of each row.

    Args:
        noise: where the learned variance starts.
        noise_floor: its smallest value. Low floors need float64 data: see ``NotPositiveDefiniteError``.
    """

    noise: Positive = Positive()

    def __init__(self, noise: float = 0.1, noise_floor: float = 1e-6):
        super().__init__()
        self.noise_floor = noise_floor
        self.noise = noise

    def forward(self, X: Float[Tensor, "n d"], row_noise: Float[Tensor, " n"] | None = None) -> Float[Tensor, " n"]:
        noise = self.noise.to(X.device).expand(X.shape[0])
        return noise if row_noise is None else noise + row_noise.double()

    def of_rows(
        self, X: Float[Tensor, "n d"], rows: Int[Tensor, " m"], row_noise: Float[Tensor, " n"] | None = None
    ) -> Float[Tensor, " m"]:
        return self(X[:1].expand(len(rows), -1), None if row_noise is None else row_noise[rows])

    def of_all(self, row_noise: Float[Tensor, " n"] | None = None) -> Float[Tensor, ""] | None:
        return self.noise if row_noise is None else None


class KnownNoise(Noise):
    """D = row_noise: every row's variance is known, and nothing is learned."""

    def forward(self, X: Float[Tensor, "n d"], row_noise: Float[Tensor, " n"] | None = None) -> Float[Tensor, " n"]:
        return self._given(row_noise).double()

    def check(self, row_noise: Tensor | None) -> None:
        if not bool((self._given(row_noise) > 0).all()):
            raise ValueError("row_noise has zeros, KnownNoise needs positive variances; use GaussianNoise to add some.")

    def _given(self, row_noise: Tensor | None) -> Tensor:
        if row_noise is None:
            raise ValueError("row_noise is missing: KnownNoise needs the noise variance of every row.")
        return row_noise

    def learned(self, X: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
        return torch.zeros(X.shape[0], dtype=torch.float64, device=X.device)


class GP(nn.Module):
    """The prior f ~ GP(mean, kernel) and y | f ~ Normal(f(X), D)."""

    def __init__(self, kernel: Kernel, mean: Mean | None = None, noise: Noise | None = None):
        super().__init__()
        self.kernel = kernel
        self.mean = ZeroMean() if mean is None else mean
        self.noise = GaussianNoise() if noise is None else noise

    def state(self) -> State:
        """Kernel, mean and noise by the names of their classes, with floors and raw parameters, bit for bit.

        A kernel of a class of your own is stored as the name of its class, its plain attributes and its tensors.
        """
        state = {name: module_state(part) for name, part in self.named_children()}
        for name in ("mean", "noise"):
            if state[name]["own"]:
                raise ValueError(
                    f"the {name} is a {state[name]['class']}, a class of your own, which cannot be stored. Only "
                    "kernels can be of a class of your own; many means can be written as a kernel."
                )
        return state

    @classmethod
    def from_state(cls, state: Any, kernel: Kernel | None = None) -> "GP":
        """The prior of a state.

        Args:
            kernel: a kernel with the structure of the stored one; needed if that has classes of your own. It is copied,
                and the copy gets the stored parameters. None: the kernel is made from the stored names.
        """
        parts = checked(state, dict.fromkeys(("kernel", "mean", "noise"), mapping))
        return cls(
            module_from_state(parts["kernel"], Kernel, kernel),
            module_from_state(parts["mean"], Mean),
            module_from_state(parts["noise"], Noise),
        )

    def take_over(self, other: "GP") -> None:
        """Start at the hyperparameters of another prior, whose kernel may be of another family."""
        self.kernel.take_over(other.kernel)
        self.mean.load_state_dict(other.mean.state_dict())
        self.noise.load_state_dict(other.noise.state_dict())

    def noise_variance(
        self, X: Float[Tensor, "n d"], row_noise: Float[Tensor, " n"] | None = None
    ) -> Float[Tensor, " n"]:
        """D, the noise variance of each row, in float64; ``row_noise`` is checked."""
        self.check_noise(X, row_noise)
        return self.noise(X, row_noise)

    def check_noise(self, X: Float[Tensor, "n d"], row_noise: Float[Tensor, " n"] | None = None) -> None:
        """Raise ValueError unless ``row_noise`` has one variance for each row of ``X`` that the noise accepts."""
        check_row_noise(row_noise, X)
        self.noise.check(row_noise)
