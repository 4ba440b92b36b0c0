"""Generated tables in which an error bar can be wrong in one place and right on average.

Each situation draws training rows, and test rows of which each belongs to a named place: a gap, an edge, rows with a
missing value, a rare level. Function and noise are known, so that predictions are scored against the truth.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

PLACE_ROWS = 400
"""Test rows of each place."""


class Drawn(NamedTuple):
    """Training rows, and test rows with their truth."""

    X: Any
    y: np.ndarray
    X_test: Any
    y_test: np.ndarray
    truth: np.ndarray  # E[y | x]; of classes, P(y = 1 | x)
    log_density: np.ndarray  # log p(y | x) of each test row
    place: np.ndarray  # the name of the place of each test row
    by: dict[str, Any] = {}  # further arguments of fit


class Situation(NamedTuple):
    """How a table is drawn, and how it is fitted."""

    name: str
    draw: Callable[[np.random.Generator], Drawn]
    kind: str = "numbers"  # or "counts", "classes"
    options: dict[str, Any] = {}  # of the estimator


Places = dict[str, np.ndarray]  # the inputs of the test rows of each place
Function = Callable[[Any], np.ndarray]


def _stacked(places: dict[str, Any]) -> tuple[Any, np.ndarray]:
    """The test rows of all places, and the place of each."""
    parts = list(places.values())
    X = pd.concat(parts, ignore_index=True) if isinstance(parts[0], pd.DataFrame) else np.concatenate(parts)
    return X, np.repeat(list(places), [len(part) for part in parts])


def _numbers(
    rng: np.random.Generator, X: Any, f: Function, std: Function | float, places: dict[str, Any], **by: Any
) -> Drawn:
    """Targets with Gaussian noise."""
    X_test, place = _stacked(places)

    def noise(rows: Any) -> np.ndarray:
        return np.broadcast_to(std(rows) if callable(std) else std, len(rows)).astype(float)

    truth, spread = f(X_test), noise(X_test)
    y, y_test = f(X) + noise(X) * rng.normal(size=len(X)), truth + spread * rng.normal(size=len(X_test))
    density = stats.norm.logpdf(y_test, truth, spread)
    return Drawn(X, y, X_test, y_test, truth, density, place, by)


def _counts(rng: np.random.Generator, X: Any, rate: Function, places: dict[str, Any], shape: float = np.inf) -> Drawn:
    """Poisson counts, or negative binomial ones with variance μ + μ² / shape."""
    X_test, place = _stacked(places)
    truth = rate(X_test)

    def law(mean: np.ndarray) -> Any:
        return stats.poisson(mean) if np.isinf(shape) else stats.nbinom(shape, shape / (shape + mean))

    y, y_test = (law(mean).rvs(random_state=rng) for mean in (rate(X), truth))
    return Drawn(X, y, X_test, y_test, truth, law(truth).logpmf(y_test), place)


def _classes(rng: np.random.Generator, X: Any, probability: Function, places: dict[str, Any]) -> Drawn:
    """Classes 0 and 1."""
    X_test, place = _stacked(places)
    truth = probability(X_test)
    y, y_test = ((rng.random(len(p)) < p).astype(int) for p in (probability(X), truth))
    density = np.log(np.where(y_test == 1, truth, 1 - truth))
    return Drawn(X, y, X_test, y_test, truth, density, place)


def _uniform(rng: np.random.Generator, *ranges: tuple[int | float, int | float], rows: int = PLACE_ROWS) -> np.ndarray:
    low, high = zip(*ranges, strict=True)
    return rng.uniform(low, high, size=(rows, len(ranges)))


def _where(rng: np.random.Generator, rows: int, draw: Callable[[int], np.ndarray], keep: Function) -> np.ndarray:
    """Rows of a distribution that lie where ``keep`` says."""
    parts: list[np.ndarray] = []
    while sum(map(len, parts)) < rows:
        part = draw(4 * rows)
        parts.append(part[keep(part)])
    return np.concatenate(parts)[:rows]


def _copied(drawn: Drawn, times: int, rng: np.random.Generator) -> Drawn:
    """Every training row several times, in random order."""
    rows = rng.permutation(np.repeat(np.arange(len(drawn.y)), times))
    X = drawn.X.iloc[rows].reset_index(drop=True) if isinstance(drawn.X, pd.DataFrame) else drawn.X[rows]
    return drawn._replace(X=X, y=drawn.y[rows])


# ---- gaps and edges ----


def _wave(X: np.ndarray) -> np.ndarray:
    return np.sin(2 * X[:, 0]) + 0.3 * X[:, 0]


def _surface(X: np.ndarray) -> np.ndarray:
    return np.sin(4 * X[:, 0]) * np.cos(3 * X[:, 1]) + X[:, 0]


def _two_scales(X: np.ndarray) -> np.ndarray:
    return 2 * np.sin(0.8 * X[:, 0]) + 0.3 * np.sin(15 * X[:, 0])


def _gap_on_a_line(num_rows: int, half: float = 1.0, f: Function = _wave) -> Callable[[np.random.Generator], Drawn]:
    def draw(rng: np.random.Generator) -> Drawn:
        x = rng.uniform(-5, 5, size=(num_rows, 1))
        x = np.where(np.abs(x) < half, x + 2 * half * np.sign(x), x)
        beside = _where(rng, PLACE_ROWS, lambda n: rng.uniform(-5, 5, (n, 1)), lambda z: np.abs(z[:, 0]) > half)
        return _numbers(rng, x, f, 0.1, {"beside data": beside, "gap": _uniform(rng, (-half, half))})

    return draw


def _clouds(rng: np.random.Generator) -> Drawn:
    """A rough surface on a grid, with squares hidden."""
    frequencies = rng.normal(size=(2, 600)) / np.abs(rng.normal(size=600)) / 0.5
    phases, weights = rng.uniform(0, 2 * np.pi, 600), rng.normal(size=600)

    def f(X: np.ndarray) -> np.ndarray:
        return (2 / 600) ** 0.5 * np.cos(X @ frequencies + phases) @ weights

    corners = rng.uniform(0, 0.8, size=(5, 2))

    def depth(X: np.ndarray) -> np.ndarray:  # how far a row lies inside a hidden square
        inside = np.minimum(X[:, None] - corners, corners + 0.2 - X[:, None]).min(2)
        return inside.max(1)

    grid = np.stack(np.meshgrid(np.linspace(0, 1, 70), np.linspace(0, 1, 70)), -1).reshape(-1, 2)
    X = grid[depth(grid) < 0]

    def draw(n: int) -> np.ndarray:
        return rng.uniform(size=(n, 2))

    places = {
        "beside data": _where(rng, PLACE_ROWS, draw, lambda z: depth(z) < 0),
        "rim": _where(rng, PLACE_ROWS, draw, lambda z: (depth(z) > 0) & (depth(z) < 0.04)),
        "inside": _where(rng, PLACE_ROWS, draw, lambda z: depth(z) > 0.04),
    }
    return _numbers(rng, X, f, 0.1, places)


def _beyond(num_columns: int, num_rows: int) -> Callable[[np.random.Generator], Drawn]:
    """Test rows outside the cube of the training rows, in the first column."""

    def draw(rng: np.random.Generator) -> Drawn:
        others = [(0.0, 1.0)] * (num_columns - 1)

        def f(X: np.ndarray) -> np.ndarray:
            return np.sin(6 * X).sum(1)

        places = {"inside": _uniform(rng, (0, 1), *others), "beyond": _uniform(rng, (1.1, 1.6), *others)}
        return _numbers(rng, rng.uniform(size=(num_rows, num_columns)), f, 0.1, places)

    return draw


def _corners(rng: np.random.Generator) -> Drawn:
    def f(X: np.ndarray) -> np.ndarray:
        return np.sin(3 * X[:, 0]) + X[:, 1] * X[:, 2] + X[:, 3] ** 2

    signs = rng.choice([-1.0, 1.0], size=(PLACE_ROWS, 5))
    places = {"middle": 0.5 * rng.uniform(-1, 1, (PLACE_ROWS, 5)), "corners": signs * rng.uniform(0.9, 1, signs.shape)}
    return _numbers(rng, rng.uniform(-1, 1, size=(3000, 5)), f, 0.1, places)


def _off_the_curve(rng: np.random.Generator) -> Drawn:
    """Training rows lie near a curve in three columns; test rows also off it."""

    def curve(n: int) -> np.ndarray:
        t = rng.uniform(0, 4, n)
        return np.column_stack([np.cos(t), np.sin(t), t / 2]) + 0.02 * rng.normal(size=(n, 3))

    def f(X: np.ndarray) -> np.ndarray:
        return np.sin(3 * X[:, 0]) + X[:, 1] * X[:, 2]

    on = curve(PLACE_ROWS)
    return _numbers(rng, curve(2500), f, 0.1, {"on": on, "off": on + 0.5 * rng.normal(size=on.shape)})


def _dense_and_sparse(rng: np.random.Generator) -> Drawn:
    x = np.concatenate([rng.uniform(0, 5, (2450, 1)), rng.uniform(5, 10, (50, 1))])
    return _numbers(rng, x, _wave, 0.2, {"dense": _uniform(rng, (0, 5)), "sparse": _uniform(rng, (5, 10))})


def _clusters(rng: np.random.Generator) -> np.ndarray:
    return rng.normal(size=(800, 2)) + 6 * rng.choice([-1.0, 1.0], size=(800, 1))


def _between_clusters(rng: np.random.Generator) -> Drawn:
    places = {"in clusters": _clusters(rng)[:PLACE_ROWS], "between": rng.normal(size=(PLACE_ROWS, 2))}
    return _numbers(rng, _clusters(rng), lambda X: np.sin(X[:, 0]) + 0.2 * X[:, 1], 0.2, places)


def _heavy_inputs(rng: np.random.Generator) -> Drawn:
    def inputs(n: int) -> np.ndarray:
        return rng.standard_t(2, size=(n, 2))

    def f(X: np.ndarray) -> np.ndarray:
        return np.tanh(X[:, 0]) + np.sin(X[:, 1])

    def radius(X: np.ndarray) -> np.ndarray:
        return np.abs(X).max(1)

    places = {
        "core": _where(rng, PLACE_ROWS, inputs, lambda z: radius(z) < 2),
        "tail": _where(rng, PLACE_ROWS, inputs, lambda z: radius(z) > 5),
    }
    return _numbers(rng, inputs(3000), f, 0.2, places)


def _waves_with_a_gap(rng: np.random.Generator) -> Drawn:
    x = rng.uniform(0, 40, size=(2000, 1))
    x = x[(x[:, 0] < 18) | (x[:, 0] > 22)]
    places = {"beside data": _uniform(rng, (2, 17)), "gap of four periods": _uniform(rng, (18, 22))}
    return _numbers(rng, x, lambda X: np.sin(2 * np.pi * X[:, 0]), 0.2, places)


def _later(rng: np.random.Generator) -> Drawn:
    """A season, a trend and slow noise; the latest tenth is predicted."""
    t = np.sort(rng.uniform(0, 22, size=2400))
    walk = np.interp(t, np.linspace(0, 22, 221), np.cumsum(0.1 * rng.normal(size=221)))
    values = dict(zip(t, np.sin(2 * np.pi * t) + 0.2 * t + walk, strict=True))

    def f(X: np.ndarray) -> np.ndarray:
        return np.array([values[x] for x in X[:, 0]])

    X = t[:, None]
    return _numbers(rng, X[:2000], f, 0.2, {"later": X[2000:]}, time=t[:2000])


# ---- noise ----


def _loud(num_rows: int) -> Callable[[np.random.Generator], Drawn]:
    def draw(rng: np.random.Generator) -> Drawn:
        places = {"quiet": _uniform(rng, (-3, -1)), "middle": _uniform(rng, (-1, 1)), "loud": _uniform(rng, (1, 3))}
        X = rng.uniform(-3, 3, size=(num_rows, 1))
        return _numbers(rng, X, _wave, lambda Z: np.exp(0.8 * Z[:, 0] - 1), places)

    return draw


def _pocket(rng: np.random.Generator) -> Drawn:
    def radius(X: np.ndarray) -> np.ndarray:
        return np.hypot(X[:, 0] - 0.5, X[:, 1] - 0.5)

    def draw(n: int) -> np.ndarray:
        return rng.uniform(size=(n, 2))

    places = {
        "centre": _where(rng, PLACE_ROWS, draw, lambda z: radius(z) < 0.15),
        "rim": _where(rng, PLACE_ROWS, draw, lambda z: np.abs(radius(z) - 0.2) < 0.03),
        "outside": _where(rng, PLACE_ROWS, draw, lambda z: radius(z) > 0.25),
    }
    return _numbers(rng, draw(3000), _surface, lambda X: np.where(radius(X) < 0.2, 1.0, 0.05), places)


def _outliers(rng: np.random.Generator) -> Drawn:
    """One target in a hundred is a gross error; test rows are clean."""
    drawn = _numbers(rng, rng.uniform(size=(3000, 2)), _surface, 0.1, {"clean rows": rng.uniform(size=(PLACE_ROWS, 2))})
    wrong = rng.random(len(drawn.y)) < 0.01
    return drawn._replace(y=np.where(wrong, drawn.y + 50 * rng.normal(size=len(wrong)), drawn.y))


def _heavy_tails(rng: np.random.Generator) -> Drawn:
    drawn = _numbers(rng, rng.uniform(size=(2500, 2)), _surface, 0.1, {"all": rng.uniform(size=(1000, 2))})
    law: Any = stats.t(3, scale=0.2)
    noise = law.rvs(size=len(drawn.y_test), random_state=rng)
    y = _surface(drawn.X) + law.rvs(size=len(drawn.y), random_state=rng)
    return drawn._replace(y=y, y_test=drawn.truth + noise, log_density=law.logpdf(noise))


def _skewed(rng: np.random.Generator) -> Drawn:
    """exp of a Gaussian: positive and skewed."""
    log = _numbers(rng, rng.uniform(size=(1500, 2)), _surface, 0.5, {"all": rng.uniform(size=(1000, 2))})
    values = {"y": np.exp(log.y), "y_test": np.exp(log.y_test), "truth": np.exp(log.truth + 0.125)}
    return log._replace(**values, log_density=log.log_density - log.y_test)


def _pure_noise(num_rows: int, num_columns: int) -> Callable[[np.random.Generator], Drawn]:
    def draw(rng: np.random.Generator) -> Drawn:
        X, test = (rng.normal(size=(n, num_columns)) for n in (num_rows, 1000))
        return _numbers(rng, X, lambda Z: np.zeros(len(Z)), 1.0, {"all": test})

    return draw


def _linear(num_rows: int, num_columns: int, std: float = 0.5) -> Callable[[np.random.Generator], Drawn]:
    def draw(rng: np.random.Generator) -> Drawn:
        X, test = (rng.normal(size=(n, num_columns)) for n in (num_rows, 1000))
        return _numbers(rng, X, lambda Z: Z @ np.linspace(1, 0, num_columns), std, {"all": test})

    return draw


def _weak_signal(rng: np.random.Generator) -> Drawn:
    X, test = (rng.normal(size=(n, 5)) for n in (2000, 1000))
    return _numbers(rng, X, lambda Z: 0.25 * np.sin(2 * Z[:, 0]), 1.0, {"all": test})


def _hardly_any_noise(num_rows: int) -> Callable[[np.random.Generator], Drawn]:
    def draw(rng: np.random.Generator) -> Drawn:
        return _numbers(rng, rng.uniform(size=(num_rows, 2)), _surface, 1e-3, {"all": rng.uniform(size=(1000, 2))})

    return draw


# ---- rows ----


def _copies_with_other_targets(rng: np.random.Generator) -> Drawn:
    """A tenth of the rows stands at places that others have, with targets that differ far more than by the noise."""
    X = rng.uniform(size=(3000, 3))
    X[:300] = X[300:600]

    def spread(rows: np.ndarray) -> np.ndarray:
        return np.where(rows[:, 2] > 0.9, 3.0, 0.02)

    def draw(n: int) -> np.ndarray:
        return rng.uniform(size=(n, 3))

    quiet, loud = X[X[:, 2] <= 0.9], X[X[:, 2] > 0.9]
    places = {
        "copies, quiet": quiet[rng.integers(len(quiet), size=PLACE_ROWS)],
        "copies, loud": loud[rng.integers(len(loud), size=PLACE_ROWS)],
        "new rows": draw(PLACE_ROWS),
    }
    return _numbers(rng, X, _surface, spread, places)


def _ten_times(rng: np.random.Generator) -> Drawn:
    drawn = _numbers(rng, rng.uniform(size=(300, 2)), _surface, 0.3, {"new rows": rng.uniform(size=(1000, 2))})
    return _copied(drawn, 10, rng)


def _near_copies(rng: np.random.Generator) -> Drawn:
    first = rng.uniform(size=(1000, 2))
    X = np.concatenate([first, first + 1e-6 * rng.normal(size=first.shape)])
    places = {"near copies": first[:PLACE_ROWS] + 1e-6, "new rows": rng.uniform(size=(PLACE_ROWS, 2))}
    return _numbers(rng, X, _surface, 0.3, places)


def _lattice(rng: np.random.Generator) -> Drawn:
    X, test = (rng.integers(0, 5, size=(n, 2)).astype(float) for n in (1000, 1000))
    return _numbers(rng, X, lambda Z: Z[:, 0] * np.sin(Z[:, 1]), 0.3, {"all": test})


def _missing(num_rows: int) -> Callable[[np.random.Generator], Drawn]:
    """A value of the column that matters most is missing in 15 % of the rows."""

    def draw(rng: np.random.Generator) -> Drawn:
        whole = rng.normal(size=(num_rows + 4000, 2))
        gone = rng.random(len(whole)) < 0.15
        y = 3 * whole[:, 0] + np.sin(2 * whole[:, 1]) + 0.1 * rng.normal(size=len(whole))
        X = np.where(gone[:, None] & (np.arange(2) == 0), np.nan, whole)
        test = np.concatenate([np.flatnonzero(g[num_rows:])[:PLACE_ROWS] for g in (gone, ~gone)]) + num_rows
        truth = np.where(gone, 0.0, 3 * whole[:, 0]) + np.sin(2 * whole[:, 1])
        spread = np.where(gone, np.hypot(3, 0.1), 0.1)
        density = stats.norm.logpdf(y, truth, spread)
        place = np.where(gone, "missing", "whole")
        return Drawn(X[:num_rows], y[:num_rows], X[test], y[test], truth[test], density[test], place[test])

    return draw


def _groups(told: bool) -> Callable[[np.random.Generator], Drawn]:
    """Twenty groups with an effect each; test rows of these, and of new ones."""

    def draw(rng: np.random.Generator) -> Drawn:
        effects, inner = rng.normal(size=60), rng.normal(size=(60, 2))

        def rows(groups: np.ndarray) -> np.ndarray:
            return np.column_stack([inner[groups], rng.normal(size=len(groups))])

        numbers = {name: rng.integers(*ends, size=PLACE_ROWS) for name, ends in (("known", (0, 20)), ("new", (20, 60)))}
        train = rng.integers(0, 20, size=1500)
        places = {f"{name} groups": rows(groups) for name, groups in numbers.items()}
        effect = {tuple(row): e for row, e in zip(inner, effects, strict=True)}

        def f(X: np.ndarray) -> np.ndarray:
            return np.sin(X[:, 2]) + np.array([effect[tuple(row[:2])] for row in X])

        by = {"group": train} if told else {}
        drawn = _numbers(rng, rows(train), f, 0.2, places, **by)
        if told:  # who says so asks for other groups
            kept = drawn.place == "new groups"
            asked = ("X_test", "y_test", "truth", "log_density", "place")
            drawn = drawn._replace(**{name: getattr(drawn, name)[kept] for name in asked})
        return drawn

    return draw


def _levels(rng: np.random.Generator) -> Drawn:
    """Thirty levels, of which a few have most of the rows."""
    share = 1 / np.arange(1, 31) ** 1.5
    effects = rng.normal(size=30)

    def rows(levels: np.ndarray) -> pd.DataFrame:
        return pd.DataFrame({"level": [f"l{j}" for j in levels], "x": rng.uniform(size=len(levels))})

    def f(X: pd.DataFrame) -> np.ndarray:
        return effects[X["level"].str[1:].astype(int)] + np.sin(6 * X["x"].to_numpy())

    train = rng.choice(30, size=1500, p=share / share.sum())
    train[:30] = np.arange(30)
    places = {"common": rows(rng.integers(0, 3, PLACE_ROWS)), "rare": rows(rng.integers(20, 30, PLACE_ROWS))}
    return _numbers(rng, rows(train), f, 0.2, places)


def _unseen_levels(rng: np.random.Generator) -> Drawn:
    effects = rng.normal(size=60)

    def rows(levels: np.ndarray) -> pd.DataFrame:
        return pd.DataFrame({"level": [f"l{j}" for j in levels], "x": rng.uniform(size=len(levels))})

    def f(X: pd.DataFrame) -> np.ndarray:
        return effects[X["level"].str[1:].astype(int)] + np.sin(6 * X["x"].to_numpy())

    places = {"known": rows(rng.integers(0, 5, PLACE_ROWS)), "unseen": rows(rng.integers(5, 60, PLACE_ROWS))}
    return _numbers(rng, rows(rng.integers(0, 5, 600)), f, 0.2, places)


def _shifted_steps(rng: np.random.Generator) -> Drawn:
    """Steps, which trees learn; test rows also outside the range of the first column."""

    def f(X: np.ndarray) -> np.ndarray:
        return np.floor(5 * X[:, 0]) + 3 * X[:, 1] * (X[:, 2] > 0.5)

    places = {
        "inside": rng.uniform(size=(PLACE_ROWS, 4)),
        "shifted": rng.uniform(size=(PLACE_ROWS, 4)) + np.array([1.2, 0, 0, 0]),
    }
    return _numbers(rng, rng.uniform(size=(800, 4)), f, 0.1, places)


def _many_columns(rng: np.random.Generator) -> Drawn:
    X, test = (rng.normal(size=(n, 40)) for n in (1000, 1000))
    return _numbers(rng, X, lambda Z: np.sin(Z[:, 0]) + Z[:, 1] * Z[:, 2], 0.3, {"all": test})


def _huge_units(rng: np.random.Generator) -> Drawn:
    drawn = _numbers(rng, rng.uniform(size=(1000, 2)), _surface, 0.2, {"all": rng.uniform(size=(1000, 2))})
    unit = 1e9
    values = {name: 1e12 + unit * getattr(drawn, name) for name in ("y", "y_test", "truth")}
    inputs = {name: 1e6 + 1e-3 * getattr(drawn, name) for name in ("X", "X_test")}
    return drawn._replace(**values, **inputs, log_density=drawn.log_density - np.log(unit))


def _rounded(rng: np.random.Generator) -> Drawn:
    drawn = _numbers(rng, rng.uniform(size=(1500, 2)), _surface, 0.3, {"all": rng.uniform(size=(1000, 2))})
    return drawn._replace(y=drawn.y.round(1), y_test=drawn.y_test.round(1))


# ---- counts ----


def _constant_rate(rng: np.random.Generator) -> Drawn:
    X, test = (rng.normal(size=(n, 1)) for n in (50, 400))
    return _counts(rng, X, lambda Z: np.full(len(Z), 0.2), {"all": test})


def _rate(X: np.ndarray) -> np.ndarray:
    return np.exp(1.5 + 2 * np.sin(X[:, 0]))


def _rates(shape: float = np.inf, times: int = 1) -> Callable[[np.random.Generator], Drawn]:
    def draw(rng: np.random.Generator) -> Drawn:
        places = {
            "low": _uniform(rng, (-2.4, -0.8)),
            "high": _uniform(rng, (0.8, 2.4)),
            "beyond": _uniform(rng, (4, 5)),
        }
        drawn = _counts(rng, rng.uniform(-3, 3, size=(2000 // times, 1)), _rate, places, shape)
        return drawn if times == 1 else _copied(drawn, times, rng)

    return draw


def _births(rng: np.random.Generator) -> Drawn:
    """Counts from 1 to thousands: fifty levels of very different size, and a slow change."""
    size = rng.uniform(0, 7, 50)

    def rows(n: int) -> pd.DataFrame:
        return pd.DataFrame({"state": [f"s{j}" for j in rng.integers(0, 50, n)], "day": rng.uniform(0, 1, n)})

    def rate(X: pd.DataFrame) -> np.ndarray:
        return np.exp(size[X["state"].str[1:].astype(int)] + 0.3 * np.sin(6 * X["day"].to_numpy()))

    test = rows(1000)
    large = rate(test) > 30
    return _counts(rng, rows(3000), rate, {"small": test[~large], "large": test[large]}, 20.0)


# ---- classes ----


def _logistic(num_rows: int) -> Callable[[np.random.Generator], Drawn]:
    def draw(rng: np.random.Generator) -> Drawn:
        X, test = (rng.normal(size=(n, 3)) for n in (num_rows, 2000))
        return _classes(rng, X, lambda Z: 1 / (1 + np.exp(-2 * Z[:, 0] + Z[:, 1])), {"all": test})

    return draw


def _never(num_rows: int) -> Callable[[np.random.Generator], Drawn]:
    """A class that does not occur where the first column is negative."""

    def draw(rng: np.random.Generator) -> Drawn:
        places = {"never": _uniform(rng, (-1, -0.3), (-1, 1)), "a fifth": _uniform(rng, (0.3, 1), (-1, 1))}
        X = rng.uniform(-1, 1, size=(num_rows, 2))
        return _classes(rng, X, lambda Z: 0.2 * (Z[:, 0] > 0), places)

    return draw


def _class_clusters(rng: np.random.Generator) -> Drawn:
    """Two clusters, a class each; where no row is, the truth is taken as one half."""

    def probability(X: np.ndarray) -> np.ndarray:
        centre = X.mean(1)
        return np.where((np.abs(centre) < 3) | (np.abs(centre) > 12), 0.5, (centre > 0).astype(float))

    far = rng.normal(size=(PLACE_ROWS, 2)) * 1000
    places = {"in clusters": _clusters(rng)[:PLACE_ROWS], "between": 0.5 * rng.normal(size=(PLACE_ROWS, 2)), "far": far}
    return _classes(rng, _clusters(rng), probability, places)


def _sines(num_rows: int, times: int = 1) -> Callable[[np.random.Generator], Drawn]:
    def draw(rng: np.random.Generator) -> Drawn:
        X, test = (rng.uniform(-2, 2, size=(n, 2)) for n in (num_rows, 2000))
        drawn = _classes(rng, X, lambda Z: 1 / (1 + np.exp(-3 * np.sin(2 * Z[:, 0]) * Z[:, 1])), {"all": test})
        return drawn if times == 1 else _copied(drawn, times, rng)

    return draw


def _rare_class(rng: np.random.Generator) -> Drawn:
    X, test = (rng.normal(size=(n, 3)) for n in (6000, 4000))
    return _classes(rng, X, lambda Z: 1 / (1 + np.exp(6.5 - 1.5 * Z[:, 0])), {"all": test})


def _coin(rng: np.random.Generator) -> Drawn:
    X, test = (rng.normal(size=(n, 4)) for n in (500, 1000))
    return _classes(rng, X, lambda Z: np.full(len(Z), 0.3), {"all": test})


def _all() -> Iterator[Situation]:
    for n in (300, 2500, 12_000):
        yield Situation(f"gap on a line, {n:,} rows", _gap_on_a_line(n))
    yield Situation("wide gap", _gap_on_a_line(1000, half=2.0))
    yield Situation("gap, two scales", _gap_on_a_line(3000, f=_two_scales))
    yield Situation("areas hidden on a grid", _clouds)
    yield Situation("beyond a line", _beyond(1, 500))
    yield Situation("beyond a square", _beyond(2, 2500))
    yield Situation("corners of five columns", _corners)
    yield Situation("off a curve", _off_the_curve)
    yield Situation("dense and sparse", _dense_and_sparse)
    yield Situation("between clusters", _between_clusters)
    yield Situation("heavy-tailed inputs", _heavy_inputs)
    yield Situation("waves with a gap", _waves_with_a_gap)
    yield Situation("later rows", _later)
    for n in (300, 1900, 6000):
        yield Situation(f"noise grows, {n:,} rows", _loud(n))
    yield Situation("loud pocket", _pocket)
    yield Situation("gross errors", _outliers)
    yield Situation("heavy tails", _heavy_tails)
    yield Situation("skewed targets", _skewed)
    yield Situation("pure noise, 30 rows", _pure_noise(30, 1))
    yield Situation("pure noise, 500 rows", _pure_noise(500, 8))
    yield Situation("linear, 50 rows", _linear(50, 3))
    yield Situation("linear, 40 rows of 10 columns", _linear(40, 10))
    yield Situation("weak signal", _weak_signal)
    for n in (200, 3000):
        yield Situation(f"hardly any noise, {n:,} rows", _hardly_any_noise(n))
    yield Situation("copies with other targets", _copies_with_other_targets)
    yield Situation("every row ten times", _ten_times)
    yield Situation("every row ten times, once", _ten_times, options={"copies": "once"})
    yield Situation("near copies", _near_copies)
    yield Situation("lattice", _lattice)
    for n in (300, 1500, 5000):
        yield Situation(f"missing values, {n:,} rows", _missing(n))
    yield Situation("groups", _groups(told=False))
    yield Situation("groups, told", _groups(told=True))
    yield Situation("rare levels", _levels)
    yield Situation("unseen levels", _unseen_levels)
    yield Situation("steps, shifted", _shifted_steps)
    yield Situation("forty columns", _many_columns)
    yield Situation("huge units", _huge_units)
    yield Situation("rounded targets", _rounded)
    poisson, binomial = {"likelihood": "poisson"}, {"likelihood": "negative_binomial"}
    yield Situation("constant rate, 50 rows", _constant_rate, "counts", poisson)
    yield Situation("rates", _rates(), "counts", poisson)
    yield Situation("rates, ten times", _rates(times=10), "counts", poisson)
    yield Situation("overdispersed rates", _rates(3.0), "counts", binomial)
    yield Situation("births", _births, "counts", binomial)
    for n in (500, 2000, 8000):
        yield Situation(f"logistic, {n:,} rows", _logistic(n), "classes")
    for n in (900, 3000, 12_000):
        yield Situation(f"a class that never occurs, {n:,} rows", _never(n), "classes")
    yield Situation("clusters of classes", _class_clusters, "classes")
    for n in (500, 4000):
        yield Situation(f"sines, {n:,} rows", _sines(n), "classes")
    yield Situation("sines, ten times", _sines(300, times=10), "classes")
    yield Situation("a rare class", _rare_class, "classes")
    yield Situation("a biased coin", _coin, "classes")


SITUATIONS = {situation.name: situation for situation in _all()}
