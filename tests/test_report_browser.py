"""Reports as a reader meets them: in a browser, on a phone and a desktop, light and dark, offline."""

import numpy as np
import pandas as pd
import pytest
from browser import Browser, find
from report_models import KnownModel, strange

from cagp.report import write_report

pytestmark = pytest.mark.skipif(find() is None, reason="no chromium on PATH; install it to test reports in a browser")


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """Pages with every kind of figure: strange names and two targets; raster images; groups that stand out."""
    folder = tmp_path_factory.mktemp("reports")
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(400, 2))
    model = KnownModel(lambda X: np.sin(5 * X).sum(1, keepdims=True), None, ["x0", "x1"], ["height"])
    y = model.predict(X) + 0.5 * rng.normal(size=400)
    places = pd.DataFrame({"lon": rng.uniform(5, 9, 900), "lat": rng.uniform(45, 47, 900), "h": rng.normal(size=900)})
    places["a rather long name"] = rng.choice(["meadow", "forest edge", "town"], 900)
    names = list(places.columns)
    mixed = KnownModel(lambda X: np.sin(X[["lon"]].to_numpy()), names, names, ["growth (mm)"])
    growth = mixed.predict(places) + np.where(places["a rather long name"] == "town", 1.2, 0.3) * rng.normal(size=900)
    return {
        "mixed": write_report(mixed, places, growth, folder / "mixed.html"),
        "strange": write_report(*strange(num_targets=2), folder / "strange.html", title="w" * 200),
        "map": write_report(model, X, y, folder / "map.html"),
    }


@pytest.fixture(scope="module")
def browser():
    with Browser(find()) as browser:
        yield browser


@pytest.mark.thinned(2)
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("name", ["strange", "map", "mixed"])
def test_a_report_looks_right(reports, browser, name, width, scheme):
    path = reports[name]
    browser.open(path, width, scheme=scheme)
    assert browser.complaints() == []
    assert browser.requests() == [path.resolve().as_uri()]  # nothing but itself
    assert browser.evaluate("innerWidth") == width
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    # Nothing sticks out of the page but what scrolls by itself.
    outside = """[...document.querySelectorAll('body *:not(svg *)')].filter(e => !e.closest('.scroll')
        && e.getBoundingClientRect().right > document.documentElement.clientWidth + 1).map(e => e.tagName)"""
    assert browser.evaluate(outside) == []
    scrolling = "[...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth).length"
    assert browser.evaluate(scrolling) == 0
    sizes = browser.evaluate("[...document.querySelectorAll('svg')].map(e => e.getBoundingClientRect().width)")
    assert len(sizes) >= 8
    assert min(sizes) > 250
    # Text in figures keeps a size that can be read.
    fonts = """[...document.querySelectorAll('svg text')].map(e => { const m = e.getScreenCTM();
        return parseFloat(getComputedStyle(e).fontSize) * Math.hypot(m.a, m.b) })"""
    assert min(browser.evaluate(fonts)) > 7.5


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_and_lines_stand_out_from_the_page(reports, browser, scheme):
    browser.open(reports["mixed"], 1280, scheme=scheme)
    assert browser.evaluate("document.querySelectorAll('.off').length") > 0
    words = "svg text, p, td, th, figcaption, caption, a, .off"
    colors = browser.evaluate(f"""[...document.querySelectorAll('{words}')].map(e =>
        getComputedStyle(e)[e.closest('svg') ? 'fill' : 'color'])""")
    background = browser.evaluate("getComputedStyle(document.querySelector('section')).backgroundColor")
    assert (luminance(background) < 0.1) == (scheme == "dark")
    for color in set(colors):
        darker, lighter = sorted((luminance(color), luminance(background)))
        assert (lighter + 0.05) / (darker + 0.05) >= 4.5, (color, background)  # WCAG AA for text


def test_images_inside_figures_are_loaded(reports, browser):
    browser.open(reports["map"], 1280)
    loaded = browser.evaluate("""Promise.all([...document.querySelectorAll('svg image')].map(e => {
        const image = new Image(); image.src = e.href.baseVal;
        return image.decode().then(() => image.naturalWidth, () => 0) }))""")
    assert len(loaded) >= 4
    assert min(loaded) > 0


def test_figures_do_not_clip_their_labels(reports, browser):
    browser.open(reports["strange"], 1280)
    clipped = browser.evaluate("""[...document.querySelectorAll('svg')].flatMap(s => {
        const box = s.getBoundingClientRect();
        return [...s.querySelectorAll('text')].filter(t => { const b = t.getBoundingClientRect();
            return b.left < box.left - 2 || b.right > box.right + 2 || b.bottom > box.bottom + 2 || b.top < box.top - 2
        }).map(t => t.textContent) })""")
    assert clipped == []


def test_the_links_lead_somewhere(reports, browser):
    browser.open(reports["strange"], 360)
    dead = "[...document.querySelectorAll('nav a')].filter(a => !document.querySelector(a.getAttribute('href'))).length"
    assert browser.evaluate(dead) == 0
    assert browser.evaluate("document.querySelectorAll('nav a').length") >= 6


def test_a_report_prints_on_paper_in_light_colours(reports, browser):
    browser.open(reports["strange"], 1280, scheme="dark")
    browser.call("Emulation.setEmulatedMedia", media="print", features=[])
    assert luminance(browser.evaluate("getComputedStyle(document.querySelector('section')).backgroundColor")) > 0.9
    assert luminance(browser.evaluate("getComputedStyle(document.querySelector('svg text')).fill")) < 0.1
    browser.call("Emulation.setEmulatedMedia", media="", features=[])


def luminance(color: str) -> float:
    """The relative luminance of "rgb(r, g, b)", from 0 to 1 (WCAG 2)."""
    parts = [float(part) / 255 for part in color[color.index("(") + 1 : -1].split(",")[:3]]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
