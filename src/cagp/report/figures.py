"""Figures as SVG inside the page: text stays text, and colours are those of the page, light or dark."""

import re
import warnings
from collections.abc import Callable, Sequence
from html import escape
from io import StringIO

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cagp import plots
from cagp.plots import shortened

PALETTE = {
    plots.INK: "ink",
    plots.MUTED: "muted",
    plots.BLUE: "blue",
    plots.RED: "red",
    plots.GREEN: "green",
    plots.PURPLE: "purple",
    plots.AMBER: "amber",
}
"""The colours that the page defines, as CSS variables of these names."""

COMPACT = (
    (r"<metadata>.*?</metadata>|<!--.*?-->", ""),
    (r"<defs>\s*<style.*?</style>\s*</defs>", ""),  # for all of the page; style.css has it
    (r"<g id=\"[^\"]*\"", "<g"),  # names of parts, the same in every figure
    (r"font-family: [^;\"]*;? ?", ""),  # the page's font
    (r" transform=\"rotate\(-?0 [^\"]*\"", ""),
    (r"xlink:href", "href"),
    (r">\s+<", "><"),
)
"""What is left out of matplotlib's SVG, half of its size, as pattern and replacement."""

WIDTH, HEIGHT = 4.0, 2.9  # inches; 288 points fill a phone of 360 CSS pixels, legible without zooming


class Drawing:
    """Draws figures of one page; ids inside them are unique in it."""

    def __init__(self):
        self.num_drawn = 0

    def __call__(self, draw: Callable[[Axes], object], alt: str, caption: str = "", height: float = HEIGHT) -> str:
        """A figure with its caption (HTML); ``alt`` says in words what it shows."""
        self.num_drawn += 1
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        draw(figure.subplots())
        text = f"<figcaption>{caption}</figcaption>" if caption else ""
        return f"<figure>{_svg(figure, f'f{self.num_drawn}-', alt)}{text}</figure>"


def _svg(figure: Figure, prefix: str, alt: str) -> str:
    stream = StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "cagp"}), warnings.catch_warnings():
        # The browser has glyphs that matplotlib's own font lacks; only the room for them is a guess.
        warnings.filterwarnings("ignore", r"Glyph .* missing from font")
        warnings.filterwarnings("ignore", r"Matplotlib currently does not support .* natively")
        figure.savefig(stream, format="svg", dpi=200, transparent=True, metadata={"Date": None, "Creator": None})
    markup = stream.getvalue()
    markup = markup[markup.index("<svg") :]
    for pattern, replacement in COMPACT:
        markup = re.sub(pattern, replacement, markup, flags=re.DOTALL)
    markup = re.sub(r" (x|y|d|transform)=\"[^\"]*\"", _rounded, markup)
    markup = re.sub(r"\bid=\"", f'id="{prefix}', markup)
    markup = re.sub(r"(url\(|href=\")#", rf"\g<1>#{prefix}", markup)
    for color, name in PALETTE.items():
        markup = markup.replace(color, f"var(--{name})")
    box = re.search(r"viewBox=\"[^\"]*\"", markup)
    assert box is not None
    opening = f'<svg role="img" aria-label="{escape(shortened(alt, 300))}" {box[0]}>'
    return re.sub(r"<svg[^>]*>", lambda _: opening, markup, count=1)


def _rounded(attribute: re.Match[str]) -> str:
    """Coordinates to a hundredth of a point; matrices, which scale images, as they are."""
    if "matrix" in attribute[0] or "scale" in attribute[0]:
        return attribute[0]
    return re.sub(r"(\.\d\d)\d+", r"\1", attribute[0])


def common_limits(lowest: Sequence[float], highest: Sequence[float]) -> tuple[float, float]:
    """Limits that hold all of several figures, with a margin."""
    low, high = min(lowest), max(highest)
    margin = 0.06 * (high - low) or 0.5
    return low - margin, high + margin


def listed(names: Sequence[str], length: int = 40) -> str:
    """Names for a sentence: the first few, shortened, and how many more."""
    shown = [shortened(name, length) for name in names[:6]]
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")
