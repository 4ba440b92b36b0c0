"""Adam against torch's own, bit for bit."""

import subprocess
import sys

import pytest
import torch
from torch import nn

from cagp.training.optimizers import Adam


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_bits_are_those_of_torch(dtype):
    generator = torch.Generator().manual_seed(0)
    values = [torch.randn(shape, generator=generator, dtype=dtype) for shape in ((), (3,), (4, 2), (5,))]
    own, theirs = ([nn.Parameter(value.clone()) for value in values] for _ in range(2))
    adam = Adam([own[:2], own[2:]])
    expected = torch.optim.Adam([{"params": theirs[:2]}, {"params": theirs[2:]}])
    for step in range(30):
        rates = [0.1 * 0.9**step, 0.02]
        for mine, other in zip(own, theirs, strict=True):
            gradient = torch.randn(mine.shape, generator=generator, dtype=dtype)
            mine.grad, other.grad = gradient, gradient.clone()
        if step % 3 == 1:  # a parameter without a gradient stays, and so do its averages
            own[1].grad = theirs[1].grad = None
        for group, rate in zip(expected.param_groups, rates, strict=True):
            group["lr"] = rate
        adam.step(rates)
        expected.step()
        assert all(map(torch.equal, own, theirs))
    stored = expected.state_dict()["state"]
    assert adam.state.keys() == stored.keys()
    for number, state in adam.state.items():
        assert state.keys() == stored[number].keys()
        assert all(torch.equal(value, stored[number][name]) for name, value in state.items())


@pytest.mark.slow
def test_a_fit_does_not_load_the_compiler_of_torch():
    """It takes more than a second, as much as a small fit."""
    program = """
import sys, torch
from cagp import GP, CaGPLocal, fit
from cagp.kernels import Matern32, Scale
X = torch.rand(50, 2, dtype=torch.float64)
fit(CaGPLocal(GP(Scale(Matern32(2))), 8), X, X.sum(1), num_steps=2)
print("torch._dynamo" in sys.modules)
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["False"], found.stderr
