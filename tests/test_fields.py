"""Tables of fields: what passes comes back, and everything else is refused by the name of its field."""

import math

import pytest
import torch

from cagp.fields import (
    Fields,
    checked,
    dict_of,
    factor,
    flag,
    float64,
    integer,
    list_of,
    made_by,
    numbers,
    optional,
    real,
    record,
    tensor,
    text,
    that,
)

FIELDS: Fields = {
    "name": text,
    "count": integer(1, 9),
    "share": real(above=0.0, below=1.0),
    "is_done": flag,
    "note": optional(text),
    "names": list_of(text, least=1),
    "shares": dict_of(real()),
    "slope": numbers("d"),
    "matrix": float64("n", "d"),
    "root": factor("n"),
    "flags": tensor(2, dtype=torch.bool),
    "inside": record({"offset": that(lambda values: bool((values > 0).all()), float64("n"))}),
    "word": made_by(str.upper),
}
STATE = {
    "name": "a",
    "count": 3,
    "share": 0.5,
    "is_done": True,
    "note": None,
    "names": ["x"],
    "shares": {"x": 1.0},
    "slope": torch.ones(2),
    "matrix": torch.ones(3, 2).double(),
    "root": torch.eye(3).double(),
    "flags": torch.tensor([True, False]),
    "inside": {"offset": torch.ones(3).double()},
    "word": "b",
    "more": "is ignored",
}
WRONG = {
    "name": [1, None],
    "count": [0, 10, 3.0, True],
    "share": [0.0, 1.0, math.nan, "0.5", True],
    "is_done": [1, "yes"],
    "note": [3],
    "names": [[], ["x", 1], "x"],
    "shares": [{1: 1.0}, {"x": math.nan}, []],
    "slope": [torch.ones(2, 1), torch.ones(2).long(), torch.tensor([1.0, math.nan]), [1.0, 1.0]],
    "matrix": [torch.ones(3, 2), torch.ones(3, 1).double(), torch.ones(3).double()],
    "root": [torch.zeros(3, 3).double(), torch.eye(2).double()],
    "flags": [torch.ones(2), torch.tensor([True])],
    "inside": [None],
}


def test_values_that_pass_come_back_in_the_order_of_the_table():
    values = checked(STATE, FIELDS)
    assert list(values) == list(FIELDS)
    assert values["word"] == "B"
    assert all(values[name] is STATE[name] for name in ("slope", "matrix", "root", "note"))


@pytest.mark.parametrize("name", WRONG)
def test_a_value_that_does_not_pass_is_refused_by_its_name(name):
    for value in WRONG[name]:
        with pytest.raises(
            ValueError, match=f"does not have .*{'offset' if value is None and name == 'inside' else name}"
        ):
            checked(STATE | {name: value}, FIELDS)
    with pytest.raises(ValueError, match=f"the state does not have '{name}' as cagp stores it; save the model again"):
        checked({key: value for key, value in STATE.items() if key != name}, FIELDS)


def test_sizes_with_one_name_are_one_size_also_inside():
    with pytest.raises(ValueError, match="'offset'"):
        checked(STATE | {"inside": {"offset": torch.ones(2).double()}}, FIELDS)
    with pytest.raises(ValueError, match="'offset'"):
        checked(STATE | {"inside": {"offset": torch.zeros(3).double()}}, FIELDS)
    with pytest.raises(ValueError, match="'slope'"):
        checked(STATE, FIELDS, {"d": 5})
    with pytest.raises(ValueError, match="'name'"):
        checked([], FIELDS)
