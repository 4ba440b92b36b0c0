"""The report says what brute force finds, is well-formed and self-contained, and cannot be broken by names."""

import re
import warnings
from dataclasses import replace
from importlib.resources import files

import numpy as np
import pandas as pd
import pytest
import torch
from report_models import STRANGE_NAMES, KnownModel, Page, plain, predictive_of, read, strange
from scipy.stats import norm

from cagp.estimators import CaGPRegressor
from cagp.kernels import ActiveDims, Linear, Matern32, Scale
from cagp.metrics import calibration, scaled
from cagp.report import write_report
from cagp.report.page import PALETTE, Drawing, number
from cagp.report.subject import subject_of, varying
from cagp.report.targets import targets_of


@pytest.fixture
def no_figures(monkeypatch):
    """Reports without their figures, which take most of the time."""
    monkeypatch.setattr(Drawing, "__call__", lambda *_, **__: "")


# ---- numbers ----


@pytest.mark.usefixtures("no_figures")
def test_the_metrics_are_those_of_brute_force(tmp_path):
    model, X, y = plain()
    page = read(write_report(model, X, y, tmp_path / "r.html"))
    mean, std = model.predict(X, return_std=True)
    z = (y - mean) / std
    table = {
        "NLL": -norm.logpdf(y, mean, std).mean(),
        "RMSE": np.sqrt(np.mean((y - mean) ** 2)),
        "CRPS": np.mean(std * (z * (2 * norm.cdf(z) - 1) + 2 * norm.pdf(z) - 1 / np.sqrt(np.pi))),
        "95\xa0% width": np.mean(2 * norm.ppf(0.975) * std),
        "Median absolute error": np.median(np.abs(y - mean)),
        "Mean error": np.mean(y - mean),
    }
    for name, value in table.items():
        assert page.row(name)[1] == number(value), name
    assert page.row("R²")[1] == f"{1 - np.mean((y - mean) ** 2) / np.var(y):.4f}"
    assert page.row("95\xa0% coverage")[1] == f"{100 * np.mean(np.abs(z) <= norm.ppf(0.975)):.1f}\xa0%"
    assert page.row("RMSE")[2] == number(np.sqrt(np.mean(y**2)))  # the training mean is 0
    assert page.row("NLL")[2] == number(-norm.logpdf(y, 0, 2).mean())
    share = [0.16, 0.09, 0.0225]
    for name, part in zip(("Noise", "Data", "Computation"), share, strict=True):
        assert page.row(name)[1:] == [number(np.sqrt(part)), f"{100 * part / sum(share):.1f}\xa0%"]
    error = abs(0.95 - np.mean(np.abs(z) <= norm.ppf(0.975)))
    assert page.row("Coverage error")[1] == f"{100 * error:.1f}\xa0%"
    for words in ("1,234 rows", "tested on 500 rows", "CaGP-Local", "Chose local: it was asked for.", "from below"):
        assert words in page.words


def test_verdicts_on_coverage_allow_for_chance():
    rng = np.random.default_rng(0)
    y = rng.normal(size=4000)
    (target,) = targets_of(subject_of(*plain(30)))

    def mean_error(y, mean, std):
        found = replace(target, y=y, z=(y - mean) / std)
        assert found.calibration.error == calibration(*scaled(y, mean, std)[:3]).error
        return found.calibration.error, found.error_by_chance

    error, by_chance = mean_error(y, np.zeros(4000), np.ones(4000))
    assert by_chance == pytest.approx(0.005, abs=0.0005)
    few = np.zeros(100), np.ones(100)
    repeated = [mean_error(rng.normal(size=100), *few)[0] for _ in range(400)]
    assert np.mean(repeated) == pytest.approx(mean_error(y[:100], *few)[1], rel=0.05)
    assert error < 3 * by_chance
    assert mean_error(y, np.zeros(4000), np.full(4000, 0.3))[0] > 0.2


@pytest.mark.slow
def test_inputs_that_do_not_vary_have_no_relevance(tmp_path):
    model, X, y = strange()
    assert varying(subject_of(model, X, y)).all()
    rows = subject_of(model, X.assign(colour="red", **{STRANGE_NAMES[2]: 1.0}), y)
    left_out = [n for n, kept in zip(model.feature_names_out_, varying(rows), strict=True) if not kept]
    assert left_out == [STRANGE_NAMES[2], *(name for name in model.feature_names_out_ if name.startswith("colour="))]
    model, X, y = plain(30)
    X[:, 1] = 4.0
    assert list(varying(subject_of(model, X, y))) == [True, False, True]
    words = read(write_report(model, X, y, tmp_path / "r.html")).words
    assert "Left out: 1 input that does not vary in the test rows." in words


def scores(y, mean, std):
    return predictive_of(mean[:, None], std[:, None], ["identity"]).scores(0, y)


@pytest.mark.slow
def test_units_however_tiny_only_scale_the_numbers(tmp_path):
    unit, (model, X, y) = 1e-140, plain(40, 2)
    mean, std = model.predict(X, return_std=True)
    usual, other = scores(y, mean, std), scores(unit * y, unit * mean, unit * std)
    for name in ("rmse", "crps", "width"):
        assert getattr(other, name) == pytest.approx(unit * getattr(usual, name))
    for name in ("r2", "coverage", "coverage_error"):
        assert getattr(other, name) == pytest.approx(getattr(usual, name))
    assert other.nll == pytest.approx(usual.nll + np.log(unit))
    function = model.function
    model.function, model.latent = lambda X: unit * function(X), lambda X: np.full(len(X), 0.3 * unit)
    model.noise, model.noise_std_ = 0.4 * unit, model.noise_std_ * unit
    model.fitted.units.scaler.target_std.mul_(unit)
    write_report(model, X, unit * y, tmp_path / "r.html")


# ---- the page ----


def check(page: Page, html: str) -> None:
    """What holds of every report."""
    assert not {"script", "iframe", "object", "link", "img", "em", "b"} & {tag for tag, _ in page.elements}
    for _, attributes in page.elements:
        assert not any(name.startswith("on") for name in attributes)
        for name in ("src", "href", "xlink:href"):
            value = attributes.get(name)
            assert value is None or value.startswith(("#", "data:image/png;base64,")), value
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    referred = re.findall(r"url\(#([^)]+)\)|href=\"#([^\"]+)\"", html)
    assert {first or second for first, second in referred} <= set(ids)
    pictures = page.all("svg")
    assert pictures
    assert all(picture["role"] == "img" and picture["aria-label"] for picture in pictures)
    assert page.all("html")[0]["lang"] == "en"
    assert len(page.all("h1")) == 1
    assert len(page.all("table")) == len(page.all("caption")) == len(page.all("thead"))
    assert all("scope" in cell for cell in page.all("th"))
    body = html[html.index("</style>") :]
    # But for raster images, every colour is the page's, which has a dark one.
    assert not re.findall(r"#[0-9a-fA-F]{6}\b", re.sub(r"base64,[^\"]*", "", body))
    assert not [c for c in html if ord(c) < 32 and c != "\n"]
    assert len(html.encode()) < 3e6


@pytest.mark.slow
@pytest.mark.parametrize(("num_inputs", "num_rows"), [(1, 40), (2, 700), (30, 40)])
def test_a_report_is_well_formed_and_self_contained(tmp_path, num_inputs, num_rows):
    path = write_report(*plain(num_rows, num_inputs), tmp_path / "new" / "r.html", title="A & B \ud800")
    check(read(path), path.read_text(encoding="utf-8"))
    assert [p.name for p in path.parent.iterdir()] == ["r.html"]
    assert "A & B" in read(path).words


@pytest.mark.slow
def test_strange_names_are_shown_and_do_nothing(tmp_path):
    model, X, y = strange()
    path = write_report(model, X, y, tmp_path / "r.html")
    page = read(path)
    check(page, path.read_text(encoding="utf-8"))
    for name in ("<script>alert(1)</script>", "price ($) per $", "温度 °C", "عمود", "</td><b>green", "<b>matern32</b>"):
        assert name in page.words, name


@pytest.mark.slow
@pytest.mark.parametrize("num_days", [2, 4, 5])
def test_few_days_are_drawn_without_a_warning(tmp_path, num_days):
    rng = np.random.default_rng(0)
    days = pd.Timestamp("2024-03-01") + pd.to_timedelta(np.arange(60) % num_days, unit="D")
    X = pd.DataFrame({"day": days, "x": rng.normal(size=60)})
    model = KnownModel(
        lambda X: X.get("x", pd.Series(0.0, X.index)).to_numpy()[:, None], ["day", "x"], ["day", "x"], ["y"]
    )
    y = rng.normal(size=60)
    for table in (X, X[["day"]]):  # a warning is an error here
        model.feature_names_in_ = model.feature_names_out_ = np.array(table.columns, dtype=object)
        model.encoder_.names, model.lengthscales_ = model.feature_names_out_, np.ones(table.shape[1])
        page = read(write_report(model, table, y, tmp_path / "r.html"))
        assert "Mar" in page.words


def test_characters_without_a_glyph_are_kept_and_leave_warnings_alone():
    name = "温度 हिन्दी 😀"
    before = list(warnings.filters)

    def draw(ax):
        assert warnings.filters == before
        ax.set_xlabel(name)
        ax.set_xticks([0, 1], ["東京", "x"])

    html = Drawing()(draw, alt="alt")
    assert name in html
    assert "東京" in html


@pytest.mark.slow
def test_several_targets_have_a_section_each_up_to_a_limit(tmp_path, monkeypatch):
    monkeypatch.setattr("cagp.report.pages.MAX_TARGETS", 1)
    model, X, y = strange(num_targets=2)
    path = write_report(model, X, y, tmp_path / "r.html")
    page, html = read(path), path.read_text(encoding="utf-8")
    check(page, html)
    sections = [section["id"] for section in page.all("section") if re.fullmatch(r"target-\d+", section["id"])]
    assert sections == ["target-1"]
    links = {link["href"] for link in page.all("a")}
    assert "#target-1" in links
    assert "#target-2" not in links
    assert len(html) * 12 < 3e6  # twelve sections are the most there are
    mean, _ = model.predict(X, return_std=True)
    last = next(row for row in page.rows if row[0].startswith("<em>target 1"))
    assert last[1] == number(np.sqrt(np.mean((y.to_numpy()[:, 1] - mean[:, 1]) ** 2)))


def test_the_page_follows_the_reader_and_names_every_colour():
    style = files("cagp.report").joinpath("templates/style.css").read_text(encoding="utf-8")
    light, dark = style.split("prefers-color-scheme:dark", 1)
    for color, name in PALETTE.items():
        assert f"--{name}: {color};" in light
        assert re.search(rf"--{name}: #[0-9a-f]{{6}};", dark)
    assert "@media print" in style


@pytest.mark.parametrize("kind", ["exact", "estimate", "unknown"])
@pytest.mark.usefixtures("no_figures")
def test_the_report_says_what_the_computational_part_is(tmp_path, kind):
    model, X, y = plain(60)
    model.kind = kind
    page = read(write_report(model, X, y, tmp_path / "r.html"))
    words = {"exact": "part is exact", "estimate": "part is an estimate", "unknown": "does not say how much"}
    assert [kind for kind, text in words.items() if text in page.words] == [kind]
    assert any(row[0] == "Computation" for row in page.rows) == (kind != "unknown")


@pytest.mark.usefixtures("no_figures")
def test_the_report_says_why_the_method_was_chosen_and_what_it_guarantees(tmp_path):
    model, X, y = plain(60)
    path = write_report(model, X, y, tmp_path / "r.html")
    sections = dict(re.findall(r'<section id="(\w+)"(.*?)</section>', path.read_text(encoding="utf-8"), re.DOTALL))
    assert "Chose local: it was asked for." in sections["data"]
    assert "The variance is &lt; that of nobody." in sections["uncertainty"]
    model.choice_ = None
    other = read(write_report(model, X, y, tmp_path / "r.html"))
    assert "Chose local" not in other.words


@pytest.mark.usefixtures("no_figures")
def test_kernels_without_lengthscales_and_fits_without_steps(tmp_path):
    model, X, y = plain(60)
    model.lengthscales_, model.fit_result_ = np.full(3, np.nan), None
    page = read(write_report(model, X, y, tmp_path / "r.html"))
    assert "does not have a lengthscale for each input" in page.words
    assert "has no record of its training" in page.words


@pytest.mark.slow
def test_one_row_and_constant_targets(tmp_path):
    model, X, y = plain(1)
    page = read(write_report(model, X, y, tmp_path / "r.html"))
    assert page.row("R²")[1] == "–"
    assert "No input varies" in page.words
    model, X, y = plain(50)
    assert read(write_report(model, X, np.ones(50), tmp_path / "r.html")).row("R²")[1] == "–"


# ---- rows ----


@pytest.mark.usefixtures("no_figures")
def test_tables_of_all_kinds_are_the_same_rows(tmp_path):
    model, X, y = plain(50)
    pages = [
        read(write_report(model, X_, y_, tmp_path / "r.html"))
        for X_, y_ in [(X, y), (torch.from_numpy(X), torch.from_numpy(y)), (X.tolist(), list(y)), (X, y[:, None])]
    ]
    assert len({tuple(page.row("NLL")) for page in pages}) == 1


@pytest.mark.usefixtures("no_figures")
def test_rows_without_a_target_are_left_out_and_counted(tmp_path):
    model, X, y = plain(50)
    y[[3, 7]] = np.nan
    page = read(write_report(model, X, y, tmp_path / "r.html"))
    assert "tested on 48 rows" in page.words
    assert "2 rows without a target were left out" in page.words


@pytest.mark.usefixtures("no_figures")
def test_of_many_rows_some_are_drawn(tmp_path):
    model, X, y = plain(90)
    page = read(write_report(model, X, y, tmp_path / "r.html", max_rows=30))
    assert "drawn at random from 90" in page.words
    rows = subject_of(model, X, y, 30)
    assert len(rows.y) == 30
    assert all(any(np.array_equal(row, other) for other in X) for row in rows.X.to_numpy())
    assert len(subject_of(model, X, y).y) == 90


def test_columns_that_the_model_does_not_know_are_not_shown():
    model, X, y = strange()
    rows = subject_of(model, X.assign(other=1.0)[["other", *X.columns[::-1]]], y)
    assert list(rows.X.columns) == list(X.columns)


# ---- errors ----


@pytest.mark.usefixtures("no_figures")
def test_errors_say_what_to_do_and_leave_an_old_report_alone(tmp_path):
    model, X, y = plain(20)
    path = write_report(model, X, y, tmp_path / "r.html")
    old = path.read_bytes()
    with pytest.raises(ValueError, match=r"path is the folder .* expected a file"):
        write_report(model, X, y, tmp_path)
    with pytest.raises(ValueError, match=r"y_test has 19 rows and 1 column\(s\), expected 20 rows"):
        write_report(model, X, y[:19], path)
    with pytest.raises(ValueError, match="max_rows is 0, expected at least 1"):
        write_report(model, X, y, path, max_rows=0)
    with pytest.raises(ValueError, match=r"Expected 2D array, got 1D of shape \(20,\)"):
        write_report(model, X[:, 0], y, path)
    model.function = lambda X: np.full((len(X), 1), np.nan)
    with pytest.raises(ValueError, match="predictions of 20 of 20 rows are not finite"):
        write_report(model, X, y, path)
    assert path.read_bytes() == old


# ---- the real thing ----


@pytest.mark.usefixtures("annotations_off", "no_figures")
def test_a_regressor_reports_on_a_frame(tmp_path):
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"a": rng.uniform(-2, 2, 160), "kind": rng.choice(["u", "v", "w"], 160)})
    y = pd.DataFrame({"first": np.sin(2 * X["a"]) + (X["kind"] == "u"), "second": X["a"]})
    y += 0.1 * rng.normal(size=y.shape)
    model = CaGPRegressor(max_epochs=15).fit(X[:120], y[:120])
    page = read(model.report(X[120:], y[120:], tmp_path / "r.html"))
    error = y[120:].to_numpy() - model.predict(X[120:])
    assert page.row("first")[1] == number(np.sqrt(np.mean(error[:, 0] ** 2)))
    assert page.row("second")[1] == number(np.sqrt(np.mean(error[:, 1] ** 2)))
    assert "exact Gaussian process" in page.words


@pytest.mark.usefixtures("annotations_off", "no_figures")
def test_every_part_of_a_sum_of_kernels_is_described(tmp_path):
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"a": rng.uniform(0, 10, 80), "b": rng.normal(size=80)})
    y = np.sin(X["a"]) + X["b"] + 0.1 * rng.normal(size=80)
    kernel = Scale(ActiveDims(Matern32(1), [0])) + Scale(Linear(2))
    model = CaGPRegressor(method="exact", kernel=kernel, max_epochs=3).fit(X, y)
    page = read(model.report(X, y, tmp_path / "r.html"))
    parts = model.kernel_parts_
    assert len(parts) == 2
    for part in parts:
        assert page.row(part["kernel"])[1] == number(part["outputscale"])
    (entry,) = parts[0]["lengthscales"]
    assert f"Sees a: lengthscale a {number(entry['lengthscale'])}" in page.words
