"""The text of boosted trees, checked before LightGBM reads it: LightGBM trusts it, and a wrong index ends the process.

What LightGBM is given is written again from the fields that were checked. It also writes settings and statistics, which
predictions do not need: they are left out.
"""

import re
from itertools import pairwise

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

OF_NODES = ("split_feature", "split_gain", "threshold", "decision_type", "left_child", "right_child")
NUMBERS = re.compile(r"(?:[-+]?(?:\d{1,20}(?:\.\d{0,30})?(?:e[-+]?\d{1,3})?|inf|nan)(?: |$))*")
INTEGERS = re.compile(r"(?:-?\d{1,10}(?: |$))*")


def checked_tree_text(text: str) -> str:
    """The model without what predictions do not need; ValueError unless it is whole and every index is in its range.

    It is a model of one regression target. Time O(length).
    """
    head, *blocks = text.partition("\nend of trees\n")[0].split("\nTree=")
    if not head.startswith("tree\n") or not blocks or "\nend of trees\n" not in text:
        raise ValueError("there are no trees, or not all")
    header = _fields(head)
    (last,), version = _integers(header, "max_feature_idx", 1), header.get("version", "")
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
            trees.append(f"Tree={k}\n{_checked_tree(_fields(rest), last)}\n\n")
        except ValueError as error:
            raise ValueError(f"tree {k}: {error}") from error
    sizes, columns = " ".join(str(len(tree)) for tree in trees), range(last + 1)
    names, infos = " ".join(f"x{j}" for j in columns), " ".join("none" for _ in columns)
    return HEAD.format(version=version, last=last, names=names, infos=infos, sizes=sizes) + "".join(trees) + TAIL


def of_classes(text: str, num_classes: int) -> list[str]:
    """The model of each class from that of all, in which trees of the classes take turns."""
    head, *blocks = text.partition("\nend of trees\n")[0].split("\nTree=")
    models = []
    for place in range(num_classes):
        own = [block.partition("\n")[2] for block in blocks[place::num_classes]]
        sizes = "tree_sizes=" + " ".join("0" for _ in own)  # the check writes them
        lines = [sizes if line.startswith("tree_sizes=") else line for line in head.splitlines()]
        trees = "".join(f"\nTree={number}\n{block}" for number, block in enumerate(own))
        models.append("\n".join(lines) + trees + "\nend of trees\n")
    return models


def _checked_tree(tree: dict[str, str], last_feature: int) -> str:
    (leaves,), (sets,) = _integers(tree, "num_leaves", 1), _integers(tree, "num_cat", 1)
    if leaves < 1 or sets < 0 or tree.get("is_linear") != "0":
        raise ValueError("it is of no known kind")
    kept = ["num_leaves", "num_cat"]
    if leaves > 1:
        _check_splits(tree, leaves, sets, last_feature)
        kept += OF_NODES
    if sets:
        _check_sets(tree, sets)
        kept += ["cat_boundaries", "cat_threshold"]
    _check_numbers(tree, "leaf_value", leaves)
    _check_numbers(tree, "shrinkage", 1)
    if not all(abs(float(value)) <= LARGEST_LEAF for value in tree["leaf_value"].split()):
        raise ValueError("it predicts values that are not finite, or huge")
    kept += ["leaf_value", "is_linear", "shrinkage"]
    return "".join(f"{name}={tree[name]}\n" for name in kept)


def _check_splits(tree: dict[str, str], leaves: int, sets: int, last_feature: int) -> None:
    for name in OF_NODES:
        _check_numbers(tree, name, leaves - 1)
    if not all(0 <= feature <= last_feature for feature in _integers(tree, "split_feature", leaves - 1)):
        raise ValueError("it splits a column that does not exist")
    left, right = _integers(tree, "left_child", leaves - 1), _integers(tree, "right_child", leaves - 1)
    # Every node but the first, and every leaf, is the child of one node before it: every walk ends in a leaf.
    if not all(node < child or child < 0 for node, pair in enumerate(zip(left, right, strict=True)) for child in pair):
        raise ValueError("a walk through it would not end")
    if sorted(left + right) != [*range(-leaves, 0), *range(1, leaves - 1)]:
        raise ValueError("its nodes and leaves are not each the child of one node")
    # Bit 0: the threshold is the number of a set of levels. Bit 1: where missing values go. Bits 2, 3: what they are.
    kinds = _integers(tree, "decision_type", leaves - 1)
    places = [float(value) for value, kind in zip(tree["threshold"].split(), kinds, strict=True) if kind & 1]
    if not all(0 <= kind < 12 for kind in kinds) or not all(place in range(sets) for place in places):
        raise ValueError("it splits levels that it does not have")


def _check_sets(tree: dict[str, str], sets: int) -> None:
    """Sets of levels are words of bits, one after the other."""
    bounds = _integers(tree, "cat_boundaries", sets + 1)
    if bounds[0] != 0 or not all(before < after for before, after in pairwise(bounds)):
        raise ValueError("its sets of levels are not whole")
    if not all(0 <= word < 2**32 for word in _integers(tree, "cat_threshold", bounds[-1])):
        raise ValueError("its sets of levels are no bits")


# ---- lines of names and numbers ----


def _fields(block: str) -> dict[str, str]:
    """The lines "name=value"; ValueError for a name that comes twice."""
    lines = [line.split("=", 1) for line in block.split("\n") if "=" in line]
    if len({name for name, _ in lines}) < len(lines):
        raise ValueError("a line comes twice")
    return dict(lines)


def _check_numbers(fields: dict[str, str], name: str, count: int, kind: re.Pattern = NUMBERS) -> None:
    text = fields.get(name, "")
    if kind.fullmatch(text) is None or len(text.split()) != count:
        raise ValueError(f"{name} is not {count} {'integers' if kind is INTEGERS else 'numbers'}")


def _integers(fields: dict[str, str], name: str, count: int) -> list[int]:
    _check_numbers(fields, name, count, INTEGERS)
    return [int(value) for value in fields[name].split()]
