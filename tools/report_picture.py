"""Draw docs/images/report.png: a report on 4,000 elevations, on a desktop and on a phone. Needs Chromium.

python tools/report_picture.py
"""

import sys
import tempfile
from pathlib import Path

import pandas as pd
from PIL import Image

from cagp import CaGPRegressor
from cagp.data import split, terrain

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

import browser  # noqa: E402

DESKTOP, PHONE, HEIGHT, GAP = 1000, 360, 1560, 24
SHRUNK = 0.75


def _screenshot(page: browser.Browser, folder: Path) -> Image.Image:
    page.screenshot(folder / "page.png")
    return Image.open(folder / "page.png").convert("RGB")


def main() -> None:
    """Fit, write the report, and put two screenshots of it side by side."""
    data = terrain()
    rows = split(6000, 1 / 3, seed=0)
    chosen = split(len(data.y), 6000 / len(data.y), seed=1).test
    X = pd.DataFrame(data.X[chosen].numpy(), columns=list(data.names[:2]))
    y = pd.Series(data.y[chosen].numpy(), name=data.names[2])
    model = CaGPRegressor().fit(X.iloc[rows.train], y.iloc[rows.train])
    executable = browser.find()
    assert executable is not None, "Chromium is not installed"
    with tempfile.TemporaryDirectory() as folder, browser.Browser(executable) as page:
        path = model.report(X.iloc[rows.test], y.iloc[rows.test], Path(folder) / "report.html")
        page.open(path, DESKTOP, HEIGHT)
        left = _screenshot(page, Path(folder))
        page.open(path, PHONE, HEIGHT, scheme="dark")
        top = int(page.evaluate("document.getElementById('importance').getBoundingClientRect().top")) - 20
        right = _screenshot(page, Path(folder))
    left, right = left.crop((0, 0, left.width, HEIGHT)), right.crop((0, top, right.width, top + HEIGHT))
    picture = Image.new("RGB", (left.width + GAP + right.width, HEIGHT), "#c8cdd2")
    picture.paste(left, (0, 0))
    picture.paste(right, (left.width + GAP, 0))
    picture = picture.resize([round(SHRUNK * length) for length in picture.size], Image.Resampling.LANCZOS)
    picture.quantize(256).save(ROOT / "docs" / "images" / "report.png", optimize=True)


if __name__ == "__main__":
    main()
