"""Splits at random, by time and by group: whole times and groups, the share as near as possible."""

from itertools import product

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cagp.cli.commands import SplitRule
from cagp.data import shared_groups, split

fractions = st.floats(0.02, 0.98)


def parts_of(found, num_rows):
    train, test = found.train.numpy(), found.test.numpy()
    assert sorted([*train, *test]) == list(range(num_rows))
    assert len(train)
    assert len(test)
    return train, test


def wanted(num_rows, fraction):
    return min(max(round(num_rows * fraction), 1), num_rows - 1)


@given(st.lists(st.integers(0, 9), min_size=2, max_size=60).filter(lambda v: len(set(v)) > 1), fractions)
def test_a_split_by_time_is_the_best_of_all_cuts(times, fraction):
    train, test = parts_of(split(len(times), fraction, time=times), len(times))
    times = np.array(times)
    assert times[train].max() < times[test].min()
    sizes = [int((times >= cut).sum()) for cut in np.unique(times)[1:]]
    target = wanted(len(times), fraction)
    best = min(abs(size - target) for size in sizes)
    assert len(test) == min(size for size in sizes if abs(size - target) == best)
    assert (np.diff(times[train]) >= 0).all()
    assert (np.diff(times[test]) >= 0).all()


@given(st.lists(st.integers(0, 5), min_size=2, max_size=40).filter(lambda v: len(set(v)) > 1), fractions, st.integers())
def test_a_split_by_group_divides_no_group_and_comes_near_the_share(groups, fraction, seed):
    seed = abs(seed) % 2**31
    found = split(len(groups), fraction, seed, group=groups)
    train, test = parts_of(found, len(groups))
    groups = np.array(groups)
    assert not set(groups[train]) & set(groups[test])
    assert not shared_groups(groups[train], groups[test]).any()
    # No other single group, added to the test part or taken from it, would bring it nearer to its share.
    target, sizes = wanted(len(groups), fraction), {g: int((groups == g).sum()) for g in set(groups)}
    distance = abs(len(test) - target)
    if len(set(groups[train])) > 1:
        assert all(abs(len(test) + sizes[g] - target) >= distance for g in set(groups[train]))
    again = split(len(groups), fraction, seed, group=groups)
    assert torch.equal(found.test, again.test)


def test_groups_are_drawn_by_seed():
    groups = np.repeat(np.arange(10), 10)
    tested = {int(groups[split(100, 0.1, seed, group=groups).test[0]]) for seed in range(60)}
    assert len(tested) > 7


def test_a_group_that_is_larger_than_the_test_part_is_trained_on():
    groups = ["large"] * 80 + list("abcdefghij") * 2
    for seed in range(20):
        test = split(100, 0.1, seed, group=groups).test
        assert len(test) == 10
        assert "large" not in {groups[row] for row in test}


def test_times_can_be_dates_durations_and_tensors():
    days = pd.Series(pd.to_datetime(["2021-05-01", "2020-01-01", "2021-05-02", "2020-06-01"]), name="day")
    for times in (days, days.dt.tz_localize("Europe/Berlin"), days - days.min(), days.astype("datetime64[s]")):
        assert split(4, 0.5, time=times).test.tolist() == [0, 2]
    assert split(3, 0.34, time=torch.tensor([3.0, 1.0, 2.0])).test.tolist() == [0]
    assert split(4, 0.2, time=[1.0, np.inf, 2.0, np.inf]).test.tolist() == [1, 3]


def test_without_a_column_the_rows_are_drawn_as_ever():
    order = torch.randperm(50, generator=torch.Generator().manual_seed(3))
    assert torch.equal(split(50, 0.1, 3).test, order[:5])


@pytest.mark.parametrize("name", ["time", "group"])
def test_columns_that_cannot_split_are_errors(name):
    for values, words in [
        (pd.Series([1.0, np.nan, 2.0], name="day"), "column 'day' is missing in 1 of 3 rows .first at row 1."),
        ([4.0, 4.0, 4.0], f"{name} is the same for all 3 rows"),
        ([1.0, 2.0], f"{name} has 2 values, expected 3"),
    ]:
        with pytest.raises(ValueError, match=words):
            split(3, 0.5, **{name: values})
    with pytest.raises(ValueError, match=r"column 'day' holds text or categories, 'May' at row 0; time needs"):
        split(2, 0.5, time=pd.Series(["May", "June"], name="day"))
    with pytest.raises(ValueError, match="both given"):
        split(2, 0.5, time=[1, 2], group=[1, 2])


def test_rules_in_words():
    assert SplitRule.parse("random") == SplitRule("random")
    assert SplitRule.parse("time:a:b") == SplitRule("time", "a:b")
    for rule in ("random", "time:date", "group:site 1"):
        assert str(SplitRule.parse(rule)) == rule
    assert SplitRule.parse("group:site") == ("group", "site")
    assert SplitRule.parse("time:site") == ("time", "site")
    for kind, rest in product(("", "time", "group", "random", "Time"), ("", ":")):
        text = kind + rest
        if text != "random":
            with pytest.raises(ValueError, match='expected "random", "time:COLUMN" or "group:COLUMN"'):
                SplitRule.parse(text)


def test_dates_as_text_are_split_by_time():
    days = pd.date_range("2024-01-28", periods=20, freq="D")
    shuffled = np.random.default_rng(0).permutation(20)
    text = pd.Series(days[shuffled].strftime("%d.%m.%Y"), name="day")
    found = split(20, 0.25, time=text)
    assert sorted(shuffled[found.test.numpy()].tolist()) == [15, 16, 17, 18, 19]
