"""Posteriors in files answer with the same bits, and broken states are refused."""

import copy

import pytest
import torch
from persistence_problems import (
    KIND,
    POSTERIORS,
    VERSION,
    answers,
    bits,
    data,
    made,
    new_prior,
    same_answers,
    same_module,
    through_a_file,
)
from torch import Tensor

from cagp import GP, CaGPLocal, CaGPOpt, KnownNoise
from cagp.kernels import Matern52
from cagp.posteriors import posterior_from_state
from cagp.storage import save_state

# ---- posteriors ----


@pytest.mark.thinned(3)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", POSTERIORS)
def test_a_posterior_answers_with_the_same_bits(name, dtype, tmp_path):
    posterior, Z = made(name, dtype)
    back = posterior_from_state(through_a_file(posterior.state(), tmp_path))
    assert type(back) is type(posterior)
    same_answers(back, posterior, Z)
    same_module(back.prior, posterior.prior)
    assert back.max_bytes == posterior.max_bytes
    assert not any(p.requires_grad for p in back.prior.parameters())
    # What it is made of is the same, so that storing it again gives the same state.
    assert bits(back.state()) == bits(posterior.state())


@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", ["opt", "cggp", "hybrid", "local by tree"])
def test_rows_in_any_order_of_memory_give_the_same_bits(name, tmp_path):
    X, y, row_noise, Z = data(90, torch.float64)
    wide = torch.cat([X, X], 1)
    for other in (X.mT.contiguous().mT, wide[:, :3]):
        posterior = POSTERIORS[name](other, y, row_noise)
        same_answers(posterior_from_state(through_a_file(posterior.state(), tmp_path)), posterior, Z)


def test_a_posterior_keeps_the_rows_that_it_needs():
    counts = {name: len(made(name, torch.float64)[0].X) for name in POSTERIORS}
    assert counts["opt"] == counts["exact"] == counts["cggp"] == counts["hybrid"] == 90
    assert counts["sgpr"] == counts["svgp"] == 10
    assert counts["opt, some rows"] <= 48


def test_the_status_of_conjugate_gradients_is_kept(tmp_path):
    posterior, _ = made("cggp", torch.float64)
    back = posterior_from_state(through_a_file(posterior.state(), tmp_path))
    assert bits(back.representer_status) == bits(posterior.representer_status)
    assert (back.solver.tolerance, back.solver.max_iterations) == (
        posterior.solver.tolerance,
        posterior.solver.max_iterations,
    )


@pytest.mark.parametrize("name", ["local", "hybrid", "cggp, known rows"])
def test_changing_the_data_afterwards_changes_nothing(name, tmp_path):
    X, y, row_noise, Z = data(90, torch.float64)
    posterior = POSTERIORS[name](X, y, row_noise)
    before = [bits(a) for a in answers(posterior, Z)]
    for tensor in (X, y, row_noise):
        tensor.mul_(2)
    assert [bits(a) for a in answers(posterior, Z)] == before
    back = posterior_from_state(through_a_file(posterior.state(), tmp_path))
    assert [bits(a) for a in answers(back, Z)] == before


def test_posteriors_of_several_targets_store_the_rows_once(tmp_path):
    X, y, _, _ = data(2000, torch.float64)
    states = [CaGPLocal(new_prior(), 6).condition(X, targets).state() for targets in (y, y.cos())]
    for name, number in (("one", 1), ("two", 2)):
        save_state(tmp_path / name, {"posteriors": states[:number]}, KIND, VERSION)
    one, two = ((tmp_path / name).stat().st_size for name in ("one", "two"))
    assert two - one < 8 * len(y) + 8_000 < 8 * X.numel()


# ---- rounded rows ----


@pytest.mark.thinned(5)
@pytest.mark.parametrize("name", POSTERIORS)
def test_rounded_rows_answer_nearly_the_same_in_the_dtype_of_the_data(name, tmp_path):
    posterior, Z = made(name, torch.float64)
    back = posterior_from_state(through_a_file(posterior.state(torch.float32), tmp_path))
    assert back.X.dtype == torch.float64
    if name not in ("sgpr", "svgp"):  # inducing points are not rounded
        assert torch.equal(back.X, posterior.X.float().double())
    for a, b in zip(answers(back, Z), answers(posterior, Z), strict=True):
        assert a.dtype == torch.float64
        if a.shape != (3, len(Z)):  # samples take any square root of a covariance
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", POSTERIORS)
def test_rounding_float32_rows_to_float32_changes_nothing(name):
    posterior, _ = made(name, torch.float32)
    for dtype in (torch.float32, torch.float64):
        state = posterior.state(dtype)
        rows = {k: v for k, v in state.items() if k != "row_noise"}  # conjugate gradients hold theirs in float64
        assert bits(rows) == bits({k: v for k, v in posterior.state().items() if k != "row_noise"})


def test_rounded_rows_take_half_the_room(tmp_path):
    X, y, row_noise, _ = data(2000, torch.float64)
    posterior = CaGPLocal(GP(Matern52(3)), 6).condition(X, y, row_noise)
    sizes = []
    for dtype in (None, torch.float32):
        save_state(tmp_path / "file", posterior.state(dtype), KIND, VERSION)
        sizes.append((tmp_path / "file").stat().st_size)
    assert sizes[1] < 0.55 * sizes[0]


def test_rows_beyond_the_range_are_refused():
    X, y, row_noise, _ = data(20, torch.float64)
    posterior = CaGPLocal(GP(Matern52(3)), 6).condition(X, 1e200 * y)
    with pytest.raises(ValueError, match=r"y has values beyond the range of torch\.float32; store it with dtype=None"):
        posterior.state(torch.float32)
    posterior = CaGPLocal(GP(Matern52(3), noise=KnownNoise()), 6).condition(X, y, 1e-60 * row_noise)
    with pytest.raises(ValueError, match="row_noise has values beyond the range"):
        posterior.state(torch.float32)
    with pytest.raises(ValueError, match=r"dtype is torch\.float16, expected torch\.float32"):
        posterior.state(torch.float16)


# ---- states that are none ----


def entries(state, path=()):
    """Every place in a state: the way to it."""
    items = state.items() if isinstance(state, dict) else enumerate(state) if isinstance(state, list) else ()
    for key, value in items:
        yield (*path, key)
        yield from entries(value, (*path, key))


def parent(state, path):
    for key in path[:-1]:
        state = state[key]
    return state


@pytest.mark.slow
@pytest.mark.parametrize("name", ["opt", "dense", "sgpr", "cggp", "hybrid"])
def test_a_state_with_anything_missing_or_of_another_kind_is_refused(name, annotations_off, tmp_path):
    state = through_a_file(made(name, torch.float64, n=20)[0].state(), tmp_path)
    accepted = []
    for path in entries(state):
        value = parent(state, path)[path[-1]]
        for change in ("missing", "text", "a list", "another size"):
            other = copy.deepcopy(state)
            holder = parent(other, path)
            if change == "missing":
                if isinstance(holder, list):
                    continue  # a sum of fewer kernels is another one
                del holder[path[-1]]
            elif change == "another size":
                if not isinstance(value, Tensor) or (path[-2:-1] == ("representer",) and path[-1] != "solution"):
                    continue
                holder[path[-1]] = torch.cat([value.reshape(-1), value.reshape(-1)])
            else:
                holder[path[-1]] = "x" if change == "text" else [1, 2]
            try:
                posterior_from_state(other)
                accepted.append((path, change))
            except ValueError:
                pass
    floors = {("prior", "noise", "floors", "noise_floor")}  # one that is not there is the class's own
    assert {path for path, change in accepted if change == "missing"} <= floors
    assert not [(path, change) for path, change in accepted if change != "missing"]


@pytest.mark.parametrize("values", [[0, 30, 20], [0, 10, 21], [0, -5, 20], [1, 10, 20], [20]])
def test_weights_beyond_their_rows_are_refused(values):
    X, y, _, _ = data(20, torch.float64)
    state = CaGPOpt.from_data(new_prior(), X, 2).condition(X, y).state()
    assert len(state["W"]["offsets"]) == 3
    state["W"]["offsets"] = torch.tensor(values)
    with pytest.raises(ValueError, match="does not have 'offsets' as cagp stores it"):
        posterior_from_state(state)


@pytest.mark.parametrize("row", [-1, 20, 2**40])
def test_shared_actions_beyond_the_rows_are_refused(row):
    state = made("hybrid", torch.float64, n=20)[0].state()
    state["shared"]["support"] = state["shared"]["support"].clone()
    state["shared"]["support"][0] = row
    with pytest.raises(ValueError, match="does not have 'support' as cagp stores it"):
        posterior_from_state(state)
