"""Check the documentation site: it builds without a warning, needs no network, and is complete."""

import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import browser
import pytest

import cagp

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, built with warnings as errors."""
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stderr
    return folder


def html(site):
    return {path.relative_to(site).as_posix(): path.read_text(encoding="utf-8") for path in site.rglob("*.html")}


@pytest.mark.slow
def test_every_page_is_in_the_navigation_and_in_the_site(site):
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    listed = set(re.findall(r"([\w-]+\.md)$", text, flags=re.MULTILINE))
    pages = {path.name for folder in ("docs", "bench/docs") for path in (ROOT / folder).rglob("*.md")}
    assert listed == pages | {"changelog.md", "contributing.md", "examples.md"}
    assert {name.removesuffix(".md") + ".html" for name in listed} <= set(html(site))


def test_nothing_is_fetched_from_elsewhere(site):
    for name, text in html(site).items():
        fetched = re.findall(
            r"<(?:script|img|link|iframe|source)\b[^>]*?(?:src|href)=[\"']?((?:https?:)?//[^\"' >]+)", text
        )
        assert not fetched, f"{name}: {fetched}"
    for path in site.rglob("*.css"):
        assert not re.findall(r"(?:@import|url\()\s*[\"']?(?:https?:)?//", path.read_text(encoding="utf-8")), path


def test_every_public_name_is_in_the_reference(site):
    text = (site / "api.html").read_text(encoding="utf-8")
    public_names = {name: getattr(cagp, name) for name in cagp.__all__}
    modules = [value for value in public_names.values() if isinstance(value, ModuleType)]
    names = [name for name, value in public_names.items() if not isinstance(value, ModuleType)]
    assert not [name for name in names if f'id="cagp.{name}"' not in text]
    for module in modules:
        public = [n for n, v in vars(module).items() if getattr(v, "__module__", "") == module.__name__ and n[0] != "_"]
        assert public
        assert not [name for name in public if f'id="{module.__name__}.{name}"' not in text]


def test_formulas_are_drawn(site):
    pages = html(site)
    assert pages["derivations.html"].count("<math") > 300
    for name, text in pages.items():
        prose = re.sub(r"<(script|code|pre)\b.*?</\1>|<annotation.*?</annotation>", "", text, flags=re.DOTALL)
        assert not re.findall(r"\\(?:top|frac|mathrm|mu|sigma|hat)\b", prose), name


@pytest.mark.skipif(browser.find() is None, reason="no Chromium to look at the site with")
def test_the_site_works_from_the_disk_in_a_browser(site):
    ask = """
        document.querySelector("#__search").click();
        const field = document.querySelector("[data-md-component=search-query]");
        field.focus();
        field.value = "computational";
        field.dispatchEvent(new Event("input", { bubbles: true }));
        field.dispatchEvent(new Event("keyup", { bubbles: true }));
        new Promise((done) => {
          const look = () => {
            const found = document.querySelectorAll(".md-search-result__link");
            found.length ? done([...found].map((link) => link.href).join(" ")) : setTimeout(look, 50);
          };
          look();
        });
    """
    with browser.Browser(browser.find()) as page:
        for name in ("index", "derivations", "api"):
            page.open(site / f"{name}.html", width=390)
            assert page.evaluate("document.documentElement.scrollWidth") <= 390, name
            assert not page.complaints(), name
            assert all(url.startswith("file:") for url in page.requests()), name
        page.open(site / "index.html", width=1280)
        assert "uncertainty.html" in page.evaluate(ask)
        assert not page.complaints()
