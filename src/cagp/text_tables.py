"""Tables of text that fit the width of a terminal."""

from collections.abc import Iterable
from textwrap import wrap


def table_of_text(cells: dict[str, list[str]], width: int, num_keys: int = 1) -> str:
    """Columns, given by their names, as lines of text.

    A table that is wider than ``width`` is given in parts, one below the other. Each part begins with the first
    ``num_keys`` columns, which name the rows.
    """
    narrow = {name: max(map(len, [*name.split(), *column])) for name, column in cells.items()}
    keys, parts = list(cells)[:num_keys], [list(cells)[:num_keys]]
    for name in list(cells)[num_keys:]:
        if len(parts[-1]) > num_keys and _total(narrow[n] for n in [*parts[-1], name]) > width:
            parts.append(list(keys))
        parts[-1].append(name)
    return "\n\n".join(_part({name: cells[name] for name in names}, narrow, width) for names in parts)


def _part(cells: dict[str, list[str]], narrow: dict[str, int], width: int) -> str:
    """Some columns as lines of text. Cells stay whole; names of columns wrap between words where there is no room."""
    widths = {name: narrow[name] for name in cells}
    for name in cells:
        wider = widths | {name: max(widths[name], len(name))}
        widths = wider if _total(wider.values()) <= width else widths
    heads = [wrap(name, widths[name]) for name in cells]
    depth = max(map(len, heads))
    rows = [
        *zip(*([""] * (depth - len(head)) + head for head in heads), strict=True),
        *zip(*cells.values(), strict=True),
    ]
    return "\n".join("  ".join(map(str.ljust, row, widths.values())).rstrip() for row in rows)


def _total(widths: Iterable[int]) -> int:
    """The width of columns with two spaces between them."""
    return sum(width + 2 for width in widths) - 2
