"""Gradient-boosted trees as the prior mean: fitted out of fold, so that training rows have residuals like new rows.

The rows are cut into folds. The trees of a fold are fitted without its rows and predict them: these predictions are the
prior mean at the training rows. At a new row, the prior mean is the mean of the trees of all folds. For a Gaussian
process the prior mean is a fixed function: the variance does not depend on it.
"""

import re
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from itertools import pairwise
from typing import Any, Literal, NamedTuple, final

import numpy as np
import torch
from jaxtyping import Float64, Int
from scipy import special

LEARNING_RATE, NUM_LEAVES, MOST_ROUNDS, ROUNDS_AT_ONCE = 0.1, 63, 1000, 10
PATIENCE, WINDOW, LEAST_FALL = 20, 100, 0.001
"""Trees are added, some at once, until the squared out-of-fold error has not fallen for ``PATIENCE`` rounds, or by a
share of less than ``LEAST_FALL`` in ``WINDOW`` rounds. A heuristic: the Gaussian process models the residuals."""

QUICK_RATE, QUICK_ROUNDS = 0.2, 60
"""Of trees that only give a first idea."""

TreeObjective = Literal["l2", "binary", "multiclass", "poisson", "huber"]

FOLDS = ((50_000, 5), (200_000, 3))
"""The number of folds up to a number of rows; two beyond, where half of the rows are plenty."""

NOISE = 0.3
"""With known noise, a row weighs as if this share of the variance of the targets came on top of it."""


def _lightgbm() -> Any:
    """The package of boosted trees, which is slow to load."""
    return import_module("lightgbm")


@final
class Trees:
    """The prior mean of each target at new rows.

    Args:
        texts: the models of each target, one for each fold, in LightGBM's text format. They are data: nothing in them
            can run. A target without models has the mean zero.

    Attributes:
        num_targets: q.
        num_inputs: the number of input columns.
        num_trees: the trees that a prediction of each target adds up, those of one fold.
    """

    def __init__(self, texts: Sequence[Sequence[str]]):
        try:
            self.texts = tuple(tuple(map(_checked_text, models)) for models in texts)
        except ValueError as error:
            raise ValueError(f"the stored trees cannot be read: {error}; save the model again.") from error
        if not any(self.texts):
            raise ValueError("texts has no models, expected some for at least one target.")
        self._boosters = [[_lightgbm().Booster(model_str=text) for text in models] for models in self.texts]
        self.num_targets = len(self.texts)
        self.num_inputs = next(models[0].num_feature() for models in self._boosters if models)
        self.num_trees = [models[0].num_trees() if models else 0 for models in self._boosters]

    def mean(self, inputs: Float64[np.ndarray, "n p"]) -> Float64[np.ndarray, "n q"]:
        """The mean of the predictions of all folds, a thread for each. Time O(n · trees · depth)."""
        if inputs.shape[1] != self.num_inputs:
            raise ValueError(f"inputs have {inputs.shape[1]} columns, the trees were fitted to {self.num_inputs}.")
        out = np.zeros((len(inputs), self.num_targets))
        if len(inputs) == 0:
            return out
        with ThreadPoolExecutor(torch.get_num_threads()) as pool:
            for j, models in enumerate(self._boosters):
                if models:
                    out[:, j] = np.mean(list(pool.map(lambda model: _predict(model, inputs), models)), axis=0)
        return out


class OutOfFold(NamedTuple):
    """Fitted trees, and what they predict for the rows they were fitted to."""

    trees: Trees
    mean: Float64[np.ndarray, "n q"]  # at each row, by trees that were fitted without it
    finished: bool  # False if the time was up before the error stopped falling


def fit_trees(
    inputs: Float64[np.ndarray, "n p"],
    y: Float64[np.ndarray, "n q"],
    row_noise: Float64[np.ndarray, "n q"] | None = None,
    *,
    categorical: Sequence[int] = (),
    seed: int = 0,
    fold: Int[np.ndarray, " n"] | None = None,
    max_seconds: float = float("inf"),
    objective: TreeObjective = "l2",
    exposure: Float64[np.ndarray, " n"] | None = None,
) -> OutOfFold:
    """Fit trees to each target, out of fold; the number of rounds is the one with the least out-of-fold error.

    The same arguments give the same trees on the same machine, unless the time is up.

    Args:
        inputs: may have NaN for missing values.
        row_noise: known noise variances; rows with much noise have less weight.
        categorical: columns that hold codes of levels.
        fold: the fold of each row, from 0; None for ``number_of_folds`` folds of rows drawn by seed.
        objective: "l2" for numbers, "huber" for numbers with outliers; "binary" for targets 0 and 1, of which trees
            then predict the log odds; "multiclass" for a column of zeros and ones for each class, of which they predict
            logits together; "poisson" for counts, of which they predict the logarithm of the mean.
        exposure: of counts: trees predict the logarithm of the mean for an exposure of one.

    Time O(rounds · n p · folds) for each target.
    """
    if fold is None:
        fold = np.random.default_rng(seed).permutation(len(y)) % number_of_folds(len(y))
    folds = [(np.flatnonzero(fold != f), np.flatnonzero(fold == f)) for f in range(fold.max() + 1)]
    mean, texts, finished, num_targets = np.empty(y.shape), [], True, y.shape[1]
    deadline = time.perf_counter() + max_seconds
    # Classes are fitted together, any other targets one after the other.
    num_classes = num_targets if objective == "multiclass" else 1
    for j in range(0, num_targets, num_classes):
        targets, weight = y.argmax(1).astype(float) if objective == "multiclass" else y[:, j], None
        if row_noise is not None:  # that of labels is in units of the noise of a row of weight one
            known = row_noise[:, j]
            weight = 1 / (known if objective in ("binary", "multiclass") else NOISE * targets.var() + known + 1e-12)
        if exposure is not None:  # y log(e λ) - e λ = e ((y/e) log λ - λ) up to a constant
            targets, weight = targets / exposure, exposure
        now = time.perf_counter()
        until = now + (deadline - now) * num_classes / (num_targets - j)
        settings = {**_settings(len(y), seed), "objective": objective, "num_class": num_classes}
        own = {"weight": weight, "categorical_feature": list(categorical), "params": settings, "free_raw_data": False}
        # The loss of predictions that are all right: the loss above it is the deviance, which is positive.
        right = targets - special.xlogy(targets, targets) if objective == "poisson" else np.zeros(len(y))
        data, least = _lightgbm().Dataset(inputs, targets, **own).construct(), np.average(right, weights=weight)
        boosters, rounds, ended = _cross_fitted(data, folds, settings, until, float(least))
        models = [booster.model_to_string(num_iteration=rounds) for booster in boosters]
        for booster, (_, left_out) in zip(boosters, folds, strict=True):
            predicted = _predict(booster, inputs[left_out], rounds)
            mean[left_out, j : j + num_classes] = predicted.reshape(-1, num_classes)
        texts += ([_checked_text(model, place, num_classes) for model in models] for place in range(num_classes))
        finished &= ended
    return OutOfFold(Trees(texts), mean, finished)


def number_of_folds(num_rows: int) -> int:
    """The number of folds for this many rows; see ``FOLDS``."""
    return min(next((folds for rows, folds in FOLDS if num_rows <= rows), 2), num_rows)


def quick_prediction(
    inputs: Float64[np.ndarray, "n p"],
    y: Float64[np.ndarray, "n q"],
    new_inputs: Float64[np.ndarray, "t p"],
    *,
    categorical: Sequence[int] = (),
    seed: int = 0,
) -> Float64[np.ndarray, "t q"]:
    """What a few trees, fitted to all rows, predict at others: a first idea of what trees can do, at little cost."""

    def predicted(targets: np.ndarray) -> np.ndarray:
        settings = {**_settings(len(targets), seed), "learning_rate": QUICK_RATE}
        data = _lightgbm().Dataset(inputs, targets, categorical_feature=list(categorical), params=settings)
        return _predict(_lightgbm().train(settings, data, QUICK_ROUNDS), new_inputs)

    return np.stack([predicted(column) for column in y.T], axis=1)


def _settings(num_rows: int, seed: int) -> dict[str, Any]:
    """What all trees have in common: one thread, and the same result each time."""
    few = max(1, min(20, num_rows // 20))
    return {
        "objective": "l2",
        "learning_rate": LEARNING_RATE,
        "num_leaves": NUM_LEAVES,
        "min_data_in_leaf": few,
        "min_data_per_group": max(1, min(100, num_rows // 100)),  # of levels; LightGBM's 100 would ignore small tables'
        "min_data_in_bin": min(3, few),
        "feature_pre_filter": False,
        "seed": seed,
        "deterministic": True,
        "force_row_wise": True,
        "num_threads": 1,
        "verbose": -1,
    }


def _cross_fitted(
    data: Any, folds: list[tuple[np.ndarray, np.ndarray]], settings: dict[str, Any], until: float, least: float
) -> tuple[list[Any], int, bool]:
    """A model for each fold, the best number of rounds for all, and whether the search for it came to its end.

    Every fold has one thread of its own: the result does not depend on the number of threads, and none waits for
    another on a busy machine.
    """

    def begin(fold: tuple[np.ndarray, np.ndarray]) -> Any:
        booster = _lightgbm().Booster(settings, data.subset(np.sort(fold[0])))
        return booster.add_valid(data.subset(np.sort(fold[1])), "left out")

    def advance(booster: Any) -> list[float]:
        """The error of the rows left out after each of the next rounds; none further where no tree can be added."""
        errors = []
        while len(errors) < ROUNDS_AT_ONCE and (not errors or time.perf_counter() < until):
            booster.update()
            errors.append(booster.eval_valid()[0][2])
        return errors

    sizes = np.array([len(left_out) for _, left_out in folds])
    errors: list[float] = []

    def silence() -> None:
        """Each thread of LightGBM prints until settings say otherwise, and a thread may begin no fold."""
        _lightgbm().Dataset(np.zeros((1, 1)), params=settings).construct()

    with ThreadPoolExecutor(min(len(folds), torch.get_num_threads()), initializer=silence) as pool:
        boosters = list(pool.map(begin, folds))
        while not errors or (len(errors) < MOST_ROUNDS and time.perf_counter() < until):  # one round in any case
            each = list(pool.map(advance, boosters))
            rounds = min(map(len, each))
            errors += [float(np.average([fold[r] for fold in each], weights=sizes)) - least for r in range(rounds)]
            stands_still = len(errors) - int(np.argmin(errors)) > PATIENCE
            falls_little = len(errors) > WINDOW and errors[-1] > (1 - LEAST_FALL) * errors[-1 - WINDOW]
            if stands_still or falls_little or rounds < ROUNDS_AT_ONCE:
                break
    return boosters, int(np.argmin(errors)) + 1, time.perf_counter() < until


def _predict(booster: Any, inputs: np.ndarray, rounds: int | None = None) -> np.ndarray:
    return booster.predict(inputs, num_iteration=rounds, num_threads=1, raw_score=True)


# ---- the text of trees ----
# It is checked before LightGBM reads it: LightGBM trusts it, and a wrong index ends the process. What LightGBM is given
# is written again from the fields that were checked. It also writes settings and statistics, which predictions do not
# need: they are left out.

HEAD = """tree
version={version}
num_class=1
num_tree_per_iteration=1
label_index=0
max_feature_idx={last}
objective=regression
feature_names={names}
feature_infos={infos}
tree_sizes={sizes}

"""
TAIL = """end of trees

parameters:
[objective: regression]
end of parameters

pandas_categorical:null
"""

LARGEST_LEAF = 1e15
"""Of targets in standard units."""

OF_NODES: dict[str, type[int] | type[float]] = {
    "split_feature": int,
    "split_gain": float,
    "threshold": float,
    "decision_type": int,
    "left_child": int,
    "right_child": int,
}
NUMBERS = {
    float: (r"(?:[-+]?(?:\d{1,20}(?:\.\d{0,30})?(?:e[-+]?\d{1,3})?|inf|nan)(?: |$))*", "numbers"),
    int: (r"(?:-?\d{1,10}(?: |$))*", "integers"),
}


def _checked_text(text: str, place: int = 0, num_classes: int = 1) -> str:
    """What predictions of one target need of a model; ValueError unless it is whole and every index in its range.

    In a model of several classes, trees of the classes take turns; those of the class at ``place`` are taken.
    """
    head, *blocks = text.partition("\nend of trees\n")[0].split("\nTree=")
    if not head.startswith("tree\n") or not blocks or "\nend of trees\n" not in text:
        raise ValueError("there are no trees, or not all")
    header = _fields(head)
    (last,), version = _values(header, "max_feature_idx", 1), header.get("version", "")
    if not re.fullmatch(r"v\d{1,3}", version) or not 0 <= last < 2**24:
        raise ValueError("its first lines are not those of trees")
    if len(header.get("tree_sizes", "").split()) != len(blocks):
        raise ValueError("its number of trees is not the one it states")
    trees = []
    for k, block in enumerate(blocks):
        number, _, rest = block.partition("\n")
        if number != str(k):
            raise ValueError(f"tree {k} is not where it should be")
        try:
            if k % num_classes == place:
                trees.append(f"Tree={len(trees)}\n{_checked_tree(_fields(rest), last)}\n\n")
        except ValueError as error:
            raise ValueError(f"tree {k}: {error}") from error
    sizes, columns = " ".join(str(len(tree)) for tree in trees), range(last + 1)
    names, infos = " ".join(f"x{j}" for j in columns), " ".join("none" for _ in columns)
    return HEAD.format(version=version, last=last, names=names, infos=infos, sizes=sizes) + "".join(trees) + TAIL


def _checked_tree(tree: dict[str, str], last_feature: int) -> str:
    (leaves,), (sets,) = _values(tree, "num_leaves", 1), _values(tree, "num_cat", 1)
    if leaves < 1 or sets < 0 or tree.get("is_linear") != "0":
        raise ValueError("it is of no known kind")
    kept = ["num_leaves", "num_cat"]
    if leaves > 1:
        _check_splits(tree, leaves, sets, last_feature)
        kept += OF_NODES
    if sets:  # of levels: words of bits, one after the other
        bounds = _values(tree, "cat_boundaries", sets + 1)
        if bounds[0] != 0 or not all(before < after for before, after in pairwise(bounds)):
            raise ValueError("its sets of levels are not whole")
        if not all(0 <= word < 2**32 for word in _values(tree, "cat_threshold", bounds[-1])):
            raise ValueError("its sets of levels are no bits")
        kept += ["cat_boundaries", "cat_threshold"]
    _values(tree, "shrinkage", 1, float)
    if not all(abs(value) <= LARGEST_LEAF for value in _values(tree, "leaf_value", leaves, float)):
        raise ValueError("it predicts values that are not finite, or huge")
    kept += ["leaf_value", "is_linear", "shrinkage"]
    return "".join(f"{name}={tree[name]}\n" for name in kept)


def _check_splits(tree: dict[str, str], leaves: int, sets: int, last_feature: int) -> None:
    nodes: dict[str, list[Any]] = {name: _values(tree, name, leaves - 1, kind) for name, kind in OF_NODES.items()}
    if not all(0 <= feature <= last_feature for feature in nodes["split_feature"]):
        raise ValueError("it splits a column that does not exist")
    left, right = nodes["left_child"], nodes["right_child"]
    # Every node but the first, and every leaf, is the child of one node before it: every walk ends in a leaf.
    if not all(node < child or child < 0 for node, pair in enumerate(zip(left, right, strict=True)) for child in pair):
        raise ValueError("a walk through it would not end")
    if sorted(left + right) != [*range(-leaves, 0), *range(1, leaves - 1)]:
        raise ValueError("its nodes and leaves are not each the child of one node")
    # Bit 0: the threshold is the number of a set of levels. Bit 1: where missing values go. Bits 2, 3: what they are.
    kinds = nodes["decision_type"]
    places = [place for place, kind in zip(nodes["threshold"], kinds, strict=True) if kind & 1]
    if not all(0 <= kind < 12 for kind in kinds) or not all(place in range(sets) for place in places):
        raise ValueError("it splits levels that it does not have")


# ---- lines of names and numbers ----


def _fields(block: str) -> dict[str, str]:
    """The lines "name=value"; ValueError for a name that comes twice."""
    lines = [line.split("=", 1) for line in block.split("\n") if "=" in line]
    if len({name for name, _ in lines}) < len(lines):
        raise ValueError("a line comes twice")
    return dict(lines)


def _values(fields: dict[str, str], name: str, count: int, kind: type[int] | type[float] = int) -> list[Any]:
    """The numbers in a line; ValueError unless there are ``count`` of this kind."""
    pattern, words = NUMBERS[kind]
    text = fields.get(name, "")
    if re.fullmatch(pattern, text) is None or len(text.split()) != count:
        raise ValueError(f"{name} is not {count} {words}")
    return [kind(value) for value in text.split()]
