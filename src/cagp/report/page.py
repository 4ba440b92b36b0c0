"""The page: templates with its words, the frame around its sections, how numbers and names are written, and figures.

Figures are SVG inside the page: text remains text, and colours are those of the page, light or dark.
"""

import re
from collections.abc import Callable
from datetime import datetime
from functools import cache
from html import escape
from importlib.metadata import version
from io import StringIO
from math import floor, isfinite, log10
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.backends.backend_mixed import MixedModeRenderer
from matplotlib.backends.backend_svg import FigureCanvasSVG, RendererSVG
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font

from cagp import plots
from cagp.files import write_atomically
from cagp.metrics import LEVEL, METRICS
from cagp.plots import AMBER, BLUE, GREEN, INK, MUTED, PURPLE, RED, percent, shortened

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


def listed(names: list[str]) -> str:
    """Names for a sentence: the first six, shortened, and the number of the others."""
    more = len(names) - 6
    return ", ".join(shortened(name, 40) for name in names[:6]) + (f" and {more} more" if more > 0 else "")


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
    return f"{100 * value:.1f} %"


def counted(value: int, singular: str) -> str:
    """A number and its noun."""
    return f"{value:,} {singular if value == 1 else singular + 's'}"


def percent_nbsp(html: str) -> Markup:
    """HTML that breaks no line between a number and its percent sign."""
    return Markup(re.sub(r"(?<=\d) %", f"{NBSP}%", html))


def _minus(digits: str) -> str:
    return digits.replace("-", "−")


# ---- figures ----

PALETTE = {INK: "ink", MUTED: "muted", BLUE: "blue", RED: "red", GREEN: "green", PURPLE: "purple", AMBER: "amber"}
"""The colours that the page defines, as CSS variables of these names."""

COMPACT = (
    (r"<metadata>.*?</metadata>|<!--.*?-->", ""),
    (r"<defs>\s*<style.*?</style>\s*</defs>", ""),  # it would apply to the whole page; style.css has it
    (r"<g id=\"[^\"]*\"", "<g"),  # names of parts, which are the same in every figure
    (r"font-family: [^;\"]*;? ?", ""),  # the page's font
    (r" transform=\"rotate\(-?0 [^\"]*\"", ""),
    (r"xlink:href", "href"),
    (r">\s+<", "><"),
)
"""What is removed from matplotlib's SVG, half of its size, as patterns and replacements."""

WIDTH, HEIGHT = 4.0, 2.9  # inches; 288 points fill a phone of 360 CSS pixels, legible without zooming
IMAGE_DPI = 200


class _Renderer(RendererSVG):
    """Measures characters that matplotlib's font lacks as if they were an "M", of about their width.

    Matplotlib would warn of each one. The SVG has the text itself, and the browser has fonts for it.
    """

    def get_text_width_height_descent(self, s: str, prop: FontProperties, ismath: Any) -> tuple[float, float, float]:
        drawable = _characters(findfont(prop))
        measured = "".join(c if ord(c) in drawable or c == "\n" else "M" for c in s)
        return super().get_text_width_height_descent(measured, prop, ismath)


class _Canvas(FigureCanvasSVG):
    """Lays out a figure with the measures of ``_Renderer``."""

    def get_renderer(self) -> _Renderer:
        """What matplotlib asks for the sizes of texts."""
        return _Renderer(*self.figure.bbox.size, StringIO())


@cache
def _characters(path: str) -> frozenset[int]:
    """The code points that a font file has glyphs for."""
    return frozenset(get_font(path).get_charmap())


class Drawing:
    """Draws the figures of one page; ids inside them are unique on it."""

    def __init__(self):
        self.num_drawn = 0

    def __call__(
        self,
        plot: Callable[..., object],
        *values: Any,
        alt: str,
        caption: str = "",
        height: float = HEIGHT,
        **options: Any,
    ) -> Markup:
        """The figure that ``plot(ax, *values, **options)`` draws, with its caption; ``alt`` describes it in words."""
        self.num_drawn += 1
        figure = Figure(figsize=(WIDTH, height), dpi=72, layout="constrained")
        _Canvas(figure)
        plot(figure.subplots(), *values, **options)
        words = Markup("<figcaption>{}</figcaption>").format(caption) if caption else ""
        return Markup("<figure>{}{}</figure>").format(Markup(_svg(figure, f"f{self.num_drawn}-", alt)), words)


def _svg(figure: Figure, prefix: str, alt: str) -> str:
    for part in (figure, *figure.axes):
        part.patch.set_visible(False)
    stream, (width, height) = StringIO(), figure.get_size_inches()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "cagp"}):
        vectors = _Renderer(72 * width, 72 * height, stream, image_dpi=IMAGE_DPI)
        renderer: Any = MixedModeRenderer(figure, width, height, IMAGE_DPI, vectors)
        figure.draw(renderer)
        renderer.finalize()
    markup = stream.getvalue()
    markup = markup[markup.index("<svg") :]
    for pattern, replacement in COMPACT:
        markup = re.sub(pattern, replacement, markup, flags=re.DOTALL)
    markup = re.sub(r" (x|y|d|transform)=\"[^\"]*\"", _rounded, markup)
    markup = re.sub(r"\bid=\"", f'id="{prefix}', markup)
    markup = re.sub(r"(url\(|href=\")#", rf"\g<1>#{prefix}", markup)
    for color, name in PALETTE.items():
        markup = markup.replace(color, f"var(--{name})")
    box = f"0 0 {72 * width:g} {72 * height:g}"
    opening = f'<svg role="img" aria-label="{escape(shortened(alt, 300))}" viewBox="{box}">'
    return re.sub(r"<svg[^>]*>", lambda _: opening, markup, count=1)


def _rounded(attribute: re.Match[str]) -> str:
    """Coordinates to a hundredth of a point; matrices, which scale images, as they are."""
    if "matrix" in attribute[0] or "scale" in attribute[0]:
        return attribute[0]
    return re.sub(r"(\.\d\d)\d+", r"\1", attribute[0])
