"""Several processes on torch.distributed: they do together what one does alone, and end together."""

import numpy as np
import pytest
import torch
from processes import TESTS, run_together
from rank_worker import HALO, STEPS, UNIT, Failing, dense_problem, left_by, model_of, prior, problems, table

from cagp import CaGPLocal, fit
from cagp.launch import LAUNCHED, launched_rank, launched_size
from cagp.ranks import Ranks
from cagp.shards import Regions
from cagp.training import FitStatus

SECONDS = 150
"""After which processes are killed. They take less than a third of it."""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What each of four processes found, and what they printed; the last one is killed in the end."""
    folder = tmp_path_factory.mktemp("ranks")
    ended = run_together(4, [str(TESTS / "rank_worker.py"), str(folder)], SECONDS)
    assert [process.code for process in ended] == [0, 0, 0, -9], "\n".join(process.output for process in ended)
    return [np.load(folder / f"found-{rank}.npy", allow_pickle=True).item() for rank in range(3)]


@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", problems())
@pytest.mark.parametrize("size", [2, 4])
def test_several_processes_take_the_steps_of_one(found, name, size):
    method, X, y = problems()[name]
    one = left_by(fit(method, X, y, num_steps=STEPS), method)
    assert len(one["losses"]) == STEPS
    for rank in range(min(size, 3)):
        several = found[rank][f"{size} {name}"]
        np.testing.assert_allclose(several["losses"], one["losses"], rtol=1e-6)
        np.testing.assert_allclose(several["parameters"], one["parameters"], rtol=1e-6, atol=1e-9)
        assert several["status"] == one["status"]
        np.testing.assert_array_equal(several["parameters"], found[0][f"{size} {name}"]["parameters"])


@pytest.mark.parametrize("size", [2, 4])
def test_the_gradient_is_that_of_the_dense_likelihood(found, size):
    method, X, y = dense_problem()
    K = method.prior.kernel(X, X) + method.prior.noise_variance(X).diag()
    dense = -torch.distributions.MultivariateNormal(torch.zeros_like(y), K).log_prob(y) / len(y)
    parameters = [p for group in method.parameter_groups().values() for p in group.parameters]
    expected = torch.cat([g.flatten() for g in torch.autograd.grad(dense, parameters)])
    np.testing.assert_allclose(found[0][f"{size} gradient"], expected, rtol=1e-10, atol=1e-10)


def test_a_failure_of_one_process_is_taken_back_by_all(found):
    words = ["Step 3 failed and was taken back: this matrix is not positive definite.", f"{STEPS} steps"]
    assert [process["failures"] for process in found] == [words] * 3
    one = fit(Failing(True), *table(), num_steps=STEPS, ranks=None)
    assert one.failures == words[:1]


def test_the_clock_of_process_0_counts(found):
    for process in found:
        assert process["deadline"]["status"] == FitStatus.TIME_LIMIT.value
        assert len(process["deadline"]["losses"]) == 1


def test_an_interrupt_of_one_process_ends_all_at_the_same_step(found):
    for process in found:
        assert process["interrupted"]["status"] == FitStatus.INTERRUPTED.value
        assert len(process["interrupted"]["losses"]) == 3


def test_processes_with_different_tables_are_an_error_in_all(found):
    for process in found:
        assert "the number of rows is 300 in process 0 and 299 in process 2" in process["other table"]
        assert "give every process the whole table" in process["other table"]


@pytest.mark.parametrize("name", ["local", "svgp, joint"])
def test_a_fit_resumes_with_another_number_of_processes(found, name):
    method, X, y = problems()[name]
    one = left_by(fit(method, X, y, num_steps=STEPS), method)
    for process in found[:2]:
        assert process[f"begun {name}"] == 1
        np.testing.assert_allclose(process[f"resumed {name}"]["losses"], one["losses"], rtol=1e-6)
        np.testing.assert_allclose(process[f"resumed {name}"]["parameters"], one["parameters"], rtol=1e-6, atol=1e-9)
    assert found[0]["files"] == ["checkpoint.safetensors"] * 2 + ["history.jsonl"] * 2 + ["lock"] * 2
    assert found[1]["files"] == found[2]["files"] == []


@pytest.mark.parametrize("method", ["local", "svgp", "hybrid"])
def test_regressors_predict_as_if_fitted_by_one_process(found, method):
    X, y = (values.numpy() for values in table(600))
    one = model_of(method).fit(X[:500], y[:500])
    expected = np.stack(one.predict(X[500:], return_std=True))
    for process in found:
        np.testing.assert_allclose(process[f"predicted {method}"], expected, rtol=1e-6)
        np.testing.assert_array_equal(process[f"predicted {method}"], found[0][f"predicted {method}"])
        assert "4 processes shared the rows of each step." in process[f"report {method}"]
    assert "processes" not in one.fit_report_


def test_a_method_that_cannot_be_shared_is_refused(found):
    for process in found:
        assert 'method is "exact", which trains in one process, and 4 were started' in process["refused"]
        assert '"auto", "opt", "local", "hybrid", "svgp"' in process["refused"]


def test_a_process_that_is_killed_ends_the_others_within_a_minute(found):
    for process in found:
        assert "another process of this computation has ended or cannot be reached" in process["lost"]
        assert process["seconds until lost"] < 60


def test_shards_are_the_regions_with_their_halos_and_learn_together(found):
    X, y = table()
    noise = 0.01 * y.square()
    whole = torch.cat([X, y[:, None], noise[:, None]], 1)
    regions = Regions(torch.from_numpy(found[0]["lower"]), torch.from_numpy(found[0]["upper"]), UNIT)
    home, test = regions.of(X), table(50, seed=1)[0]
    method = CaGPLocal(prior(), 10)
    loss, answers = 0.0, np.zeros((2, 50))
    names = list(method.state_dict())
    for region in range(4):
        own, near = whole[home == region], whole[(home != region) & regions.near(X, region, HALO)]
        held = torch.cat([own, near])
        if region < 3:  # the last one was killed
            assert found[region]["own"] == len(own)
            mine = found[region]["held"]
            for expected, part in ((own, mine[: len(own)]), (near, mine[len(own) :])):
                assert sorted(map(tuple, part.tolist())) == sorted(map(tuple, expected.tolist()))
        data = held[:, :2].contiguous(), held[:, 2].contiguous(), held[:, 3].contiguous()
        loss += len(own) / 300 * float(method.objective(*data, rows=torch.arange(len(own))).detach())
        trained = CaGPLocal(prior(), 10)
        sizes = [trained.state_dict()[name].numel() for name in names]
        values = torch.from_numpy(found[0]["sharded"]["parameters"]).split(sizes)
        trained.load_state_dict(
            {name: v.reshape(trained.state_dict()[name].shape) for name, v in zip(names, values, strict=True)}
        )
        mine = regions.of(test) == region
        answers[:, mine.numpy()] = torch.stack(trained.condition(*data).predict(test[mine])).detach().numpy()
    for process in found:
        assert process["sharded"]["losses"][0] == pytest.approx(loss, rel=1e-10)
        np.testing.assert_array_equal(process["sharded"]["parameters"], found[0]["sharded"]["parameters"])
        np.testing.assert_allclose(process["in regions"], answers, rtol=1e-6, atol=1e-10)
    assert found[0]["sharded"]["losses"][-1] < loss


# ---- without other processes ----


def test_alone_everything_is_as_it_is():
    alone, rows = Ranks.alone(), torch.arange(5)
    assert alone.is_first
    assert torch.equal(alone.part(rows), rows)
    assert torch.equal(alone.add_up(rows), rows)
    assert alone.any(True, False) == [True, False]
    assert alone.broadcast(0.25) == 0.25
    assert alone.words_of(0, "words") == "words"
    with pytest.raises(OSError, match="no disk"):
        alone.from_first(lambda: (_ for _ in ()).throw(OSError("no disk")))


@pytest.mark.parametrize("size", [1, 2, 4, 7])
def test_the_parts_of_all_processes_are_the_rows(size):
    rows = torch.randperm(23)
    parts = [Ranks(rank, size).part(rows) for rank in range(size)]
    assert torch.equal(torch.cat(parts), rows)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_processes_are_counted_only_if_a_launcher_says_everything(monkeypatch):
    told = dict(zip(LAUNCHED, ("3", "8", "node-1", "29500"), strict=True))
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    assert (launched_rank(), launched_size()) == (3, 8)
    for name in LAUNCHED:
        monkeypatch.delenv(name)
        assert (launched_rank(), launched_size()) == (0, 1)
        monkeypatch.setenv(name, told[name])
    monkeypatch.setenv("WORLD_SIZE", "many")
    with pytest.raises(ValueError, match="WORLD_SIZE is 'many'"):
        launched_size()


def test_each_process_of_a_machine_has_a_gpu_of_its_own(monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "2")
    assert Ranks(6, 8).device("cuda") == torch.device("cuda", 2)
    assert Ranks(6, 8).device("cuda:1") == torch.device("cuda", 1)
    assert Ranks(6, 8).device("cpu") == torch.device("cpu")
    assert Ranks.alone().device("cuda") == torch.device("cuda")
