"""What a new user tries first, and what it must answer."""

import contextlib
import io

import numpy as np
import pytest
import torch
from sklearn.model_selection import GridSearchCV

import cagp
from cagp import GP, CaGPCG, CaGPRegressor, kernels
from cagp.cli import main
from cagp.iterative import Lanczos
from cagp.saved_summary import saved_summary
from cagp.text_tables import table_of_text

COMMANDS = ["", "fit", "predict", "evaluate", "info", "compare"]


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 5, size=(80, 2))
    return X, np.sin(X[:, 0]) + 0.1 * rng.normal(size=80)


@pytest.fixture(scope="module")
def model(table):
    return CaGPRegressor(max_epochs=2).fit(*table)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_fits_into_80_columns(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    shown = io.StringIO()
    with pytest.raises(SystemExit), contextlib.redirect_stdout(shown):
        main([*command.split(), "--help"])
    assert [line for line in shown.getvalue().splitlines() if len(line) > 80] == []


def test_a_table_of_text_wraps_its_heads_and_then_its_columns():
    cells = {"method": ["local", "hybrid"], "95 % coverage": ["95.0 %", "94.0 %"], "predict, s": ["0.01", "0.02"]}
    assert table_of_text(cells, 80).splitlines()[0] == "method  95 % coverage  predict, s"
    narrow = table_of_text(cells, 18).splitlines()
    assert max(map(len, narrow)) <= 18
    assert sum(line.startswith("hybrid") for line in narrow) == 2


@pytest.mark.usefixtures("annotations_off")
@pytest.mark.parametrize("level", ["0.9", None, [0.5, 0.9], 95, float("nan")])
def test_a_level_that_is_not_one_probability(model, table, level):
    with pytest.raises(ValueError, match="expected one probability between 0 and 1"):
        model.predict_interval(table[0], level=level)


@pytest.mark.usefixtures("annotations_off")
@pytest.mark.parametrize("quantiles", ["a", [], [0.1, 1.9], [[0.1]], [0.1, "b"], [None]])
def test_quantiles_that_are_not_probabilities(model, table, quantiles):
    with pytest.raises(ValueError, match="expected probabilities between 0 and 1"):
        model.predict_quantiles(table[0], quantiles)


@pytest.mark.usefixtures("annotations_off")
def test_one_quantile_has_no_axis(model, table):
    X = table[0]
    np.testing.assert_array_equal(model.predict_quantiles(X, 0.9), model.predict_quantiles(X, [0.9])[:, 0])
    level = np.float32(0.9)
    assert model.predict_interval(X, level=level)[0].shape == (80,)


@pytest.mark.usefixtures("annotations_off")
@pytest.mark.parametrize("device", [None, "gpu", 1.5])
def test_a_device_that_torch_does_not_know(table, device):
    with pytest.raises(ValueError, match=r'expected a device of torch, e\.g\. "cpu"'):
        CaGPRegressor(device=device).fit(*table)


def test_a_grid_search_with_checkpoints_can_be_run_twice(table, tmp_path):
    search = GridSearchCV(
        CaGPRegressor(max_epochs=2, checkpoint_dir=tmp_path / "runs"),
        {"kernel": ["rbf", "matern32"]},
        cv=2,
        error_score="raise",
    )
    first, second = search.fit(*table).best_score_, search.fit(*table).best_score_
    assert first == second


class WithoutBatches(kernels.Kernel):
    """Counts axes from the front, so it is right for two matrices only."""

    def __init__(self):
        super().__init__()
        self.raw = torch.nn.Parameter(torch.zeros((), dtype=torch.float64))

    def forward(self, X, Z):
        return torch.exp(-(X[:, None] - Z[None]).square().sum(-1) * self.raw.exp())


class Transposed(WithoutBatches):
    def forward(self, X, Z):
        return X.new_ones(Z.shape[-2], X.shape[-2])


@pytest.mark.parametrize("kernel", [WithoutBatches, Transposed])
def test_a_kernel_of_the_wrong_shape_is_named(table, kernel):
    words = rf"{kernel.__name__}\.forward returned shape .*, expected .*; count axes from the end"
    with pytest.raises(ValueError, match=words):
        CaGPRegressor(method="local", kernel=kernel(), max_epochs=1).fit(*table)


@pytest.mark.usefixtures("annotations_off")
def test_a_class_in_place_of_a_policy_is_named():
    with pytest.raises(ValueError, match="policy is the class Lanczos, expected a policy"):
        CaGPCG(GP(kernels.RBF(2)), num_actions=3, policy=Lanczos)  # pyright: ignore[reportArgumentType]


@pytest.mark.thinned(3)
@pytest.mark.parametrize(
    "options",
    [{"method": name} for name in ("exact", "opt", "cg", "local", "hybrid", "sgpr", "svgp", "cggp")]
    + [{"method": "local", "local_scale": None}, {"method": "local", "local_scale": 4.0}],
    ids=str,
)
def test_info_repeats_the_guarantee(table, tmp_path, options):
    model = CaGPRegressor(max_epochs=2, **options).fit(*table)
    path = model.save(tmp_path / "model.cagp")
    assert saved_summary(path)["guarantee"] == model.guarantee_ == cagp.load(path).guarantee_
    assert model.fit_report_.splitlines()[-2] == model.guarantee_  # before the time and memory of the fit


def test_an_option_that_no_compared_method_uses(tmp_path, capsys):
    np.savez(tmp_path / "t.npz", X=np.zeros((20, 1)), y=np.zeros(20))
    words = ["compare", str(tmp_path / "t.npz"), "--methods", "exact", "sgpr", "--n-neighbors", "4"]
    assert main(words) == 2
    assert "exact, sgpr do not use it. Remove it." in capsys.readouterr().err
