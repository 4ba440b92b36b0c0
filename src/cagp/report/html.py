"""The HTML of the page: escaping, sections, tables, numbers, and the frame around them."""

import re
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from math import floor, isfinite, log10

from cagp.plots import shortened

NBSP = "\N{NO-BREAK SPACE}"
STYLE = files("cagp.report").joinpath("style.css").read_text(encoding="utf-8")


def whole_page(title: str, header: str, links: Sequence[tuple[str, str]], main: str, footer: str) -> str:
    """The whole file; title and names of links are plain text, the rest is HTML.

    Its content security policy forbids scripts and external resources: a name could not bring them in, even unescaped.
    """
    main, header = (re.sub(r"(?<=\d) %", f"{NBSP}%", part) for part in (main, header))
    items = "".join(f'<li><a href="#{escape(target)}">{text(name)}</a></li>' for target, name in links)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width,initial-scale=1">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
        'img-src data:">\n'
        f'<meta name="color-scheme" content="light dark">\n<title>{escape(shortened(title, 120))}</title>\n'
        f"<style>{STYLE}</style>\n</head>\n<body>\n<header>\n{header}\n</header>\n"
        f'<nav aria-label="Sections"><ul>{items}</ul></nav>\n<main>\n{main}\n</main>\n'
        f"<footer>{footer}</footer>\n</body>\n</html>\n"
    )


def text(value: object, length: int = 200) -> str:
    """A user's text as HTML: escaped, printable, of bounded length, isolated in its writing direction."""
    return f"<bdi>{escape(shortened(str(value), length))}</bdi>"


def section(level: int, name: str, title: str, *content: str) -> str:
    """A section with its heading; ``name`` is what links refer to, ``title`` is HTML."""
    body = "\n".join(part for part in content if part)
    anchor = escape(name)
    heading = f'<h{level} id="{anchor}-h">{title}</h{level}>'
    return f'<section id="{anchor}" aria-labelledby="{anchor}-h">\n{heading}\n{body}\n</section>'


def side_by_side(*items: str) -> str:
    """Figures and tables side by side where there is room."""
    return f'<div class="figures">{"".join(items)}</div>' if any(items) else ""


def table(
    head: Sequence[str], rows: Sequence[Sequence[str]], caption: str, notes: Sequence[str] = (), kind: str = ""
) -> str:
    """A table of HTML cells; the first cell of each row is its header, and each row may have a note below it."""
    columns = "".join(f'<th scope="col">{cell}</th>' for cell in head)
    body = ""
    for number, row in enumerate(rows):
        cells = "".join(f"<td>{cell}</td>" for cell in row[1:])
        body += f'<tr{" class=noted" if notes else ""}><th scope="row">{row[0]}</th>{cells}</tr>'
        body += f'<tr class="note"><td colspan="{len(head)}">{notes[number]}</td></tr>' if notes else ""
    attributes = f' class="{kind}"' if kind else ""
    return (
        f'<div class="scroll"><table{attributes}><caption>{caption}</caption><thead><tr>{columns}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def tiles(items: Sequence[tuple[str, str, str]]) -> str:
    """Key numbers, each with its name and a remark."""
    inner = "".join(f"<div><dt>{name}</dt><dd>{value}</dd><dd>{remark}</dd></div>" for name, value, remark in items)
    return f'<dl class="tiles">{inner}</dl>'


def number(value: float, digits: int = 4) -> str:
    """Significant digits, with commas; powers of ten only for tiny and huge numbers."""
    if not isfinite(value):
        return "–"
    if value == 0:
        return "0"
    size = floor(log10(abs(value)))
    if -4 <= size < 9:
        return f"{value:,.{max(0, digits - 1 - size)}f}".replace("-", "−")
    return f"{value:.{digits - 1}e}".replace("-", "−")


def with_error(value: float, error: float) -> str:
    """A number and its standard error, rounded where the second digit of the error is."""
    if not (isfinite(value) and isfinite(error)) or error <= 0:
        return number(value)
    size = floor(log10(error))
    if not -6 <= size < 6 or abs(value) >= 1e9:
        return f"{number(value, 2)} ±{NBSP}{number(error, 2)}"
    digits = max(0, 1 - size)
    rounded = round(value, digits) + 0.0  # without the sign of a zero
    return f"{rounded:,.{digits}f} ±{NBSP}{error:,.{digits}f}".replace("-", "−")


def share(value: float) -> str:
    """A share in percent."""
    return f"{100 * value:.1f} %"


def count(value: int, singular: str, plural: str | None = None) -> str:
    """A number and its noun."""
    return f"{value:,} {singular if value == 1 else plural or singular + 's'}"
