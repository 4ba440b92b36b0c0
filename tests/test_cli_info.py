"""``cagp info``: what it says of a file is what the model says of itself, and neither torch nor pandas is needed."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import cagp
from cagp import kernels
from cagp.cli import main
from cagp.parameters import Positive, named_values
from cagp.storage import load_state, save_state


def houses() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"area": rng.uniform(30, 200, 60), "floor": rng.integers(0, 9, 60)})
    return frame.assign(price=10 * frame["area"] + 20 * rng.normal(size=60))


def saved_houses(folder: Path, method: str) -> Path:
    frame = houses()
    model = cagp.CaGPRegressor(method, max_epochs=2, target="identity").fit(frame[["area", "floor"]], frame["price"])
    return model.save(folder / f"{method}.cagp")


class Wave(kernels.Kernel):
    """A kernel as a user would write it."""

    lengthscale = Positive()

    def __init__(self, num_waves: int = 2):
        super().__init__()
        self.num_waves, self.lengthscale = num_waves, 1.0

    def forward(self, X, Z):
        phase = self.num_waves * (X.unsqueeze(-2) - Z.unsqueeze(-3))
        return torch.exp(-(torch.sin(phase) / self.lengthscale.to(X)).square().sum(-1))


def test_info_describes_every_part_of_a_kernel_and_those_of_your_own(tmp_path, capsys):
    frame, path = houses()[["area", "floor"]], tmp_path / "own.cagp"
    kernel = kernels.Scale(Wave(3)) + kernels.RBF(2, [0.5, 3.0]) * kernels.Linear(2) + kernels.Matern12(2)
    model = cagp.ExactGPRegressor(kernel, max_epochs=1).fit(frame, houses()["price"])
    model.save(path)
    assert main(["info", str(path), "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    first, second = model.posteriors_[0].prior.kernel.parts
    rbf = first.parts[1].parts[0]
    parts = record["kernel_parts"]
    assert [part["own"] for part in parts] == [True, False, False, False]
    assert parts[0]["parameters"] == {"raw_lengthscale": first.parts[0].kernel.raw_lengthscale.item(), "num_waves": 3}
    for part, found in ((rbf, parts[1]), (second, parts[3])):
        expected = part.lengthscale.detach().numpy()
        std = model.scaler_.input_std.numpy()
        np.testing.assert_allclose([e["lengthscale_in_std"] for e in found["lengthscales"]], expected, rtol=1e-14)
        np.testing.assert_allclose([e["lengthscale"] for e in found["lengthscales"]], expected * std, rtol=1e-14)
    assert record["encoded_inputs"] == parts[1]["lengthscales"]
    linear = first.parts[1].parts[1].variance.tolist()
    assert record["hyperparameters"]["kernel.parts.0.parts.1.parts.1.variance"] == pytest.approx(linear, rel=1e-14)
    assert record["hyperparameters"]["noise.noise"] == pytest.approx(
        (model.noise_std_[0] / model.scaler_.target_std[0].item()) ** 2, rel=1e-12
    )
    assert main(["info", str(path)]) == 0
    text = capsys.readouterr().out
    for words in (
        "x Wave (a class of your own) + (RBF (infinitely smooth functions) x linear)) + Matern 1/2 (rough",
        "Parameters of Wave (a class of your own), as stored: raw_lengthscale = ",
        "num_waves = 3",
        "Lengthscales of RBF (infinitely smooth functions), the most relevant input first",
        "Variance of linear, for inputs in standard deviations",
        "Lengthscales of Matern 1/2 (rough, continuous functions), the most relevant input first",
    ):
        assert words in text
    path = tmp_path / "alone.cagp"
    cagp.ExactGPRegressor(Wave(), max_epochs=1).fit(frame, houses()["price"]).save(path)
    assert main(["info", str(path), "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert [e["lengthscale"] for e in record["encoded_inputs"]] == [None, None]


def test_info_says_what_the_model_says(tmp_path, capsys):
    for method in ("exact", "local", "sgpr"):
        path = saved_houses(tmp_path, method)
        assert main(["info", str(path), "--json"]) == 0
        record, model = json.loads(capsys.readouterr().out), cagp.load(path)
        prior = model.posteriors_[0].prior
        values = named_values(prior)
        assert list(record["hyperparameters"]) == list(values)
        for name, value in values.items():
            np.testing.assert_allclose(record["hyperparameters"][name], value, rtol=1e-14)
        np.testing.assert_allclose([t["noise_std"] for t in record["targets"]], model.noise_std_, rtol=1e-14)
        assert [e["name"] for e in record["encoded_inputs"]] == list(model.feature_names_out_)
        held = record["rows_held"] + record["inducing_points"]
        assert (held, record["train_rows"]) == (len(model.posteriors_[0].X), model.n_rows_)
        assert (record["fit_report"], record["steps"]) == (model.fit_report_, len(model.fit_result_.steps))


def test_info_refuses_a_file_that_lacks_something(tmp_path, capsys):
    state = load_state(saved_houses(tmp_path, "exact"), "cagp model", 1, tensors=False)
    path = tmp_path / "m.cagp"
    for name in ("scaler", "posteriors", "encoder", "results"):
        save_state(path, {**state, name: []}, "cagp model", 1)
        assert main(["info", str(path)]) == 1
        assert "m.cagp is not a complete model" in capsys.readouterr().err


LIGHT = """
import sys, types
for name in ("cagp", "cagp.cli"):  # the packages themselves import more
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [sys.argv[1] + name.replace("cagp", "", 1).replace(".", "/")]
import argparse
from pathlib import Path
from cagp.cli import info
assert info.run(argparse.Namespace(model=Path(sys.argv[2]), json=False)) == 0
heavy = {"torch", "pandas", "sklearn", "scipy", "matplotlib", "pyarrow", "rich"} & set(sys.modules)
assert not heavy, heavy
"""


def test_info_imports_nothing_heavy(tmp_path):
    path = saved_houses(tmp_path, "local")
    source = str(Path(cagp.__file__).parent)
    done = subprocess.run([sys.executable, "-c", LIGHT, source, path], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "CaGP-Local" in done.stdout


def test_info_describes_seasons_and_kernels_of_some_columns(tmp_path, capsys):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"year": rng.uniform(2000, 2004, 60), "lon": rng.uniform(0, 9, 60), "lat": rng.uniform(40, 50, 60)}
    )
    frame["y"] = np.sin(2 * np.pi * frame["year"])
    kernel = kernels.Scale(kernels.ActiveDims(kernels.Periodic(1, 1.0), ["year"]), 0.5) + kernels.ActiveDims(
        kernels.GreatCircle(3.0) * kernels.RBF(2), ["lon", "lat"]
    )
    path = tmp_path / "m.cagp"
    model = cagp.ExactGPRegressor(kernel, max_epochs=1).fit(frame[["year", "lon", "lat"]], frame["y"])
    model.save(path)
    assert main(["info", str(path), "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    season = model.posteriors_[0].prior.kernel.parts[0].kernel.kernel
    assert [part["path"] for part in record["kernel_parts"]] == [
        "kernel.parts.0.kernel.kernel",
        "kernel.parts.1.kernel.parts.0",
        "kernel.parts.1.kernel.parts.1",
    ]
    assert record["kernel_parts"][0]["periods"][0]["period"] == pytest.approx(season.period.item(), rel=1e-12)
    assert [e["name"] for e in record["encoded_inputs"]] == ["year", "lon", "lat"]
    assert [e["lengthscale"] is None for e in record["encoded_inputs"]] == [True, False, False]
    assert record["kernel_parts"] == json.loads(json.dumps(model.kernel_parts_))
    assert main(["info", str(path)]) == 0
    text = capsys.readouterr().out
    for words in (
        "x periodic (functions that repeat) of year + (Matern on the sphere (places on the Earth) x RBF",
        "of lon, lat",
        "Period of periodic (functions that repeat), in the units of the inputs",
        "Lengthscale of Matern on the sphere (places on the Earth), in degrees: ",
    ):
        assert words in text


@pytest.mark.slow
def test_a_season_is_chosen_by_name(tmp_path, capsys):
    rng = np.random.default_rng(0)
    x = np.sort(rng.uniform(0, 10, 120))
    table, path = tmp_path / "t.csv", tmp_path / "m.cagp"
    pd.DataFrame({"x": x, "y": np.sin(2 * np.pi * x) + 0.1 * rng.normal(size=120)}).to_csv(table, index=False)
    arguments = ["fit", table, "--target", "y", "--kernel", "periodic", "--method", "exact", "--out", path]
    assert main(list(map(str, arguments))) == 0
    capsys.readouterr()
    (period,) = [e["period"] for part in cagp.load(path).kernel_parts_ for e in part["periods"] or []]
    assert period == pytest.approx(1.0, rel=0.02)
