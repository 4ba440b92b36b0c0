"""A model with the interface of the regressors whose answers are known in closed form, and a reader of reports."""

import re
from collections.abc import Sequence
from html.parser import HTMLParser
from types import SimpleNamespace

import numpy as np
import pandas as pd
import torch

from cagp.data.encoding import Encoder
from cagp.data.transforms import TRANSFORMS, Standardizer
from cagp.estimators import EncodedTable, GPRegressor, Units
from cagp.estimators.fitted_model import FittedModel
from cagp.estimators.predictive import Predictive


class KnownEncoder:
    """Remembers tables; codes are the number of a table and a row of it.

    The inputs of a frame are its columns, and whether a column has a level.
    """

    def __init__(self, names):
        self.names, self.tables = names, []

    def codes(self, X):
        self.tables.append(X)
        return np.stack([np.full(len(X), len(self.tables) - 1), np.arange(len(X))], 1)

    def table(self, X):
        if not isinstance(X, EncodedTable):
            return X
        table, rows = self.tables[X.matrix[0, 0]], X.matrix[:, 1]
        return table.iloc[rows] if isinstance(table, pd.DataFrame) else np.asarray(table)[rows]

    def expand(self, codes):
        X, columns = self.table(EncodedTable(self, codes)), []
        if not isinstance(X, pd.DataFrame):
            return np.asarray(X, float)
        for name in map(str, self.names):
            column, _, level = name.rpartition("=")
            values = X[name] if name in X else np.arange(len(X))
            columns.append(X[column] == level if column in X else pd.factorize(values)[0])
        return np.stack(columns, 1).astype(float)


class KnownModel:
    """Predicts ``function`` of the inputs with the standard deviation of ``latent``, plus noise.

    Args:
        function: of a table, an array (rows, targets).
        latent: of a table, the standard deviation of the function at each row.
    """

    def __init__(self, function, names_in, names_out, targets, latent=lambda X: np.full(len(X), 0.3), noise=0.4):
        self.function, self.latent, self.noise = function, latent, noise
        self.feature_names_out_ = np.array(names_out, dtype=object)
        if names_in is not None:
            self.feature_names_in_ = np.array(names_in, dtype=object)
        self.encoder_ = KnownEncoder(names_out)
        self.target_names_, self.n_outputs_, self.n_rows_ = tuple(targets), len(targets), 1234
        self.lengthscales_ = np.arange(1.0, len(names_out) + 1)
        self.noise_std_ = np.full(len(targets), noise)
        mean, std = torch.arange(len(targets)).double(), torch.full((len(targets),), 2.0).double()
        transforms = (TRANSFORMS["identity"],) * len(targets)
        nothing = torch.zeros(0, dtype=torch.float64)
        scaler = Standardizer(nothing, nothing, mean, std)
        units = Units(Encoder([], False), scaler, self.target_names_, len(targets) > 1, np.dtype(float), transforms)
        self.fitted = FittedModel(units, [], [], [], self.n_rows_, ["local"], [])  # it keeps no training rows
        self.kernel_parts_, self.choices_, self.trees_ = [], [], None
        self.target_transforms_ = ("identity",) * len(targets)
        self.likelihood_ = None
        self.method_, self.fit_report_ = "local", "Took all 30 steps."
        self.choice_, self.guarantee_ = "Chose local: it was asked for.", "The variance is < that of nobody."
        self.kind = "estimate"
        steps = [
            SimpleNamespace(loss=3.0 / k, seconds=0.1 * k, evaluation={"nll": 1.0 / k} if k % 10 == 0 else None)
            for k in range(1, 31)
        ]
        self.fit_result_ = SimpleNamespace(steps=steps, reason="Took all 30 steps.", seconds=3.0, best_step=31)
        self.num_asked = 0

    def get_params(self):
        return {"method": "auto", "kernel": "<b>matern32</b>"}

    def noise_std(self, X):
        X = self.encoder_.table(X)
        return np.tile(self.noise_std_, (len(X), 1))

    def predict(self, X, return_std=False, return_components=False, sample_noise=None, noise=True):
        X = self.encoder_.table(X)
        self.num_asked += len(X)
        mean = np.asarray(self.function(X), float)
        mean = mean[:, 0] if self.n_outputs_ == 1 else mean
        latent = np.asarray(self.latent(X), float) ** 2
        latent = latent if mean.ndim == 1 else np.repeat(latent[:, None], self.n_outputs_, 1)
        if return_components:
            noise, lost = np.full_like(latent, self.noise**2), 0.25 * latent
            lost = np.full_like(latent, np.nan) if self.kind == "unknown" else lost
            return mean, {"noise": noise, "latent": latent, "computational": lost, "computational_kind": self.kind}
        return (mean, np.sqrt(latent + (self.noise**2 if noise else 0.0))) if return_std else mean

    def predictive(self, X, sample_noise=None):
        shape = (-1, self.n_outputs_)
        mean, std = (part.reshape(shape) for part in self.predict(X, return_std=True))
        return predictive_of(mean, std, self.target_transforms_)


def predictive_of(mean: np.ndarray, std: np.ndarray, names: Sequence[str]) -> Predictive:
    """The distributions with this mean and standard deviation, in the units of targets on these scales."""
    location, scale = mean.astype(float), std.astype(float)
    for j in (j for j, name in enumerate(names) if name == "log"):
        variance = np.log1p((scale[:, j] / location[:, j]) ** 2)
        location[:, j], scale[:, j] = np.log(location[:, j]) - variance / 2, np.sqrt(variance)
    return Predictive(location, scale, tuple(TRANSFORMS[name] for name in names))


GPRegressor.register(KnownModel)

STRANGE_NAMES = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "price ($) per $",
    "温度 °C",
    "عمود",
    "never-ending " * 40,
    "x" * 300,
    "nul\0 bell\a\nline",
)


def strange(num_rows: int = 120, num_targets: int = 1):
    """A model, inputs and targets whose names try to break the page; with categories and dates."""
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.normal(size=(num_rows, len(STRANGE_NAMES))), columns=list(STRANGE_NAMES))
    X["colour"] = rng.choice(["red", "</td><b>green", "blue & co"], num_rows)
    X["day"] = pd.Timestamp("2024-01-01", tz="UTC") + pd.to_timedelta(rng.uniform(0, 700, num_rows), unit="D")
    names_out = [*STRANGE_NAMES, "colour=</td><b>green", "colour=blue & co", "colour=red", "day"]
    targets = [f"<em>target {k}</em> {STRANGE_NAMES[k % 4]}" for k in range(num_targets)]

    def function(table):
        first, days = table.iloc[:, 0].to_numpy(), (table["day"] - X["day"].min()) / pd.Timedelta(days=365)
        value = np.sin(first) + (table["colour"] == "red") + days.to_numpy()
        return np.stack([value + k for k in range(num_targets)], 1)

    model = KnownModel(function, list(X.columns), names_out, targets)
    model.lengthscales_ = np.array([1.0, *range(5, 12), 20.0, 21.0, 2.0, 3.0])
    y = function(X) + 0.5 * rng.normal(size=(num_rows, num_targets))
    return model, X, pd.DataFrame(y, columns=targets)


VOID = {"meta", "br", "hr", "img", "link", "input"}


class Page(HTMLParser):
    """Elements and text of a page; raises where elements are not closed in their order."""

    def __init__(self, html: str):
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.rows: list[list[str]] = []
        self.words, self._open = "", []
        self.feed(html)
        self.close()
        assert not self._open, self._open
        # Browsers show line breaks and several spaces as one space.
        self.words = re.sub(r"[ \n]+", " ", self.words)
        self.rows = [[re.sub(r"[ \n]+", " ", cell).strip(" ") for cell in row] for row in self.rows]

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self._open.pop() == tag, tag

    def handle_data(self, data):
        if "style" not in self._open[-1:]:
            self.words += data
        if {"td", "th"} & set(self._open):
            self.rows[-1][-1] += data

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]

    def row(self, header):
        return next(row for row in self.rows if row and row[0] == header)


def read(path) -> Page:
    return Page(path.read_text(encoding="utf-8"))


def plain(num_rows=500, num_inputs=3, seed=0, **options):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (num_rows, num_inputs))

    def function(X):
        return (np.sin(X[:, 0]) + np.square(X[:, 1:]).sum(1))[:, None]

    model = KnownModel(function, None, [f"x{j}" for j in range(num_inputs)], ["y"], **options)
    return model, X, function(X)[:, 0] + 0.5 * rng.normal(size=num_rows)
