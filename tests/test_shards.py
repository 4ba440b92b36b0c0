"""Tables in regions: nothing is lost, and a neighbour that is missed only widens the error bar."""

import numpy as np
import oracle
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rank_worker import UNIT, prior, table

from cagp import CaGPLocal
from cagp.methods.cagp_local import OwnRows
from cagp.ranks import Ranks
from cagp.shards import Regions, exchange_rows, halo_width, sample_of_parts

TEST_POINTS, _ = table(40, seed=1)


def shards_of(regions: Regions, width: float, X, y):
    """What each process would hold, by number of rows: those of its region, and those near it."""
    home = regions.of(X)
    for region in range(regions.num_regions):
        near = (home != region) & regions.near(X, region, width)
        yield region, (home == region).nonzero()[:, 0], near.nonzero()[:, 0]


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 100), st.integers(1, 7), st.sampled_from([0.0, 0.1, 0.5, 5.0]), st.sampled_from([3, 12, 60]))
def test_the_variance_is_never_below_the_exact_one(seed, num_regions, width, num_neighbours):
    X, y = table(60, seed)
    model, regions = prior(), Regions.cut(X, num_regions, UNIT)
    assert sorted(torch.cat([own for _, own, _ in shards_of(regions, width, X, y)]).tolist()) == list(range(60))
    exact = oracle.exact_posterior(model, X, y, TEST_POINTS)
    method = CaGPLocal(model, num_neighbours, num_neighbours_predict=num_neighbours)
    answered = 0
    for region, own, near in shards_of(regions, width, X, y):
        rows, mine = torch.cat([own, near]), regions.of(TEST_POINTS) == region
        answered += int(mine.sum())
        if not bool(mine.any()):
            continue
        found = method.condition(X[rows], y[rows]).predict(TEST_POINTS[mine])
        variance = exact.covariance.diagonal()[mine.numpy()]
        assert (found.variance.numpy() >= variance - 1e-10).all()
        if width == 5.0 and num_neighbours == 60:  # every process holds, and uses, all rows
            np.testing.assert_allclose(found.variance, variance, rtol=1e-8, atol=1e-10)
            np.testing.assert_allclose(found.mean, exact.mean[mine.numpy()], rtol=1e-8, atol=1e-10)
    assert answered == len(TEST_POINTS)


def test_sharded_predictions_are_within_the_error_bars_of_the_others():
    X, y = table(600)
    method, regions = CaGPLocal(prior(), 10), Regions.cut(X, 4, UNIT)
    width = halo_width(X, len(X), method.num_neighbours_predict, UNIT)
    whole = method.condition(X, y).predict(TEST_POINTS)
    for region, own, near in shards_of(regions, width, X, y):
        rows, mine = torch.cat([own, near]), regions.of(TEST_POINTS) == region
        found = method.condition(X[rows], y[rows]).predict(TEST_POINTS[mine])
        assert len(rows) < 500
        assert ((found.mean - whole.mean[mine]).abs() <= whole.variance[mine].sqrt()).all()
        # The halo holds nearly all neighbours: nearly all answers are the same.
        assert float(((found.mean - whole.mean[mine]).abs() < 1e-9).double().mean()) > 0.9


def test_the_width_of_a_halo_is_about_the_distance_of_neighbours():
    X, _ = table(2000)
    distance = torch.cdist(X / UNIT, X / UNIT).sort(1).values[:, 20].quantile(0.99)
    assert halo_width(X, 2000, 20, UNIT) == pytest.approx(float(distance), rel=0.05)
    assert halo_width(X[::4], 2000, 20, UNIT) == pytest.approx(float(distance), rel=0.35)


def test_regions_have_about_as_many_rows_each():
    X, _ = table(1000)
    for num_regions in (2, 3, 5, 8):
        counts = Regions.cut(X, num_regions, UNIT).of(X).bincount(minlength=num_regions)
        assert int(counts.max() - counts.min()) <= 0.05 * 1000


def test_a_process_alone_holds_everything():
    X, y = table(30)
    alone = Ranks.alone()
    assert torch.equal(sample_of_parts(X, alone), X)
    shard = exchange_rows(Regions.of_parts(X, alone), 1.0, alone, X, y)
    assert torch.equal(shard.X, X)
    assert (shard.own, shard.row_noise) == (OwnRows(30, 1.0, rank=0), None)


def test_regions_without_rows_are_an_error():
    X, _ = table(30)
    equal = X.clone()
    equal[:] = 0.5
    with pytest.raises(ValueError, match="expected no more regions than rows"):
        Regions.cut(X, 31)
    assert Regions.cut(equal, 3).of(equal).unique().numel() == 1
