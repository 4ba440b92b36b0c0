"""Trees in the mean: out of fold, as LightGBM itself fits them, the same on every machine load, and safe to read."""

import lightgbm
import numpy as np
import pytest
import torch

from cagp import trees
from cagp.trees import Trees, fit_trees


def steps_of_columns(num_rows: int = 300, num_targets: int = 1, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Steps along the columns, with little noise: what trees learn well."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(num_rows, 4))
    y = np.stack([(X[:, j] > 0) + 2.0 * (X[:, j + 1] > 0.5) for j in range(num_targets)], 1)
    return X, y + 0.1 * rng.normal(size=y.shape)


def folds_of(num_rows: int, seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Five folds of equal size in a random order, as documented for tables of this size."""
    fold = np.random.default_rng(seed).permutation(num_rows) % 5
    return [(np.flatnonzero(fold != f), np.flatnonzero(fold == f)) for f in range(5)]


def fitted_by_lightgbm(X, y, seed, rounds, weight=None, categorical=()) -> tuple[np.ndarray, list]:
    """Out-of-fold predictions and models of ``lightgbm.cv`` on the same folds."""
    settings = {
        "objective": "l2",
        "learning_rate": trees.LEARNING_RATE,
        "num_leaves": trees.NUM_LEAVES,
        "min_data_in_leaf": min(20, len(y) // 20),
        "min_data_per_group": min(100, len(y) // 100),
        "feature_pre_filter": False,
        "seed": seed,
        "num_threads": 1,
        "deterministic": True,
        "force_row_wise": True,
        "verbose": -1,
    }
    data = lightgbm.Dataset(X, y, weight=weight, categorical_feature=list(categorical), free_raw_data=False)
    folds = folds_of(len(y), seed)
    found = lightgbm.cv(settings, data, rounds, folds=folds, return_cvbooster=True)
    mean = np.empty(len(y))
    models = found["cvbooster"].boosters
    for model, (_, left_out) in zip(models, folds, strict=True):
        mean[left_out] = model.predict(X[left_out])
    return mean, models


@pytest.mark.parametrize("seed", [0, 5])
def test_the_same_as_lightgbm_s_own_cross_validation(seed):
    X, y = steps_of_columns()
    found = fit_trees(X, y, seed=seed)
    (rounds,) = found.trees.num_trees
    mean, models = fitted_by_lightgbm(X, y[:, 0], seed, rounds)
    np.testing.assert_allclose(found.mean[:, 0], mean, rtol=1e-12)
    Z, _ = steps_of_columns(50, seed=9)
    expected = np.mean([model.predict(Z) for model in models], axis=0)
    np.testing.assert_allclose(found.trees.mean(Z)[:, 0], expected, rtol=1e-12)


def test_the_number_of_rounds_is_the_one_with_the_least_error_out_of_fold():
    X, y = steps_of_columns()
    found = fit_trees(X, y)
    (rounds,) = found.trees.num_trees
    assert found.finished
    _, models = fitted_by_lightgbm(X, y[:, 0], 0, rounds + trees.PATIENCE)
    errors, folds = [], folds_of(300, 0)
    for number in range(1, rounds + trees.PATIENCE + 1):
        out = [
            m.predict(X[test], num_iteration=number) - y[test, 0] for m, (_, test) in zip(models, folds, strict=True)
        ]
        errors.append(np.square(np.concatenate(out)).mean())
    assert int(np.argmin(errors)) + 1 == rounds
    assert errors[rounds - 1] == pytest.approx(np.square(found.mean - y).mean(), rel=1e-9)


def test_the_mean_at_a_row_does_not_know_its_own_target(monkeypatch):
    """With a fixed number of rounds, a huge change of one target changes the other folds and no row of its own."""
    monkeypatch.setattr(trees, "MOST_ROUNDS", 5)
    monkeypatch.setattr(trees, "PATIENCE", 5)
    X, y = steps_of_columns()
    row = 17
    other = y.copy()
    other[row] += 1e4
    one, two = (fit_trees(X, values, seed=3) for values in (y, other))
    rounds = min(*one.trees.num_trees, *two.trees.num_trees)  # of both: the first rounds do not depend on their number
    fold = next(test for _, test in folds_of(300, 3) if row in test)
    for k, (_, test) in enumerate(folds_of(300, 3)):
        models = [lightgbm.Booster(model_str=found.trees.texts[0][k]) for found in (one, two)]
        first, second = (model.predict(X[test], num_iteration=rounds) for model in models)
        assert np.array_equal(first, second) == (test is fold or np.array_equal(test, fold))
    for found in (one, two):  # and each row's mean is of the model of its own fold
        for k, (_, test) in enumerate(folds_of(300, 3)):
            model = lightgbm.Booster(model_str=found.trees.texts[0][k])
            np.testing.assert_array_equal(found.mean[test, 0], model.predict(X[test]))


def test_noise_is_not_explained_out_of_fold():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(400, 4)), rng.normal(size=(400, 1))
    found = fit_trees(X, y)
    residual = np.square(y - found.mean).sum() / np.square(y - y.mean()).sum()
    assert residual > 0.99
    in_sample = lightgbm.train({"verbose": -1, "min_data_in_leaf": 20, "num_threads": 1}, lightgbm.Dataset(X, y[:, 0]))
    assert np.square(y[:, 0] - in_sample.predict(X)).sum() < 0.5 * np.square(y - y.mean()).sum()


def test_the_same_trees_twice_and_with_any_number_of_threads():
    X, y = steps_of_columns(num_targets=2)
    first, again = fit_trees(X, y), fit_trees(X, y)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        many = fit_trees(X, y)
        means = many.trees.mean(X)
    finally:
        torch.set_num_threads(threads)
    for other in (again, many):
        assert other.trees.texts == first.trees.texts
        np.testing.assert_array_equal(other.mean, first.mean)
    np.testing.assert_array_equal(means, first.trees.mean(X))
    assert fit_trees(X, y, seed=1).trees.texts != first.trees.texts


def test_each_target_has_trees_of_its_own():
    X, y = steps_of_columns(num_targets=3)
    together = fit_trees(X, y, seed=2)
    assert together.trees.num_targets == 3
    assert together.trees.num_inputs == 4
    for j in range(3):
        alone = fit_trees(X, y[:, j : j + 1], seed=2)
        assert alone.trees.texts[0] == together.trees.texts[j]
        np.testing.assert_array_equal(alone.mean[:, 0], together.mean[:, j])
        np.testing.assert_array_equal(alone.trees.mean(X)[:, 0], together.trees.mean(X)[:, j])


@pytest.mark.slow
def test_missing_values_and_codes_are_split_as_such():
    """The target depends on where a value is missing, and on levels whose codes are in no order."""
    rng = np.random.default_rng(1)
    codes = rng.integers(0, 12, 600).astype(float)
    value = np.where(rng.random(600) < 0.3, np.nan, rng.normal(size=600))
    effect = rng.permutation(np.repeat([-1.0, 1.0], 6))
    y = (effect[codes.astype(int)] + 2.0 * np.isnan(value))[:, None]
    X = np.stack([codes, value], 1)
    found = fit_trees(X, y, categorical=[0])
    assert np.square(found.mean - y).mean() < 0.05 * y.var()
    text = found.trees.texts[0][0]
    assert "num_cat=1" in text  # the levels are split as a set, at once
    assert "num_cat=1" not in fit_trees(X, y).trees.texts[0][0]
    mean, _ = fitted_by_lightgbm(X, y[:, 0], 0, found.trees.num_trees[0], categorical=[0])
    np.testing.assert_allclose(found.mean[:, 0], mean, rtol=1e-12)


def test_rows_with_much_noise_count_less():
    X, y = steps_of_columns()
    rng = np.random.default_rng(3)
    noise = np.where(rng.random((300, 1)) < 0.5, 100.0, 0.0)
    noisy = y + np.sqrt(noise) * rng.normal(size=y.shape)
    found, without = fit_trees(X, noisy, noise), fit_trees(X, noisy)
    error = [np.square(f.mean - y).mean() for f in (found, without)]
    assert error[0] < 0.5 * error[1]
    weight = 1 / (trees.NOISE * noisy.var() + noise[:, 0])
    mean, _ = fitted_by_lightgbm(X, noisy[:, 0], 0, found.trees.num_trees[0], weight)
    np.testing.assert_allclose(found.mean[:, 0], mean, rtol=1e-6)


def test_a_target_without_models_has_the_mean_zero():
    X, y = steps_of_columns()
    (texts,) = fit_trees(X, y).trees.texts
    both = Trees([(), texts])
    assert both.num_targets == 2
    assert both.num_inputs == 4
    assert both.num_trees[0] == 0
    np.testing.assert_array_equal(both.mean(X)[:, 0], 0)
    np.testing.assert_array_equal(both.mean(X)[:, 1], Trees([texts]).mean(X)[:, 0])
    assert both.mean(X[:0]).shape == (0, 2)
    with pytest.raises(ValueError, match="texts has no models"):
        Trees([(), ()])
    with pytest.raises(ValueError, match="inputs have 3 columns, the trees were fitted to 4"):
        both.mean(X[:, :3])


@pytest.mark.parametrize("num_rows", [2, 3, 5, 11])
def test_a_handful_of_rows(num_rows):
    X, y = steps_of_columns(num_rows)
    found = fit_trees(X, y)
    assert np.isfinite(found.mean).all()
    assert np.isfinite(found.trees.mean(X)).all()
    np.testing.assert_allclose(fit_trees(X, np.ones_like(y)).mean, 1.0)


class Clock:
    """A clock on which every look takes a second."""

    def __init__(self):
        self.now = 0.0

    def perf_counter(self) -> float:
        self.now += 1.0
        return self.now


@pytest.mark.parametrize("max_seconds", [1e-9, 3.0, 40.0, 300.0])
def test_the_time_is_kept_and_shared_by_the_targets(max_seconds, monkeypatch):
    X, y = steps_of_columns(num_targets=2)
    clock = Clock()
    monkeypatch.setattr(trees, "time", clock)
    found = fit_trees(X, y, max_seconds=max_seconds)
    # Every round of a fold looks at the clock. At least one round for each fold and target is fitted.
    assert clock.now <= max_seconds + 40
    assert not found.finished
    assert min(found.trees.num_trees) >= 1
    rounds = found.trees.num_trees
    for j in range(2):
        mean, _ = fitted_by_lightgbm(X, y[:, j], 0, rounds[j])
        np.testing.assert_allclose(found.mean[:, j], mean, rtol=1e-12)


def test_enough_time_changes_nothing():
    X, y = steps_of_columns()
    limited, free = fit_trees(X, y, max_seconds=1e6), fit_trees(X, y)
    assert limited.finished
    assert limited.trees.texts == free.trees.texts


# ---- what is stored ----


def small_model() -> tuple[str, np.ndarray]:
    """A model with numbers, levels and missing values, and rows for it."""
    rng = np.random.default_rng(4)
    levels = rng.integers(0, 8, 200).astype(float)
    X = np.stack([levels, np.where(rng.random(200) < 0.2, np.nan, rng.normal(size=200))], 1)
    y = np.where(levels % 3 == 0, 1.0, -1.0) + np.isnan(X[:, 1])
    settings = {"min_data_in_leaf": 5, "min_data_per_group": 1, "verbose": -1, "num_threads": 1}
    model = lightgbm.train(settings, lightgbm.Dataset(X, y, categorical_feature=[0]), 6)
    return model.model_to_string(), X


def test_stored_text_predicts_as_lightgbm_does_and_is_stable():
    text, X = small_model()
    assert "cat_threshold" in text
    found = Trees([[text]])
    np.testing.assert_array_equal(found.mean(X)[:, 0], lightgbm.Booster(model_str=text).predict(X))
    assert Trees(found.texts).texts == found.texts  # reading it again changes nothing
    assert len(found.texts[0][0]) < len(text)


def test_damaged_text_is_refused_before_lightgbm_reads_it():
    """LightGBM aborts the process for some of these."""
    text, X = small_model()
    rng, refused = np.random.default_rng(0), 0
    for _ in range(400):
        damaged = text
        for _ in range(rng.integers(1, 4)):
            place = int(rng.integers(1, len(damaged)))
            end = place + int(rng.integers(1, 100))
            lines = damaged.split("\n")
            lines[rng.integers(len(lines))] = lines[rng.integers(len(lines))]
            damaged = [
                damaged[:place],
                damaged[:place] + damaged[end:],
                damaged[:end] + damaged[place:],
                damaged[:place] + "0123456789-. =\n"[rng.integers(15)] + damaged[place + 1 :],
                "\n".join(lines),
            ][rng.integers(5)]
        try:
            found = Trees([[damaged]])
        except ValueError:
            refused += 1
            continue
        if found.num_inputs == 2:
            assert found.mean(X).shape == (200, 1)  # another model, perhaps, but a whole one
    assert refused > 200  # the others left what predictions need as it was, or made another tree


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("split_feature", lambda values: ["2", *values[1:]]),
        ("split_feature", lambda values: ["-1", *values[1:]]),
        ("left_child", lambda values: ["0", *values[1:]]),  # a walk that does not end
        ("right_child", lambda values: ["99", *values[1:]]),
        ("left_child", lambda values: ["-99", *values[1:]]),
        ("leaf_value", lambda values: values[1:]),
        ("threshold", lambda values: ["7", *values[1:]]),  # the first split is one of levels
        ("decision_type", lambda values: ["15", *values[1:]]),
        ("cat_boundaries", lambda values: [*values[:-1], "1000"]),
        ("num_cat", lambda values: ["0"]),
        ("is_linear", lambda values: ["1"]),
        ("num_leaves", lambda values: ["1000000"]),
    ],
)
def test_every_index_of_stored_trees_is_checked(field, change):
    text, _ = small_model()
    start = text.index(f"\n{field}=") + len(field) + 2
    end = text.index("\n", start)
    values = text[start:end].split(" ")
    with pytest.raises(ValueError, match="the stored trees cannot be read: tree 0: "):
        Trees([[text[:start] + " ".join(change(values)) + text[end:]]])


def test_no_thread_prints(capfd, monkeypatch):
    """Where a thread begins no fold, its LightGBM knows no settings; a command's JSON stands on the same stdout."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 2))
    counts = rng.poisson(np.exp(X[:, :1] / 2)).astype(float)
    for seed in range(8):
        fit_trees(X, counts, objective="poisson", seed=seed)
    assert capfd.readouterr() == ("", "")
