"""Actions that depend on hyperparameters: what they span, their gradients, and how they relate to SGPR and CaGP-CG."""

import numpy as np
import oracle
import pytest
import torch
from inference_problems import assert_close, assert_gradient_is_the_slope, wave
from inference_problems import wave_prior as make_prior
from torch import Tensor

from cagp import GP, SGPR, CaGPCG, CaGPOpt, KnownNoise, fit, start_from_data
from cagp.kernels import Linear, Matern12, Matern32, Scale
from cagp.prior import ZeroMean
from cagp.testing import check_method
from cagp_bench.action_rules import KrylovActions, PseudoInputActions

STREAMED = 2**12


def columns_of(prior: GP, X: Tensor, Z: Tensor, row_noise: Tensor | None) -> np.ndarray:
    """D⁻¹k(X, Z)."""
    noise = oracle.noise_vector(prior.noise, len(X), row_noise)
    return oracle.kernel_matrix(prior.kernel, X, Z) / noise[:, None]


# --- pseudo-inputs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", ["one", "one plus rows", "known rows"])
@pytest.mark.parametrize("max_bytes", [2**28, STREAMED], ids=["kept", "streamed"])
def test_pseudo_inputs_give_the_loss_and_posterior_of_their_columns(noise, max_bytes):
    X, y, row_noise, new = wave()
    row_noise = None if noise == "one" else row_noise
    prior = make_prior(noise=KnownNoise() if noise == "known rows" else None)
    Z = X[:8] + 0.1
    method = CaGPOpt(prior, PseudoInputActions(Z, max_bytes), max_bytes=max_bytes)
    S = columns_of(prior, X, Z, row_noise)
    with torch.no_grad():
        assert_close(method.objective(X, y, row_noise), -oracle.elbo(prior, S, X, y, row_noise).value / 40)
    posterior, expected = method.condition(X, y, row_noise), oracle.cagp_posterior(prior, S, X, y, new, row_noise)
    assert_close(posterior.mean(new), expected.mean, 1e-9)
    assert_close(posterior.covariance(new), expected.covariance, 1e-9)


@pytest.mark.parametrize("known", [False, True], ids=["one noise", "noise by row"])
def test_gradients_reach_pseudo_inputs_and_hyperparameters(known):
    X, y, row_noise, _ = wave(20)
    row_noise = row_noise if known else None
    prior, Z = make_prior(), X[:4] + 0.1
    rule = PseudoInputActions(Z)
    method = CaGPOpt(prior, rule)

    def dense_loss() -> float:
        S = columns_of(prior, X, rule.pseudo_inputs().detach(), row_noise)
        return -oracle.elbo(prior, S, X, y, row_noise).value / len(y)

    assert_gradient_is_the_slope(method, dense_loss, X, y, row_noise)


@pytest.mark.parametrize("known", [False, True], ids=["one noise", "noise by row"])
@pytest.mark.parametrize("case", ["a kernel of low rank", "Z = X"])
def test_pseudo_inputs_sgpr_and_the_exact_gp_agree_where_inducing_points_say_all(case, known):
    X, y, row_noise, new = wave(15)
    row_noise = row_noise if known else None
    prior = make_prior(Linear(2, 0.7) if case == "a kernel of low rank" else Scale(Matern12(2, 0.8), 1.3))
    Z = new[:2] if case == "a kernel of low rank" else X
    ours, sgpr = CaGPOpt(prior, PseudoInputActions(Z)), SGPR(prior, Z)
    exact = oracle.exact_posterior(prior, X, y, new, row_noise)
    for method in (ours, sgpr):
        posterior = method.condition(X, y, row_noise)
        assert_close(posterior.mean(new), exact.mean, 1e-6)
        assert_close(posterior.covariance(new), exact.covariance, 1e-6)
        with torch.no_grad():
            bound = -15 * method.objective(X, y, row_noise)
        assert_close(bound, oracle.log_marginal_likelihood(prior, X, y, row_noise), 1e-6)


def weights_of(posterior_of, num_rows: int, new: Tensor) -> np.ndarray:
    """c (t, n) with mean(new) = c y: the posterior mean for every unit vector of targets."""
    units = torch.eye(num_rows, dtype=torch.float64)
    return np.stack([posterior_of(unit).mean(new).numpy() for unit in units], 1)


def worst_case(prior: GP, X: Tensor, c: np.ndarray, new: Tensor) -> np.ndarray:
    """sup (y(x) - cᵀy(X))² over the unit ball of the RKHS of k + noise, at each new input."""
    found = []
    for weights, x in zip(c, new, strict=True):
        e = np.append(-weights, 1.0)
        found.append(e @ oracle.noisy_gram(prior, torch.cat([X, x[None]])) @ e)
    return np.array(found)


def test_sgpr_sees_the_same_projections_and_errs_more_in_the_worst_case():
    X, y, _, new = wave(30)
    prior, Z = make_prior(mean=ZeroMean()), X[:6] + 0.2
    new = torch.cat([new, Z])
    ours = CaGPOpt(prior, PseudoInputActions(Z))
    c_ours = weights_of(lambda unit: ours.condition(X, unit), 30, new)
    c_sgpr = weights_of(lambda unit: SGPR(prior, Z).condition(X, unit), 30, new)
    # Both means are functions of k(Z, X)y: their weights lie in the span of k(X, Z).
    Q = np.linalg.qr(oracle.kernel_matrix(prior.kernel, X, Z))[0]
    for c in (c_ours, c_sgpr):
        np.testing.assert_allclose(c @ Q @ Q.T, c, atol=1e-8)
    # The variance is the worst-case error of the mean, and no other function of these projections has a smaller one.
    variance = ours.condition(X, y).variance(new, noise=True).numpy()
    np.testing.assert_allclose(worst_case(prior, X, c_ours, new), variance, rtol=1e-8)
    assert (worst_case(prior, X, c_sgpr, new) >= variance - 1e-9).all()
    assert (worst_case(prior, X, c_sgpr, new) > 1.01 * variance).any()


def test_pseudo_inputs_that_coincide_count_once():
    X, y, _, new = wave()
    prior, Z = make_prior(), X[:5] + 0.1
    once, twice = (CaGPOpt(prior, PseudoInputActions(z)) for z in (Z, torch.cat([Z, Z[:2]])))
    with torch.no_grad():
        assert twice.actions.actions(prior, X, y).num_actions == 5
        assert_close(twice.objective(X, y), once.objective(X, y), 1e-9)
    assert_close(twice.condition(X, y).variance(new), once.condition(X, y).variance(new), 1e-9)


def test_pseudo_inputs_are_learned():
    X, y, _, _ = wave(60)
    prior = start_from_data(GP(Scale(Matern32(2))), X, y)
    rule = PseudoInputActions.from_data(prior, X, 8)
    before = rule.pseudo_inputs().detach().clone()
    result = fit(CaGPOpt(prior, rule), X, y, num_steps=15)
    assert result.best_value < result.steps[0].loss - 0.05
    assert float((rule.pseudo_inputs() - before).detach().abs().max()) > 0.1
    assert any("8 actions on all 60 rows (PseudoInputActions)" in line for line in result.findings)


# --- Krylov spaces ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_bytes", [2**28, STREAMED], ids=["kept", "streamed"])
def test_krylov_actions_are_those_of_cagp_cg(max_bytes):
    X, y, row_noise, new = wave()
    prior = make_prior()
    ours, theirs = CaGPOpt(prior, KrylovActions(12, max_bytes)), CaGPCG(prior, 12)
    with torch.no_grad():
        assert_close(ours.objective(X, y, row_noise), theirs.objective(X, y, row_noise), 1e-9)
    for ask in ("mean", "covariance"):
        found = [getattr(method.condition(X, y, row_noise), ask)(new) for method in (ours, theirs)]
        assert_close(found[0], found[1], 1e-9)


@pytest.mark.parametrize("loss", ["elbo", "projected"])
@pytest.mark.parametrize(
    ("num_actions", "max_bytes"), [(1, 2**28), (2, 2**28), (9, STREAMED), (18, 2**28), (20, 2**28)]
)
def test_krylov_actions_have_the_gradient_of_actions_that_move(loss, num_actions, max_bytes):
    X, y, row_noise, _ = wave(20)
    prior = make_prior(Scale(Matern12(2, 0.9), 1.2))
    method = CaGPOpt(prior, KrylovActions(num_actions, max_bytes), loss)

    def dense_loss() -> float:
        """With the Krylov space as NumPy finds it, the columns made orthonormal on the way."""
        noise = oracle.noise_vector(prior.noise, 20, row_noise)
        Khat = oracle.kernel_matrix(prior.kernel, X, X) + np.diag(noise)
        S = (oracle.array(y) - oracle.mean_vector(prior.mean, X))[:, None]
        for _ in range(num_actions - 1):
            S = np.linalg.qr(S)[0]
            S = np.column_stack([S, Khat @ S[:, -1]])
        if loss == "elbo":
            return -oracle.elbo(prior, S, X, y, row_noise).value / 20
        return oracle.projected_nll(prior, S, X, y, row_noise) / 20

    assert_gradient_is_the_slope(method, dense_loss, X, y, row_noise)


def test_actions_that_are_held_have_another_gradient():
    X, y, _, _ = wave()
    prior = make_prior()
    slopes = []
    for method in (CaGPOpt(prior, KrylovActions(8)), CaGPCG(prior, 8)):
        prior.zero_grad()
        method.objective(X, y).backward()
        slopes.append(torch.cat([p.grad.flatten() for p in prior.parameters()]))
    assert float((slopes[0] - slopes[1]).abs().max()) > 0.01


def test_targets_that_are_the_mean_start_at_ones():
    X, _, _, new = wave(20)
    prior = make_prior(mean=ZeroMean())
    y = torch.zeros(20, dtype=torch.float64)
    method, theirs = CaGPOpt(prior, KrylovActions(4)), CaGPCG(prior, 4)
    assert_close(method.objective(X, y).detach(), theirs.objective(X, y).detach())
    assert_close(method.condition(X, y).variance(new), theirs.condition(X, y).variance(new))


# --- both -------------------------------------------------------------------------------------------------------------


RULES = {"pseudo-inputs": lambda X: PseudoInputActions(X[:6] + 0.1), "Krylov": lambda X: KrylovActions(6)}


@pytest.mark.parametrize("name", RULES)
def test_methods_with_these_rules_keep_the_contract(name):
    X, y, row_noise, _ = wave(30)
    check_method(CaGPOpt(make_prior(), RULES[name](X)), X, y, row_noise)


def test_wrong_uses_of_rules_are_named():
    X, y, _, _ = wave()
    prior = make_prior()
    with pytest.raises(ValueError, match="the number of actions is 41, expected an integer from 1 to 40"):
        CaGPOpt(prior, KrylovActions(41)).objective(X, y)
    with pytest.raises(ValueError, match="batch_size is for actions on some rows; KrylovActions needs all of them"):
        CaGPOpt(prior, KrylovActions(4), batch_size=10)
    with pytest.raises(ValueError, match="num_actions needs BlockActions, whose blocks can be cut, not KrylovActions"):
        CaGPOpt(prior, KrylovActions(4)).condition(X, y, num_actions=8)
    with pytest.raises(ValueError, match="pseudo-inputs"):
        CaGPOpt(prior, PseudoInputActions(X[:4, :1])).objective(X, y)
    far = torch.full((3, 2), 1e6, dtype=torch.float64)
    with pytest.raises(ValueError, match="no pseudo-input is near a row"):
        CaGPOpt(prior, PseudoInputActions(far)).objective(X, y)
