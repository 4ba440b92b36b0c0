"""Small conditionals and posteriors of CaGP-Local to test, and what they are compared with."""

from typing import NamedTuple

import numpy as np
import oracle
import torch
from hypothesis import strategies as st
from problems import STATIONARY, Problem
from torch import Tensor

from cagp import CaGPLocal
from cagp.engine import COMPILED, TORCH, Backend, LocalMoments, local_moments
from cagp.kernels import Kernel, Scale
from cagp.posteriors import LocalPosterior

INSTALLED = [TORCH, *([COMPILED] if COMPILED.instruction_set else [])]
TOLERANCE = {torch.float64: 1e-10, torch.float32: 5e-4}


def assert_close(actual, expected, relative: float = 1e-10) -> None:
    """The largest error is at most ``relative`` times the largest expected value, or that of 1 where it is smaller."""
    actual, expected = oracle.array(actual), oracle.array(expected)
    assert actual.shape == expected.shape
    assert np.isfinite(actual).all()
    assert np.abs(actual - expected).max(initial=0.0) <= relative * max(1.0, np.abs(expected).max(initial=0.0))


class Case(NamedTuple):
    """Arguments of ``local_moments``."""

    kernel: Kernel
    questions: Tensor
    X: Tensor
    neighbours: Tensor
    noise: Tensor
    residual: Tensor
    gram: Tensor | None = None
    cross: Tensor | None = None

    def moments(self, backend: Backend | None = None) -> LocalMoments:
        return local_moments(*self, backend=backend)

    def expected(self) -> list[np.ndarray]:
        """cᵀC⁻¹r, cᵀC⁻¹c, rᵀC⁻¹r and the number of rows, a question at a time."""
        answers = []
        for q, rows in enumerate(self.neighbours.tolist()):
            here = [a for a, row in enumerate(rows) if row >= 0]
            near = oracle.array(self.X)[[rows[a] for a in here]]
            C = oracle.kernel_matrix(self.kernel, near, near) + np.diag(oracle.array(self.noise)[q, here])
            c = oracle.kernel_matrix(self.kernel, near, oracle.array(self.questions)[q : q + 1])[:, 0]
            if self.gram is not None and self.cross is not None:
                C = C - oracle.array(self.gram)[q][np.ix_(here, here)]
                c = c - oracle.array(self.cross)[q, here]
            r = oracle.array(self.residual)[q, here]
            a, b = np.linalg.solve(C, np.stack([r, c], axis=1)).T
            answers.append([c @ a, c @ b, r @ a, len(here)])
        return list(np.array(answers).T)


def make_case(
    kernel: Kernel,
    k: int,
    *,
    t: int = 11,
    d: int = 3,
    dtype: torch.dtype = torch.float64,
    given: bool = False,
    missing: bool = False,
    oddity: str = "none",
    seed: int = 0,
) -> Case:
    g = torch.Generator().manual_seed(seed)
    X = torch.randn(60, d, generator=g, dtype=torch.float64)
    if oddity == "duplicate rows":
        X = X[torch.randint(0, 15, (60,), generator=g)]
    elif oddity == "constant column":
        X[:, 0] = 3.7
    X = X.to(dtype)
    questions = torch.cat([X[:2], torch.randn(t - 2, d, generator=g, dtype=torch.float64).to(dtype)])  # rows of X, too
    neighbours = torch.stack([torch.randperm(60, generator=g)[:k] for _ in range(t)])
    if missing:
        neighbours[torch.rand(t, k, generator=g) < 0.4] = -1
        neighbours[2] = -1
    noise = 0.05 + torch.rand(t, k, generator=g, dtype=torch.float64)
    residual = torch.randn(t, k, generator=g, dtype=torch.float64)
    case = Case(kernel, questions, X, neighbours, noise.to(dtype), residual.to(dtype))
    if not given:
        return case
    # What the function's values at three more inputs explain.
    Z = np.random.default_rng(seed).normal(size=(3, d))
    root = np.linalg.inv(np.linalg.cholesky(oracle.kernel_matrix(kernel, Z, Z) + 1e-3 * np.eye(3)))
    of_rows = torch.from_numpy(oracle.kernel_matrix(kernel, X, Z) @ root.T)[neighbours.clamp_min(0)]
    of_questions = torch.from_numpy(oracle.kernel_matrix(kernel, questions, Z) @ root.T)
    gram, cross = of_rows @ of_rows.mT, (of_rows @ of_questions[:, :, None])[:, :, 0]
    return case._replace(gram=gram.to(dtype), cross=cross.to(dtype))


def stationary(name: str, d: int, seed: int = 0) -> Kernel:
    lengthscale = d**0.5 * (0.4 + torch.rand(d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64))
    return Scale(STATIONARY[name](d, lengthscale), 1.3)


def leaves(case: Case) -> list[Tensor]:
    """Questions, noise, residual, gram and cross if given, and the kernel's parameters."""
    tensors = [case.questions, case.noise, case.residual, case.gram, case.cross, *case.kernel.parameters()]
    return [tensor for tensor in tensors if tensor is not None]


def weighted_sum(case: Case, backend: Backend | None) -> Tensor:
    weights = torch.randn(2, len(case.questions), generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    mean, explained, misfit, num_rows = case.moments(backend)
    assert not misfit.requires_grad
    assert not num_rows.requires_grad
    return (weights[0] * mean.double() + weights[1] * explained.double()).sum()


def gradients(case: Case, backend: Backend | None) -> list[Tensor]:
    floating = {name: value for name, value in case._asdict().items() if name not in ("kernel", "X", "neighbours")}
    fresh = {name: None if v is None else v.detach().clone().requires_grad_() for name, v in floating.items()}
    case = case._replace(**fresh)
    return list(torch.autograd.grad(weighted_sum(case, backend), leaves(case)))


def slope(function, tensor: Tensor, direction: Tensor, step: float = 1e-5) -> float:
    """The derivative of function() when ``tensor`` moves, by central differences."""
    values = []
    with torch.no_grad():
        for sign in (1, -1):
            tensor.add_(direction, alpha=sign * step)
            values.append(float(function()))
            tensor.sub_(direction, alpha=sign * step)
    return (values[0] - values[1]) / (2 * step)


def condition(p: Problem, k: int, *, hybrid: bool, y: Tensor | None = None, **choices) -> LocalPosterior:
    method = CaGPLocal(p.prior, shared=p.actions if hybrid else None)
    return method.condition(p.X, p.y if y is None else y, p.row_noise, num_neighbours=k, **choices)


def draw_neighbours(data, n: int) -> int:
    return data.draw(st.integers(1, n), label="neighbours")
