"""No modes: an objective is a function of its arguments, data are checked once, and nothing process-wide changes."""

import copy
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from inference_problems import Waves
from torch import Tensor

from cagp import CGGP, GP, MAP, SGPR, SVGP, CaGPCG, CaGPLocal, CaGPOpt, CholeskyGP, ConstantMean, fit
from cagp import checks as checks_module
from cagp.actions import BlockActions, DenseActions
from cagp.dataset import Data
from cagp.iterative import RandomActions
from cagp.kernels import Matern32, Scale
from cagp.linalg import JitterWarning, safe_cholesky
from cagp.methods import MultiTarget
from cagp.notices import collected, warn
from cagp.prior import GaussianNoise, KnownNoise
from cagp.training import Batch, Coming, Trainable

seeded = torch.Generator().manual_seed
N = 60


def make_data() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    g = seeded(0)
    X = torch.randn(N, 2, generator=g, dtype=torch.float64)
    y = torch.sin(2 * X[:, 0]) + 0.1 * torch.randn(N, generator=g, dtype=torch.float64)
    return X, y, 0.02 + 0.1 * torch.rand(N, generator=g, dtype=torch.float64), X[:7] + 0.05


def prior() -> GP:
    return GP(Scale(Matern32(2, [0.9, 1.3])), ConstantMean(0.1), GaussianNoise(0.1))


def thin(X: Tensor) -> BlockActions:
    return BlockActions.from_data(X, 6, support_size=3, generator=seeded(1))


def several(make: Callable[[GP], Any]) -> MultiTarget:
    kernel = prior().kernel
    return MultiTarget([make(GP(kernel, ConstantMean(), GaussianNoise(noise))) for noise in (0.1, 0.2)])


METHODS: dict[str, Callable[[Tensor], Trainable]] = {
    "CaGPOpt": lambda X: CaGPOpt.from_data(prior(), X, 8, reblock_at=(1,)),
    "CaGPOpt, projected": lambda X: CaGPOpt.from_data(prior(), X, 8, loss="projected"),
    "CaGPOpt, leave-one-out": lambda X: CaGPOpt.from_data(prior(), X, 8, loss="loo"),
    "CaGPOpt, rule": lambda X: CaGPOpt(prior(), Waves(X[:8].T.contiguous())),
    "CaGPOpt, growing": lambda X: CaGPOpt.from_data(prior(), X, 8, start_actions=2),
    "CaGPOpt, dense": lambda X: CaGPOpt(prior(), DenseActions(torch.eye(N, dtype=torch.float64)[:, :5], learn=True)),
    "CaGPOpt, minibatches": lambda X: CaGPOpt(prior(), thin(X), batch_size=16, reblock_at=(1,)),
    "CaGPCG": lambda X: CaGPCG(prior(), 8),
    "CaGPCG, random": lambda X: CaGPCG(prior(), 8, policy=RandomActions()),
    "CaGPLocal": lambda X: CaGPLocal(prior(), 5, batch_size=16),
    "CaGPLocal, ordered": lambda X: CaGPLocal(prior(), 5, batch_size=16, objective="ordered"),
    "CaGPLocal, shared": lambda X: CaGPLocal(prior(), 5, batch_size=16, shared=thin(X), local_scale=2.0),
    "CholeskyGP": lambda X: CholeskyGP(prior()),
    "SGPR": lambda X: SGPR.from_data(prior(), X, 7),
    "SVGP": lambda X: SVGP.from_data(prior(), X, 7, batch_size=16),
    "SVGP, all rows": lambda X: SVGP.from_data(prior(), X, 7),
    "SVGP, joint": lambda X: SVGP.from_data(prior(), X, 7, batch_size=16, gradient="joint"),
    "CGGP": lambda X: CGGP(prior(), precondition_rank=5),
    "MAP": lambda X: MAP(CaGPOpt.from_data(prior(), X, 8)),
    "MAP, SVGP": lambda X: MAP(SVGP.from_data(prior(), X, 7, batch_size=16)),
    "MultiTarget": lambda X: several(lambda p: CaGPCG(p, 8)),
    "MultiTarget, SVGP": lambda X: several(lambda p: SVGP.from_data(p, X, 7, batch_size=16)),
    "MultiTarget, CaGPLocal": lambda X: several(lambda p: CaGPLocal(p, 5, batch_size=16)),
}
MINIBATCHES = [name for name in METHODS if "SVGP" in name or "CaGPLocal" in name or "minibatches" in name]
ALL_ROWS = ["CaGPOpt, projected", "CaGPCG", "CaGPCG, random", "CholeskyGP", "SGPR", "CGGP", "MultiTarget"]

every_method = pytest.mark.parametrize("name", METHODS)


def data_for(method: Trainable) -> tuple[Tensor, Tensor, Tensor]:
    X, y, row_noise, _ = make_data()
    if isinstance(method, MultiTarget):
        return X, torch.stack([y, y.square()], 1), torch.stack([row_noise, row_noise], 1)
    return X, y, row_noise


def snapshot(method: Trainable) -> dict[str, Any]:
    """Every tensor by value; every other attribute of every part by value, or the object itself."""
    found: dict[str, Any] = {name: value.clone() for name, value in method.state_dict().items()}
    for name, part in method.named_modules():
        for key, value in vars(part).items():
            plain = value is None or isinstance(value, int | float | str | tuple)
            found[f"{name}: {key}"] = value if plain else (dict(value) if isinstance(value, dict) else id(value))
    found |= {f"gradient of {name}": p.grad for name, p in method.named_parameters()}
    return found


def same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and torch.equal(a, b)
    if isinstance(a, dict):
        return set(a) == set(b) and all(a[key] is b[key] or same(a[key], b[key]) for key in a)
    return a == b


def answers(method: Trainable, data: tuple[Tensor, Tensor, Tensor]) -> list[Tensor]:
    new = make_data()[-1]
    posteriors = method.condition(*data)
    posteriors = posteriors if isinstance(posteriors, list) else [posteriors]
    return [answer for posterior in posteriors for answer in (*posterior.predict(new), posterior.covariance(new))]


# --- objectives -------------------------------------------------------------------------------------------------------


@pytest.mark.thinned(4)
@every_method
def test_evaluating_an_objective_changes_nothing_and_gives_the_same_number_again(name):
    method = METHODS[name](make_data()[0])
    data = data_for(method)
    fit(method, *data, num_steps=3, lr=0.05)  # q, blocks and search lengthscales are not at their start
    method.zero_grad()
    before, posterior_before = snapshot(method), answers(method, data)
    for rows in (None, method.rows(0, N).drawn, method.rows(7, N).drawn):
        with torch.no_grad():
            first = method.objective(*data, rows=rows)
        second = method.objective(*data, rows=rows)
        third = torch.stack(list(method.terms(Data(*data), Batch(rows)).values())).sum()
        assert first.item() == second.item() == third.item()
        torch.autograd.grad(second, [p for group in method.parameter_groups().values() for p in group.parameters])
    after = snapshot(method)
    assert set(after) == set(before)
    assert not [key for key in before if not same(before[key], after[key])]
    for a, b in zip(posterior_before, answers(method, data), strict=True):
        assert torch.equal(a, b)


@pytest.mark.thinned(10)
@every_method
def test_a_fresh_copy_with_the_same_tensors_has_the_same_objective(name):
    """Nothing but parameters and arguments counts: what was asked or trained before leaves no trace elsewhere."""
    X = make_data()[0]
    method, fresh = METHODS[name](X), METHODS[name](X)
    data = data_for(method)
    fit(method, *data, num_steps=3, lr=0.05)
    fresh.load_state_dict(method.state_dict())
    for rows in (None, method.rows(5, N).drawn):
        assert fresh.objective(*data, rows=rows).item() == method.objective(*data, rows=rows).item()


@every_method
def test_the_rows_of_a_step_depend_on_seed_step_and_number_alone(name):
    method = METHODS[name](make_data()[0])
    fresh = copy.deepcopy(method)
    drawn = [method.rows(step, N).drawn for step in range(4)]
    method.objective(*data_for(method))
    for step, rows in enumerate(drawn):
        again = fresh.rows(step, N).drawn
        assert (rows is None) == (again is None) == (name not in MINIBATCHES or name == "SVGP, all rows")
        if rows is not None:
            assert torch.equal(rows, again)
            assert torch.equal(rows, method.rows(step, N).drawn)
    if drawn[0] is not None:
        assert not torch.equal(drawn[0], drawn[1])


@pytest.mark.parametrize("name", ALL_ROWS)
def test_a_method_that_needs_all_rows_refuses_some(name):
    method = METHODS[name](make_data()[0])
    with pytest.raises(ValueError, match="needs all rows: leave rows at None"):
        method.objective(*data_for(method), rows=torch.arange(5))


@pytest.mark.usefixtures("annotations_off")
@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (torch.tensor([0, N]), "rows go from 0 to 60, expected row numbers below 60"),
        (torch.tensor([-1]), "rows go from -1"),
        (torch.tensor([], dtype=torch.long), "rows is empty"),
        (torch.ones(3), "expected a vector of row numbers"),
        (torch.ones(3, dtype=torch.bool), "expected a vector of row numbers"),
        ([1, 2], "rows is list, expected a vector"),
    ],
)
def test_rows_that_are_no_row_numbers_are_refused(rows, message):
    X, y, *_ = make_data()
    with pytest.raises(ValueError, match=message):
        CaGPLocal(prior(), 5).objective(X, y, rows=rows)


def test_a_natural_step_is_taken_before_a_step():
    X, y, row_noise, _ = make_data()
    method, expected = (SVGP.from_data(prior(), X, 7, batch_size=16, natural_rate=0.3) for _ in range(2))
    data, rows = Data(X, y, row_noise), method.rows(4, N).drawn
    coming = Coming(4, 0.0, False, rows, rows)
    assert method.before_step(data, coming) == Batch(rows)
    statistics, factor = expected._statistics(data, rows)
    assert factor == N / 16
    expected._move(statistics, factor, 0.3)
    assert torch.equal(method.whitened_mean, expected.whitened_mean)
    assert not torch.equal(method.whitened_mean, torch.zeros_like(method.whitened_mean))
    joint = SVGP.from_data(prior(), X, 7, batch_size=16, gradient="joint")
    joint.before_step(data, coming)
    assert torch.equal(joint.whitened_mean, torch.zeros_like(joint.whitened_mean))


def test_the_best_value_of_a_minibatch_method_is_that_of_the_rows_of_the_last_step():
    for name in ("CaGPLocal", "SVGP", "MultiTarget, SVGP"):
        method = METHODS[name](make_data()[0])
        data = data_for(method)
        result = fit(method, *data, num_steps=5)
        assert result.best_value == method.objective(*data, rows=method.rows(4, N).drawn).item()


def test_inputs_changed_in_place_are_noticed():
    X, y, row_noise, new = make_data()
    for options in ({}, {"objective": "ordered"}):
        method = CaGPLocal(prior(), 5, **options)
        method.objective(X, y)
        method.condition(X, y)
        moved = X.clone()
        moved[10:30] += 3.0
        expected = CaGPLocal(prior(), 5, **options)
        value, posterior = expected.objective(moved, y).item(), expected.condition(moved, y, row_noise)
        before = X.clone()
        X[10:30] += 3.0
        assert method.objective(X, y).item() == value
        assert torch.equal(method.condition(X, y, row_noise).variance(new), posterior.variance(new))
        X.copy_(before)
        with torch.inference_mode():
            plain = X.clone()  # a tensor that does not count its changes
            method.objective(plain, y)
            plain[10:30] += 3.0
            assert method.objective(plain, y).item() == value


# --- checks -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def checked_rows(monkeypatch) -> list[int]:
    """The number of rows of data that each search for NaN or infinity has seen, and each look at known noise."""
    seen: list[int] = []
    check_values, check_known = checks_module._check_values, KnownNoise.check

    def noted_values(values: Tensor, name: str, missing: bool = False) -> None:
        if name in ("X", "y", "row_noise"):
            seen.append(len(values))
        check_values(values, name, missing)

    def noted_known(self: KnownNoise, row_noise: Tensor | None) -> None:
        seen.append(0 if row_noise is None else len(row_noise))
        check_known(self, row_noise)

    monkeypatch.setattr(checks_module, "_check_values", noted_values)
    monkeypatch.setattr(KnownNoise, "check", noted_known)
    return seen


@pytest.mark.thinned(5)
@pytest.mark.parametrize("name", [name for name in METHODS if "growing" not in name])  # cutting blocks looks at X
def test_fit_checks_its_data_once(name, checked_rows):
    counts = []
    for num_steps in (2, 7):
        method = METHODS[name](make_data()[0])
        data = data_for(method)
        checked_rows.clear()
        fit(method, *data, num_steps=num_steps, lr=0.01)
        counts.append(sum(rows >= N for rows in checked_rows))
    assert counts[1] == counts[0]
    assert counts[0] > 0


@pytest.mark.parametrize("name", MINIBATCHES)
def test_a_step_of_a_minibatch_method_looks_at_its_own_rows_alone(name, checked_rows):
    method = METHODS[name](make_data()[0])
    data, sizes = data_for(method), []

    def note(_) -> None:
        sizes.append([rows for rows in checked_rows if rows >= N])
        checked_rows.clear()

    fit(method, *data, num_steps=5, lr=0.01, callback=note)
    assert sizes[1:] == [[]] * 4


def test_known_noise_is_checked_once_and_still_refused(checked_rows):
    X, y, row_noise, _ = make_data()
    method = CaGPLocal(GP(Matern32(2), noise=KnownNoise()), 5, batch_size=16)
    fit(method, X, y, row_noise, num_steps=3)
    assert sum(rows >= N for rows in checked_rows) == 4  # X, y, row_noise and their signs
    for wrong, message in ((None, "row_noise is missing"), (row_noise * 0, "row_noise has zeros")):
        for ask in (method.objective, method.condition, lambda *data: fit(method, *data, num_steps=1)):
            with pytest.raises(ValueError, match=message):
                ask(X, y, wrong)
    with pytest.raises(ValueError, match="negative"):
        method.objective(X, y, -row_noise)


@every_method
@pytest.mark.usefixtures("annotations_off")
def test_data_that_do_not_fit_are_refused_before_the_first_step(name, tmp_path):
    method = METHODS[name](make_data()[0])
    X, y, row_noise = data_for(method)
    bad = X.clone()
    bad[3, 1] = torch.nan
    for data, message in (((bad, y, row_noise), "X has 1 NaN"), ((X, y[:-1], row_noise), "y has shape")):
        with pytest.raises(ValueError, match=message):
            fit(method, *data, checkpoint_dir=tmp_path / "folder")
        assert not (tmp_path / "folder").exists()
        with pytest.raises(ValueError, match=message):
            method.objective(*data)


# --- notices ----------------------------------------------------------------------------------------------------------


def needs_jitter() -> Tensor:
    return torch.ones(3, 3, dtype=torch.float64)


def test_notices_are_warnings_unless_someone_collects_them():
    with pytest.warns(JitterWarning, match="added 1e-12"):
        safe_cholesky(needs_jitter(), "A")
    filters = list(warnings.filters)
    with collected() as found:
        safe_cholesky(needs_jitter(), "A")
        assert warnings.filters == filters
    (notice,) = found
    assert isinstance(notice, JitterWarning)
    assert str(notice).startswith("A is not positive definite")
    with pytest.warns(JitterWarning):
        safe_cholesky(needs_jitter(), "A")
    assert len(found) == 1


def test_the_innermost_block_that_wants_a_category_gets_it():
    with collected() as outer:
        with collected(JitterWarning) as inner:
            warn("of another kind", DeprecationWarning)
            warn("jitter", JitterWarning)
        warn("later", JitterWarning)
    assert [str(notice) for notice in inner] == ["jitter"]
    assert [str(notice) for notice in outer] == ["of another kind", "later"]

    def failing() -> None:
        with collected():
            raise KeyError

    with pytest.raises(KeyError):
        failing()
    with pytest.warns(JitterWarning):
        warn("after an error", JitterWarning)


def test_a_block_in_one_thread_collects_nothing_of_another():
    entered, done, found = threading.Event(), threading.Event(), []

    def collect() -> None:
        with collected() as mine:
            entered.set()
            done.wait(10)
        found.extend(mine)

    thread = threading.Thread(target=collect)
    thread.start()
    entered.wait(10)
    with pytest.warns(JitterWarning, match="here"):
        warn("here", JitterWarning)
    done.set()
    thread.join()
    assert found == []


def test_no_module_of_the_centre_touches_warning_filters():
    root = Path(checks_module.__file__).parent
    centre = ["training", "methods", "posteriors", "iterative", "linalg", "actions"]
    files = [path for folder in centre for path in (root / folder).glob("*.py")]
    files += [root / f"{name}.py" for name in ("starting", "inducing", "system", "prior", "notices")]
    for path in files:
        words = path.read_text()
        for call in ("with warnings.catch_warnings", "simplefilter(", "filterwarnings("):
            assert call not in words, path
