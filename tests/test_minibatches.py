"""CaGP-Opt in minibatches: the ELBO and its gradient from some of the rows, at a cost that does not depend on n."""

import math

import oracle
import pytest
import torch
from fit_problems import CrashError, assert_same_fit, crash_at, wave
from torch import Tensor

from cagp import GP, CaGPOpt, fit
from cagp.actions import BlockActions
from cagp.dataset import Data
from cagp.kernels import Kernel, Matern32, Scale
from cagp.losses import elbo
from cagp.prior import ConstantMean, GaussianNoise
from cagp.training import Batch

N, D, NUM_ACTIONS = 61, 2, 9
SUPPORTS = [None, 3]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def problem(support_size: int | None = 3, n: int = N, **choices) -> tuple[CaGPOpt, Tensor, Tensor, Tensor]:
    """A method with random weights on some rows of each block, data, and known noise of each row."""
    g = seeded(5)
    X = torch.randn(n, D, generator=g, dtype=torch.float64)
    y = torch.sin(2 * X[:, 0]) + 0.2 * torch.randn(n, generator=g, dtype=torch.float64)
    row_noise = 0.1 * torch.rand(n, generator=g, dtype=torch.float64)
    prior = GP(Scale(Matern32(D, 0.7), 1.3), ConstantMean(0.2), GaussianNoise(0.05))
    choices = {"start": "random", "support_size": support_size, "generator": g, **choices}
    return CaGPOpt.from_data(prior, X, NUM_ACTIONS, **choices), X, y, row_noise


def dense_loss(m: CaGPOpt, X: Tensor, y: Tensor, row_noise: Tensor, rows: Tensor) -> Tensor:
    """The loss per row as the formulas of the ELBO with dense n x n matrices, its data term from ``rows``."""
    n, actions = len(X), m.actions
    assert isinstance(actions, BlockActions)
    values = actions.values[actions.support.argsort().argsort()]
    columns = torch.arange(actions.num_actions).repeat_interleave(actions.offsets.diff())
    S = torch.zeros(n, actions.num_actions, dtype=torch.float64).index_put((actions.support, columns), values)
    K, noise = m.prior.kernel(X, X), m.prior.noise(X, row_noise)
    residual, KS = y - m.prior.mean(X), K @ S
    SKS, SDS = S.mT @ KS, S.mT @ (noise[:, None] * S)
    G = SKS + SDS
    v = torch.linalg.solve(G, S.mT @ residual)
    variance = K.diagonal() - (KS * torch.linalg.solve(G, KS.mT).mT).sum(1)
    data = ((residual - KS @ v).square() + variance) / noise + torch.log(2 * math.pi * noise)
    rest = v @ SKS @ v - torch.linalg.solve(G, SKS).trace() + torch.logdet(G) - torch.logdet(SDS)
    return 0.5 * (n / len(rows) * data[rows].sum() + rest) / n


def gradients(m: CaGPOpt, loss: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(loss, [p for p in m.parameters() if p.requires_grad]))


def assert_same(m: CaGPOpt, loss: Tensor, expected: Tensor) -> None:
    """Two losses and all their gradients agree to 1e-10."""
    assert loss.item() == pytest.approx(expected.item(), rel=1e-10)
    found, wanted = gradients(m, loss), gradients(m, expected)
    assert len(found) == 5  # lengthscale, outputscale, mean, noise, weights
    for a, b in zip(found, wanted, strict=True):
        assert float(b.abs().max()) > 0
        assert float((a - b).abs().max()) <= 1e-10 * max(1.0, float(b.abs().max()))


# --- the same numbers -------------------------------------------------------------------------------------------------


@pytest.mark.thinned(2)
@pytest.mark.parametrize("support_size", SUPPORTS)
@pytest.mark.parametrize("max_bytes", [1, 3000, 2**28])
def test_all_rows_as_the_minibatch_give_the_dense_loss_and_gradients(support_size, max_bytes):
    m, *data = problem(support_size, max_bytes=max_bytes)
    every = torch.arange(N)
    dense = dense_loss(m, *data, every)
    X, y, row_noise = data
    bound = oracle.elbo(m.prior, oracle.action_matrix(m.actions), X, y, row_noise).value
    assert dense.item() == pytest.approx(-bound / N, rel=1e-10)
    shuffled = torch.randperm(N, generator=seeded())
    for rows in (None, every, shuffled):  # None: the streamed loss of all rows
        assert_same(m, m.objective(*data, rows=rows), dense_loss(m, *data, every))


@pytest.mark.parametrize("support_size", SUPPORTS)
def test_a_minibatch_scales_the_data_term_and_keeps_the_rest(support_size):
    m, *data = problem(support_size)
    rows = torch.tensor([4, 0, 33, 33, 60])  # one of them twice, as drawing with replacement can
    assert_same(m, m.objective(*data, rows=rows), dense_loss(m, *data, rows))


@pytest.mark.thinned(2)
@pytest.mark.parametrize("support_size", SUPPORTS)
@pytest.mark.parametrize("max_bytes", [1, 2**28])
def test_minibatches_that_partition_the_rows_average_to_the_full_loss_and_gradient(support_size, max_bytes):
    m, *data = problem(support_size, max_bytes=max_bytes)
    parts = torch.randperm(N, generator=seeded()).split([1, 7, 20, 33])
    mean = torch.stack([len(rows) / N * m.objective(*data, rows=rows) for rows in parts]).sum()
    assert_same(m, mean, m.objective(*data))


@pytest.mark.parametrize("support_size", SUPPORTS)
def test_a_streamed_loss_without_gradients_is_the_same(support_size):
    m, *data = problem(support_size)
    small, *_ = problem(support_size, max_bytes=1)
    with torch.no_grad():
        assert small.objective(*data).item() == pytest.approx(m.objective(*data).item(), rel=1e-12)


def test_a_support_in_tiles_gives_the_same_posterior():
    m, *data = problem(5)
    small, *_ = problem(5, max_bytes=1)
    Z = torch.randn(20, D, generator=seeded(1), dtype=torch.float64)
    for a, b in zip(m.condition(*data).predict(Z), small.condition(*data).predict(Z), strict=True):
        assert torch.allclose(a, b, rtol=0, atol=1e-12)


# --- the cost ---------------------------------------------------------------------------------------------------------


class Counting(Kernel):
    """Another kernel that counts how many values of it were computed, gradients included."""

    def __init__(self, kernel: Kernel):
        super().__init__()
        self.kernel, self.evaluations = kernel, 0

    def forward(self, X: Tensor, Z: Tensor) -> Tensor:
        self.evaluations += X.shape[0] * Z.shape[0]
        return self.kernel(X, Z)

    def diag(self, X: Tensor) -> Tensor:
        self.evaluations += X.shape[0]
        return self.kernel.diag(X)


def evaluations_of_a_step(n: int, batch_size: int | None) -> int:
    X, y = wave(n, d=2)
    kernel = Counting(Scale(Matern32(2)))
    actions = BlockActions.from_data(X, 8, support_size=4, generator=seeded())
    m = CaGPOpt(GP(kernel), actions, batch_size=batch_size)
    data = m.checked(X, y)
    kernel.evaluations = 0
    torch.stack(list(m.terms(data, Batch(m.rows(0, n).drawn)).values())).sum().backward()
    return kernel.evaluations


def test_kernel_evaluations_of_a_step_do_not_depend_on_the_number_of_rows():
    counts = [evaluations_of_a_step(n, 25) for n in (100, 1000, 10_000)]
    assert counts[0] == counts[1] == counts[2]
    support, batch = 32, 25
    assert counts[0] <= 3 * (support**2 + batch * (support + 1))
    assert evaluations_of_a_step(1000, None) > 10 * counts[0]


class Watched(Tensor):
    """Data that note the size of the largest tensor computed from them."""

    largest: int = 0

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        out = super().__torch_function__(func, types, args, kwargs or {})
        if isinstance(out, Tensor):
            Watched.largest = max(Watched.largest, out.numel())
        return out


def test_no_operation_of_a_step_touches_all_rows():
    m, X, y, row_noise = problem(3, n=5000)
    data = Data(*(t.as_subclass(Watched) for t in (X, y, row_noise)), trusted=True)
    for batch_size, touches_all in ((40, False), (None, True)):
        method = CaGPOpt(m.prior, m.actions, batch_size=batch_size)
        Watched.largest = 0
        terms = method.terms(data, Batch(method.rows(0, 5000).drawn))
        torch.stack(list(terms.values())).sum().as_subclass(Tensor).backward()
        assert Watched.largest > 0
        assert (Watched.largest >= 5000) == touches_all


# --- the rows of a step -----------------------------------------------------------------------------------------------


def test_rows_of_a_step_depend_on_seed_step_and_number_of_rows_alone():
    m, *_ = problem()
    one, other = (CaGPOpt(m.prior, m.actions, batch_size=30, seed=seed) for seed in (0, 1))
    for step in (0, 7):
        assert torch.equal(one.rows(step, 1000).drawn, one.rows(step, 1000).drawn)
        assert not torch.equal(one.rows(step, 1000).drawn, other.rows(step, 1000).drawn)
    assert not torch.equal(one.rows(0, 1000).drawn, one.rows(1, 1000).drawn)
    drawn = torch.cat([one.rows(step, 1000).drawn for step in range(400)])
    counts = torch.bincount(drawn, minlength=1000).double()  # 12 on average
    assert counts.mean() == 12
    assert float(counts.var()) == pytest.approx(12, rel=0.2)  # of a uniform draw


def test_a_batch_of_at_least_all_rows_is_no_minibatch():
    m, *_ = problem()
    for size in (None, N, N + 1):
        full = CaGPOpt(m.prior, m.actions, batch_size=size)
        assert full.rows(0, N).drawn is None
        assert not full.rows(0, N).stochastic
    assert CaGPOpt(m.prior, m.actions, batch_size=N - 1).rows(0, N).stochastic


def test_wrong_batches_are_refused():
    m, *data = problem()
    with pytest.raises(ValueError, match="batch_size is 0, expected"):
        CaGPOpt(m.prior, m.actions, batch_size=0)
    with pytest.raises(
        ValueError, match='batch_size needs loss="elbo" or "loo"; the projected loss is no sum over rows'
    ):
        CaGPOpt(m.prior, m.actions, "projected", batch_size=5)
    with pytest.raises(ValueError, match="rows is given, but the objective of CaGPOpt with the projected loss"):
        CaGPOpt(m.prior, m.actions, "projected").objective(*data, rows=torch.arange(3))
    with pytest.raises(ValueError, match="rows go from 0 to 61, expected row numbers below 61"):
        elbo(m.prior, m.actions, *data, rows=torch.tensor([0, N]))


# --- fits -------------------------------------------------------------------------------------------------------------


def new_method(X: Tensor, **choices) -> CaGPOpt:
    choices = {"support_size": 6, "generator": seeded(), "batch_size": 40, "seed": 3, **choices}
    return CaGPOpt.from_data(GP(Scale(Matern32(X.shape[1]))), X, 16, **choices)


@pytest.mark.slow
def test_a_fit_in_minibatches_reaches_the_loss_of_one_with_all_rows():
    X, y = wave(400, d=2)
    full, part = new_method(X, batch_size=None, reblock_at=()), new_method(X, reblock_at=())
    start = full.objective(X, y).item()
    fit(full, X, y, num_steps=120)
    result = fit(part, X, y, num_steps=120)
    with torch.no_grad():
        best, found = full.objective(X, y).item(), part.objective(X, y).item()
    assert found < best + 0.1 * (start - best)
    assert result.best_step == 121  # the last one: a minibatch's loss does not say which is best
    assert "minibatches of 40 rows" in " ".join(result.findings)


def test_blocks_of_a_bounded_support_are_cut_again_and_grow_in_minibatches():
    X, y = wave(400, d=2)
    m = new_method(X, reblock_at=(4,), start_actions=4, support_size=24)
    rows = len(m.actions.support)
    result = fit(m, X, y, num_steps=60)
    assert m.actions.num_actions == 16
    assert len(m.actions.support) == rows
    events = [event for step in result.steps for event in step.events]
    assert sum("cut blocks in two" in event for event in events) == 2
    assert sum("blocks again" in event for event in events) == 1
    assert m.objective(X, y).item() < new_method(X, batch_size=None).objective(X, y).item()


@pytest.mark.slow
@pytest.mark.parametrize("stops", [(1,), (9, 17)])
def test_a_fit_in_minibatches_resumes_to_the_bit(tmp_path, stops):
    X, y = wave(200, d=2)
    options = {"num_steps": 30, "checkpoint_steps": 4}
    plain = new_method(X, reblock_at=(5, 12))
    expected = fit(plain, X, y, checkpoint_dir=tmp_path / "plain", **options)
    for stop in stops:
        with pytest.raises(CrashError):
            fit(
                new_method(X, reblock_at=(5, 12)),
                X,
                y,
                checkpoint_dir=tmp_path / "cut",
                callback=crash_at(stop),
                **options,
            )
    resumed = new_method(X, reblock_at=(5, 12))
    result = fit(resumed, X, y, checkpoint_dir=tmp_path / "cut", **options)
    assert_same_fit((resumed, result), (plain, expected))


def test_a_checkpoint_of_other_minibatches_is_refused(tmp_path):
    X, y = wave(200, d=2)
    fit(new_method(X), X, y, num_steps=2, checkpoint_dir=tmp_path)
    for other in ({"batch_size": 41}, {"seed": 4}):
        with pytest.raises(ValueError, match="belongs to another fit"):
            fit(new_method(X, **other), X, y, num_steps=2, checkpoint_dir=tmp_path)
