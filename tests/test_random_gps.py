"""Random problems against exact inference in extended precision: no error bar is too narrow without a word.

CAGP_PROBLEMS=10000 sets the number of problems in each dtype, CAGP_PROBLEMS_FROM the seed of the first.
"""

import math
import os

import numpy as np
import oracle
import pytest
import torch
from random_gps import DTYPES, LARGEST_EXCESS, LEAST_SHARE, METHODS, Found, check_problem, exact, random_gp

NUM_PROBLEMS, FIRST = int(os.environ.get("CAGP_PROBLEMS", "180")), int(os.environ.get("CAGP_PROBLEMS_FROM", "0"))
BATCH = 90


@pytest.mark.thinned(2)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("first", range(FIRST, FIRST + NUM_PROBLEMS, BATCH))
def test_no_variance_is_below_the_exact_one_and_no_bound_above_log_p_of_y(first, dtype):
    seeds = range(first, min(first + BATCH, FIRST + NUM_PROBLEMS))
    found = {seed: check_problem(seed, DTYPES[dtype]) for seed in seeds}
    assert not {seed: one for seed, one in found.items() if one.wrong}
    assert sum(bool(one.said) for one in found.values()) <= len(found) / 10  # a warning each time would be no answer


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({}, False),
        ({"share": 0.9 * LEAST_SHARE}, True),
        ({"share_of_function": 0.9 * LEAST_SHARE}, True),
        ({"excess": 2 * LARGEST_EXCESS}, True),
        ({"share": math.nan}, True),
        ({"excess": math.nan}, True),
        ({"share": 0.0, "said": "JitterWarning: ..."}, False),
    ],
)
def test_what_counts_as_wrong(change, wrong):
    right = Found("exact", "", 1e-3, 1.0, 1.0, -1.0, "")
    assert right._replace(**change).wrong is wrong


@pytest.mark.parametrize("seed", range(20))
def test_the_reference_is_the_dense_formula_where_that_is_accurate(seed):
    p = random_gp(seed, torch.float64)
    p.prior.noise.noise = 0.1 * float(p.prior.kernel.diag(p.X).max().detach())
    known = None if p.row_noise is None else p.row_noise
    dense = oracle.exact_posterior(p.prior, p.X, p.y, p.Z, known)
    found = exact(p)
    np.testing.assert_allclose(found.variance, dense.variance, rtol=1e-9)
    log_p = oracle.log_marginal_likelihood(p.prior, p.X, p.y, known)
    assert found.log_p == pytest.approx(log_p, rel=1e-9)


def test_every_method_and_small_noise_occur():
    found = [random_gp(seed, torch.float32) for seed in range(90)]
    scales = [p.prior.kernel.diag(p.X.double()).max().item() for p in found]
    noise = [p.prior.noise.noise.item() / scale for p, scale in zip(found, scales, strict=True)]
    assert min(noise) < 1e-8
    assert max(noise) > 0.1
    assert len(METHODS) == 9
