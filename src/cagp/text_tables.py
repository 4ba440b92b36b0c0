"""Tables of text that fit the width of a terminal."""

from collections.abc import Iterable
from textwrap import wrap


def table_of_text(cells: dict[str, list[str]], width: int, num_keys: int = 1) -> str:
    """Columns, given by their names, as lines of text.

    A table that is wider than ``width`` is given in parts, one below the other. Each part begins with the first
    ``num_keys`` columns, which name the rows.
    """
    return "\n\n".join(_part(names, cells, width) for names in _parts(cells, num_keys, width))


def _parts(cells: dict[str, list[str]], num_keys: int, width: int) -> list[list[str]]:
    """The names of the columns in groups that fit into ``width``, each with the keys first."""
    keys, others = list(cells)[:num_keys], list(cells)[num_keys:]
    parts = [list(keys)]
    for name in others:
        if len(parts[-1]) > num_keys and _total(_narrow(n, cells[n]) for n in [*parts[-1], name]) > width:
            parts.append(list(keys))
        parts[-1].append(name)
    return parts


def _part(names: list[str], cells: dict[str, list[str]], width: int) -> str:
    """Some columns as lines of text. Cells stay whole; names of columns wrap between words where there is no room."""
    widths = {name: _narrow(name, cells[name]) for name in names}
    for name in names:
        wider = widths | {name: max(widths[name], len(name))}
        widths = wider if _total(wider.values()) <= width else widths
    heads = [wrap(name, widths[name]) for name in names]
    depth = max(map(len, heads))
    rows = [*zip(*([""] * (depth - len(head)) + head for head in heads), strict=True)]
    rows += zip(*(cells[name] for name in names), strict=True)
    return "\n".join("  ".join(map(str.ljust, row, widths.values())).rstrip() for row in rows)


def _narrow(name: str, column: list[str]) -> int:
    return max(map(len, [*name.split(), *column]))


def _total(widths: Iterable[int]) -> int:
    """The width of columns with two spaces between them."""
    return sum(width + 2 for width in widths) - 2
