"""Figures as SVG inside the page: text remains text, and colours are those of the page, light or dark."""

import re
from collections.abc import Callable
from functools import cache
from html import escape
from io import StringIO
from typing import Any

import matplotlib
from markupsafe import Markup
from matplotlib.backends.backend_mixed import MixedModeRenderer
from matplotlib.backends.backend_svg import FigureCanvasSVG, RendererSVG
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font

from cagp.plots import AMBER, BLUE, GREEN, INK, MUTED, PURPLE, RED, shortened

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
