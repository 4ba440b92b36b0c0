"""CaGP-CG: its loss and gradient are those of its actions, its posterior is that of CG, and it can be trained."""

import copy

import numpy as np
import oracle
import pytest
import torch
from torch import Tensor

from cagp import GP, CaGPCG, CaGPOpt, GaussianNoise, KnownNoise, fit, iterative, start_from_data
from cagp.dataset import Data
from cagp.iterative import (
    CGResiduals,
    GivenActions,
    KernelColumns,
    Lanczos,
    Mix,
    Policy,
    RandomActions,
    Stopping,
    TopEigenvectors,
    UnitVectors,
    iterate,
)
from cagp.kernels import Matern12, Matern32, Scale
from cagp.prior import ConstantMean, Noise, ZeroMean
from cagp.training import Batch

STREAMED = 2**12


def wave(n=60, d=2, dtype=torch.float64, seed=0) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs, targets and new inputs."""
    g = torch.Generator().manual_seed(seed)
    X = torch.randn(n, d, generator=g, dtype=torch.float64)
    y = torch.sin(2 * X).sum(1) + 0.2 * torch.randn(n, generator=g, dtype=torch.float64)
    Z = torch.randn(6, d, generator=g, dtype=torch.float64)
    return X.to(dtype), y.to(dtype), Z.to(dtype)


def known_noise(X: Tensor) -> Tensor:
    return 0.02 + 0.3 * torch.rand(len(X), generator=torch.Generator().manual_seed(1), dtype=X.dtype)


def make_prior(d: int = 2, noise: Noise | None = None, kernel=Matern32) -> GP:
    return GP(Scale(kernel(d, 0.9), 1.2), ConstantMean(0.1), GaussianNoise(0.05) if noise is None else noise)


def loss_of(method: CaGPCG, X: Tensor, y: Tensor, row_noise: Tensor | None = None) -> float:
    with torch.no_grad():
        return method.objective(X, y, row_noise).item()


@pytest.mark.thinned(10)
@pytest.mark.parametrize("loss", ["elbo", "projected"])
@pytest.mark.parametrize("noise", ["one", "one plus rows", "known rows"])
@pytest.mark.parametrize("max_bytes", [2**28, STREAMED], ids=["kept", "streamed"])
def test_the_objective_is_the_loss_of_its_actions(loss, noise, max_bytes):
    X, y, _ = wave()
    row_noise = None if noise == "one" else known_noise(X)
    prior = make_prior(noise=KnownNoise() if noise == "known rows" else None)
    method = CaGPCG(prior, 12, loss, max_bytes=max_bytes)
    iteration = method.iteration(X, y, row_noise)
    assert (iteration.system._K is not None) == (max_bytes > STREAMED)
    S = oracle.array(iteration.actions.S)
    np.testing.assert_allclose(S.T @ S, np.eye(12), atol=1e-12)
    if loss == "elbo":
        expected = -oracle.elbo(prior, S, X, y, row_noise).value
    else:
        expected = oracle.projected_nll(prior, S, X, y, row_noise)
    assert loss_of(method, X, y, row_noise) == pytest.approx(expected / 60, rel=1e-9)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("loss", ["elbo", "projected"])
@pytest.mark.parametrize("max_bytes", [2**28, STREAMED], ids=["kept", "streamed"])
def test_the_gradient_is_that_of_the_loss_with_its_actions_held(loss, max_bytes):
    X, y, _ = wave()
    row_noise = known_noise(X)
    prior = make_prior()
    method = CaGPCG(prior, 10, loss, max_bytes=max_bytes)
    S = oracle.array(method.iteration(X, y, row_noise).actions.S)
    method.objective(X, y, row_noise).backward()

    def dense_loss(S: np.ndarray) -> float:
        if loss == "elbo":
            return -oracle.elbo(prior, S, X, y, row_noise).value / len(y)
        return oracle.projected_nll(prior, S, X, y, row_noise) / len(y)

    def slope(value: Tensor, loss_at) -> float:
        step = 1e-5
        with torch.no_grad():
            value += step
            above = loss_at()
            value -= 2 * step
            below = loss_at()
            value += step
        return (above - below) / (2 * step)

    moved = 0.0
    for parameter in prior.parameters():
        assert parameter.grad is not None
        for value, gradient in zip(parameter.data.view(-1), parameter.grad.view(-1), strict=True):
            assert float(gradient) == pytest.approx(slope(value, lambda: dense_loss(S)), rel=1e-5, abs=1e-7)
            # The actions do move with the parameters: what the gradient leaves out is there.
            fresh = slope(value, lambda: dense_loss(oracle.array(method.iteration(X, y, row_noise).actions.S)))
            moved = max(moved, abs(fresh - float(gradient)))
    assert moved > 1e-4


def test_the_posterior_has_the_mean_of_cg_and_the_variance_of_its_residuals():
    X, y, Z = wave()
    prior, row_noise = make_prior(kernel=Matern12), known_noise(X)
    Khat = oracle.kernel_matrix(prior.kernel, X, X) + np.diag(oracle.noise_vector(prior.noise, 60, row_noise))
    # Plain conjugate gradients, and the residuals they went through.
    b = oracle.array(y) - 0.1
    v, r = np.zeros(60), b.copy()
    p, residuals = r.copy(), []
    for _ in range(9):
        residuals.append(r)
        alpha = (r @ r) / (p @ Khat @ p)
        v, new = v + alpha * p, r - alpha * (Khat @ p)
        p, r = new + (new @ new) / (r @ r) * p, new
    posterior = CaGPCG(prior, 9).condition(X, y, row_noise)
    mean = 0.1 + oracle.kernel_matrix(prior.kernel, Z, X) @ v
    np.testing.assert_allclose(posterior.mean(Z).numpy(), mean, atol=1e-7)
    expected = oracle.cagp_posterior(prior, np.stack(residuals, 1), X, y, Z, row_noise)
    np.testing.assert_allclose(posterior.mean(Z).numpy(), expected.mean, atol=1e-7)
    np.testing.assert_allclose(posterior.covariance(Z).numpy(), expected.covariance, atol=1e-7)
    exact = oracle.exact_posterior(prior, X, y, Z, row_noise)
    assert (posterior.variance(Z).numpy() >= exact.variance - 1e-9).all()
    assert np.abs(posterior.variance(Z).numpy() - exact.variance).max() > 1e-3


def test_as_many_actions_as_rows_are_the_exact_gp_in_loss_and_posterior():
    X, y, Z = wave(n=25)
    prior = make_prior(kernel=Matern12)
    method = CaGPCG(prior, 25)
    assert method.iteration(X, y).status.num_steps == 25
    assert loss_of(method, X, y) == pytest.approx(-oracle.log_marginal_likelihood(prior, X, y) / 25, rel=1e-8)
    exact = oracle.exact_posterior(prior, X, y, Z)
    posterior = method.condition(X, y)
    np.testing.assert_allclose(posterior.mean(Z).numpy(), exact.mean, atol=1e-8)
    np.testing.assert_allclose(posterior.covariance(Z).numpy(), exact.covariance, atol=1e-8)


def test_a_tolerance_ends_the_iterations_early_and_none_uses_the_whole_budget():
    X, y, _ = wave()
    prior = make_prior(noise=GaussianNoise(0.5))
    loose = CaGPCG(prior, 40, relative_residual=1e-2).iteration(X, y)
    assert loose.status.converged
    assert 1 < loose.status.num_steps < 40
    true = oracle.kernel_matrix(prior.kernel, X, X) + 0.5 * np.eye(60)
    b = oracle.array(y) - 0.1
    assert np.linalg.norm(b - true @ loose.state.weights.numpy()) <= 1e-2 * np.linalg.norm(b)
    assert CaGPCG(prior, 40).iteration(X, y).status.num_steps == 40


@pytest.mark.thinned(2)
@pytest.mark.parametrize(("settings", "num_steps"), [("default", 20), ("paper-lbfgs", 6)])
@pytest.mark.parametrize("loss", ["elbo", "projected"])
def test_it_trains(settings, num_steps, loss):
    X, y, _ = wave()
    method = CaGPCG.from_data(start_from_data(GP(Scale(Matern32(2)), ConstantMean()), X, y), X, 12, loss=loss)
    before = {name: term.item() for name, term in method.terms(Data(X, y), Batch()).items()}
    assert set(before) == ({"negative_log_likelihood", "kl"} if loss == "elbo" else {"projected_nll"})
    result = fit(method, X, y, settings=settings, num_steps=num_steps)
    assert not result.failures
    assert result.best_value < sum(before.values()) - 0.03
    assert loss_of(method, X, y) == pytest.approx(result.best_value, rel=1e-12)  # a function of the parameters alone
    assert any("CaGP-CG with 12 actions on 60 rows" in line and "kept in memory" in line for line in result.findings)
    names = {"kernel.outputscale", "kernel.kernel.lengthscale", "mean.constant", "noise.noise"}
    assert result.steps[0].hyperparameters.keys() == names


def test_training_is_reproducible_and_leaves_posteriors_alone():
    X, y, Z = wave()

    def trained() -> CaGPCG:
        method = CaGPCG(start_from_data(GP(Scale(Matern32(2))), X, y), 8)
        fit(method, X, y, settings="paper-lbfgs", num_steps=3)
        return method

    method, again = trained(), trained()
    for one, other in zip(method.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other)
    posterior = method.condition(X, y)
    before = posterior.predict(Z)
    fit(method, X, y, num_steps=2)
    for one, other in zip(before, posterior.predict(Z), strict=True):
        assert torch.equal(one, other)


@pytest.mark.slow
def test_single_precision_data_train_and_keep_their_dtype():
    X, y, Z = wave(dtype=torch.float32)
    prior = start_from_data(GP(Scale(Matern32(2))), X, y)
    method = CaGPCG(prior, 12, max_bytes=STREAMED)
    before = loss_of(method, X, y)
    result = fit(method, X, y, num_steps=12)
    assert result.best_value < before - 0.02
    assert any("evaluated again for every product" in line for line in result.findings)
    mean, variance = method.condition(X, y).predict(Z, noise=True)
    assert mean.dtype == variance.dtype == torch.float32
    S = method.iteration(X, y).actions.S
    expected = oracle.cagp_posterior(prior, S, X, y, Z)
    np.testing.assert_allclose(mean.numpy(), expected.mean, atol=1e-3)
    np.testing.assert_allclose(variance.numpy(), expected.variance + prior.noise.noise.item(), atol=1e-3)


def test_constant_targets_can_be_learned_from():
    X, _, Z = wave(n=30)
    y = torch.full((30,), 2.5, dtype=torch.float64)
    prior = start_from_data(GP(Scale(Matern32(2)), ConstantMean()), X, y)
    method = CaGPCG(prior, 5)
    result = fit(method, X, y, num_steps=5)
    assert len(result.steps) == 5
    torch.testing.assert_close(
        method.condition(X, y).mean(Z), torch.full((6,), 2.5, dtype=torch.float64), atol=0.2, rtol=0
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 2])
def test_projected_data_overestimate_the_noise_and_the_bound_does_not(seed):
    """Figure "Comparison of two different training losses": data from the prior itself, noise variance 0.04."""
    g = torch.Generator().manual_seed(seed)
    n, noise = 150, 0.04
    X = torch.rand(n, 1, generator=g, dtype=torch.float64)
    truth = GP(Matern32(1, 0.2), ZeroMean(), GaussianNoise(noise))
    Khat = torch.from_numpy(oracle.kernel_matrix(truth.kernel, X, X) + noise * np.eye(n))
    y = torch.linalg.cholesky(Khat) @ torch.randn(n, generator=g, dtype=torch.float64)
    learned = {}
    for loss in ("elbo", "projected"):
        prior = start_from_data(GP(Scale(Matern32(1))), X, y)
        fit(CaGPCG(prior, 10, loss), X, y, num_steps=40)
        learned[loss] = prior.noise.noise.item()
    assert noise / 1.6 < learned["elbo"] < 1.6 * noise  # as close as 150 rows allow
    assert learned["projected"] > 10 * noise


@pytest.mark.usefixtures("annotations_off")
def test_wrong_arguments_are_named():
    X, y, _ = wave()
    with pytest.raises(ValueError, match='loss is \'nll\', expected "elbo", "projected" or "loo"'):
        CaGPCG(make_prior(), 5, "nll")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="num_actions is 61, expected an integer from 1 to 60"):
        CaGPCG.from_data(make_prior(), X, 61)
    with pytest.raises(ValueError, match="num_actions is 61"):
        CaGPCG(make_prior(), 61).objective(X, y)
    with pytest.raises(ValueError, match='loss is \'nll\', expected "elbo", "projected" or "loo"'):
        CaGPOpt.from_data(make_prior(), X, 5, loss="nll")  # pyright: ignore[reportArgumentType]


# --- policies ---------------------------------------------------------------------------------------------------------


class LargestResidual(Policy):
    """A policy of a user's own."""

    def action(self, system, state, memory):
        unit = torch.zeros_like(state.residual)
        unit[state.residual.abs().argmax()] = 1
        return unit, None


def every_policy(X: Tensor, y: Tensor) -> dict[str, Policy]:
    S = torch.randn(len(X), 12, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return {
        "CGResiduals": CGResiduals(),
        "Lanczos": Lanczos(),
        "Lanczos from a vector": Lanczos(S[:, 0]),
        "TopEigenvectors": TopEigenvectors(12),
        "UnitVectors": UnitVectors("pivoted"),
        "UnitVectors in random order": UnitVectors("random", seed=1),
        "RandomActions": RandomActions(),
        "RandomActions of signs": RandomActions("rademacher"),
        "GivenActions": GivenActions(S),
        "KernelColumns": KernelColumns(X[:12]),
        "Mix": Mix((Lanczos(), 6), (UnitVectors("pivoted"), 6)),
        "own": LargestResidual(),
    }


POLICIES = list(every_policy(*wave()[:2]))


def test_every_policy_of_the_package_is_in_the_list():
    classes = {type(policy) for policy in every_policy(*wave()[:2]).values()}
    public = {kind for kind in vars(iterative).values() if isinstance(kind, type) and issubclass(kind, Policy)}
    assert public - {Policy} == classes - {LargestResidual}


@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("loss", ["elbo", "projected"])
def test_every_policy_can_be_trained(name, loss):
    X, y, Z = wave()
    policy = every_policy(X, y)[name]
    method = CaGPCG.from_data(start_from_data(GP(Scale(Matern32(2))), X, y), X, 12, loss=loss, policy=policy)
    iteration = method.iteration(X, y)
    S = oracle.array(iteration.actions.S)
    data = (method.prior, S, X, y)
    expected = -oracle.elbo(*data).value if loss == "elbo" else oracle.projected_nll(*data)
    assert loss_of(method, X, y) == pytest.approx(expected / 60, rel=1e-8)
    if policy.orthogonal:
        np.testing.assert_allclose(S.T @ S, np.eye(S.shape[1]), atol=1e-10)
    result = fit(method, X, y, num_steps=8)
    assert result.best_value < result.steps[0].loss - (0.02 if loss == "elbo" else 0)
    words = "CaGP-CG with" if isinstance(policy, Lanczos) else f"CaGP ({type(policy).__name__}) with"
    assert any(words in line for line in result.findings)
    found = method.iteration(X, y)
    expected = oracle.cagp_posterior(method.prior, oracle.array(found.orthonormal_actions.S), X, y, Z)
    np.testing.assert_allclose(method.condition(X, y).variance(Z).numpy(), expected.variance, atol=1e-7)


def test_a_checkpoint_belongs_to_one_policy(tmp_path):
    X, y, _ = wave()
    S = torch.randn(60, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def train(policy: Policy | None, folder) -> list[float]:
        method = CaGPCG(make_prior(), 5, policy=policy)
        return [step.loss for step in fit(method, X, y, num_steps=3, checkpoint_dir=tmp_path / str(folder)).steps]

    kinds: list[tuple[Policy, Policy]] = [
        (Lanczos(), CGResiduals()),
        (RandomActions(seed=1), RandomActions(seed=2)),
        (GivenActions(S), GivenActions(S + 1)),
        (Mix((Lanczos(), 2), (UnitVectors("random"), 3)), Mix((Lanczos(), 2), (UnitVectors("random", seed=1), 3))),
    ]
    for number, (policy, other) in enumerate(kinds):
        losses = train(policy, number)
        assert train(copy.deepcopy(policy), number) == losses  # the same policy, another object
        with pytest.raises(ValueError, match="belongs to another fit"):
            train(other, number)
    assert train(None, 0) == train(Lanczos(), 0)


@pytest.mark.usefixtures("annotations_off")
def test_something_else_than_a_policy_is_refused():
    with pytest.raises(
        ValueError, match=r"policy is an object of class str, expected a policy, e\.g\. cagp\.iterative\.Lanczos"
    ):
        CaGPCG(make_prior(), 5, policy="lanczos")


ANSWERS = {
    "not a pair": (
        lambda r: r,
        r"Wrong\.action returned a tensor of shape \(60,\), .*expected a pair of the next action",
    ),
    "three": (lambda r: (r, 1, 2), r"returned a tuple of 3, expected a pair"),
    "nothing": (
        lambda r: None,
        r"returned None, expected a pair of the next action, a tensor of shape \(60,\) or None",
    ),
    "a list": (lambda r: (r.tolist(), None), r"returned a list of 60 as its action"),
    "a number": (lambda r: (3.0, None), r"returned an object of class float as its action"),
    "a column": (lambda r: (r[:, None], None), r"returned a tensor of shape \(60, 1\), torch.float64, .*shape \(60,\)"),
    "too short": (lambda r: (r[:7], None), r"returned a tensor of shape \(7,\)"),
    "row numbers": (lambda r: (r.long(), None), r"torch.int64, .*expected floating-point numbers"),
    "NaN": (lambda r: (r * torch.nan, None), r"an action with NaN or infinite values"),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_a_policy_that_returns_something_else_is_told_what_is_expected(name):
    answer, message = ANSWERS[name]

    class Wrong(Policy):
        def action(self, system, state, memory):
            return answer(state.residual)

    X, y, _ = wave()
    method = CaGPCG(make_prior(), 5, policy=Wrong())
    for ask in (method.objective, method.condition, lambda X, y: fit(method, X, y, num_steps=1)):
        with pytest.raises(ValueError, match=message):
            ask(X, y)


@pytest.mark.usefixtures("annotations_off")
def test_the_class_of_a_policy_is_no_policy():
    X, y, _ = wave()
    with pytest.raises(ValueError, match="policy is the class LargestResidual, expected a policy"):
        iterate(make_prior(), X, y, LargestResidual, Stopping(3))
