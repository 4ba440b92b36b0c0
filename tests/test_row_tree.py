"""The compiled tree: the rows of brute force with the same rounding, and of float64 up to it; always the same bits."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cagp import fit
from cagp.dataset import Data
from cagp.engine import COMPILED, INSTRUCTION_SETS, RowTree, column_means, compiled_backend, spatial_order
from cagp.kernels import Matern32
from cagp.methods import CaGPLocal
from cagp.neighbours import NeighbourIndex
from cagp.prior import GP
from cagp.recipes import local

native = compiled_backend._native
pytestmark = pytest.mark.skipif(not COMPILED.instruction_set, reason="the compiled kernels are not installed")


def built(X: np.ndarray, threads: int = 1, scale: np.ndarray | None = None) -> tuple[np.ndarray, ...]:
    """The arrays of the tree of float32 rows as they are."""
    n, d = X.shape
    nodes = native.tree_nodes(n)
    points = np.zeros(n * d + native.tree_padding, np.float32)
    points[: n * d] = X.ravel()
    rows, least = np.empty(n, np.int32), np.empty(nodes, np.int32)
    boxes = np.empty((nodes, 2, d), np.float32)
    native.tree_build(points, rows, boxes, least, np.ones(d, np.float32) if scale is None else scale, threads)
    return points, rows, boxes, least


def searched(tree, scale, points, k, left_out=None, before=None, threads=1, isa="") -> np.ndarray:
    found = np.empty((len(points), k), np.int64)
    native.tree_nearest(*tree, scale, points, left_out, before, found, None, threads, isa)
    return found


def squared_distances(X: np.ndarray, scale: np.ndarray, points: np.ndarray) -> np.ndarray:
    """In the dtype of the arguments, column by column as the compiled code adds them up."""
    r2 = np.zeros((len(points), len(X)), X.dtype)
    with np.errstate(over="ignore", under="ignore"):
        for c in range(X.shape[1]):
            difference = (X[None, :, c] - points[:, None, c]) * scale[c]
            r2 += difference * difference
    return r2


def brute_force(X, scale, points, k, left_out=None, before=None) -> np.ndarray:
    """The nearest rows, ties by row; -1 where there are fewer."""
    n, rows = len(X), np.arange(len(X))
    counts = np.ones((len(points), n), bool)
    if left_out is not None:
        counts &= rows != left_out[:, None]
    if before is not None:
        counts &= rows < before[:, None]
    r2 = squared_distances(X, scale, points)
    out = np.full((len(points), k), -1)
    for q in range(len(points)):
        best = np.lexsort((rows[counts[q]], r2[q][counts[q]]))[:k]
        out[q, : len(best)] = rows[counts[q]][best]
    return out


VALUES = {
    "normal": lambda g, shape: g.normal(size=shape),
    "on a grid": lambda g, shape: g.integers(-2, 3, size=shape) / 4,  # duplicates, ties, zeros
    "all the same": lambda g, shape: np.full(shape, 1.25),
    "signed zeros": lambda g, shape: g.choice([0.0, -0.0, 1.0], size=shape),
    "huge": lambda g, shape: g.normal(size=shape) * 1e37,  # squares overflow
    "tiny": lambda g, shape: g.normal(size=shape) * 1e-30,  # squares vanish
    "of all sizes": lambda g, shape: g.normal(size=shape) * 10.0 ** g.integers(-20, 18, size=shape),
    "in order": lambda g, shape: np.sort(g.normal(size=shape), axis=0),
}


@settings(max_examples=150)
@given(
    n=st.one_of(st.integers(1, 40), st.sampled_from([63, 64, 65, 200, 700])),
    d=st.integers(1, 9),
    values=st.sampled_from(sorted(VALUES)),
    constant=st.booleans(),
    sizes=st.sampled_from([0, 3, 12]),
    seed=st.integers(0, 2**31),
    isa=st.sampled_from(INSTRUCTION_SETS or ("",)),
    data=st.data(),
)
def test_a_search_is_brute_force_in_float32_to_the_bit(n, d, values, constant, sizes, seed, isa, data):
    g = np.random.default_rng(seed)
    X = VALUES[values](g, (n, d)).astype(np.float32)
    if constant:
        X[:, 0] = X[0, 0]
    scale = (10.0 ** g.uniform(-sizes, sizes, size=d)).astype(np.float32)
    points = np.concatenate([X[g.integers(n, size=6)], VALUES[values](g, (6, d)).astype(np.float32)])
    k = data.draw(st.integers(1, n))
    tree = built(X, scale=scale if data.draw(st.booleans()) else None)
    others = {
        "left_out": g.integers(n, size=12) if data.draw(st.booleans()) else None,
        "before": g.integers(n + 1, size=12) if data.draw(st.booleans()) else None,
    }
    expected = brute_force(X, scale, points, k, **others)
    np.testing.assert_array_equal(searched(tree, scale, points, k, **others, isa=isa), expected)


@settings(max_examples=60)
@given(
    n=st.sampled_from([5, 40, 300, 3000]),
    d=st.integers(1, 8),
    size=st.sampled_from([1e-200, 1e-30, 1.0, 1e30, 1e200]),
    spread=st.sampled_from([0, 4]),
    seed=st.integers(0, 1000),
)
def test_an_index_finds_the_rows_of_float64_at_any_scale_of_the_data(n, d, size, spread, seed):
    g = torch.Generator().manual_seed(seed)
    X = torch.randn(n, d, generator=g, dtype=torch.float64)
    lengthscale = 10 ** (spread * (torch.rand(d, generator=g, dtype=torch.float64) - 0.5))
    points, k = torch.cat([X[:5], torch.randn(5, d, generator=g, dtype=torch.float64)]), min(n, 20)
    index = NeighbourIndex(size * X, lengthscale * size, "tree")
    r2 = squared_distances(X.numpy(), (1 / lengthscale).numpy(), points.numpy())
    found = np.take_along_axis(r2, index.nearest(size * points, k).numpy(), axis=1)
    best = np.sort(r2, axis=1)[:, :k]
    # Rows are rounded to float32 around their mean: 1e-7 of the largest distance there is.
    np.testing.assert_allclose(np.sqrt(found), np.sqrt(best), rtol=1e-5, atol=1e-5 * np.sqrt(r2.max()))


def test_the_arrays_are_a_balanced_tree_whose_boxes_hold_their_rows():
    g = np.random.default_rng(0)
    n, d = 5_000, 3
    X = g.normal(size=(n, d)).astype(np.float32)
    points, rows, boxes, least = built(X)
    assert sorted(rows) == list(range(n))
    leaves = (len(least) + 1) // 2
    for level in range(leaves.bit_length()):
        for j in range(2**level):
            node, begin, end = 2**level + j - 1, n * j // 2**level, n * (j + 1) // 2**level
            inside = X[rows[begin:end]]
            np.testing.assert_array_equal(boxes[node], [inside.min(0), inside.max(0)])
            assert least[node] == rows[begin:end].min()
            if 2**level == leaves:
                assert end - begin <= 32
                stored = points[begin * d : end * d].reshape(d, end - begin).T
                np.testing.assert_array_equal(stored, inside)
                assert (np.diff(rows[begin:end]) > 0).all()
    tree = RowTree.of(torch.as_tensor(X), torch.ones(d).double(), torch.zeros(d).double())
    slots = torch.arange(n)
    assert torch.equal(tree._at(slots) * tree.unit, torch.as_tensor(X)[tree.rows.long()].double())


@pytest.mark.parametrize("values", sorted(VALUES))
def test_threads_and_instruction_sets_change_no_bit(values):
    g = np.random.default_rng(1)
    X, scale = VALUES[values](g, (40_000, 2)).astype(np.float32), np.array([1.0, 0.3], np.float32)
    points, rows = X[::97] + np.float32(0.01), np.arange(0, 40_000, 97)
    one = built(X)
    for threads in (2, 5):
        for a, b in zip(built(X, threads), one, strict=True):
            np.testing.assert_array_equal(a, b)
    expected = searched(one, scale, points, 9, left_out=rows)
    for isa in INSTRUCTION_SETS:
        for threads in (1, 3):
            np.testing.assert_array_equal(searched(one, scale, points, 9, rows, None, threads, isa), expected)
    np.testing.assert_array_equal(expected[:5], brute_force(X, scale, points[:5], 9, left_out=rows[:5]))


def test_many_copies_of_a_row_do_not_make_a_search_look_at_all_of_them():
    X = np.zeros((200_000, 2), np.float32)
    tree, visited = built(X), np.empty(1, np.int64)
    found = np.empty((1, 50), np.int64)
    native.tree_nearest(*tree, np.ones(2, np.float32), X[:1], None, None, found, visited, 1)
    np.testing.assert_array_equal(found[0], np.arange(50))
    assert visited[0] <= 4


def test_points_that_are_not_numbers_are_answered_with_rows_and_rows_that_are_not_are_refused():
    g = np.random.default_rng(2)
    X = g.normal(size=(500, 3)).astype(np.float32)
    points = np.array([[np.nan] * 3, [np.inf, 0, 0], [-np.inf, np.nan, 0]], np.float32)
    found = searched(built(X), np.ones(3, np.float32), points, 20)
    assert all(len(set(row)) == 20 and min(row) >= 0 and max(row) < 500 for row in found.tolist())
    for wrong in (np.nan, np.inf, -np.inf):
        X[17, 1] = wrong
        with pytest.raises(ValueError, match="points must be finite"):
            built(X)


# ---- in the library ----


def some_rows(n: int = 4000, d: int = 3) -> Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 100


def test_other_lengthscales_share_the_tree_and_give_the_answers_of_a_new_one():
    X = some_rows()
    first = NeighbourIndex(X, torch.ones(3).double(), "tree")
    rows, position = torch.arange(0, 4000, 7), torch.randperm(4000, generator=torch.Generator().manual_seed(3))
    for lengthscale in (torch.tensor([1.0, 30.0, 0.01]).double(), None):
        shared, new = first.with_lengthscale(X, lengthscale), NeighbourIndex(X, lengthscale, "tree")
        assert shared.tree is first.tree
        assert new.tree is not first.tree
        assert torch.equal(shared.nearest(X[rows], 9, left_out=rows), new.nearest(X[rows], 9, left_out=rows))
        assert torch.equal(shared.ordered(position).earlier(rows, 9), new.ordered(position).earlier(rows, 9))
    scan = NeighbourIndex(X, None, "scan").with_lengthscale(X, torch.full((3,), 2.0).double())
    assert scan.kind == "scan"
    assert scan.tree is None


def test_a_fit_builds_one_tree(monkeypatch):
    built_trees, of = [], RowTree.of
    monkeypatch.setattr(RowTree, "of", lambda *arguments: built_trees.append(1) or of(*arguments))
    X = some_rows()
    data = Data(X, X[:, 0])
    method = CaGPLocal(GP(Matern32(3, 1.0)), 8)
    for step, lengthscale in enumerate((1.0, 2.0, 3.0)):
        method.search_lengthscale = torch.full((3,), lengthscale).double()
        rows = torch.arange(step, 4000, 50)
        expected = NeighbourIndex(X, method.search_lengthscale, "scan").nearest(X[rows], 8, left_out=rows)
        assert float((method.lookup(data).of(X, rows) == expected).double().mean()) > 0.999
    fit(method, data, num_steps=12)
    method.condition(data)
    assert len(built_trees) == 1


def test_a_tree_of_stored_arrays_gives_the_same_answers_also_from_a_mapped_file(tmp_path):
    X = some_rows()
    tree = NeighbourIndex(X, None, "tree").tree
    assert tree is not None
    mapped = {}
    for name in ("points", "rows", "boxes", "least"):
        np.save(tmp_path / name, getattr(tree, name).numpy())
        mapped[name] = torch.from_numpy(np.load(tmp_path / f"{name}.npy", mmap_mode="c"))
    again, scale = replace(tree, **mapped), torch.ones(3).double()
    assert torch.equal(again.nearest(X[:50] + 0.1, scale, 12), tree.nearest(X[:50] + 0.1, scale, 12))


def test_rows_are_read_in_chunks_and_never_copied_as_a_whole(monkeypatch):
    X = some_rows().float()
    whole = NeighbourIndex(X, None, "tree")
    monkeypatch.setattr(compiled_backend, "CHUNK_ROWS", 333)
    in_chunks = NeighbourIndex(X, None, "tree", whole.origin)
    assert whole.tree is not None
    assert in_chunks.tree is not None
    for name in ("points", "rows", "boxes", "least", "unit"):
        assert torch.equal(getattr(whole.tree, name), getattr(in_chunks.tree, name))
    assert torch.allclose(column_means(X), X.double().mean(0), rtol=1e-14)
    assert not hasattr(whole, "points")


def test_a_spatial_order_keeps_near_points_together():
    points = torch.rand(5000, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for inverse in (torch.tensor([1.0, 1.0]).double(), torch.tensor([1.0, 1e-9]).double()):
        order = spatial_order(points, inverse)
        assert torch.equal(order.sort().values, torch.arange(5000))
        steps = ((points[order].diff(dim=0)) * inverse).norm(dim=1).mean()
        assert steps < 0.1 * ((points.diff(dim=0)) * inverse).norm(dim=1).mean()


@pytest.mark.parametrize(("n", "d"), [(2**19 + 1, 3), (40_000, 9)])  # leaves half full: as many boxes as there can be
def test_a_tree_takes_no_more_memory_than_is_planned(n, d):
    tree = NeighbourIndex(torch.rand(n, d), None, "tree").tree
    assert tree is not None
    arrays = (tree.points, tree.rows, tree.boxes, tree.least)
    taken = sum(array.numel() * array.element_size() for array in arrays)
    assert 0.6 * taken < n * (4 * d + 4) < taken <= n * (local.TREE_COLUMN * d + local.TREE_ROW)
