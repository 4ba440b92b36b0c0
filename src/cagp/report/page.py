"""The page: templates that hold its words, the frame around its sections, and how numbers and names are written."""

import re
from datetime import datetime
from functools import cache
from importlib.metadata import version
from math import floor, isfinite, log10
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from cagp import plots
from cagp.files import write_atomically
from cagp.metrics import LEVEL, METRICS
from cagp.plots import percent, shortened
from cagp.report.svg import Drawing

NBSP = "\N{NO-BREAK SPACE}"


class Section(NamedTuple):
    """A part of the page."""

    name: str  # what links refer to
    link: str  # what the top of the page calls it
    title: str
    body: Markup = Markup()
    parts: tuple["Section", ...] = ()


def page_words() -> Any:
    """The macros of a page's sections, which draw figures as they are filled; they escape all values."""
    return environment().get_template("sections.html").make_module({"draw": Drawing()})


def sections_of(words: Any, values: dict[str, dict[str, Any]], prefix: str = "") -> list[Section]:
    """The sections of the macros that have values here, in the order of the page; links have ``prefix`` first."""
    return [
        Section(prefix + name, link, title, getattr(words, macro)(**values[macro]))
        for macro, name, link, title in words.SECTIONS
        if macro in values
    ]


def write_page(path: Path, title: str, header: Markup, sections: list[Section]) -> Path:
    """Write the page, completely or not at all; return its path."""
    now = f"{datetime.now().astimezone():%Y-%m-%d %H:%M %Z}"
    page = environment().get_template("page.html")
    html = page.render(title=title, header=header, sections=sections, version=version("cagp"), now=now)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, html.encode("utf-8", errors="replace"))
    return path


def checked_path(path: str | Path) -> Path:
    """Where to write a page; an error if that is a folder."""
    path = Path(path)
    if path.is_dir():
        raise ValueError(f"path is the folder {path}, expected a file, e.g. {path / 'report.html'}.")
    return path


@cache
def environment() -> Environment:
    """Where the templates are and what they can use. They escape every value, and a name they do not know is an error.

    The content security policy of the page forbids scripts and external resources: a user's text could not bring them
    in, even unescaped.
    """
    loader = PackageLoader("cagp.report")
    made = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    formats = [counted, fixed, listed, number, percent, percent_nbsp, share, shortened, text, with_error]
    made.filters |= {function.__name__: function for function in formats}
    made.tests["finite"] = isfinite
    made.globals |= {"plots": plots, "LEVEL": LEVEL, "METRICS": METRICS, "NBSP": NBSP}
    return made


# ---- names and numbers ----


def text(value: object, length: int = 200) -> Markup:
    """A user's text: escaped, printable, of bounded length, isolated in its writing direction."""
    return Markup("<bdi>{}</bdi>").format(shortened(str(value), length))


def listed(names: list[str], length: int = 40) -> str:
    """Names for a sentence: the first six, shortened, and the number of the others."""
    more = len(names) - 6
    return ", ".join(shortened(name, length) for name in names[:6]) + (f" and {more} more" if more > 0 else "")


def number(value: float, digits: int = 4) -> str:
    """Significant digits, with commas; powers of ten only for tiny and huge numbers."""
    if not isfinite(value):
        return "–"
    if value == 0:
        return "0"
    size = floor(log10(abs(value)))
    if -4 <= size < 9:
        return _minus(f"{value:,.{max(0, digits - 1 - size)}f}")
    return _minus(f"{value:.{digits - 1}e}")


def with_error(value: float, error: float) -> str:
    """A number and its standard error, rounded where the second digit of the error is."""
    if not (isfinite(value) and isfinite(error)) or error <= 0:
        return number(value)
    size = floor(log10(error))
    if not -6 <= size < 6 or abs(value) >= 1e9:
        return f"{number(value, 2)} ±{NBSP}{number(error, 2)}"
    digits = max(0, 1 - size)
    rounded = round(value, digits) + 0.0  # without the sign of a zero
    return _minus(f"{rounded:,.{digits}f} ±{NBSP}{error:,.{digits}f}")


def fixed(value: float, digits: int, sign: str = "-") -> str:
    """A number with a fixed number of decimals; with ``sign`` "+", the sign of positive ones too."""
    return _minus(f"{value:{sign}.{digits}f}") if isfinite(value) else "–"


def share(value: float) -> str:
    """A share in percent."""
    return f"{100 * value:.1f} %"


def counted(value: int, singular: str) -> str:
    """A number and its noun."""
    return f"{value:,} {singular if value == 1 else singular + 's'}"


def percent_nbsp(html: str) -> Markup:
    """HTML that breaks no line between a number and its percent sign."""
    return Markup(re.sub(r"(?<=\d) %", f"{NBSP}%", html))


def _minus(digits: str) -> str:
    return digits.replace("-", "−")
