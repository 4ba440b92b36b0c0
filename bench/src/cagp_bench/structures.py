"""Generated tables whose function and noise are known, one for each structure that a table may have."""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

TEST_ROWS = 2000


class Sample(NamedTuple):
    """Rows with their truth; the first ones are for training, the last ``TEST_ROWS`` for testing."""

    X: Float[np.ndarray, "n d"]
    f: Float[np.ndarray, " n"]  # the function without noise, E[y | x]
    y: Float[np.ndarray, " n"]
    log_density: Float[np.ndarray, " n"]  # log p(y | x) under the truth
    variance: Float[np.ndarray, " n"]  # Var[y | x] under the truth

    @property
    def gaussian_log_density(self) -> Float[np.ndarray, " n"]:
        """The log density of the best Gaussians: those with the true mean and variance."""
        return _normal(self.y, self.f, np.sqrt(self.variance))


class Structure(NamedTuple):
    """A kind of table: what it is, and what a choice that suits it would be."""

    name: str
    words: str
    expected: str
    generate: Callable[[np.random.Generator, int], Sample]  # from a generator and a number of training rows


def sample(structure: Structure, num_rows: int, seed: int) -> Sample:
    """The table of a seed with ``num_rows`` training rows; the same each time."""
    return structure.generate(np.random.default_rng(seed), num_rows)


# ---- noise ----


def _normal(y: np.ndarray, mean: np.ndarray, std: np.ndarray | float) -> np.ndarray:
    return -0.5 * ((y - mean) / std) ** 2 - np.log(std) - 0.5 * math.log(2 * math.pi)


def _with_noise(rng: np.random.Generator, X: np.ndarray, f: np.ndarray, std: np.ndarray | float) -> Sample:
    """Gaussian noise."""
    y = f + std * rng.normal(size=len(f))
    return Sample(X, f, y, _normal(y, f, std), np.broadcast_to(np.square(std), f.shape).copy())


def _with_heavy_tails(rng: np.random.Generator, X: np.ndarray, f: np.ndarray, scale: float, nu: int) -> Sample:
    """Noise of Student's t with ν degrees of freedom, times a scale; its variance is scale² ν / (ν - 2)."""
    t = rng.standard_t(nu, size=len(f))
    constant = math.lgamma((nu + 1) / 2) - math.lgamma(nu / 2) - 0.5 * math.log(nu * math.pi) - math.log(scale)
    log_density = constant - (nu + 1) / 2 * np.log1p(t**2 / nu)
    return Sample(X, f, f + scale * t, log_density, np.full(len(f), scale**2 * nu / (nu - 2)))


# ---- functions ----


def _additive(rng: np.random.Generator, num_rows: int) -> Sample:
    X = rng.uniform(-1, 1, size=(num_rows + TEST_ROWS, 8))
    a, b, c, d, e, g, h, i = X.T
    f = np.sin(5 * a) + np.cos(7 * b) + 2 * c**2 - 2 * np.abs(d) + np.exp(e) + g + np.tanh(4 * h) + np.sin(4 * i)
    return _with_noise(rng, X, f, 0.2)


def _product(rng: np.random.Generator, num_rows: int) -> Sample:
    X = rng.uniform(-1, 1, size=(num_rows + TEST_ROWS, 4))
    a, b, c, d = X.T
    return _with_noise(rng, X, 3 * np.sin(4 * a) * np.cos(3 * b) * np.exp(-(c**2)) * (1.5 + d), 0.1)


def _season(t: np.ndarray, num_periods: int) -> np.ndarray:
    """A trend that rises by 3 in all, and a wave of period 1 with an overtone."""
    return 3 * t / num_periods + np.sin(2 * np.pi * t) + 0.5 * np.cos(4 * np.pi * t)


def _periodic(rng: np.random.Generator, num_rows: int) -> Sample:
    t = rng.uniform(0, 100, size=num_rows + TEST_ROWS)
    return _with_noise(rng, t[:, None], _season(t, 100), 0.2)


def _forecast(rng: np.random.Generator, num_rows: int) -> Sample:
    t = np.concatenate([rng.uniform(0, 20, size=num_rows), rng.uniform(20.5, 23, size=TEST_ROWS)])
    return _with_noise(rng, t[:, None], _season(t, 20), 0.2)


def _few_of_hundred(rng: np.random.Generator, num_rows: int) -> Sample:
    X = rng.normal(size=(num_rows + TEST_ROWS, 100))
    return _with_noise(rng, X, np.sin(2 * X[:, 17]) + 0.5 * X[:, 42] * X[:, 71], 0.2)


def _steps(rng: np.random.Generator, num_rows: int) -> Sample:
    X = rng.uniform(size=(num_rows + TEST_ROWS, 4))
    a, b, c, _ = X.T
    f = 2.0 * (a > 0.37) - 1.5 * (b > 0.62) + 3.0 * (a > 0.37) * (c < 0.25) + 1.0 * (b > 0.2) * (c > 0.8)
    return _with_noise(rng, X, f, 0.1)


def _waves(X: np.ndarray) -> np.ndarray:
    return np.sin(6 * X[:, 0]) + np.cos(5 * X[:, 1])


def _heteroscedastic(rng: np.random.Generator, num_rows: int) -> Sample:
    X = rng.uniform(size=(num_rows + TEST_ROWS, 2))
    return _with_noise(rng, X, _waves(X), 0.03 + X[:, 0] ** 2)


def _heavy_tails(rng: np.random.Generator, num_rows: int) -> Sample:
    X = rng.uniform(size=(num_rows + TEST_ROWS, 2))
    return _with_heavy_tails(rng, X, _waves(X), 0.2, 3)


def _repeats(rng: np.random.Generator, num_rows: int) -> Sample:
    places = rng.uniform(size=(400, 3))
    X = places[rng.integers(len(places), size=num_rows + TEST_ROWS)]
    return _with_noise(rng, X, _waves(X) + X[:, 2], 0.3)


def _copies(rng: np.random.Generator, num_rows: int) -> Sample:
    """Every training row stands three times in the table, target included; test rows are new."""
    X = rng.uniform(size=(num_rows + TEST_ROWS, 3))
    distinct = _with_noise(rng, X, _waves(X) + X[:, 2], 0.3)
    rows = np.concatenate([np.arange(num_rows) // 3, np.arange(num_rows, num_rows + TEST_ROWS)])
    rows[:num_rows] = rng.permutation(rows[:num_rows])
    return Sample(*(values[rows] for values in distinct))


def _fourier(rng: np.random.Generator, X: np.ndarray, frequencies: np.ndarray) -> np.ndarray:
    """A draw from a stationary Gaussian process with variance 1, by random Fourier features (2/m)^½ Σ cos(ωᵀx + b)."""
    num_features = frequencies.shape[1]
    phases, weights = rng.uniform(0, 2 * np.pi, size=num_features), rng.normal(size=num_features)
    return (2 / num_features) ** 0.5 * np.cos(X @ frequencies + phases) @ weights


def _climate(rng: np.random.Generator, num_rows: int) -> Sample:
    """Monthly temperatures at 100 stations: a climate in space, height and season, and each month's own weather."""
    total, num_stations = num_rows + TEST_ROWS, 100
    num_months = math.ceil(1.25 * total / num_stations)  # a fifth of the records is missing
    places = rng.uniform([0, 44], [16, 54], size=(num_stations, 2))
    height = 0.3 + 0.2 * _fourier(rng, places, rng.normal(size=(2, 200)) / 3) + rng.exponential(0.4, num_stations)
    warmth = 12 - 0.8 * (places[:, 1] - 49) - 6.5 * height
    swing = 8 + 0.25 * (places[:, 0] - 8)
    month = np.arange(num_months)
    climate = warmth[:, None] - swing[:, None] * np.cos(2 * np.pi * (month + 0.5) / 12) + 0.03 * month / 12
    weather = [1.5 * _fourier(rng, places, rng.normal(size=(2, 200)) / 6) for _ in month]
    f = climate + np.stack(weather, axis=1)
    station, when = np.divmod(rng.permutation(num_stations * num_months)[:total], num_months)
    angle = 2 * np.pi * (when + 0.5) / 12
    X = np.column_stack([places[station], height[station], 2000 + when / 12, np.cos(angle), np.sin(angle)])
    return _with_noise(rng, X, f[station, when], 0.4)


def _rough(rng: np.random.Generator, num_rows: int) -> Sample:
    """Frequencies of Matérn 1/2 are those of a Cauchy distribution: a normal one divided by another's size."""
    X = rng.uniform(size=(num_rows + TEST_ROWS, 2))
    frequencies = rng.normal(size=(2, 1000)) / np.abs(rng.normal(size=1000)) / 0.3
    return _with_noise(rng, X, _fourier(rng, X, frequencies), 0.05)


def _smooth(rng: np.random.Generator, num_rows: int) -> Sample:
    X = rng.uniform(-1, 1, size=(num_rows + TEST_ROWS, 8))
    return _with_noise(rng, X, _fourier(rng, X, rng.normal(size=(8, 500)) / 1.5), 0.05)


STRUCTURES: dict[str, Structure] = {
    structure.name: structure
    for structure in (
        Structure(
            "additive",
            "a sum of functions of one column each, 8 columns",
            "trees in the mean, shared actions or a sum of kernels; nearest rows of one product kernel alone lose",
            _additive,
        ),
        Structure(
            "product",
            "a product of functions of one column each, 4 columns",
            "nearest rows, smooth kernel; shared actions may help; trees gain nothing",
            _product,
        ),
        Structure(
            "periodic",
            "a trend and a wave, 100 periods, test rows between training rows",
            "nearest rows suffice; a periodic kernel gains since all periods count",
            _periodic,
        ),
        Structure(
            "forecast",
            "the same with 20 periods, test rows after the last training row",
            "a periodic kernel and a trend; without them intervals as wide as the wave, coverage at 95 %",
            _forecast,
        ),
        Structure(
            "few-of-hundred",
            "100 columns, of which 3 matter",
            "lengthscales that leave 97 columns out, or trees in the mean",
            _few_of_hundred,
        ),
        Structure(
            "steps",
            "a function with jumps along the columns",
            "trees in the mean; without them a rough kernel",
            _steps,
        ),
        Structure(
            "heteroscedastic",
            "noise that grows with a column",
            "a local scale; the mean is smooth",
            _heteroscedastic,
        ),
        Structure(
            "heavy-tails",
            "noise of Student's t, 3 degrees of freedom",
            "a smooth mean with a noise near the true one; no Gaussian is closer than 'best Gaussian'",
            _heavy_tails,
        ),
        Structure(
            "repeats",
            "400 distinct places, each observed many times",
            "more neighbours than one place has rows; a noise of the right size",
            _repeats,
        ),
        Structure(
            "copies",
            "every row stands three times in the table, target included; test rows are new",
            "a noise of the right size: a row must not be predicted from its copies",
            _copies,
        ),
        Structure(
            "climate",
            "monthly temperatures: place, height, year and season give a climate, each month has its own weather",
            "trees in the mean for the climate, nearest rows with a short lengthscale in time for the weather",
            _climate,
        ),
        Structure(
            "rough",
            "a surface over 2 columns, a draw of Matérn 1/2",
            "nearest rows with a rough kernel; no trees",
            _rough,
        ),
        Structure(
            "smooth",
            "a smooth function of 8 columns, little noise",
            "shared actions or many neighbours, smooth kernel; no trees",
            _smooth,
        ),
    )
}
