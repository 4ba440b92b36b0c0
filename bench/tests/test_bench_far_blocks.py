"""``cagp bench far-blocks``: it counts the pairs that products leave out."""

import json

import numpy as np
import pytest
import torch
from engine_problems import DTYPES, needs_native
from test_reach import Wide

from cagp.actions import BlockActions
from cagp.cli import main
from cagp.engine import COMPILED, kernel_product
from cagp_bench.far_blocks import count_pairs


@needs_native
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_far_blocks_are_left_out_and_the_count_of_the_benchmark_is_theirs(dtype):
    data = Wide("RBF", 100.0, dtype, n=320)
    with torch.no_grad():
        found = kernel_product(data.kernel, data.X, data.Z, data.W, backend=COMPILED)
        left_out = float((found == 0).double().mean())
        actions = BlockActions.from_data(data.Z, 20, lengthscale=data.kernel.lengthscale)
        counted = count_pairs(data.kernel, data.Z, actions, torch.arange(len(data.Z)))
    assert left_out > 0.7
    rows = (data.Z.detach() / data.kernel.lengthscale.detach())[actions.support].double()
    reached, block = torch.cdist(rows, rows) <= counted["reach"], actions.weights(dtype).columns()
    upper = block[:, None] <= block
    assert counted["pairs"] == 240 * 240 + int(upper.sum())
    assert int(reached.sum() + (reached & upper).sum()) <= counted["pairs_reached"] < counted["pairs"] / 2


def test_the_benchmark_counts_for_every_choice(tmp_path, capsys):
    g = torch.Generator().manual_seed(0)
    X = torch.rand(400, 1, generator=g) * 300
    np.savez(tmp_path / "series.npz", X=X.numpy(), y=torch.sin(X[:, 0]).numpy())
    options = ["--n-actions", "20", "--steps", "0", "2", "--kernels", "rbf", "matern32", "--json"]
    assert main(["bench", "far-blocks", str(tmp_path / "series.npz"), *options]) == 0
    records = json.loads(capsys.readouterr().out)
    assert [(r["kernel"], r["steps"]) for r in records] == [(k, s) for k in ("rbf", "matern32") for s in (0, 2)]
    assert all(0 < r["pairs_reached"] <= r["pairs"] for r in records)
