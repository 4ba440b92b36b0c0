"""The public checks pass for the package's own classes, and name what a wrong one gets wrong."""

import subprocess
import sys

import pytest
import torch
from inference_problems import Waves
from torch import Tensor, nn

from cagp import CGGP, GP, MAP, SGPR, SVGP, CaGPCG, CaGPLocal, CaGPOpt, CholeskyGP, GaussianNoise, Method
from cagp.actions import BlockActions
from cagp.kernels import Matern32, Scale
from cagp.methods import MultiTarget
from cagp.posteriors import Posterior, Prediction
from cagp.testing import check_method, check_never_below, check_posterior
from cagp.training import ParameterGroup, StepRows, Trainable

seeded = torch.Generator().manual_seed


def make_data() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    g = seeded(0)
    X = torch.randn(30, 2, generator=g, dtype=torch.float64)
    y = torch.sin(2 * X[:, 0]) + 0.1 * torch.randn(30, generator=g, dtype=torch.float64)
    return X, y, 0.02 + 0.1 * torch.rand(30, generator=g, dtype=torch.float64), X[:8] + 0.1


def prior() -> GP:
    return GP(Scale(Matern32(2, [0.9, 1.3])), noise=GaussianNoise(0.1))


# --- posteriors -------------------------------------------------------------------------------------------------------


class Own(Posterior):
    """A posterior of a user's own: exact inference by the textbook. ``fault`` makes an answer wrong."""

    def __init__(self, prior: GP, X: Tensor, y: Tensor, fault: str = ""):
        Khat = prior.kernel(X, X) + torch.diag(prior.noise_variance(X))
        self.inverse, self.fault, self.asked = torch.linalg.inv(Khat).detach(), fault, 0
        super().__init__(prior, X, self.inverse @ (y - prior.mean(X)))
        if fault == "prior":
            self.prior.requires_grad_(True)

    @property
    def never_below_exact(self) -> bool:
        return True

    @property
    def _width(self) -> int:
        return 2 * len(self.X)

    def _moments(self, X: Tensor) -> tuple[Tensor, Tensor]:
        cross = self.prior.kernel(X, self.X)
        variance = self.prior.kernel.diag(X) - ((cross @ self.inverse) * cross).sum(1)
        self.asked += 1
        if self.fault == "changes":
            variance = variance * (1 + 1e-6 * self.asked)
        elif self.fault == "tiles":
            variance = variance * (1 + 0.01 * len(X))
        elif self.fault == "overconfident":
            variance = 0.9 * variance
        elif self.fault == "gradient":
            variance = variance.detach()
        mean = self.prior.mean(X) + cross @ self._representer
        return (mean + 0.01 if self.fault == "mean" else mean), variance

    def _covariance(self, X: Tensor, Z: Tensor | None) -> Tensor:
        other = X if Z is None else Z
        root = self.prior.kernel(X, self.X) @ self.inverse
        C = self.prior.kernel(X, other) - root @ self.prior.kernel(self.X, other)
        if self.fault == "overconfident":
            C = 0.9 * C
        elif self.fault == "indefinite" and len(X) > 1:
            C = C - 0.5 * (1 - torch.eye(len(X), len(other), dtype=X.dtype))
        elif self.fault == "block" and Z is not None:
            C = 1.1 * C
        return C

    def predict(self, X, *, noise=False, row_noise=None) -> Prediction:
        if self.fault == "dtype":
            return Prediction(*(answer.float() for answer in super().predict(X, noise=noise, row_noise=row_noise)))
        if self.fault == "noise":
            row_noise = None
        return super().predict(X, noise=noise, row_noise=row_noise)

    def sample(self, X, num_samples, *, noise=False, row_noise=None, generator=None) -> Tensor:
        draws = super().sample(X, num_samples, noise=noise, row_noise=row_noise, generator=generator)
        if self.fault == "samples":
            return 1.5 * draws
        self.asked += 1
        return draws + 1e-3 * self.asked if self.fault == "generator" else draws


def test_a_correct_posterior_of_ones_own_passes():
    X, y, _, new = make_data()
    check_posterior(Own(prior(), X, y), new, exact=CholeskyGP(prior()).condition(X, y))


FAULTS = {
    "mean": "mean and the mean of predict differ",
    "changes": "another variance when it is called again",
    "tiles": "depends on the other test points",
    "indefinite": "positive semi-definite",
    "block": "not a block of the whole",
    "dtype": "float32",
    "noise": "does not add learned and known noise",
    "samples": "samples have a different",
    "generator": "samples with the same generator differ",
    "gradient": "the variance is not differentiable in the inputs",
    "prior": "can still be trained",
    "overconfident": "smaller by|below the exact one",
}


@pytest.mark.thinned(11)
@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_wrong_with_a_posterior_is_named(fault):
    X, y, _, new = make_data()
    posterior, exact = Own(prior(), X, y, fault), CholeskyGP(prior()).condition(X, y)
    with pytest.raises(AssertionError, match=FAULTS[fault]):
        check_posterior(posterior, new, exact=exact)


def test_inputs_that_should_be_refused_and_are_not_are_named():
    X, y, _, new = make_data()

    class Careless(Own):
        def mean(self, X: Tensor) -> Tensor:
            return self.prior.mean(X) + self.prior.kernel(X.double(), self.X) @ self._representer

    with pytest.raises(AssertionError, match="inputs with another dtype returned a value, expected a ValueError"):
        check_posterior(Careless(prior(), X, y), new)
    with pytest.raises(AssertionError, match="expected at least five"):
        check_posterior(Own(prior(), X, y), new[:4])


def test_inducing_points_are_found_to_be_below_the_exact_variance():
    X, y, _, new = make_data()
    exact = CholeskyGP(prior()).condition(X, y)
    check_never_below(CaGPOpt.from_data(prior(), X, 4).condition(X, y), exact, new)
    far = torch.full((6, 2), 9.0, dtype=torch.float64) + torch.arange(6)[:, None]
    method = SVGP(prior(), far[:2])
    method.natural_step(X, y)
    with torch.no_grad():
        method.whitened_root.mul_(0.1)
    posterior = method.condition(X, y)
    assert not posterior.never_below_exact  # it promises nothing, so the suite does not ask
    with pytest.raises(AssertionError, match="smaller by"):
        check_never_below(posterior, exact, far)


# --- methods ----------------------------------------------------------------------------------------------------------


METHODS = {
    "CaGPOpt": lambda X: CaGPOpt.from_data(prior(), X, 6, start="random", generator=seeded(0)),
    "CaGPOpt, projected": lambda X: CaGPOpt.from_data(prior(), X, 6, loss="projected"),
    "CaGPOpt, leave-one-out": lambda X: CaGPOpt.from_data(prior(), X, 6, loss="loo"),
    "CaGPOpt, rule": lambda X: CaGPOpt(prior(), Waves(X[:6].T.contiguous())),
    "CaGPCG": lambda X: CaGPCG(prior(), 6),
    "CaGPLocal": lambda X: CaGPLocal(prior(), 4, batch_size=9),
    "CaGPLocal, shared": lambda X: CaGPLocal(
        prior(), 4, batch_size=9, shared=BlockActions.from_data(X, 4, support_size=3, generator=seeded(1))
    ),
    "CholeskyGP": lambda X: CholeskyGP(prior()),
    "SGPR": lambda X: SGPR.from_data(prior(), X, 5),
    "SVGP": lambda X: SVGP.from_data(prior(), X, 5, batch_size=9),
    "SVGP, joint": lambda X: SVGP.from_data(prior(), X, 5, batch_size=9, gradient="joint"),
    "CGGP": lambda X: CGGP(prior(), precondition_rank=4, tolerance=1e-8),
    "MAP": lambda X: MAP(CaGPOpt.from_data(prior(), X, 6)),
}


@pytest.mark.thinned(6)
@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("known", [False, True], ids=["one noise", "known noise"])
def test_every_method_passes(name, known):
    X, y, row_noise, _ = make_data()
    method = METHODS[name](X)
    check_method(method, X, y, row_noise if known else None, gradients=name not in ("CaGPCG", "CGGP"))


def test_several_targets_pass():
    X, y, row_noise, _ = make_data()
    kernel = prior().kernel
    method = MultiTarget([CholeskyGP(GP(kernel, noise=GaussianNoise(noise))) for noise in (0.1, 0.3)])
    check_method(method, X, torch.stack([y, -y], 1), torch.stack([row_noise, row_noise], 1))


class Parabola(Trainable):
    """A trainable of a user's own. ``fault`` makes it wrong."""

    def __init__(self, fault: str = ""):
        super().__init__()
        self.x, self.fault, self.calls = nn.Parameter(torch.ones(2, dtype=torch.float64)), fault, 0
        self.register_buffer("seen", torch.zeros(1, dtype=torch.float64))

    def terms(self, data, batch) -> dict[str, Tensor]:
        y, rows = data.y, batch.rows
        used = y if rows is None else y[rows]
        if self.fault == "attribute":
            self.calls += 1
        elif self.fault == "buffer":
            self.seen += 1
        elif self.fault == "data":
            y += 1e-9
        x = self.x.detach() + 0.5 * (self.x - self.x.detach()) if self.fault == "gradient" else self.x
        self.last = getattr(self, "last", 0) + 1
        drift = 1e-3 * self.last if self.fault == "drift" else 0.0
        return {"fit": (used - x[0]).square().mean() + drift, "penalty": x.square().sum()}

    def objective(self, X, y=None, row_noise=None, *, rows=None) -> Tensor:
        value = super().objective(X, y, row_noise, rows=rows)
        return value + 1 if self.fault == "sum" else value

    def rows(self, step: int, num_rows: int) -> StepRows:
        drawn = torch.randperm(num_rows)[:5] if self.fault == "rows" else torch.arange(step, step + 5) % num_rows
        return StepRows(drawn)

    def parameter_groups(self) -> dict[str, ParameterGroup]:
        group = ParameterGroup([self.x], -1.0 if self.fault == "rate" else 0.1)
        return {"first": group, "second": group} if self.fault == "twice" else {"all": group}


def test_a_correct_method_of_ones_own_passes():
    X, y, _, _ = make_data()
    method = Parabola()
    method.last = 0
    method.terms = lambda data, batch: {  # pure
        "fit": ((data.y if batch.rows is None else data.y[batch.rows]) - method.x[0]).square().mean(),
        "penalty": method.x.square().sum(),
    }
    check_method(method, X, y)


METHOD_FAULTS = {
    "attribute": "evaluating the objective changed calls",
    "buffer": "evaluating the objective changed seen",
    "data": "is another number|the terms of all rows add up|changed y",
    "drift": "the terms of all rows add up to .*, objective says",
    "gradient": r"the gradient in 'x' is .* finite differences say",
    "sum": "the terms of all rows add up to .*, objective says",
    "rows": r"rows\(0, 30\) gives other rows",
    "rate": "learning rate of 'all' is -1.0",
    "twice": "names a parameter twice",
}


@pytest.mark.parametrize("fault", METHOD_FAULTS)
def test_what_is_wrong_with_a_method_is_named(fault):
    X, y, _, _ = make_data()
    state = torch.get_rng_state()
    try:
        with pytest.raises(AssertionError, match=METHOD_FAULTS[fault]):
            check_method(Parabola(fault), X, y)
    finally:
        torch.set_rng_state(state)


def test_a_posterior_that_follows_its_method_is_named():
    class Following(Method):
        def __init__(self):
            super().__init__()
            self.prior = prior()

        def terms(self, data, batch) -> dict[str, Tensor]:
            return CholeskyGP(self.prior).terms(data, batch)

        def posterior(self, data) -> Posterior:
            posterior = CholeskyGP(self.prior).posterior(data)
            posterior.prior = self.prior
            return posterior

    X, y, _, _ = make_data()
    with pytest.raises(AssertionError, match="of a posterior changes with the method; expected a snapshot"):
        check_method(Following(), X, y)


@pytest.mark.slow
def test_the_checks_need_no_test_framework():
    code = "import sys, cagp.testing; print([m for m in ('pytest', 'hypothesis') if m in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == "[]"
