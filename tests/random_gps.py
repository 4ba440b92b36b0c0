"""Random Gaussian processes, many of them nearly singular, and the exact answers to them in extended precision.

``check_problem(seed, dtype)`` conditions one of this package's methods on the rows of one problem and compares it with
the exact posterior of the same numbers: a variance below the exact one, or a bound above log p(y), is what may not be.
To count over many problems:

    python tests/random_gps.py --count 10000 --dtype float32
"""

import argparse
import json
import math
import time
import warnings
from collections import Counter
from typing import NamedTuple

import numpy as np
import torch
from problems import random_actions
from torch import Tensor

from cagp import GP, SGPR, SVGP, CaGPCG, CaGPLocal, CaGPOpt, CholeskyGP, GaussianNoise
from cagp.kernels import RBF, Constant, Kernel, Linear, Matern12, Matern32, Matern52, Periodic, RationalQuadratic, Scale
from cagp.losses import elbo
from cagp.posteriors import CaGPPosterior, Posterior
from cagp.projection import project

LEAST_SHARE = 0.999
"""Of the exact variance, without a warning."""

LARGEST_EXCESS = 1e-6
"""Of a bound over log p(y), relative to max(1, |log p(y)|)."""

METHODS = ("exact", "opt", "dense", "blocks", "cg", "local", "hybrid", "sgpr", "svgp")
DTYPES = {"float32": torch.float32, "float64": torch.float64}
Long = np.longdouble


class RandomGP(NamedTuple):
    """Rows, known noise of each, test points; and the prior's kernel and noise."""

    prior: GP
    X: Tensor
    y: Tensor
    row_noise: Tensor | None
    Z: Tensor
    words: str


def _kernel(rng: np.random.Generator, d: int) -> tuple[str, Kernel]:
    ell = torch.from_numpy(math.sqrt(d) * 10 ** rng.uniform(-1, 1) * 10 ** rng.uniform(-0.3, 0.3, d))
    kernels = {
        "rbf": lambda: RBF(d, ell),
        "matern12": lambda: Matern12(d, ell),
        "matern32": lambda: Matern32(d, ell),
        "matern52": lambda: Matern52(d, ell),
        "rational quadratic": lambda: RationalQuadratic(d, ell, alpha=10 ** rng.uniform(-0.5, 1)),
        "matern32 + constant": lambda: Scale(Matern32(d, ell), 0.7) + Constant(0.3),
        "rbf + linear": lambda: RBF(d, ell) + Linear(d, 0.1 / ell.square()),
        "matern12 * rbf": lambda: Matern12(d, ell) * RBF(d, 2 * ell),
        "periodic": lambda: Periodic(d, 2.5 * ell, 0.8 * d**0.5),
    }
    name = str(rng.choice(list(kernels), p=[0.16, 0.16, 0.16, 0.16, 0.12, 0.06, 0.06, 0.06, 0.06]))
    return name, Scale(kernels[name](), 10 ** rng.uniform(-2, 2))


def random_gp(seed: int, dtype: torch.dtype) -> RandomGP:
    """A problem of up to 60 rows: noise from 1e-9 of the prior variance on, duplicates, rows far from the origin."""
    rng = np.random.default_rng(seed)
    n, d = int(rng.integers(1, 61)), int(rng.choice([1, 2, 3, 5, 8]))
    name, kernel = _kernel(rng, d)
    X = rng.normal(size=(n, d))
    oddity = str(
        rng.choice(["none", "duplicates", "near duplicates", "grid", "far away"], p=[0.4, 0.15, 0.2, 0.1, 0.15])
    )
    if oddity in ("duplicates", "near duplicates"):
        X = X[rng.integers(0, max(1, n // 2), n)]
    if oddity == "near duplicates":
        X = X + 10 ** rng.uniform(-7, -2) * rng.normal(size=X.shape)
    if oddity == "grid":
        X = np.round(4 * X) / 4
    if oddity == "far away":
        X = X + 10 ** rng.uniform(0, 3, d)
    near = X[rng.integers(0, n, 2)] + 10 ** rng.uniform(-5, -1) * rng.normal(size=(2, d))
    Z = np.concatenate([X.mean(0) + rng.normal(size=(3, d)), X[rng.integers(0, n, 2)], near])
    X, Z = (torch.from_numpy(rows).to(dtype) for rows in (X, Z))
    scale = float(kernel.diag(X.double()).max().detach())
    noise = scale * 10 ** rng.uniform(-9, 0)
    y = math.sqrt(scale) * (np.sin(X.double().numpy().sum(1)) + 0.1 * rng.normal(size=n)) + math.sqrt(
        noise
    ) * rng.normal(size=n)
    row_noise = None
    if rng.random() < 0.2:
        row_noise = torch.from_numpy(noise * 10 ** rng.uniform(-1, 1, n)).to(dtype)
    words = f"{name}, n = {n}, d = {d}, noise/scale = {noise / scale:.1e}, {oddity}"
    return RandomGP(
        GP(kernel, noise=GaussianNoise(noise, noise_floor=0.1 * noise)),
        X,
        torch.from_numpy(y).to(dtype),
        row_noise,
        Z,
        words,
    )


# ---- exact answers ----


def _long(value) -> np.ndarray:
    return np.asarray(value.detach().double().numpy() if isinstance(value, Tensor) else value).astype(Long)


def _matrix(kernel, X: np.ndarray, Z: np.ndarray) -> np.ndarray:
    """k(X, Z) in extended precision, by the textbook formulas."""
    name = type(kernel).__name__
    if name == "Scale":
        return _long(kernel.outputscale) * _matrix(kernel.kernel, X, Z)
    if name == "Sum":
        return sum(_matrix(part, X, Z) for part in kernel.parts)
    if name == "Product":
        return math.prod(_matrix(part, X, Z) for part in kernel.parts)
    if name == "Constant":
        return np.full((len(X), len(Z)), _long(kernel.variance))
    if name == "Linear":
        return (X * _long(kernel.variance)) @ Z.T
    difference = X[:, None] - Z[None]
    if name == "Periodic":
        turns = np.sin(Long(np.pi) * difference / _long(kernel.period)) / _long(kernel.lengthscale)
        return np.exp(-2 * (turns**2).sum(-1))
    r2 = ((difference / _long(kernel.lengthscale)) ** 2).sum(-1)
    if name == "RBF":
        return np.exp(-r2 / 2)
    if name == "RationalQuadratic":
        alpha = _long(kernel.alpha)
        return (1 + r2 / (2 * alpha)) ** -alpha
    s = np.sqrt({"Matern12": 1, "Matern32": 3, "Matern52": 5}[name] * r2)
    return {"Matern12": 1, "Matern32": 1 + s, "Matern52": 1 + s + s**2 / 3}[name] * np.exp(-s)


class Exact(NamedTuple):
    """What exact inference says of a problem."""

    variance: np.ndarray  # of the function at the test points
    log_p: float


def exact(p: RandomGP) -> Exact:
    """The exact Gaussian process, by a Cholesky factorisation in extended precision."""
    X, Z, y = _long(p.X), _long(p.Z), _long(p.y)
    D = _long(p.prior.noise.noise) + (0 if p.row_noise is None else _long(p.row_noise))
    L = _matrix(p.prior.kernel, X, X) + np.diag(D * np.ones(len(X), Long))
    right = np.concatenate([_matrix(p.prior.kernel, X, Z), y[:, None]], axis=1)
    for j in range(len(X)):  # the factor in place, and the triangular solve beside it
        L[j:, j] = L[j:, j] - L[j:, :j] @ L[j, :j]
        L[j:, j] = L[j:, j] / np.sqrt(L[j, j])
        right[j] = (right[j] - L[j, :j] @ right[:j]) / L[j, j]
    variance = np.array([_matrix(p.prior.kernel, z[None], z[None])[0, 0] for z in Z]) - (right[:, :-1] ** 2).sum(0)
    log_p = -(right[:, -1] ** 2).sum() / 2 - np.log(np.diag(L)).sum() - len(X) * math.log(2 * math.pi) / 2
    return Exact(variance.astype(float), float(log_p))


# ---- what the package says ----


class Found(NamedTuple):
    """How one method compares with exact inference on one problem."""

    method: str
    words: str
    noise_share: float  # of the prior variance
    share: float  # the smallest variance of new targets, as a share of the exact one
    share_of_function: float  # the same without the noise, and with round-off of float64 added
    excess: float  # of a bound over log p(y), relative; -inf if there is none
    said: str  # the warning or error, or nothing

    @property
    def wrong(self) -> bool:
        """Overconfident without a word."""
        low = min(self.share, self.share_of_function) < LEAST_SHARE or math.isnan(self.share)
        return not self.said and (low or not self.excess <= LARGEST_EXCESS)


def _answers(method: str, p: RandomGP, rng: np.random.Generator) -> tuple[Posterior | None, float]:
    """A posterior that promises never to be below the exact one, and a bound of log p(y), where there are any."""
    n, data = len(p.X), (p.X, p.y, p.row_noise)
    i, k = int(rng.integers(1, n + 1)), int(rng.integers(1, n + 1))
    generator = torch.Generator().manual_seed(int(rng.integers(2**31)))
    if method == "exact":
        found = CholeskyGP(p.prior)
        return found.condition(*data), -n * found.objective(*data).item()
    if method == "opt":
        found = CaGPOpt.from_data(p.prior, p.X, i)
        return found.condition(*data), -n * found.objective(*data).item()
    if method in ("dense", "blocks"):
        actions = random_actions("dense" if method == "dense" else "uneven", p.X, i, generator)
        posterior = CaGPPosterior(p.prior, project(p.prior, actions, *data))
        return posterior, elbo(p.prior, actions, *data).value.item()
    if method == "cg":
        found = CaGPCG(p.prior, i)
        return found.condition(*data), -n * found.objective(*data).item()
    if method in ("local", "hybrid"):
        shared = random_actions("uneven", p.X, i, generator) if method == "hybrid" else None
        return CaGPLocal(p.prior, shared=shared).condition(*data, num_neighbours=k), -math.inf
    if method == "sgpr":
        return None, -n * SGPR.from_data(p.prior, p.X, i).objective(*data).item()
    found = SVGP.from_data(p.prior, p.X, i)
    found.natural_step(*data)
    return None, -n * found.objective(*data).item()


@torch.no_grad()
def check_problem(seed: int, dtype: torch.dtype) -> Found:
    """One method, chosen by the seed, on the problem of that seed."""
    p, rng = random_gp(seed, dtype), np.random.default_rng([seed, 1])
    method, truth = METHODS[seed % len(METHODS)], exact(p)
    noise, scale = float(p.prior.noise.noise), float(p.prior.kernel.diag(torch.cat([p.X, p.Z]).double()).max())
    share = share_of_function = math.inf
    excess, said = -math.inf, ""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            posterior, bound = _answers(method, p, rng)
            if posterior is not None:
                of_function = [posterior.variance(p.Z), posterior.covariance(p.Z).diagonal()]
                for variance in (value.double().numpy() for value in of_function):
                    share = min(share, float(((variance + noise) / (truth.variance + noise)).min()))
                    least = (variance + 1e-14 * len(p.X) * scale) / truth.variance
                    share_of_function = min(share_of_function, float(least.min()))
                of_targets = posterior.variance(p.Z, noise=True).double().numpy()
                share = min(share, float((of_targets / (truth.variance + noise)).min()))
            excess = (bound - truth.log_p) / max(1.0, abs(truth.log_p))
        except ValueError as error:
            said = f"{type(error).__name__}: {error}"
    said = said or "; ".join(f"{w.category.__name__}: {w.message}" for w in caught)
    return Found(method, f"{method}, {p.words}", noise / scale, share, share_of_function, excess, said)


def main() -> None:
    """Counts over many problems, as a line of JSON."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    parser.add_argument("--show", type=int, default=5, help="of the worst problems")
    options = parser.parse_args()
    torch.set_num_threads(1)
    start = time.process_time()
    found = [check_problem(seed, DTYPES[options.dtype]) for seed in range(options.first, options.first + options.count)]
    silent = [one for one in found if not one.said]
    least = [min(one.share, one.share_of_function) for one in silent]
    record = {
        "dtype": options.dtype,
        "problems": len(found),
        "with a warning or an error": len(found) - len(silent),
        "kinds": dict(Counter(one.said.split(":")[0] for one in found if one.said)),
        "silent, by least share of the exact variance": {s: sum(x < s for x in least) for s in (0.999, 0.99, 0.9, 0.5)},
        "targets": {s: sum(one.share < s for one in silent) for s in (0.999, 0.99, 0.9, 0.5)},
        "worst share": min((one.share for one in silent), default=None),
        "worst share of the function": min((one.share_of_function for one in silent), default=None),
        "bounds above log p(y)": {e: sum(one.excess > e for one in silent) for e in (1e-4, 1e-5, 1e-6, 1e-8)},
        "largest excess": max(one.excess for one in silent),
        "wrong": sum(one.wrong for one in found),
        "wrong, by method": dict(Counter(one.method for one in found if one.wrong)),
        "largest noise of a wrong one": max((one.noise_share for one in found if one.wrong), default=None),
        "seconds of processor time": round(time.process_time() - start, 1),
    }
    print(json.dumps(record, indent=1))
    wrong = sorted((one for one in found if one.wrong), key=lambda one: min(one.share, one.share_of_function))
    for one in wrong[: options.show]:
        print(f"{one.share:.4g} {one.share_of_function:.4g} {one.excess:.2g} {one.words}")


if __name__ == "__main__":
    main()
