"""Data, priors and posteriors to store, and the bits of what comes back."""

from pathlib import Path

import torch
from torch import Tensor, nn

from cagp import CGGP, GP, SGPR, SVGP, CaGPCG, CaGPLocal, CaGPOpt, CholeskyGP, GaussianNoise, KnownNoise, LinearMean
from cagp.actions import BlockActions, DenseActions
from cagp.kernels import RBF, Linear, Matern32, Scale
from cagp.posteriors import Posterior
from cagp.storage import load_state, save_state

KIND, VERSION = "model", 3


def through_a_file(state, folder: Path, **choices):
    save_state(folder / "file", state, KIND, VERSION)
    return load_state(folder / "file", KIND, VERSION, **choices)


def bits(value):
    """Something that is equal for equal types and bits alone: 0.0 is not -0.0, 1 is not True."""
    if isinstance(value, Tensor):
        flat = value.detach().contiguous().reshape(-1)
        return ("tensor", value.dtype, tuple(value.shape), bytes(flat.view(torch.uint8).tolist()))
    if isinstance(value, dict):
        return ("dict", [(type(key), key, bits(item)) for key, item in value.items()])
    if isinstance(value, list | tuple):
        return ("list", [bits(item) for item in value])
    return (type(value), repr(value) if isinstance(value, float) else value)


def same_module(actual: nn.Module, expected: nn.Module) -> None:
    assert str(actual) == str(expected)
    assert bits(dict(actual.state_dict())) == bits(dict(expected.state_dict()))
    for part, other in zip(actual.modules(), expected.modules(), strict=True):
        plain = [{k: v for k, v in vars(m).items() if isinstance(v, int | float | str)} for m in (part, other)]
        assert plain[0] == plain[1]


def scrambled(prior: GP, seed: int) -> GP:
    """The prior with other raw values, none of them a round number."""
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in prior.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=g, dtype=torch.float64))
    return prior


def data(n: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Inputs, targets, known noise and questions."""
    g = torch.Generator().manual_seed(n)
    X, Z = (torch.randn(m, 3, generator=g, dtype=torch.float64).to(dtype) for m in (n, 7))
    y = torch.sin(2 * X.sum(1)) + 0.1 * torch.randn(n, generator=g, dtype=torch.float64).to(dtype)
    return X, y, (0.05 + torch.rand(n, generator=g, dtype=torch.float64)).to(dtype), torch.cat([Z, X[:2]])


def new_prior(known: bool = False) -> GP:
    noise = KnownNoise() if known else GaussianNoise(0.07, 1e-4)
    return scrambled(GP(Scale(Matern32(3) + Linear(3) * RBF(3)), LinearMean(3), noise), 11)


def dense(X: Tensor) -> DenseActions:
    return DenseActions(torch.randn(len(X), 5, generator=torch.Generator().manual_seed(1)).to(X))


MAX_BYTES = 200_000
POSTERIORS = {
    "opt": lambda X, y, v: CaGPOpt.from_data(new_prior(), X, 12, max_bytes=MAX_BYTES).condition(X, y),
    "opt, some rows": lambda X, y, v: CaGPOpt.from_data(
        new_prior(), X, 12, support_size=4, generator=torch.Generator().manual_seed(0)
    ).condition(X, y, v),
    "dense": lambda X, y, v: CaGPOpt(new_prior(), dense(X)).condition(X, y, v),
    "cg actions": lambda X, y, v: CaGPCG(new_prior(known=True), 9).condition(X, y, v),
    "exact": lambda X, y, v: CholeskyGP(new_prior()).condition(X, y, v),
    "sgpr": lambda X, y, v: SGPR.from_data(new_prior(), X, 10, max_bytes=MAX_BYTES).condition(X, y, v),
    "svgp": lambda X, y, v: SVGP.from_data(new_prior(), X, 10).condition(X, y),
    "cggp": lambda X, y, v: CGGP(new_prior(), precondition_rank=7, max_bytes=MAX_BYTES).condition(X, y),
    "cggp, known rows": lambda X, y, v: CGGP(new_prior(known=True), tolerance=1e-6).condition(X, y, v),
    "local": lambda X, y, v: CaGPLocal(new_prior(), 6).condition(X, y),
    "local, known rows": lambda X, y, v: CaGPLocal(new_prior(known=True), 6).condition(X, y, v),
    "local by tree": lambda X, y, v: CaGPLocal(new_prior(), 6, index_kind="tree", max_bytes=MAX_BYTES).condition(X, y),
    "hybrid": lambda X, y, v: CaGPLocal(new_prior(), 6, shared=BlockActions.from_data(X, 8)).condition(X, y, v),
    "hybrid, dense": lambda X, y, v: CaGPLocal(new_prior(), 6, shared=dense(X)).condition(X, y),
    "shared alone": lambda X, y, v: CaGPLocal(new_prior(), 6, shared=BlockActions.from_data(X, 8)).condition(
        X, y, num_neighbours=0
    ),
}


def made(name: str, dtype: torch.dtype, n: int = 90) -> tuple[Posterior, Tensor]:
    X, y, row_noise, Z = data(n, dtype)
    return POSTERIORS[name](X, y, row_noise), Z


def answers(posterior: Posterior, Z: Tensor) -> list[Tensor]:
    generator = torch.Generator().manual_seed(5)
    noise = torch.full_like(Z[:, 0], 0.3)
    return [
        posterior.mean(Z),
        *posterior.predict(Z, noise=True, row_noise=noise),
        posterior.variance(Z),
        posterior.covariance(Z),
        posterior.covariance(Z[:3], Z[3:]),
        posterior.sample(Z, 3, generator=generator),
    ]


def same_answers(actual: Posterior, expected: Posterior, Z: Tensor) -> None:
    for a, b in zip(answers(actual, Z), answers(expected, Z), strict=True):
        assert bits(a) == bits(b)
