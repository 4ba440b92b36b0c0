"""Posteriors with actions of each test point's own, and the hybrid, against dense formulas and inequalities."""

import math

import numpy as np
import oracle
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from local_problems import assert_close, condition, draw_neighbours
from problems import Recipe, make_prior, recipes

from cagp import (
    GP,
    CaGPLocal,
    CaGPOpt,
    GaussianNoise,
)
from cagp.actions import BlockActions, DenseActions, Partition, ordered_blocks
from cagp.kernels import RBF, Matern32, Scale
from cagp.local_inference import SharedActions
from cagp.posteriors import LocalPosterior


@settings(max_examples=30)
@given(recipes(), st.data())
def test_local_and_hybrid_are_the_dense_posteriors_of_their_actions(recipe, data):
    p, k = recipe.build(), draw_neighbours(data, recipe.n)
    for S in (None, p.S):
        posterior = condition(p, k, hybrid=S is not None)
        neighbours = posterior._neighbours(p.Z)
        assert all(len(set(rows)) == k for rows in neighbours.tolist())
        expected = oracle.local_posterior(p.prior, p.X, p.y, p.Z, neighbours, S, p.row_noise)
        actual = posterior.predict(p.Z)
        assert_close(actual.mean, expected.mean, 1e-9)
        assert_close(actual.variance, expected.variance, 1e-9 * max(1.0, p.scale))
        assert_close(posterior.mean(p.Z), actual.mean, 0.0)


def test_rows_that_shared_actions_and_other_rows_determine_together_are_left_out_by_round_off_of_any_sign():
    """11 of 19 rows beside 11 dense actions: three rows too many, whose pivots can come out on both sides of zero."""
    for seed in (1647994597, *range(20)):
        p = Recipe(19, 50, 11, "Matern12 * RBF", "dense", "linear", "one", 1e-4, "none", seed, torch.float64).build()
        actual = condition(p, 11, hybrid=True).predict(p.Z)
        exact = oracle.exact_posterior(p.prior, p.X, p.y, p.Z)
        assert_close(actual.mean, exact.mean, 1e-8)
        assert_close(actual.variance, exact.variance, 1e-9)


@settings(max_examples=25)
@given(recipes(dtype=torch.float32, smallest_noise=0.05), st.data())
def test_float32_data_get_the_answers_to_float32_accuracy(recipe, data):
    p, k = recipe.build(), draw_neighbours(data, recipe.n)
    for S in (None, p.S):
        posterior = condition(p, k, hybrid=S is not None)
        expected = oracle.local_posterior(p.prior, p.X, p.y, p.Z, posterior._neighbours(p.Z), S, p.row_noise)
        actual = posterior.predict(p.Z)
        assert_close(actual.mean, expected.mean, 2e-3)
        assert_close(actual.variance / p.scale, expected.variance / p.scale, 1e-4)


@pytest.mark.slow
@given(recipes(), st.data())
def test_variances_are_ordered_exact_hybrid_local_and_exact_hybrid_global(recipe, data):
    p, k = recipe.build(), draw_neighbours(data, recipe.n)
    exact = oracle.exact_posterior(p.prior, p.X, p.y, p.Z, p.row_noise).variance
    hybrid = oracle.array(condition(p, k, hybrid=True).variance(p.Z))
    local = oracle.array(condition(p, k, hybrid=False).variance(p.Z))
    shared = oracle.array(CaGPOpt(p.prior, p.actions).condition(p.X, p.y, p.row_noise).variance(p.Z))
    slack = 1e-9 * p.scale
    assert (exact <= hybrid + slack).all()
    assert (hybrid <= local + slack).all()
    assert (hybrid <= shared + slack).all()


@settings(max_examples=20)
@given(recipes(), st.data())
def test_more_neighbours_never_raise_the_variance(recipe, data):
    p, k = recipe.build(), draw_neighbours(data, recipe.n)
    for hybrid in (False, True):
        numbers = data.draw(st.integers(1, k), label="fewer"), k
        fewer, more = (condition(p, number, hybrid=hybrid).variance(p.Z) for number in numbers)
        assert bool((more <= fewer + 1e-9 * p.scale).all())


@pytest.mark.slow
@settings(max_examples=30)
@given(recipes(square=True), recipes(), st.data())
def test_with_all_rows_or_as_many_actions_as_rows_the_answers_are_exact(square, recipe, data):
    p = recipe.build()
    q = square.build()
    cases = [(p, condition(p, recipe.n, hybrid=False)), (p, condition(p, recipe.n, hybrid=True))]
    cases.append((q, condition(q, draw_neighbours(data, square.n), hybrid=True)))
    for problem, posterior in cases:
        exact = oracle.exact_posterior(problem.prior, problem.X, problem.y, problem.Z, problem.row_noise)
        actual = posterior.predict(problem.Z)
        assert_close(actual.mean, exact.mean, 1e-8)
        assert_close(actual.variance / problem.scale, exact.variance / problem.scale, 1e-9)


@pytest.mark.thinned(6)
@pytest.mark.parametrize("kind", ["blocks of one row", "all but one of one row", "unit vectors", "unit vectors mixed"])
@pytest.mark.parametrize("kernel", ["Matern32", "Scale(RBF) + Constant"])
def test_neighbours_in_the_span_of_the_shared_actions_count_once(kind, kernel):
    g = torch.Generator().manual_seed(3)
    n = 24
    X = torch.randn(n, 2, generator=g, dtype=torch.float64)
    y = torch.sin(2 * X.sum(1))
    new = torch.cat([X[:4], torch.randn(5, 2, generator=g, dtype=torch.float64)])
    prior = make_prior(kernel, 2, 1e-4, g)
    if kind == "blocks of one row":
        actions = BlockActions(ordered_blocks(n, n), dtype=torch.float64)
    elif kind == "all but one of one row":
        offsets = torch.cat([torch.arange(n - 3), torch.tensor([n])])
        actions = BlockActions(Partition(torch.randperm(n, generator=g), offsets), dtype=torch.float64)
    else:
        S = torch.eye(n, dtype=torch.float64)[:, torch.randperm(n, generator=g)[:15]]
        mixed = S @ torch.randn(15, 15, generator=g, dtype=torch.float64)
        actions = DenseActions(S if kind == "unit vectors" else mixed)
    for k in (1, 5, n):
        posterior = CaGPLocal(prior, shared=actions).condition(X, y, num_neighbours=k)
        S = oracle.action_matrix(actions)
        expected = oracle.local_posterior(prior, X, y, new, posterior._neighbours(new), S)
        actual = posterior.predict(new)
        assert_close(actual.mean, expected.mean, 1e-7)  # the noise is small: K̂ has a condition of 1e5
        assert_close(actual.variance, expected.variance, 1e-9)
        joint = posterior.joint(new)
        together = oracle.cagp_posterior(
            prior, oracle.question_actions(n, posterior._neighbours(new).unique(), S), X, y, new
        )
        assert_close(joint.mean, together.mean, 1e-7)
        assert_close(joint.covariance, together.covariance, 1e-9)


@pytest.mark.slow
@settings(max_examples=15)
@given(recipes(), st.data())
def test_joint_answers_are_those_of_the_union(recipe, data):
    p, k = recipe.build(), draw_neighbours(data, recipe.n)
    for S in (None, p.S):
        posterior = condition(p, k, hybrid=S is not None)
        union = posterior._neighbours(p.Z).unique()
        expected = oracle.cagp_posterior(
            p.prior, oracle.question_actions(recipe.n, union, S), p.X, p.y, p.Z, p.row_noise
        )
        joint = posterior.joint(p.Z)
        assert_close(joint.mean, expected.mean, 1e-8)
        assert_close(joint.covariance / p.scale, expected.covariance / p.scale, 1e-9)
        assert_close(posterior.covariance(p.Z), joint.covariance, 1e-12)
        assert bool((joint.covariance.diagonal() <= posterior.variance(p.Z) + 1e-9 * p.scale).all())
        alone = torch.cat([posterior.covariance(z[None])[0] for z in p.Z])  # a question's own union
        assert_close(alone / p.scale, posterior.variance(p.Z) / p.scale, 1e-9)


def test_samples_are_drawn_around_the_mean_of_the_union():
    """A row's own mean comes from fewer rows: it can be off by more than the covariance of the union says."""
    g = torch.Generator().manual_seed(0)
    X = torch.rand(40, 1, generator=g, dtype=torch.float64)
    y = torch.sin(9 * X[:, 0])
    new = torch.linspace(0, 1, 9, dtype=torch.float64)[:, None]
    posterior = CaGPLocal(GP(RBF(1, 0.2), noise=GaussianNoise(1e-3))).condition(X, y, num_neighbours=1)
    joint = posterior.joint(new)
    error = (joint.covariance.diagonal() / 4000).sqrt()
    draws = posterior.sample(new, 4000, generator=g)
    assert bool(((draws.mean(0) - joint.mean).abs() < 5 * error).all())
    assert float(((posterior.mean(new) - joint.mean).abs() / error).max()) > 20


def test_joint_answers_that_need_too_many_rows_are_refused(monkeypatch):
    g = torch.Generator().manual_seed(0)
    X = torch.randn(50, 2, generator=g, dtype=torch.float64)
    posterior = CaGPLocal(GP(Matern32(2))).condition(X, X.sum(1), num_neighbours=4)
    monkeypatch.setattr(LocalPosterior, "MOST_JOINT_ROWS", 10)
    assert posterior.covariance(X[:2]).shape == (2, 2)
    for ask in (posterior.covariance, posterior.joint, lambda at: posterior.sample(at, 1)):
        with pytest.raises(ValueError, match="at 50 rows need 50 training rows together, the limit is 10"):
            ask(X)
    assert bool(torch.isfinite(posterior.predict(X).variance).all())


@pytest.mark.slow
@settings(max_examples=25)
@given(recipes())
def test_without_neighbours_the_hybrid_is_cagp_opt_and_without_anything_the_prior(recipe):
    p = recipe.build()
    shared = CaGPOpt(p.prior, p.actions).condition(p.X, p.y, p.row_noise)
    hybrid = condition(p, 0, hybrid=True)
    assert_close(hybrid.mean(p.Z), shared.mean(p.Z), 1e-9)
    assert_close(hybrid.variance(p.Z) / p.scale, shared.variance(p.Z) / p.scale, 1e-10)
    assert_close(hybrid.covariance(p.Z) / p.scale, shared.covariance(p.Z) / p.scale, 1e-10)
    assert_close(hybrid.joint(p.Z).mean, shared.mean(p.Z), 1e-9)
    nothing = condition(p, 0, hybrid=False)
    assert_close(nothing.mean(p.Z), oracle.mean_vector(p.prior.mean, p.Z))
    assert_close(nothing.covariance(p.Z), oracle.kernel_matrix(p.prior.kernel, p.Z, p.Z))


@pytest.mark.slow
@settings(max_examples=12)
@given(recipes(noises=("one",), oddities=("none",), max_rows=12), st.data())
def test_worst_case_error_in_the_unit_ball_of_the_rkhs_is_the_predictive_variance(recipe, data):  # Theorem S2 for S_x
    p, k = recipe._replace(mean="zero").build(), draw_neighbours(data, recipe.n)
    x = p.Z[:1]  # not a training input
    gram = oracle.noisy_gram(p.prior, torch.cat([p.X, x]))
    rng = np.random.default_rng(recipe.seed)
    for hybrid in (False, True):
        supremum = condition(p, k, hybrid=hybrid).variance(x, noise=True).item()

        def mean(values: np.ndarray, hybrid=hybrid) -> float:
            return condition(p, k, hybrid=hybrid, y=torch.from_numpy(values)).mean(x).item()

        # The error y(x) - mean(x) is the inner product of y with e = kˢ(·, x) - Σ c_r kˢ(·, x_r).
        e = np.append([-mean(unit) for unit in np.eye(recipe.n)], 1.0)
        assert_close(e @ gram @ e, supremum, 1e-9)
        worst = gram @ e / math.sqrt(e @ gram @ e)  # values of the worst function of norm 1
        assert_close((worst[-1] - mean(worst[:-1])) ** 2, supremum, 1e-9)
        for _ in range(3):
            w = rng.normal(size=len(gram))
            unit = gram @ w / math.sqrt(w @ gram @ w)
            assert (unit[-1] - mean(unit[:-1])) ** 2 <= supremum * (1 + 1e-9)


def test_neighbours_are_those_in_units_of_the_lengthscales():
    g = torch.Generator().manual_seed(0)
    X = torch.randn(200, 2, generator=g, dtype=torch.float64)
    prior = GP(Scale(Matern32(2, [0.1, 10.0])))
    posterior = CaGPLocal(prior, index_kind="scan").condition(X, X[:, 0], num_neighbours=5)
    near = ((X[None] - X[:9, None]) / torch.tensor([0.1, 10.0])).square().sum(-1).argsort(dim=1)[:, :5]
    assert torch.equal(posterior._neighbours(X[:9]).sort().values, near.sort().values)


@pytest.mark.slow
def test_what_is_kept_for_the_rows_changes_no_answer(monkeypatch):
    g = torch.Generator().manual_seed(0)
    X = torch.randn(60, 2, generator=g, dtype=torch.float64)
    y, row_noise = X.sum(1).sin(), torch.rand(60, generator=g, dtype=torch.float64)
    method = CaGPLocal(GP(Matern32(2)), shared=BlockActions.from_data(X, 7))
    kept = method.condition(X, y, row_noise, num_neighbours=5)
    method.max_bytes = 2000  # a few rows at a time
    assert_close(method.condition(X, y, row_noise, num_neighbours=5).shared.kept, kept.shared.kept, 1e-12)
    monkeypatch.setattr("cagp.posteriors.nearest_rows.KEPT_BYTES", 0)
    computed = method.condition(X, y, row_noise, num_neighbours=5)
    assert kept.shared.kept is not None
    assert computed.shared.kept is None
    questions = torch.rand(400, 2, generator=g, dtype=torch.float64, requires_grad=True)
    for a, b in zip(kept.predict(questions), computed.predict(questions), strict=True):
        assert_close(a, b, 1e-12)
        slopes = [torch.autograd.grad(answer.sum(), questions, retain_graph=True)[0] for answer in (a, b)]
        assert_close(*slopes, 1e-10)


def test_near_questions_are_answered_together_where_nothing_is_kept(monkeypatch):
    """Each row that occurs in a tile is computed once: in an order by place, hardly more rows than there are."""
    g = torch.Generator().manual_seed(0)
    X = torch.rand(4000, 2, generator=g, dtype=torch.float64)
    monkeypatch.setattr("cagp.posteriors.nearest_rows.KEPT_BYTES", 0)
    method = CaGPLocal(GP(Matern32(2)), shared=BlockActions.from_data(X, 4, support_size=8))
    posterior = method.condition(X, X.sum(1).sin(), num_neighbours=8)
    posterior.max_bytes = 4 * 8 * posterior._width * 100  # a hundred questions at a time
    computed = []
    rows_of = SharedActions.rows
    monkeypatch.setattr(SharedActions, "rows", lambda *args: computed.append(len(args[2])) or rows_of(*args))
    posterior.predict(torch.rand(2000, 2, generator=g, dtype=torch.float64))
    assert len(computed) == 20
    assert sum(computed) < 2 * len(X)  # in a random order of the questions: 20 times 700
