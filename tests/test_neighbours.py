"""Neighbours: exact indices agree with brute-force distances, every index returns rows that count, each once."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cagp import neighbours
from cagp.engine import COMPILED, TORCH
from cagp.neighbours import NeighbourIndex

EXACT = ["scan", "tree", "scipy"]


def exact_index(X: Tensor, lengthscale: Tensor | None, kind: str) -> NeighbourIndex:
    if kind == "scipy":
        return NeighbourIndex(X, lengthscale, "tree", backend=TORCH)
    return NeighbourIndex(X, lengthscale, "scan" if kind == "scan" else "tree")


# Distances of float32 points: neighbours at almost equal distances may change places.
CLOSE = {"rtol": 1e-4, "atol": 1e-6}


def points(n: int, d: int, oddity: str = "none", seed: int = 0) -> tuple[Tensor, Tensor]:
    """Rows, some odd, and a lengthscale for each column."""
    g = torch.Generator().manual_seed(seed)
    X = torch.randn(n, d, generator=g, dtype=torch.float64)
    if oddity == "duplicate rows":
        X = X[torch.randint(0, max(1, n // 8), (n,), generator=g)]
    elif oddity == "constant column":
        X[:, 0] = 3.7
    elif oddity == "far from the origin":
        X += 1e4
    return X, 0.3 + torch.rand(d, generator=g, dtype=torch.float64)


def distances(X: Tensor, Z: Tensor, lengthscale: Tensor) -> np.ndarray:
    """Between all rows, float64, in lengthscale units."""
    return np.sqrt((((X[:, None] - Z[None]) / lengthscale).numpy() ** 2).sum(-1))


def smallest(D: np.ndarray, k: int) -> np.ndarray:
    return np.sort(D, axis=1)[:, :k]


def assert_nearest(found: Tensor, D: np.ndarray, k: int) -> None:
    """The rows found are at the smallest of these distances (infinite: does not count), in order, no row twice."""
    assert found.shape == (len(D), k)
    assert found.dtype == torch.long
    for row, distance, best in zip(found.tolist(), D, smallest(D, k), strict=True):
        present = [r for r in row if r >= 0]
        assert len(set(present)) == len(present) == np.isfinite(best).sum()
        assert all(r == -1 for r in row[len(present) :])
        np.testing.assert_allclose(distance[present], best[: len(present)], **CLOSE)


odd = st.sampled_from(["none", "duplicate rows", "constant column", "far from the origin"])


@pytest.mark.parametrize("kind", EXACT)
@settings(max_examples=25)
@given(n=st.integers(2, 90), d=st.sampled_from([1, 2, 3, 7, 20]), oddity=odd, seed=st.integers(0, 1000), data=st.data())
def test_exact_indices_find_the_nearest_rows_with_and_without_the_point_itself(kind, n, d, oddity, seed, data):
    X, lengthscale = points(n, d, oddity, seed)
    k = data.draw(st.integers(1, n - 1))
    index = exact_index(X, lengthscale, kind)
    new = torch.cat([X[:5], X[:1] + 0.1])
    assert_nearest(index.nearest(new, k), distances(new, X, lengthscale), k)
    assert_nearest(index.nearest(new, n), distances(new, X, lengthscale), n)

    rows = torch.arange(n).flip(0)
    others = distances(X[rows], X, lengthscale)
    others[np.arange(n), rows] = np.inf
    found = index.nearest(X[rows], k, left_out=rows)
    assert not bool((found == rows[:, None]).any())
    assert_nearest(found, others, k)


@pytest.mark.parametrize("kind", EXACT)
def test_a_row_with_more_duplicates_than_neighbours_is_left_out_itself_and_no_other(kind):
    X = torch.zeros(300, 2, dtype=torch.float64)
    X[200:] = torch.randn(100, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rows = torch.arange(300)
    found = exact_index(X, None, kind).nearest(X, 7, left_out=rows)
    assert not bool((found == rows[:, None]).any())
    assert bool((found[:200] < 200).all())
    assert all(len(set(row)) == 7 for row in found.tolist())


@pytest.mark.parametrize(
    "kind",
    [
        "scan",
        pytest.param(
            "tree", marks=pytest.mark.skipif(not COMPILED.instruction_set, reason="only the compiled one is exact")
        ),
    ],
)
@settings(max_examples=25)
@given(n=st.integers(1, 90), d=st.sampled_from([1, 3, 9]), oddity=odd, seed=st.integers(0, 1000), k=st.integers(1, 12))
def test_a_scan_and_a_compiled_tree_find_the_nearest_of_all_earlier_rows(kind, n, d, oddity, seed, k):
    X, lengthscale = points(n, d, oddity, seed)
    index = exact_index(X, lengthscale, kind)
    rows = torch.arange(n)
    for position in (rows, torch.randperm(n, generator=torch.Generator().manual_seed(seed))):
        D = distances(X, X, lengthscale)
        D[position.numpy()[None, :] >= position.numpy()[:, None]] = np.inf
        D = np.concatenate([D, np.full((n, k), np.inf)], axis=1)  # fewer than k: -1
        assert_nearest(index.ordered(position).earlier(rows, k), D, k)
        some = rows[:: max(1, n // 5)]
        assert_nearest(index.ordered(position).earlier(some, k), D[some.numpy()], k)


def assert_earlier(
    index: NeighbourIndex, X: Tensor, lengthscale: Tensor, position: Tensor, k: int, share: float
) -> None:
    """Only earlier rows, none twice, as many as there are up to k; ``share`` of them the nearest ones."""
    rows = torch.arange(len(position))
    found = index.ordered(position).earlier(rows, k)
    present = found >= 0
    assert torch.equal(present.sum(1), position.clamp_max(k))
    assert bool((present.int().diff(dim=1) <= 0).all())  # -1 comes last
    assert bool((position[found.clamp_min(0)] < position[:, None])[present].all())
    assert all(len(set(row[:count])) == count for row, count in zip(found.tolist(), present.sum(1), strict=True))
    exact = NeighbourIndex(X, lengthscale, "scan").ordered(position).earlier(rows, k)
    hits = sum(len(set(a) & set(b)) for a, b in zip(found.tolist(), exact.tolist(), strict=True))
    assert hits >= share * found.numel()


@pytest.mark.slow
@pytest.mark.parametrize("oddity", ["none", "duplicate rows"])
def test_an_index_with_scipys_tree_finds_the_nearest_earlier_rows_in_every_order_it_is_asked_for(oddity):
    n, k = 9000, 6
    X, lengthscale = points(n, 2, oddity)
    index = NeighbourIndex(X, lengthscale, "tree", backend=TORCH)
    share = 0.999 if oddity == "none" else 0.0  # ties and round-off decide which of equally near rows are found
    for seed in (0, 1):
        position = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
        assert_earlier(index, X, lengthscale, position, k, share)


@pytest.mark.skipif(not COMPILED.instruction_set, reason="the compiled kernels are not installed")
def test_every_backend_gives_the_same_scan(monkeypatch):
    X, lengthscale = points(700, 5)
    rows = torch.arange(0, 700, 3)
    position = torch.randperm(700, generator=torch.Generator().manual_seed(1))

    def answers(backend) -> list[Tensor]:
        index = NeighbourIndex(X, lengthscale, "scan", backend=backend)
        found = [index.nearest(X[rows] + 0.1, 9), index.nearest(X[rows], 699, left_out=rows)]
        return [*found, index.ordered(position).earlier(rows, 9), index.ordered(position).earlier(rows[:4], 701)]

    compiled = answers(COMPILED)
    for a, b in zip(compiled, answers(TORCH), strict=True):
        same = a == b
        assert float(same.double().mean()) > 0.999
        assert torch.equal(a < 0, b < 0)
    monkeypatch.setattr("cagp.engine.backend.NEAREST_ELEMENTS", 5 * 700)  # five points at a time
    for a, b in zip(compiled, answers(TORCH), strict=True):
        assert float((a == b).double().mean()) > 0.999


@pytest.mark.skipif(not COMPILED.instruction_set, reason="the compiled kernels are not installed")
def test_the_number_of_threads_changes_nothing():
    X, lengthscale = points(500, 4, "duplicate rows")
    index = NeighbourIndex(X, lengthscale, "scan")
    one = index.nearest(X, 11)
    try:
        torch.set_num_threads(3)
        assert torch.equal(index.nearest(X, 11), one)
    finally:
        torch.set_num_threads(1)


def test_without_compiled_code_the_kind_is_chosen_by_rows_and_columns(monkeypatch):
    monkeypatch.setattr(neighbours, "SCIPY_TREE_ROWS", 20)
    monkeypatch.setattr(neighbours, "SCAN_ROWS", 300)
    monkeypatch.setattr(neighbours, "_faiss", lambda: None)
    assert NeighbourIndex(points(80, 2)[0], backend=TORCH).kind == "tree"
    assert NeighbourIndex(points(79, 2)[0], backend=TORCH).kind == "scan"
    assert NeighbourIndex(points(600, 9)[0], backend=TORCH).kind == "scan"
    with pytest.raises(ValueError, match="needs faiss"):
        NeighbourIndex(points(600, 9)[0], kind="approximate")


@pytest.mark.skipif(not COMPILED.instruction_set, reason="the compiled kernels are not installed")
def test_a_tree_is_chosen_where_searches_look_through_little_of_it_whatever_the_lengthscales(monkeypatch):
    monkeypatch.setattr(neighbours, "_faiss", lambda: None)
    few, many = points(20_000, 3)[0], points(20_000, 12)[0]
    along_a_curve = torch.sin(torch.linspace(0, 3, 20_000)[:, None] * torch.arange(1, 13)).double()
    assert NeighbourIndex(few).kind == "tree"
    assert NeighbourIndex(many).kind == "scan"
    assert NeighbourIndex(along_a_curve).kind == "tree"  # many columns, but one dimension
    assert NeighbourIndex(few[:999]).kind == "scan"
    for factor in (1e-6, 1e6):
        unequal = torch.ones(12, dtype=torch.float64)
        unequal[2:] = factor
        assert NeighbourIndex(many, unequal).kind == "scan"
        assert NeighbourIndex(few, unequal[:3]).kind == "tree"


def test_approximate_search_returns_rows_that_count_and_most_of_the_nearest(monkeypatch):
    pytest.importorskip("faiss")
    monkeypatch.setattr(neighbours, "SCAN_ROWS", 3000)
    X, lengthscale = points(6000, 8)
    index = NeighbourIndex(X, lengthscale)
    assert index.kind == "approximate"
    exact = NeighbourIndex(X, lengthscale, "scan")
    new, rows = points(200, 8, seed=1)[0], torch.arange(0, 6000, 20)
    pairs = [
        (index.nearest(new, 10), exact.nearest(new, 10)),
        (index.nearest(X[rows], 10, left_out=rows), exact.nearest(X[rows], 10, left_out=rows)),
    ]
    assert not bool((pairs[1][0] == rows[:, None]).any())
    for found, best in pairs:
        assert all(len(set(row)) == 10 for row in found.tolist())
        hits = sum(len(set(a) & set(b)) for a, b in zip(found.tolist(), best.tolist(), strict=True))
        assert hits > 0.8 * best.numel()
    everything = index.nearest(new[:3], 6000)  # more than the lists looked through hold
    assert torch.equal(everything.sort().values, torch.arange(6000).expand(3, -1))
    assert_earlier(index, X, lengthscale, torch.randperm(6000, generator=torch.Generator().manual_seed(0)), 5, 1.0)
    assert torch.equal(NeighbourIndex(X, lengthscale).nearest(new, 10), pairs[0][0])  # nothing is random


@pytest.mark.usefixtures("annotations_off")
def test_wrong_arguments_are_refused_with_a_remedy():
    X, lengthscale = points(20, 3)
    with pytest.raises(ValueError, match='expected "auto", "tree", "scan" or "approximate"'):
        NeighbourIndex(X, lengthscale, "nearest")
    with pytest.raises(ValueError, match=r"lengthscale has shape \(2,\), expected \(3,\)"):
        NeighbourIndex(X, lengthscale[:2])
    index = NeighbourIndex(X, lengthscale)
    with pytest.raises(ValueError, match="k is 21, expected an integer from 1 to 20"):
        index.nearest(X, 21)
    with pytest.raises(ValueError, match="k is 20, expected an integer from 1 to 19"):
        index.nearest(X, 20, left_out=torch.arange(20))
    with pytest.raises(ValueError, match="k is 0"):
        index.ordered(torch.arange(20)).earlier(torch.arange(20), 0)
