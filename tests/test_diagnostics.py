"""Diagnostics against dense formulas, and the parts of the predictive variance against the exact posterior."""

import math

import numpy as np
import oracle
import pytest
import scipy.linalg
import torch
from hypothesis import given
from hypothesis import strategies as st
from problems import recipes
from torch import Tensor

from cagp import GP, SGPR, CaGPCG, CaGPLocal, CaGPOpt, GaussianNoise, KnownNoise, iterate
from cagp.actions import BlockActions, DenseActions, Partition
from cagp.diagnostics import (
    action_fit,
    action_matrix,
    eigenspace_alignment,
    exact_reference,
    grassmann_distance,
    mutual_information,
    posterior_entropy,
    principal_angles,
    reference_for,
    variance_components,
)
from cagp.iterative import CGResiduals, Lanczos, RandomActions, Stopping, TopEigenvectors, UnitVectors
from cagp.kernels import RBF, Matern12, Matern32, Scale
from cagp.notices import collected
from cagp.posteriors import CaGPPosterior
from cagp.projection import project
from cagp.starting import start_from_neighbours
from cagp.system import System


def wave(n=60, d=2, dtype=torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    X = torch.randn(n, d, generator=g, dtype=torch.float64)
    y = torch.sin(2 * X).sum(1) + 0.2 * torch.randn(n, generator=g, dtype=torch.float64)
    Z = torch.cat([torch.randn(5, d, generator=g, dtype=torch.float64), X[:2]])
    return X.to(dtype), y.to(dtype), Z.to(dtype)


def known_noise(X: Tensor) -> Tensor:
    return 0.02 + 0.3 * torch.rand(len(X), generator=torch.Generator().manual_seed(1), dtype=X.dtype)


def make_prior(d: int = 2, noise: float = 0.1, kernel=Matern12) -> GP:
    return GP(Scale(kernel(d, 0.9), 1.2), noise=GaussianNoise(noise))


# ---- subspaces ----


@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 2**31))
def test_principal_angles_are_scipys_and_depend_on_the_spans_alone(p, q, seed):
    g = torch.Generator().manual_seed(seed)
    A, B = (torch.randn(12, c, generator=g, dtype=torch.float64) for c in (p, q))
    expected = np.sort(scipy.linalg.subspace_angles(A.numpy(), B.numpy()))
    np.testing.assert_allclose(principal_angles(A, B).numpy(), expected, atol=1e-9)
    np.testing.assert_allclose(principal_angles(B, A).numpy(), expected, atol=1e-9)
    mixed = A.flip(1) * 100
    assert float(grassmann_distance(mixed, B)) == pytest.approx(float(np.linalg.norm(expected)), abs=1e-9)
    assert float(grassmann_distance(A, mixed)) < 1e-12


def test_angles_of_all_sizes_keep_their_digits():
    angles = torch.tensor([1e-12, 1e-6, 0.3, math.pi / 4, 1.2, math.pi / 2], dtype=torch.float64)
    A = torch.eye(12, 6, dtype=torch.float64)
    B = torch.cat([torch.diag(angles.cos()), torch.diag(angles.sin())])
    torch.testing.assert_close(principal_angles(A, B), angles, rtol=1e-10, atol=1e-15)


def test_dependent_columns_have_no_angles():
    A = torch.ones(5, 2, dtype=torch.float64)
    with pytest.raises(ValueError, match="the columns of A are linearly dependent"):
        principal_angles(A, torch.eye(5, 2, dtype=torch.float64))
    with pytest.raises(ValueError, match="no more columns than rows"):
        principal_angles(torch.eye(2, 3, dtype=torch.float64), torch.eye(2, 1, dtype=torch.float64))


def test_actions_as_a_matrix():
    X, _, _ = wave()
    actions = BlockActions.from_data(X, 7, support_size=3, start="random", generator=torch.Generator().manual_seed(0))
    S = oracle.action_matrix(actions)
    np.testing.assert_allclose(action_matrix(actions).numpy(), S / np.linalg.norm(S, axis=0), atol=1e-12)


@pytest.mark.parametrize("by_row", [False, True], ids=["one noise", "noise by row"])
def test_alignment_with_the_leading_eigenvectors(by_row):
    X, y, _ = wave()
    prior, row_noise = make_prior(), known_noise(X) if by_row else None
    system = System(prior, X, row_noise)
    D = oracle.noise_vector(prior.noise, 60, row_noise)
    K = oracle.kernel_matrix(prior.kernel, X, X)
    best = scipy.linalg.eigh(K, np.diag(D))[1][:, -8:]
    found = {}
    for policy in (TopEigenvectors(8), Lanczos(), RandomActions()):
        S = iterate(prior, X, y, policy, Stopping(8), row_noise).actions.S.detach()
        alignment = found[type(policy).__name__] = eigenspace_alignment(system, S)
        angles = np.sort(scipy.linalg.subspace_angles(S.numpy(), best))
        np.testing.assert_allclose(alignment.angles.numpy(), angles, atol=1e-6)
        assert alignment.distance == pytest.approx(np.linalg.norm(angles), abs=1e-6)
        ratio = oracle.mutual_information(prior, S, X, row_noise) / oracle.mutual_information(prior, best, X, row_noise)
        assert alignment.information == pytest.approx(ratio, abs=1e-9)
    # The paper's figure: CG actions lie closer to the eigenvectors than random ones.
    assert found["TopEigenvectors"].distance < 1e-6
    assert found["TopEigenvectors"].information == pytest.approx(1, abs=1e-9)
    assert found["Lanczos"].distance < 0.8 * found["RandomActions"].distance
    assert found["RandomActions"].information < found["Lanczos"].information < 1


# ---- information ----


@given(recipes(max_rows=15))
def test_mutual_information_is_the_dense_difference_of_entropies(recipe):
    p = recipe.build()
    projection = project(p.prior, p.actions, p.X, p.y, p.row_noise)
    expected = oracle.mutual_information(p.prior, p.S, p.X, p.row_noise)
    assert float(mutual_information(projection)) == pytest.approx(expected, rel=1e-7, abs=1e-9)


@pytest.mark.parametrize("by_row", [False, True], ids=["one noise", "noise by row"])
def test_posterior_entropy_falls_from_the_priors_by_the_mutual_information(by_row):
    X, y, Z = wave(n=20)
    prior, row_noise = make_prior(), known_noise(X) if by_row else None
    iteration = iterate(prior, X, y, CGResiduals(), Stopping(6), row_noise)
    posterior = iteration.posterior()
    dense = oracle.cagp_posterior(prior, iteration.actions.S, X, y, X, row_noise)
    assert float(posterior_entropy(posterior, X)) == pytest.approx(oracle.entropy(dense.covariance), abs=1e-7)
    before = oracle.entropy(oracle.kernel_matrix(prior.kernel, X, X))
    gained = float(mutual_information(iteration.projection()))
    assert gained > 1
    assert before - float(posterior_entropy(posterior, X)) == pytest.approx(gained, abs=1e-7)
    new = known_noise(Z)
    noisy = oracle.cagp_posterior(prior, iteration.actions.S, X, y, Z, row_noise).covariance
    noisy = noisy + np.diag(oracle.noise_vector(prior.noise, len(Z), new))
    found = posterior_entropy(posterior, Z, noise=True, row_noise=new)
    assert float(found) == pytest.approx(oracle.entropy(noisy), abs=1e-7)


# ---- where the variance comes from ----


def exact_components(posterior, X_train, X, row_noise=None, **options):
    return variance_components(posterior, exact_reference(posterior, X_train, row_noise, **options), X)


SOLVERS = {"factorised": {}, "CG": {"dense_up_to": 0, "tolerance": 1e-10, "precondition_rank": 5}}


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("kind", ["CG", "unit", "blocks", "part of the rows"])
@pytest.mark.parametrize("by_row", [False, True], ids=["one noise", "noise by row"])
def test_the_parts_are_noise_exact_and_what_was_not_computed(solver, kind, by_row):
    X, y, Z = wave()
    prior, row_noise = make_prior(), known_noise(X) if by_row else None
    support = None
    if kind in ("CG", "unit"):
        policy = CGResiduals() if kind == "CG" else UnitVectors("random")
        posterior = iterate(prior, X, y, policy, Stopping(10), row_noise).posterior()
    else:
        size = None if kind == "blocks" else 2
        method = CaGPOpt.from_data(prior, X, 10, support_size=size, generator=torch.Generator().manual_seed(0))
        posterior, support = method.condition(X, y, row_noise), method.actions.support
    new = known_noise(Z) if by_row else None
    reference = exact_reference(posterior, X, row_noise, support=support, **SOLVERS[solver])
    split = variance_components(posterior, reference, Z, new)
    assert reference.kind == "exact"
    exact = oracle.exact_posterior(prior, X, y, Z, row_noise).variance
    np.testing.assert_allclose(split.latent.numpy(), exact, atol=1e-8)
    np.testing.assert_allclose(split.noise.numpy(), oracle.noise_vector(prior.noise, len(Z), new), atol=1e-12)
    total = posterior.predict(Z, noise=True, row_noise=new).variance
    torch.testing.assert_close(split.noise + split.latent + split.computational, total, atol=1e-10, rtol=1e-10)
    assert float(split.computational.max()) > 1e-2
    assert float(split.computational.min()) >= 0
    assert (split.num_iterations > 0) == (solver == "CG")


@pytest.mark.parametrize("solver", SOLVERS)
def test_the_computational_part_goes_to_zero_and_is_never_negative(solver):
    X, y, Z = wave(n=40)
    prior, before = make_prior(), torch.full((7,), math.inf, dtype=torch.float64)
    for policy in (Lanczos(), UnitVectors("pivoted"), RandomActions()):
        before[:] = math.inf
        for steps in (1, 5, 20, 35, 40):
            posterior = iterate(prior, X, y, policy, Stopping(steps), reorthogonalise=True).posterior()
            part = exact_components(posterior, X, Z, **SOLVERS[solver]).computational
            assert float(part.min()) > -1e-12
            assert bool((part <= before + 1e-9).all())
            before = part
        assert float(before.max()) < 1e-9
    first = exact_components(iterate(prior, X, y, CGResiduals(), Stopping(1)).posterior(), X, Z, **SOLVERS[solver])
    assert float(first.computational.max()) > 0.1


def test_unconverged_cg_reports_how_far_it_may_be_off():
    X, y, Z = wave(n=80)
    prior, row_noise = make_prior(), known_noise(X)
    posterior = iterate(prior, X, y, RandomActions(), Stopping(5), row_noise).posterior()
    exact = exact_components(posterior, X, Z, row_noise)
    assert not exact.error_bound.any()
    bounds = []
    for iterations in (1, 3, 8, 30):
        rough = exact_components(
            posterior, X, Z, row_noise, dense_up_to=0, max_iterations=iterations, tolerance=1e-12, precondition_rank=1
        )
        missing = exact.computational - rough.computational
        assert bool((missing >= -1e-10).all())
        assert bool((missing <= rough.error_bound + 1e-10).all())
        assert rough.num_iterations <= iterations
        bounds.append(float(rough.error_bound.max()))
        if iterations == 1:
            assert float(missing.max()) > 1e-3  # there is something to be bounded
    assert bounds[-1] < 1e-6 < bounds[0]


def test_single_precision_posteriors_are_split_in_double():
    X, y, Z = wave(dtype=torch.float32)
    prior = make_prior(kernel=Matern32)
    posterior = CaGPCG(prior, 15).condition(X, y)
    split = exact_components(posterior, X, Z)
    np.testing.assert_allclose(split.latent.numpy(), oracle.exact_posterior(prior, X, y, Z).variance, atol=1e-5)
    total = (split.noise + split.latent + split.computational).float()
    torch.testing.assert_close(total, posterior.variance(Z, noise=True), atol=1e-4, rtol=1e-4)


def test_references_of_both_kinds_agree_and_bounds_hold(monkeypatch):
    X, y, Z = wave()
    posterior = iterate(make_prior(), X, y, UnitVectors("random"), Stopping(10)).posterior()
    exact = exact_components(posterior, X, Z)
    reference = reference_for(posterior, None, len(X))
    subtracted = variance_components(posterior, reference, Z)
    assert reference.kind == "exact"
    torch.testing.assert_close(subtracted.computational, exact.computational, atol=1e-8, rtol=1e-8)
    assert not subtracted.error_bound.any()
    monkeypatch.setattr("cagp.diagnostics.EXACT_ROWS", 50)
    monkeypatch.setattr("cagp.diagnostics.NEIGHBOURS", 4)
    reference = reference_for(posterior, None, len(X))
    estimated = variance_components(posterior, reference, Z)
    assert reference.kind == "estimate"
    missing = exact.computational - estimated.computational
    assert float(missing.max()) > 1e-3  # four rows do not replace sixty
    assert bool((missing >= -1e-10).all())
    assert bool((missing <= estimated.error_bound).all())


def test_a_reference_that_needs_jitter_is_an_estimate_and_says_so_to_nobody_else():
    X, y, _ = wave()
    prior = GP(Scale(RBF(2, 50.0), 1e12), noise=GaussianNoise(1e-5))  # singular to working precision
    with collected() as outside:
        posterior = CaGPLocal(prior, 1).condition(X, y)
        assert reference_for(posterior, None, len(X)).kind == "estimate"
        assert outside == []


def test_a_method_without_a_bound_says_that_its_computational_part_is_unknown():
    X, y, Z = wave()
    posterior = SGPR(make_prior(), X[:9]).condition(X, y)
    reference = reference_for(posterior, None, len(X))
    parts = variance_components(posterior, reference, Z)
    assert reference.kind == "unknown"
    assert bool(parts.computational.isnan().all())
    assert bool(parts.error_bound.isnan().all())
    torch.testing.assert_close(parts.noise + parts.latent, posterior.variance(Z, noise=True))


@pytest.mark.parametrize("by_row", [False, True], ids=["one noise", "noise by row"])
def test_a_local_scale_multiplies_the_parts_but_not_the_known_noise(by_row):
    X, y, Z = wave()
    posterior = CaGPLocal(make_prior(), 8, local_scale=2.0).condition(X, y)
    new = known_noise(Z) if by_row else None
    parts = variance_components(posterior, reference_for(posterior, None, len(X)), Z, new)
    total = posterior.variance(Z, noise=True, row_noise=new)
    torch.testing.assert_close(parts.noise + parts.latent + parts.computational, total)
    assert float((posterior.scale(Z) - 1).abs().max()) > 0.05


@pytest.mark.usefixtures("annotations_off")
def test_wrong_arguments_are_named():
    X, y, Z = wave()
    method = CaGPOpt.from_data(make_prior(), X, 5)
    with pytest.raises(ValueError, match=r"support=method\.actions\.support"):
        exact_components(method.condition(X, y), X, Z)
    posterior = CaGPPosterior(method.prior, project(method.prior, method.actions, X, y))
    with pytest.raises(ValueError, match="X has 3 columns"):
        exact_components(posterior, X, torch.ones(2, 3, dtype=torch.float64), support=method.actions.support)
    known = GP(Matern12(2), noise=KnownNoise())
    posterior = CaGPCG(known, 5).condition(X, y, known_noise(X))
    with pytest.raises(ValueError, match="row_noise is missing"):
        exact_components(posterior, X, Z, known_noise(X))
    other = CaGPLocal(known, 5).condition(X, y, known_noise(X))
    with pytest.raises(TypeError, match="posterior is a LocalPosterior, expected the CaGPPosterior"):
        variance_components(other, exact_reference(posterior, X, known_noise(X)), Z, known_noise(Z))


# --- whether shared actions fit ---------------------------------------------------------------------------------------


def waves(frequency: float, n: int = 1500) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    X = torch.rand(n, 2, generator=g, dtype=torch.float64)
    noise = 0.1 * torch.randn(n, generator=g, dtype=torch.float64)
    return X, torch.sin(frequency * (X[:, 0] + X[:, 1].square())) + noise


def learned_from_neighbours(frequency: float, num_actions: int) -> tuple[CaGPOpt, Tensor, Tensor]:
    X, y = waves(frequency)
    prior = GP(Scale(Matern32(2)))
    start_from_neighbours(prior, X, y)
    generator = torch.Generator().manual_seed(0)
    return CaGPOpt.from_data(prior, X, num_actions, support_size=8, generator=generator), X, y


def test_shared_actions_fit_a_smooth_function_and_not_a_rough_one():
    found = {}
    for frequency in (3.0, 40.0):
        method, X, y = learned_from_neighbours(frequency, 64)
        found[frequency] = action_fit(method.condition(X, y), X)
    smooth, rough = found[3.0], found[40.0]
    assert smooth.advice is None
    assert smooth.computational_share < 0.01
    assert rough.computational_share > 0.5
    assert rough.spacing > 5 * smooth.spacing
    assert 'Use method="local" or "hybrid", or more actions' in rough.advice
    assert f"{rough.spacing:.2g} lengthscales apart" in rough.advice
    assert f"at least {rough.computational_share:.0%} of the variance" in rough.advice


@pytest.mark.slow
def test_more_actions_help_a_rough_function():
    shares = []
    for num_actions in (64, 256, 1024):
        method, X, y = learned_from_neighbours(40.0, num_actions)
        shares.append(action_fit(method.condition(X, y), X).computational_share)
    assert shares[0] > shares[1] > shares[2]


def test_the_share_that_was_not_computed_is_a_lower_bound():
    method, X, y = learned_from_neighbours(20.0, 40)
    posterior = method.condition(X, y)
    found = action_fit(posterior, X, num_rows=len(X))
    exact = oracle.exact_posterior(method.prior, X, y, X)
    variance = oracle.array(posterior.variance(X))
    noise = method.prior.noise.noise.item()
    share = ((variance - exact.variance) / (variance + noise)).mean()
    assert 0.1 * share < found.computational_share <= share + 1e-9


def test_spacing_is_the_distance_between_the_means_of_blocks():
    X = torch.tensor([[0.0, 0.0], [0.2, 0.0], [1.0, 0.0], [1.2, 0.0], [5.0, 0.0], [5.2, 0.0]], dtype=torch.float64)
    actions = BlockActions(Partition(torch.arange(6), torch.tensor([0, 2, 4, 6])))
    prior = GP(Scale(Matern32(2, [0.5, 3.0])))
    posterior = CaGPOpt(prior, actions).condition(X, X[:, 0])
    assert action_fit(posterior, X).spacing == pytest.approx(2.0)  # 2, 2 and 8 lengthscales to the next
    with pytest.raises(TypeError, match="block-sparse actions"):
        action_fit(CaGPOpt(prior, DenseActions(torch.eye(6, dtype=torch.float64))).condition(X, X[:, 0]), X)
