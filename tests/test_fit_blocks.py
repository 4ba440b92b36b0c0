"""Blocks of actions that are cut anew or grow during a fit."""

import itertools
import math

import oracle
import pytest
import torch
from fit_problems import assert_same_tensors, method, wave
from torch import Tensor

from cagp import GP, CaGPOpt, fit
from cagp.actions import BlockActions, DenseActions, ordered_blocks
from cagp.dataset import Data
from cagp.kernels import Matern32, Scale
from cagp.training import Coming

pytestmark = pytest.mark.usefixtures("global_generator_stays")


def prepare(m: CaGPOpt, X: Tensor, step: int, share: float, flat: bool) -> str | None:
    """What a method changes before a step."""
    return m.before_step(Data(X, X[:, 0]), Coming(step, share, flat, None, None)).event


# --- blocks -----------------------------------------------------------------------------------------------------------


def weights_of_rows(actions: BlockActions) -> dict[int, float]:
    """Each support row's raw weight; ``values`` are in ascending order of the rows."""
    return dict(zip(actions.support.sort().values.tolist(), actions.values.tolist(), strict=True))


def blocks_of(actions: BlockActions) -> list[set[int]]:
    return [set(rows.tolist()) for rows in actions.support.split(actions.offsets.diff().tolist())]


def dense(actions: BlockActions) -> Tensor:
    """S, written from the blocks and the weights of the rows."""
    S = torch.zeros(actions.num_rows, actions.num_actions, dtype=torch.float64)
    weights = weights_of_rows(actions)
    for j, block in enumerate(blocks_of(actions)):
        for row in block:
            S[row, j] = weights[row]
    return S / S.norm(dim=0)


def random_actions(X: Tensor, num_actions: int, **choices) -> BlockActions:
    return BlockActions.from_data(X, num_actions, start="random", generator=torch.Generator().manual_seed(1), **choices)


@pytest.mark.parametrize("num_actions", [1, 7, 12, 53])
def test_new_blocks_hold_every_row_with_equal_weights(num_actions):
    X, y = wave(53, d=2)
    m = CaGPOpt(GP(Scale(Matern32(2))), random_actions(X, num_actions, blocks="ordered"), reblock_at=(4,))
    m.prior.kernel.kernel.lengthscale = [0.1, 30.0]
    weights, old = weights_of_rows(m.actions), blocks_of(m.actions)
    assert prepare(m, X, 3, 0.3, False) is None
    assert blocks_of(m.actions) == old
    assert str(num_actions) in prepare(m, X, 4, 0.4, False)
    blocks = blocks_of(m.actions)
    assert len(blocks) == num_actions
    assert sorted(row for block in blocks for row in block) == list(range(53))
    assert weights_of_rows(m.actions) == dict.fromkeys(weights, 1.0)  # a new cut starts with equal weights
    sparse = m.actions.weights(torch.float64)
    S = dense(m.actions)
    assert torch.allclose(sparse.values, S[m.actions.support, sparse.columns()], atol=1e-15)
    assert math.isfinite(m.objective(X, y).item())
    # The first column's lengthscale is short: blocks are intervals of it.
    edges = sorted((float(X[list(block), 0].min()), float(X[list(block), 0].max())) for block in blocks)
    assert all(left[1] <= right[0] for left, right in itertools.pairwise(edges))


def test_new_blocks_of_a_thinned_support_keep_it():
    X, _ = wave(53, d=2)
    actions = random_actions(X, 6, support_size=4)
    weights = weights_of_rows(actions)
    actions.reblock(X, torch.tensor([0.1, 30.0], dtype=torch.float64))
    assert weights_of_rows(actions) == dict.fromkeys(weights, 1.0)
    assert len(blocks_of(actions)) == 6


def test_a_fit_with_new_blocks_says_so_and_lowers_the_loss():
    X, y = wave(60, d=2)
    m = method(X, 10, reblock_at=(5, 10))
    before = blocks_of(m.actions)
    result = fit(m, X, y, num_steps=40)
    assert [step.number for step in result.steps if any("blocks" in event for event in step.events)] == [6, 11]
    assert blocks_of(m.actions) != before  # the second input does not matter, which the lengthscales learned
    assert m.objective(X, y).item() == result.best_value < result.steps[0].loss


@pytest.mark.parametrize(
    ("n", "num_actions", "more"), [(50, 1, 2), (53, 6, 12), (53, 7, 20), (17, 12, 17), (12, 12, 12)]
)
def test_grown_actions_are_nested_and_rows_keep_their_weights(n, num_actions, more):
    X, _ = wave(n, d=2)
    actions = random_actions(X, num_actions)
    old, weights = blocks_of(actions), weights_of_rows(actions)
    actions.grow(X, more)
    new = blocks_of(actions)
    assert len(new) == more
    assert all(sum(block <= other for other in old) == 1 for block in new)
    assert sorted(row for block in new for row in block) == list(range(n))
    assert weights_of_rows(actions) == weights


@pytest.mark.parametrize("support_size", [None, 3])
def test_an_action_is_the_sum_of_its_parts(support_size):
    X, _ = wave(53, d=2)
    actions = random_actions(X, 7, support_size=support_size)
    old, old_blocks = dense(actions), blocks_of(actions)
    actions.grow(X, 15, torch.tensor([0.1, 30.0], dtype=torch.float64))
    new, new_blocks = dense(actions), blocks_of(actions)
    sparse = actions.weights(torch.float64)
    assert torch.allclose(sparse.values, new[actions.support, sparse.columns()], atol=1e-15)
    for j, block in enumerate(old_blocks):
        children = [k for k, child in enumerate(new_blocks) if child <= block]
        # Orthogonal unit vectors: the old action is the sum of its projections on them.
        parts = [new[:, k] * (new[:, k] @ old[:, j]) for k in children]
        assert torch.allclose(torch.stack(parts).sum(0), old[:, j], atol=1e-15)


def test_variance_never_grows_when_actions_do():
    X, y = wave(64, d=2)
    m = CaGPOpt(GP(Scale(Matern32(2))), random_actions(X, 4))
    X_new = wave(40, d=2)[0] + 0.3
    variances = [m.condition(X, y).variance(X_new)]
    while m.actions.num_actions < 64:
        m.actions.grow(X, 2 * m.actions.num_actions)
        variances.append(m.condition(X, y).variance(X_new))
    assert len(variances) == 5
    for before, after in itertools.pairwise(variances):
        assert bool((after <= before + 1e-12).all())
        assert float(after.mean()) < float(before.mean())
    K = m.prior.kernel
    with torch.no_grad():
        cross = K(X_new, X)
        noisy = K(X, X) + m.prior.noise.noise * torch.eye(64, dtype=torch.float64)
        exact = K.diag(X_new) - (cross * torch.linalg.solve(noisy, cross.mT).mT).sum(1)
    assert torch.allclose(variances[-1], exact, atol=1e-10)  # one action for each row


def test_a_state_with_another_number_of_blocks_is_restored():
    X, y = wave(50, d=2)
    m, other = (CaGPOpt(GP(Scale(Matern32(2))), random_actions(X, 6)) for _ in range(2))
    m.actions.grow(X, 12)
    other.load_state_dict(m.state_dict())
    assert other.actions.num_actions == 12
    assert_same_tensors(other.state_dict(), m.state_dict())
    assert other.objective(X, y).item() == m.objective(X, y).item()
    m.actions.grow(X, 24)
    assert other.actions.num_actions == 12  # a copy, not the same memory
    fit(other, X, y, num_steps=3)
    assert math.isfinite(other.objective(X, y).item())


def test_rows_of_weight_zero_do_not_end_a_fit_that_cuts_blocks_again():
    X, y = wave(16)
    order = X[:, 0].argsort()
    values = torch.ones(16, dtype=torch.float64)
    values[order[:4]] = 0.0  # after a new cut, a block of its own
    actions = BlockActions(ordered_blocks(16, 4), values)
    m = CaGPOpt(GP(Scale(Matern32(1))), actions, reblock_at=(2,))
    result = fit(m, X, y, num_steps=5, lr={"hyperparameters": 0.1, "actions": 0.0})
    assert math.isfinite(result.best_value)
    bound = oracle.elbo(m.prior, oracle.action_matrix(m.actions), X, y).value
    assert result.best_value == pytest.approx(-bound / 16, rel=1e-10)
    assert bound <= oracle.log_marginal_likelihood(m.prior, X, y)


# --- growth -----------------------------------------------------------------------------------------------------------


def test_actions_double_when_the_loss_is_flat():
    X, _y = wave(80, d=2)
    m = method(X, 16, start_actions=4, reblock_at=())
    assert m.actions.num_actions == 4
    assert prepare(m, X, 3, 0.0, False) is None
    assert "8 actions" in prepare(m, X, 4, 0.0, True)
    assert "16 actions" in prepare(m, X, 5, 0.0, True)
    assert prepare(m, X, 6, 0.0, True) is None  # there are as many as asked for
    assert m.actions.num_actions == 16


@pytest.mark.parametrize("num_actions", [16, 19, 5])
def test_a_fit_that_starts_with_few_actions_ends_with_all(num_actions):
    X, y = wave(80, d=2)
    m = method(X, num_actions, start_actions=4, reblock_at=(3,))
    result = fit(m, X, y, num_steps=30)
    assert m.actions.num_actions == num_actions
    grown = [step.number for step in result.steps if any("actions" in event for event in step.events)]
    assert len(grown) == math.ceil(math.log2(num_actions / 4))
    assert max(grown) <= 8  # a fifth of all steps, and the next
    # Of the fewer actions before, none is the best, even where their loss was lower.
    assert result.best_step >= max(grown)
    assert result.best_value == m.objective(X, y).item()


def test_a_growing_fit_is_resumed_bit_for_bit(tmp_path):
    X, y = wave(60, d=2)
    whole, cut, resumed = (method(X, 12, start_actions=3, reblock_at=(4,)) for _ in range(3))
    fit(whole, X, y, num_steps=24)
    calls = itertools.count()

    def stop(_):
        if next(calls) == 13:
            raise RuntimeError("stop here")

    with pytest.raises(RuntimeError, match="stop here"):
        fit(cut, X, y, num_steps=24, checkpoint_dir=tmp_path, checkpoint_steps=1, callback=stop)
    fit(resumed, X, y, num_steps=24, checkpoint_dir=tmp_path)
    assert_same_tensors(resumed.state_dict(), whole.state_dict())


def test_a_posterior_with_more_actions_than_were_trained():
    X, y = wave(120, d=2)
    m = method(X, 10)
    fit(m, X, y, num_steps=20)
    state = {name: value.clone() for name, value in m.state_dict().items()}
    X_new = wave(30, d=2)[0] + 0.1
    few, same = m.condition(X, y), m.condition(X, y, num_actions=40, refit_steps=0)
    assert same.num_actions == 40
    assert bool((same.variance(X_new) <= few.variance(X_new) + 1e-12).all())
    assert same.prior.noise.noise.item() == m.prior.noise.noise.item()
    many = m.condition(X, y, num_actions=40)
    assert many.prior.noise.noise.item() < m.prior.noise.noise.item()  # less is left to the noise
    assert_same_tensors(m.state_dict(), state)
    with pytest.raises(ValueError, match="num_actions is 4, expected at least the 10 trained"):
        m.condition(X, y, num_actions=4)
    with pytest.raises(ValueError, match="num_actions is 121"):
        m.condition(X, y, num_actions=121)


def test_only_blocks_can_grow():
    X, y = wave(20)
    dense_actions = DenseActions(torch.eye(20, 3, dtype=torch.float64))
    with pytest.raises(ValueError, match="grow_to needs BlockActions"):
        CaGPOpt(GP(Scale(Matern32(1))), dense_actions, grow_to=5)
    with pytest.raises(ValueError, match="num_actions needs BlockActions"):
        CaGPOpt(GP(Scale(Matern32(1))), dense_actions).condition(X, y, num_actions=5)
    with pytest.raises(ValueError, match="grow_to is 21"):
        CaGPOpt(GP(Scale(Matern32(1))), random_actions(X, 3), grow_to=21)
