"""Which rows are used for training and which for testing: drawn at random, the latest ones, or whole groups."""

from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float64, Int
from torch import Tensor

from cagp.column_kinds import DATETIME, LEVELS, Column
from cagp.data.column_values import column_codes, first_text, kind_of, one_zone
from cagp.data.table_checks import as_array
from cagp.data.text_values import format_of, time_zones


class Split(NamedTuple):
    """Row numbers; every row is in exactly one part."""

    train: Int[Tensor, " n_train"]
    test: Int[Tensor, " n_test"]


def split(num_rows: int, test_fraction: float, seed: int = 0, *, time: Any = None, group: Any = None) -> Split:
    """A split of ``num_rows`` rows, the same for the same arguments; at least one row in each part.

    Without ``time`` and ``group``, the rows are drawn by seed, and both parts are in random order.

    Args:
        time: a number or date for each row, to test on the latest rows: see ``split_by_time``.
        group: anything for each row, to keep rows with the same value together: see ``split_by_group``.
    """
    if time is not None and group is not None:
        raise ValueError("time and group are both given; a split follows one of them.")
    for name, values in (("time", time), ("group", group)):
        if values is not None and len(values) != num_rows:
            raise ValueError(f"{name} has {len(values)} values, expected {num_rows}: one for each row.")
    if time is not None:
        return split_by_time(time, test_fraction)
    if group is not None:
        return split_by_group(group, test_fraction, seed)
    num_test = _number_to_test(num_rows, test_fraction)
    order = torch.randperm(num_rows, generator=torch.Generator().manual_seed(seed))
    return Split(train=order[num_test:], test=order[:num_test])


def split_by_time(values: Any, test_fraction: float) -> Split:
    """The latest rows as the test part, both parts from the earliest row to the latest.

    Rows at the same time stay together. The cut is where the test part is nearest to its share; of two such cuts, the
    later one.

    Args:
        values: a number, date or duration for each row; none missing.
    """
    times, name = times_of(values), _name(values, "time")
    wanted = _number_to_test(len(times), test_fraction)
    order = np.argsort(times, kind="stable")
    cuts = 1 + np.flatnonzero(times[order][1:] > times[order][:-1])  # between two times
    if len(cuts) == 0:
        raise ValueError(
            f"{name} is the same for all {len(times)} rows: no row is later than another. Choose another column, or "
            "split at random."
        )
    distance = np.abs((len(times) - cuts) - wanted)
    cut = int(cuts[np.flatnonzero(distance == distance.min())[-1]])
    return _split(order[:cut], order[cut:])


def split_by_group(values: Any, test_fraction: float, seed: int = 0) -> Split:
    """Whole groups of rows as the test part, drawn by seed; both parts in the order of the rows.

    Groups are drawn one after the other and taken if they fit into the share; at the end the smallest group that is
    left comes in if that brings the test part nearer to its share. A group that is much larger than the test part is
    therefore trained on.

    Args:
        values: numbers, text or dates that are the same for the rows of a group; none missing.
    """
    codes, name = group_codes(values)
    if not codes.any():
        raise ValueError(
            f"{name} is the same for all {len(codes)} rows: there is one group. Choose another column, or split at "
            "random."
        )
    wanted = _number_to_test(len(codes), test_fraction)
    sizes = np.bincount(codes)
    order = torch.randperm(len(sizes), generator=torch.Generator().manual_seed(seed)).numpy()
    tested, left, count = [], [], 0
    for drawn in order:
        fits = count + sizes[drawn] <= wanted
        (tested if fits else left).append(drawn)
        count += int(sizes[drawn]) if fits else 0
    smallest = min(left, key=lambda group: sizes[group])  # the first of several
    if not tested or (len(left) > 1 and count + sizes[smallest] - wanted < wanted - count):
        tested.append(smallest)
    is_tested = np.isin(codes, tested)
    return _split(np.flatnonzero(~is_tested), np.flatnonzero(is_tested))


def group_codes(values: Any) -> tuple[Int[np.ndarray, " n"], str]:
    """The number of the group of each row, from 0 in the order of their first rows, and what messages call the column.

    Args:
        values: numbers, text or dates; ValueError if some are missing.
    """
    series, name = as_column(values), _name(values, "group")
    _check_present(series, name)
    return pd.factorize(series)[0], name


def shared_groups(train: Any, test: Any) -> np.ndarray:
    """Whether each test row has its group in common with a training row; a missing value is no group."""
    tested = as_column(test)
    return tested.isin(as_column(train).dropna().unique()).to_numpy() & tested.notna().to_numpy()


# ---- inside ----


def _number_to_test(num_rows: int, test_fraction: float) -> int:
    if num_rows < 2:
        raise ValueError(f"num_rows is {num_rows}, expected at least 2: one row to train on and one to test on.")
    if not 0 < test_fraction < 1:
        raise ValueError(f"test_fraction is {test_fraction}, expected a number between 0 and 1, e.g. 0.1.")
    return min(max(round(num_rows * test_fraction), 1), num_rows - 1)


def _split(train: np.ndarray, test: np.ndarray) -> Split:
    return Split(torch.from_numpy(train.astype(np.int64)), torch.from_numpy(test.astype(np.int64)))


def as_column(values: Any) -> pd.Series:
    """Values of rows, an array or a column, as a column."""
    if isinstance(values, pd.Series):
        return values
    return pd.Series(as_array(values, "the column of the split"))


def _name(values: Any, otherwise: str) -> str:
    """What messages call a column: by its name, if it has one."""
    name = getattr(values, "name", None)
    return otherwise if name is None else f"column {name!r}"


def times_of(values: Any) -> Float64[np.ndarray, " n"]:
    """Numbers, or days for dates and durations; text is read as the encoder reads it. ValueError if one is missing."""
    series, name = as_column(values), _name(values, "time")
    kind, text = kind_of(series, str(series.name)), None
    if kind == LEVELS and not isinstance(series.dtype, pd.CategoricalDtype):
        text = format_of(series.dropna().astype(str), str(series.name))
        kind = kind if text is None else text.kind
    if kind == LEVELS:
        raise ValueError(
            f"{name} holds text or categories{first_text(series, 0)}; time needs numbers or dates. Write dates like "
            "2024-03-31, or convert them with pandas.to_datetime."
        )
    _check_present(series, name)
    zone = one_zone(str(series.name), time_zones(series)) if kind == DATETIME else ""
    column = Column(str(series.name), kind, format="" if text is None else text.name, time_zone=zone)
    return column_codes(column, series, 0)


def _check_present(series: pd.Series, name: str) -> None:
    missing = series.isna().to_numpy()
    if missing.any():
        raise ValueError(
            f"{name} is missing in {int(missing.sum())} of {len(series)} rows (first at row "
            f"{series.index[int(missing.argmax())]}), and a split needs it for each row. Fill it in, or remove these "
            "rows."
        )
