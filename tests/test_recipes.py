"""The table of methods: what regressors, the command line, reports and model files say of each comes from it."""

import inspect
import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

import cagp
from cagp import CaGPRegressor
from cagp.cli import main
from cagp.estimators.target_kinds import recipe_of
from cagp.recipes.table import (
    OPTIONS,
    PARAMETERS,
    RECIPES,
    Recipe,
    check_values,
    methods_for,
    not_for,
    recipe_for,
    users_of,
)
from cagp.recipes.task import Fitted, Task

CHANGED = {
    "n_actions": 7,
    "n_neighbors": 5,
    "local_scale": None,
    "n_inducing": 9,
    "objective": "ordered",
    "effort": "fast",
    "shards": True,
}
"""A value other than the default for each option."""


def table(num_rows: int = 40) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(num_rows, 2))
    return X, np.sin(X.sum(1)) + 0.1 * rng.normal(size=num_rows)


def test_the_table_is_complete():
    parameters = inspect.signature(CaGPRegressor).parameters
    assert set(CHANGED) == set(OPTIONS)
    for name, recipe in RECIPES.items():
        assert recipe.name == name
        assert recipe.words
        assert recipe.summary
        assert recipe.values.keys() <= set(OPTIONS)
    for name, option in OPTIONS.items():
        assert parameters[name].default == option.default
        assert users_of(name), f"no method uses {name}"
        option.check(option.default)
        option.check(CHANGED[name])


@pytest.mark.parametrize("method", RECIPES)
@pytest.mark.parametrize("option", OPTIONS)
def test_an_option_that_the_method_does_not_use_is_an_error(method, option, tmp_path, capsys):
    X, y = table()
    model = CaGPRegressor(method, max_epochs=1, **{option: CHANGED[option]})
    if method in users_of(option):
        assert recipe_of(model, len(X)) == replace(RECIPES[method], **{option: CHANGED[option]})
        return
    words = f"{option} is {CHANGED[option]!r}, but method '{method}' does not use it"
    with pytest.raises(ValueError, match=words) as error:
        model.fit(X, y)
    for user in users_of(option):
        assert user in str(error.value)
    value = [] if OPTIONS[option].is_switch else ["none" if CHANGED[option] is None else str(CHANGED[option])]
    given = [OPTIONS[option].flag, *value]
    np.savez(tmp_path / "table.npz", X=X, y=y)
    arguments = ["fit", tmp_path / "table.npz", "--method", method, *given, "--out", tmp_path / "model.cagp"]
    assert main(list(map(str, arguments))) == 2
    assert f"{method} does not use it" in capsys.readouterr().err


def test_defaults_are_never_in_the_way():
    for method in RECIPES:
        recipe_for(method, {name: option.default for name, option in OPTIONS.items()})


def test_help_lists_every_method_and_option(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    for command in ("fit", "compare"):
        with pytest.raises(SystemExit):
            main([command, "--help"])
        text = capsys.readouterr().out
        assert max(map(len, text.splitlines())) <= 80, command
        for name, recipe in RECIPES.items():
            assert name in text
            assert recipe.summary.split()[0] in text
        for option in OPTIONS.values():
            assert option.flag in text


def test_the_table_and_the_command_line_load_nothing_heavy():
    code = (
        "import sys, cagp, cagp.recipes.table, cagp.saved_summary, cagp.cli.app;"
        "heavy = {'torch', 'pandas', 'sklearn', 'scipy', 'matplotlib', 'pyarrow'} & set(sys.modules);"
        "sys.exit(' '.join(sorted(heavy)) or 0)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


def train(recipe: Recipe, task: Task) -> Fitted:
    """The training code of a method of one's own: local, under another name."""
    fitted = replace(RECIPES["local"], n_neighbors=recipe.n_neighbors, local_scale=None).train(task)
    return fitted._replace(method=recipe.name, choice="Chosen by this test.")


def test_a_new_method_is_one_function_and_one_entry(tmp_path, monkeypatch, capsys):
    words = "a method for this test", "a summary for this test"
    monkeypatch.setitem(RECIPES, "twice", Recipe("twice", __name__, *words, ("n_neighbors",)))
    X, y = table(60)
    model = CaGPRegressor("twice", n_neighbors=6, max_epochs=2).fit(X, y)
    local = CaGPRegressor("local", n_neighbors=6, local_scale=None, max_epochs=2).fit(X, y)
    np.testing.assert_array_equal(model.predict(X, return_std=True), local.predict(X, return_std=True))
    with pytest.raises(ValueError, match="n_actions is 3, but method 'twice' does not use it"):
        CaGPRegressor("twice", n_actions=3).fit(X, y)
    assert model.choice_ == "Chosen by this test."
    assert "Chosen by this test." in model.fit_report_
    np.savez(tmp_path / "table.npz", X=X, y=y)
    out = tmp_path / "model.cagp"
    arguments = ["fit", tmp_path / "table.npz", "--method", "twice", "--n-neighbors", "6", "--out", out]
    report = tmp_path / "report.html"
    assert main([*map(str, arguments), "--report", str(report), "--max-epochs", "2"]) == 0
    assert cagp.load(out).method_ == "twice"
    capsys.readouterr()
    assert main(["info", str(out)]) == 0
    assert "a method for this test" in capsys.readouterr().out
    assert "a method for this test" in report.read_text(encoding="utf-8")
    assert "Chosen by this test." in report.read_text(encoding="utf-8")


@pytest.mark.parametrize("method", ["local", "hybrid"])
def test_more_neighbours_than_rows_are_an_error_at_once(method):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 2))
    with pytest.raises(
        ValueError, match=r'n_neighbors is 300, .* the 300 training rows. Take 32 to 128 .*method="exact"'
    ):
        CaGPRegressor(method, n_neighbors=300).fit(X, X[:, 0])
    model = CaGPRegressor(method, max_epochs=1).fit(X[:20], X[:20, 0])  # the default is never in the way
    assert np.isfinite(model.predict(X)).all()


def test_learned_actions_start_from_neighbours_and_need_enough_rows_for_them():
    X = np.random.default_rng(0).normal(size=(2100, 2))
    with pytest.raises(ValueError, match=r"n_neighbors is 5,000, expected fewer than the 2,100 training rows"):
        CaGPRegressor("opt", n_neighbors=5000).fit(X, X[:, 0])


@pytest.mark.slow
def test_many_neighbours_are_announced_with_their_cost():
    X = np.random.default_rng(0).normal(size=(600, 1))
    with pytest.warns(UserWarning, match=r"n_neighbors is 500: .* roughly 2 s on one core, times 300 steps"):
        CaGPRegressor("local", n_neighbors=500, max_time=1e-9, local_scale=None).fit(X, X[:, 0])


def test_parameters_have_the_defaults_of_the_estimators_and_accept_them():
    for estimator in (CaGPRegressor, cagp.CaGPClassifier, cagp.SGPRRegressor):
        values = estimator().get_params()
        check_values(values)
        for name, option in PARAMETERS.items():
            if name in values and name != "likelihood":  # a classifier has another one
                assert values[name] == option.default
    assert set(PARAMETERS) <= set(CaGPRegressor().get_params())
    assert methods_for("gaussian") == tuple(RECIPES)
    assert methods_for("counts") == methods_for("classes") == ("auto", "exact", "opt", "cg", "local", "hybrid")


@pytest.mark.parametrize(
    ("kind", "values", "expected"),
    [
        ("gaussian", {"exposure": "hours", "n_inducing": 7, "target": "log"}, ["exposure"]),
        ("counts", {"exposure": "hours", "local_scale": None, "target": "identity", "n_neighbors": 8}, []),
        ("numbers", {"exposure": "hours", "local_scale": 4, "target": "log", "copies": "once"}, None),
        ("classes", {"objective": "loo", "shards": True, "mean": "trees", "warm_start": True, "method": "local"}, ...),
    ],
)
def test_parameters_that_a_kind_of_targets_does_not_have(kind, values, expected):
    refused = [option.name for option in not_for(kind, values)]
    if expected is None:
        assert refused == list(values)
    elif expected is ...:
        assert refused == ["objective", "shards", "warm_start"]
    else:
        assert refused == expected


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"kernel": "cubic"}, "kernel is 'cubic', expected \"auto\", one of matern12"),
        ({"mean": None}, 'mean is None, expected "auto", "zero" or "trees".'),
        ({"max_time": "soon"}, "max_time is 'soon', expected a positive time"),
        ({"max_memory": 0}, "max_memory is 0, expected a size"),
        ({"max_epochs": True}, "max_epochs is True, expected a positive integer (or None)."),
        ({"dtype": "float16"}, 'dtype is \'float16\', expected "auto", "float32" or "float64".'),
        ({"likelihood": "gamma"}, "likelihood is 'gamma', expected one of gaussian, poisson"),
        ({"effort": 3}, 'effort is 3, expected "fast", "default" or "thorough".'),
    ],
)
def test_wrong_values_are_named(values, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        check_values({"of_no_concern": 1, **values})
