"""Priors in files come back to the bit; kernels of your own are given when they are read."""

import pytest
import torch
from persistence_problems import bits, data, same_answers, same_module, scrambled, through_a_file
from problems import KERNELS, make_prior
from torch import Tensor

from cagp import CGGP, GP, CholeskyGP
from cagp.kernels import RBF, Kernel, Linear, Matern32, Scale
from cagp.parameters import Positive
from cagp.posteriors import CGPosterior, posterior_from_state
from cagp.prior import Mean


@pytest.mark.thinned(6)
@pytest.mark.parametrize("mean", ["zero", "constant", "linear"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_every_prior_of_the_package_comes_back_to_the_bit(kernel, mean, tmp_path):
    for known in (True, False):
        prior = make_prior(kernel, 3, 0.1, torch.Generator().manual_seed(1), mean=mean, known=known)
        prior = scrambled(prior, 2)
        if not known:
            prior.noise.noise_floor = 0.1 / 3
        back = GP.from_state(through_a_file(prior.state(), tmp_path))
        same_module(back, prior)
        X = torch.randn(4, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
        assert torch.equal(back.kernel(X, X), prior.kernel(X, X))
        assert torch.equal(back.mean(X), prior.mean(X))
        noises = [p.noise_variance(X, torch.ones_like(X[:, 0])) for p in (back, prior)]
        assert torch.equal(*noises)
        assert all(p.requires_grad for p in back.parameters())


def test_floors_of_kernels_are_kept(tmp_path):
    prior = GP(Scale(RBF(2)))
    prior.kernel.outputscale_floor = 0.25
    back = GP.from_state(through_a_file(prior.state(), tmp_path))
    assert torch.equal(back.kernel.outputscale, prior.kernel.outputscale)
    assert float(back.kernel.outputscale.detach()) == 1.25


class Periodic(Kernel):
    """A kernel as a user would write it, with a plain attribute and a buffer."""

    lengthscale = Positive()

    def __init__(self, period: float = 1.0, num_waves: int = 2):
        super().__init__()
        self.num_waves = num_waves
        self.lengthscale = 1.0
        self.register_buffer("period", torch.tensor(period, dtype=torch.float64))

    def forward(self, X: Tensor, Z: Tensor) -> Tensor:
        phase = self.num_waves * (X.unsqueeze(-2) - Z.unsqueeze(-3)) / self.period.to(X)
        return torch.exp(-(torch.sin(phase) / self.lengthscale.to(X)).square().sum(-1))


class TestKernelsOfYourOwn:
    def stored(self, tmp_path):
        prior = scrambled(GP(Scale(Periodic(1.7) + RBF(2))), 4)
        return prior, through_a_file(prior.state(), tmp_path)

    def test_one_of_the_same_structure_takes_the_parameters(self, tmp_path):
        prior, state = self.stored(tmp_path)
        given = Scale(Periodic(9.0) + RBF(2))
        before = bits(dict(given.state_dict()))
        back = GP.from_state(state, kernel=given)
        same_module(back, prior)
        assert bits(dict(given.state_dict())) == before  # a copy took them
        assert isinstance(back.kernel.kernel.parts[0], Periodic)

    def test_without_one_the_error_says_what_to_give(self, tmp_path):
        _, state = self.stored(tmp_path)
        message = (
            r"Periodic is a class of your own, .*: "
            r"cagp\.load\(path, kernel=Scale\(Sum\(Periodic\(\.\.\.\), RBF\(\.\.\.\)\)\)\)"
        )
        with pytest.raises(ValueError, match=message):
            GP.from_state(state)

    @pytest.mark.parametrize(
        ("kernel", "message"),
        [
            (Scale(Periodic()), r"kernel is Scale\(Periodic\(\.\.\.\)\), the stored one is Scale\(Sum"),
            (Scale(RBF(2) + Periodic()), "give one of the same structure"),
            (Scale(Periodic() + RBF(3)), r"stored RBF has tensors of shapes .*\(2,\).*the one given .*\(3,\)"),
            (Scale(Periodic(num_waves=3) + RBF(2)), "stored Periodic has num_waves = 2, the one given 3"),
        ],
        ids=str,
    )
    def test_another_structure_is_refused(self, kernel, message, tmp_path):
        _, state = self.stored(tmp_path)
        with pytest.raises(ValueError, match=message):
            GP.from_state(state, kernel=kernel)

    def test_a_class_that_has_a_name_of_ours_is_still_your_own(self, tmp_path):
        class RBF(Matern32):
            pass

        state = through_a_file(GP(RBF(2)).state(), tmp_path)
        with pytest.raises(ValueError, match="RBF is a class of your own"):
            GP.from_state(state)
        assert type(GP.from_state(state, RBF(2)).kernel) is RBF

    def test_a_posterior_of_one_answers_the_same(self, tmp_path):
        X, y, _, Z = data(30, torch.float64)
        posterior = CholeskyGP(GP(Scale(Periodic(2.3)) + Linear(3))).condition(X, y)
        back = posterior_from_state(through_a_file(posterior.state(), tmp_path), kernel=Scale(Periodic()) + Linear(3))
        same_answers(back, posterior, Z)


def test_a_kernel_of_ours_may_be_given_too(tmp_path):
    prior = scrambled(GP(Scale(RBF(2))), 5)
    state = through_a_file(prior.state(), tmp_path)
    same_module(GP.from_state(state, Scale(RBF(2))), prior)
    with pytest.raises(ValueError, match=r"kernel is RBF\(\.\.\.\), the stored one is Scale\(RBF"):
        GP.from_state(state, RBF(2))


def test_means_and_posteriors_of_your_own_are_refused_when_they_are_stored():
    class Wave(Mean):
        def forward(self, X: Tensor) -> Tensor:
            return torch.sin(X.sum(1))

    class Better(CGPosterior):
        pass

    with pytest.raises(ValueError, match="the mean is a Wave, a class of your own, which cannot be stored"):
        GP(RBF(2), Wave()).state()
    X, y, _, _ = data(10, torch.float64)
    posterior = CGGP(GP(RBF(3))).condition(X, y)
    posterior.__class__ = Better
    with pytest.raises(ValueError, match="a posterior of class Better, which is your own, cannot be stored"):
        posterior.state()
