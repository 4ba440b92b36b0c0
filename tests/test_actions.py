"""Partitions use every row once, blocks of nearby rows are near, and starting values are what they say."""

import math
from itertools import pairwise

import numpy as np
import oracle
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from cagp import GP, CaGPOpt
from cagp.actions import BlockActions, DenseActions, Partition, ordered_blocks, spatial_blocks
from cagp.kernels import RBF, Matern32
from cagp.projection import project


def blocks_of(partition: Partition) -> list[list[int]]:
    rows, offsets = partition.rows.tolist(), partition.offsets.tolist()
    return [rows[a:b] for a, b in pairwise(offsets)]


def assert_every_row_once(partition: Partition, num_rows: int, num_blocks: int) -> None:
    """Every row exactly once, in ``num_blocks`` blocks, none of them empty."""
    blocks = blocks_of(partition)
    assert len(partition.blocks()) == len(blocks) == num_blocks
    assert sorted(row for block in blocks for row in block) == list(range(num_rows))
    assert min(len(block) for block in blocks) >= 1


def spread(X: Tensor, block: list[int]) -> float:
    """The sum of distances of a block's rows to their mean."""
    return float((X[block].double() - X[block].double().mean(0)).norm(dim=1).sum())


def mean_spread(X: Tensor, partition: Partition) -> float:
    """The mean over blocks of the mean squared distance to the block's centre."""
    spreads = [(X[block] - X[block].mean(0)).square().sum(1).mean() for block in blocks_of(partition)]
    return float(torch.stack(spreads).mean())


# --- partitions -------------------------------------------------------------------------------------------------------


@given(
    n=st.integers(1, 200),
    data=st.data(),
    d=st.integers(1, 5),
    oddity=st.sampled_from(["none", "duplicates", "constant column", "all equal"]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    seed=st.integers(0, 2**31),
)
def test_spatial_blocks_hold_every_row_once(n, data, d, oddity, dtype, seed):
    i = data.draw(st.integers(1, n))
    g = torch.Generator().manual_seed(seed)
    X = torch.randn(n, d, generator=g, dtype=torch.float64).to(dtype)
    if oddity == "duplicates":
        X = X[torch.randint(0, max(1, n // 4), (n,), generator=g)]
    elif oddity == "constant column":
        X[:, 0] = 7.0
    elif oddity == "all equal":
        X = torch.ones_like(X)
    coarse = spatial_blocks(X, i, torch.rand(d, generator=g) + 0.1)
    assert_every_row_once(coarse, n, i)
    more = data.draw(st.integers(i, n))
    fine = spatial_blocks(X, more, within=coarse)
    assert_every_row_once(fine, n, more)
    parents = [set(block) for block in blocks_of(coarse)]
    assert all(sum(set(block) <= parent for parent in parents) == 1 for block in blocks_of(fine))


@given(n=st.integers(1, 300), data=st.data())
def test_ordered_blocks_are_consecutive_rows_in_sizes_that_differ_by_at_most_one(n, data):
    i = data.draw(st.integers(1, n))
    partition = ordered_blocks(n, i)
    assert_every_row_once(partition, n, i)
    sizes = partition.offsets.diff()
    assert sizes.max() - sizes.min() <= 1
    assert partition.rows.tolist() == list(range(n))


@pytest.mark.parametrize("d", [1, 2, 3])
def test_spatial_blocks_are_nearer_than_ordered_ones(d):
    X = torch.rand(600, d, generator=torch.Generator().manual_seed(d))
    near, ordered = (mean_spread(X, partition) for partition in (spatial_blocks(X, 24), ordered_blocks(600, 24)))
    assert near < 2 * 24 ** (-2 / d) * ordered  # a block takes a 24th of the volume


def test_spatial_blocks_of_a_line_are_its_pieces():
    X = torch.rand(40, 1, generator=torch.Generator().manual_seed(0))
    blocks = sorted(blocks_of(spatial_blocks(X, 7)), key=lambda block: float(X[block].min()))
    for left, right in pairwise(blocks):
        assert float(X[left].max()) <= float(X[right].min())


def test_the_most_spread_block_is_cut_next():
    X = torch.randn(300, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64) ** 3  # far outliers
    partition = spatial_blocks(X, 1)
    for num_blocks in range(2, 40):
        before = blocks_of(partition)
        partition = spatial_blocks(X, num_blocks, within=partition)
        gone = [block for block in before if block not in blocks_of(partition)]
        assert gone == [max(before, key=lambda block: spread(X, block))]
    sizes = partition.offsets.diff()
    assert sizes.max() > 5 * sizes.min()  # many rows where they are close, few where they are not


def test_a_cut_leaves_the_least_variance_along_its_direction():
    X = torch.randn(60, 1, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    two = blocks_of(spatial_blocks(X, 2))
    left_over = sum(float((X[block] - X[block].mean()).square().sum()) for block in two)
    order = X[:, 0].argsort().tolist()
    cuts = [(order[:where], order[where:]) for where in range(1, 60)]
    best = min(sum(float((X[block] - X[block].mean()).square().sum()) for block in cut) for cut in cuts)
    assert left_over == pytest.approx(best, rel=1e-12)


def test_equal_rows_stay_together_while_others_can_be_cut():
    X = torch.tensor([0.0] * 30 + [1.0] * 10 + [5.0, 6.0], dtype=torch.float64)[:, None]
    assert sorted(map(len, blocks_of(spatial_blocks(X, 4)))) == [1, 1, 10, 30]
    assert sorted(map(len, blocks_of(spatial_blocks(X, 6)))) == [1, 1, 7, 8, 10, 15]


def test_distances_are_measured_in_lengthscales():
    X = torch.rand(64, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    long, short = torch.tensor([100.0, 1.0]), torch.tensor([1.0, 100.0])
    # The column with the long lengthscale hardly matters: only the other one is cut.
    for lengthscale, column in ((long, 1), (short, 0)):
        blocks = sorted(blocks_of(spatial_blocks(X, 4, lengthscale)), key=lambda block: float(X[block, column].min()))
        for left, right in pairwise(blocks):
            assert float(X[left, column].max()) < float(X[right, column].min())
    assert torch.equal(spatial_blocks(X, 8, long).rows, spatial_blocks(X / long, 8).rows)


def test_spatial_blocks_are_reproducible_and_independent_of_gradients():
    X = torch.rand(50, 2, generator=torch.Generator().manual_seed(0)).requires_grad_()
    lengthscale = RBF(2, [0.5, 1.0]).lengthscale
    first, again = spatial_blocks(X, 7, lengthscale), spatial_blocks(X.detach(), 7, lengthscale.detach())
    assert torch.equal(first.rows, again.rows)
    assert not first.rows.is_floating_point()


# --- starting values --------------------------------------------------------------------------------------------------


def example(n: int = 23, d: int = 2) -> Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(4), dtype=torch.float64)


def block_values(actions: BlockActions) -> list[Tensor]:
    in_order_of_support = actions.values.detach()[actions.support.argsort().argsort()]
    return list(in_order_of_support.split(actions.offsets.diff().tolist()))


@pytest.mark.parametrize("support_size", [None, 2])
def test_constant_values_are_one_in_every_block(support_size):
    actions = BlockActions.from_data(
        example(), 5, support_size=support_size, generator=torch.Generator().manual_seed(0)
    )
    for values in block_values(actions):
        assert bool((values == 1).all())


def test_random_values_are_normal_draws_scaled_to_mean_square_one():
    n = 4_000
    choices = {"blocks": "ordered", "start": "random", "generator": torch.Generator().manual_seed(0)}
    actions = BlockActions.from_data(example(n), 4, **choices)
    values = torch.stack(block_values(actions)) / math.sqrt(n / 4)
    assert torch.allclose(values.norm(dim=1), torch.ones(4, dtype=torch.float64), rtol=1e-14)
    z = values * math.sqrt(n / 4)  # close to standard normal in so many dimensions
    assert abs(float(z.mean())) < 4.5 / math.sqrt(n)
    assert abs(float(z.pow(4).mean()) - 3) < 4.5 * math.sqrt(96 / n)
    draws = torch.randn(n, generator=torch.Generator().manual_seed(0), dtype=torch.float64).view(4, -1)
    assert torch.allclose(values, draws / draws.norm(dim=1, keepdim=True), rtol=1e-13)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_eigenvector_values_are_the_leading_eigenvector_of_the_blocks_kernel_matrix(dtype):
    X, kernel = example().to(dtype), Matern32(2, [0.7, 1.3])
    actions = BlockActions.from_data(X, 5, kernel=kernel, start="eigenvector")
    assert actions.values.dtype == dtype
    for rows, values in zip(actions.support.split(actions.offsets.diff().tolist()), block_values(actions), strict=True):
        K = oracle.kernel_matrix(kernel, X[rows], X[rows])
        leading = np.linalg.eigh(K)[1][:, -1]
        leading *= np.sign(leading.sum()) * math.sqrt(len(rows))
        assert np.abs(values.numpy() - leading).max() < (1e-12 if dtype == torch.float64 else 1e-6)


def test_weights_have_unit_columns_whatever_the_values():
    g = torch.Generator().manual_seed(0)
    values = (
        torch.randn(10, generator=g, dtype=torch.float64)
        * 10.0 ** torch.randint(-150, 150, (10,), generator=g).double()
    )
    W = BlockActions(ordered_blocks(10, 10), values).weights(torch.float64)
    assert torch.allclose(W.values.detach(), torch.sign(values), rtol=1e-14)
    for scale in (1e-300, 1e-30, 1.0, 1e300):
        W = BlockActions(ordered_blocks(10, 3), torch.linspace(1, 2, 10).double() * scale).weights(torch.float64)
        norms = W.dense().detach().norm(dim=0)
        assert torch.allclose(norms, torch.ones(3, dtype=torch.float64), rtol=1e-14)
        S = DenseActions(torch.rand(10, 3, generator=g, dtype=torch.float64) * scale).weights(torch.float64)
        assert torch.allclose(S.detach().norm(dim=0), torch.ones(3, dtype=torch.float64), rtol=1e-14)


def test_learned_actions_have_gradients_and_fixed_ones_have_none():
    S = torch.eye(4, 2, dtype=torch.float64)
    assert [p.requires_grad for p in DenseActions(S).parameters()] == [False]
    assert [p.requires_grad for p in DenseActions(S, learn=True).parameters()] == [True]
    assert [p.requires_grad for p in BlockActions(ordered_blocks(4, 2)).parameters()] == [True]


def test_actions_copy_the_values_they_are_given():
    values, S = torch.ones(4), torch.eye(4, 2)
    blocks, dense = BlockActions(ordered_blocks(4, 2), values), DenseActions(S)
    values.zero_()
    S.zero_()
    assert bool((blocks.values == 1).all())
    assert float(dense.S.sum()) == 2


# --- support ----------------------------------------------------------------------------------------------------------


@given(n=st.integers(1, 80), data=st.data(), seed=st.integers(0, 2**31))
def test_the_support_holds_as_many_rows_of_each_block_as_asked_for(n, data, seed):
    i = data.draw(st.integers(1, n))
    support_size = data.draw(st.integers(1, n))
    X = torch.randn(n, 2, generator=torch.Generator().manual_seed(seed))
    g = torch.Generator().manual_seed(seed)
    actions = BlockActions.from_data(X, i, support_size=support_size, generator=g)
    whole = blocks_of(spatial_blocks(X, i))
    kept = blocks_of(Partition(actions.support, actions.offsets))
    assert actions.num_rows == n
    assert actions.num_actions == i
    for block, rows in zip(whole, kept, strict=True):
        assert len(rows) == min(support_size, len(block))
        assert len(set(rows)) == len(rows)
        assert set(rows) <= set(block)


def test_every_row_of_a_block_can_be_in_the_support():
    partition, g = ordered_blocks(6, 1), torch.Generator().manual_seed(0)
    drawn = {r for _ in range(60) for r in BlockActions(partition, support_size=2, generator=g).support.tolist()}
    assert drawn == set(range(6))


# --- randomness -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("choices", [{"start": "random"}, {"support_size": 2}, {"start": "random", "support_size": 2}])
def test_random_choices_repeat_with_the_generator_and_leave_the_global_one_alone(choices):
    X, state = example(), torch.get_rng_state()
    first, again, other = (
        BlockActions.from_data(X, 5, generator=torch.Generator().manual_seed(seed), **choices) for seed in (1, 1, 2)
    )
    assert torch.equal(first.support, again.support)
    assert torch.equal(first.values, again.values)
    assert not (torch.equal(first.support, other.support) and torch.equal(first.values, other.values))
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("choices", [{}, {"blocks": "ordered"}, {"start": "eigenvector", "kernel": RBF(2)}])
def test_choices_without_chance_leave_the_global_generator_alone(choices):
    state = torch.get_rng_state()
    BlockActions.from_data(example(), 5, **choices)
    assert torch.equal(state, torch.get_rng_state())


# --- the method's shortcut --------------------------------------------------------------------------------------------


def test_the_method_passes_choices_on_and_takes_eigenvectors_of_its_own_kernel():
    X, prior = example(), GP(Matern32(2, [0.7, 1.3]))
    method = CaGPOpt.from_data(prior, X, 5, start="eigenvector", blocks="ordered")
    expected = BlockActions.from_data(X, 5, kernel=prior.kernel, start="eigenvector", blocks="ordered")
    assert torch.equal(method.actions.values, expected.values)
    assert torch.equal(method.actions.support, torch.arange(23))


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("annotations_off")
class TestErrors:
    X = torch.zeros(6, 2)

    @pytest.mark.parametrize("count", [0, -1, 7, 2.0, True])
    def test_an_impossible_number_of_actions(self, count):
        message = "is .*, expected an integer from 1 to 6"
        with pytest.raises(ValueError, match="num_actions " + message):
            BlockActions.from_data(self.X, count)
        with pytest.raises(ValueError, match="num_blocks " + message):
            spatial_blocks(self.X, count)
        with pytest.raises(ValueError, match="num_blocks " + message):
            ordered_blocks(6, count)
        with pytest.raises(ValueError, match="support_size " + message):
            BlockActions(ordered_blocks(6, 2), support_size=count)

    def test_more_dense_actions_than_rows(self):
        with pytest.raises(ValueError, match="the number of columns of S is 3, expected an integer from 1 to 2"):
            DenseActions(torch.ones(2, 3))

    def test_actions_that_are_zero(self):
        with pytest.raises(ValueError, match="action 1 is zero"):
            BlockActions(ordered_blocks(6, 3), torch.tensor([1.0, 0, 0, 0, 1, 1]))
        S = torch.eye(6, 3)
        S[:, 2] = 0
        with pytest.raises(ValueError, match="action 2 is zero"):
            DenseActions(S).weights(torch.float32)

    def test_values_of_another_length(self):
        with pytest.raises(ValueError, match=r"values has shape \(5,\), expected \(6,\)"):
            BlockActions(ordered_blocks(6, 3), torch.ones(5))

    def test_unknown_choices(self):
        with pytest.raises(ValueError, match="blocks is 'random', expected"):
            BlockActions.from_data(self.X, 2, blocks="random")
        with pytest.raises(ValueError, match="start is 'zeros', expected"):
            BlockActions.from_data(self.X, 2, start="zeros")
        with pytest.raises(ValueError, match="kernel is missing"):
            BlockActions.from_data(self.X, 2, start="eigenvector")
        with pytest.raises(ValueError, match="loss is 'nll', expected"):
            CaGPOpt(GP(RBF(2)), BlockActions.from_data(self.X, 2), "nll")

    def test_lengthscales_for_other_columns(self):
        with pytest.raises(ValueError, match="lengthscale"):
            spatial_blocks(self.X, 2, torch.ones(3))

    def test_actions_made_for_other_rows(self):
        X = torch.zeros(5, 2)
        with pytest.raises(ValueError, match="X has 5 rows, the actions were made for 6; make them from X"):
            project(GP(RBF(2)), BlockActions.from_data(self.X, 2), X, torch.zeros(5))

    def test_a_partition_with_a_row_in_two_blocks(self):
        with pytest.raises(ValueError, match="partition"):
            BlockActions(Partition(torch.tensor([0, 1, 1, 2]), torch.tensor([0, 2, 4])))
