"""A regressor in regions: each process learns from its part of a table, and answers a region of the inputs."""

import shutil

import numpy as np
import oracle
import pandas as pd
import pytest
import torch
from processes import TESTS, run_together
from region_worker import SETTINGS, table

import cagp
from cagp import CaGPRegressor
from cagp.data import open_chunks

SECONDS = 150
TEST, _ = table(60, seed=1)


@pytest.fixture(scope="module", params=[3])
def found(request, tmp_path_factory):
    """What each of some processes found, and the folder that they wrote to."""
    folder, size = tmp_path_factory.mktemp("regions"), request.param
    ended = run_together(size, [str(TESTS / "region_worker.py"), str(folder)], SECONDS)
    assert [process.code for process in ended] == [0] * size, "\n".join(process.output for process in ended)
    return [np.load(folder / f"found-{size}-{k}.npy", allow_pickle=True).item() for k in range(size)], folder


@pytest.fixture(scope="module")
def whole():
    X, y = table()
    return CaGPRegressor(**SETTINGS).fit(X, y)


@pytest.mark.slow
def test_all_processes_have_the_units_of_the_whole_table(found, whole):
    scaler = np.concatenate([values.numpy() for values in whole.scaler_])
    for process in found[0]:
        np.testing.assert_allclose(process["scaler"], scaler, rtol=1e-12)
        assert process["rows"] == 1200


def test_predictions_are_within_the_error_bars_of_one_process(found, whole):
    mean, std = whole.predict(TEST, return_std=True)
    for process in found[0]:
        assert (np.abs(process["means"][0] - mean) <= whole.predict(TEST, return_std=True, noise=False)[1] * 2).all()
        np.testing.assert_allclose(process["means"][1], std, rtol=0.2)
        np.testing.assert_array_equal(process["means"], found[0][0]["means"])
        assert np.abs(process["pieces"] - mean).max() < std.max()
    assert f"{len(found[0])} regions, one for each process" in found[0][0]["report"]


def test_one_process_answers_all_regions_and_the_variance_is_never_below_the_exact_one(found):
    processes, folder = found
    model = cagp.load(folder / f"{len(processes)}.cagp")
    np.testing.assert_array_equal(np.stack(model.predict(TEST, return_std=True)), processes[0]["means"])
    np.testing.assert_array_equal(processes[0]["loaded"], processes[0]["means"])
    (X, y), scaler = table(), model.scaler_
    X, y = scaler.inputs(torch.from_numpy(X)), scaler.targets(torch.from_numpy(y)[:, None])[:, 0]
    exact = oracle.exact_posterior(model.posteriors_[0].prior, X, y, scaler.inputs(torch.from_numpy(TEST)))
    variance = (processes[0]["function"] / float(scaler.target_std)) ** 2
    assert (variance >= exact.covariance.diagonal() - 1e-9).all()
    assert "never below" in model.guarantee_
    assert model.predict(TEST, return_components=True)[1]["computational_kind"] == "unknown"


def test_a_fit_in_regions_resumes_with_as_many_processes_only(found):
    processes, folder = found
    for process in processes:
        assert process["begun"] == 1
        np.testing.assert_array_equal(process["resumed"], processes[0]["means"])
    X, y = table()
    settings = {**SETTINGS, "checkpoint_dir": folder / f"checkpoints-{len(processes)}", "shards": True}
    with pytest.raises(ValueError, match=f"a fit in {len(processes)} regions, and 1 processes were started; start"):
        CaGPRegressor(**settings).fit(X, y)


def test_what_one_part_holds_is_an_error_in_all(found):
    for process in found[0]:
        assert "column 'b' holds" in process["text in one part"]
        assert "with shards=True every input is a number" in process["text in one part"]


def test_files_of_regions_belong_to_their_model(found, tmp_path):
    processes, folder = found
    size = len(processes)
    for path in folder.glob(f"{size}.cagp*"):
        shutil.copy(path, tmp_path / path.name)
    model, first = tmp_path / f"{size}.cagp", tmp_path / f"{size}.cagp.region-1-of-{size}"
    second = tmp_path / f"{size}.cagp.region-2-of-{size}"
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    with pytest.raises(ValueError, match=r"region-1-of-.* is of another model"):
        cagp.load(model).predict(TEST)
    first.write_bytes(content[:-40])
    with pytest.raises(ValueError, match="region-1-of-"):
        cagp.load(model).predict(TEST)
    first.unlink()
    with pytest.raises(FileNotFoundError, match=r"region-1-of-.* does not exist"):
        cagp.load(model)


# ---- one process ----


def test_what_a_fit_in_regions_cannot_do_is_an_error():
    X, y = table(200)
    fitted = CaGPRegressor(**SETTINGS, shards=True).fit(X, y)
    with pytest.raises(ValueError, match="no joint answers"):
        fitted.predict(X[:5], return_cov=True)
    with pytest.raises(ValueError, match=r"pass calibration=\(X, y\)"):
        fitted.predict_interval(X[:5], method="conformal")
    with pytest.raises(ValueError, match="fit each alone"):
        CaGPRegressor(**SETTINGS, shards=True).fit(X, np.stack([y, y], 1))
    with pytest.raises(ValueError, match="does not decay"):
        CaGPRegressor(**SETTINGS, kernel="periodic", shards=True).fit(X, y)
    with pytest.raises(ValueError, match='mean="trees" needs the whole table'):
        CaGPRegressor(**SETTINGS, mean="trees", shards=True).fit(X, y)
    with pytest.raises(ValueError, match="shards is True, but method 'hybrid' does not use it"):
        CaGPRegressor(method="hybrid", shards=True).fit(X, y)
    with pytest.raises(ValueError, match="shards is 4, expected True or False"):
        CaGPRegressor(method="local").set_params(shards=4).fit(X, y)


@pytest.mark.parametrize("num_parts", [1, 2, 3, 5])
def test_the_parts_of_a_table_in_files_are_the_table(tmp_path, num_parts):
    frame = pd.DataFrame({"a": np.arange(50.0), "y": 1.0})
    for number, rows in enumerate(np.array_split(np.arange(50), [5, 30, 40])):
        frame.iloc[rows].to_parquet(tmp_path / f"part-{number}.parquet")
    whole = open_chunks(tmp_path, "y", rows=4).where(lambda start, stop: np.arange(start, stop) % 3 > 0, None)
    parts = [whole.part(k, num_parts) for k in range(num_parts)]
    kept = [np.concatenate([chunk.inputs["a"] for chunk in part.read()]) for part in parts]
    assert sorted(np.concatenate(kept)) == [float(k) for k in range(50) if k % 3]
    assert all(len(rows) for rows in kept)
