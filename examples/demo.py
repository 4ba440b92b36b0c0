"""20,000 elevations fitted with 16, 64 and 256 actions, and from nearest rows: a table, and a picture in cagp-demo."""

import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from scipy.interpolate import CloughTocher2DInterpolator, RectBivariateSpline
from terrain_maps import Forecast, Map, poster, save, summit
from torch import Tensor

from cagp import metrics
from cagp.data import Dataset, Split, Standardizer, split, terrain
from cagp.estimators import CaGPRegressor
from cagp.kernels import Matern32, Scale
from cagp.methods import CaGPOpt
from cagp.metrics import Scores
from cagp.posteriors import Prediction
from cagp.prior import GP, GaussianNoise
from cagp.training import fit


class Budget(NamedTuple):
    """A number of actions and the learning rate of its hyperparameters."""

    num_actions: int
    lr: float


# Chosen on a tenth of the training rows, not on test rows. Few actions need hyperparameters far from the start, hence
# the higher rate. A short lengthscale and much noise at the start let the actions find their places.
BUDGETS = (Budget(16, 0.4), Budget(64, 0.2), Budget(256, 0.2))
ACTIONS_LR = 0.35
NUM_STEPS = 50  # a compromise: the loss still falls slowly
LENGTHSCALE, NOISE = 0.3, 0.3  # in standard units
TEST_FRACTION, SEED = 0.1, 0

MAP_WIDTH, MARGIN = 23.4, 0.25  # km; the elevations do not reach the edge of their window
PREDICTED, DRAWN = 120, 480  # nodes a side; predictions are smooth enough for a spline between the nodes
BLANCA_PEAK = (13.0, 7.6)  # km


class Quality(NamedTuple):
    """How good a fit is on the test rows."""

    label: str
    scores: Scores  # of standardised elevations
    rmse: float  # in m
    coverage_low: float  # of the lower half of the test rows
    coverage_high: float
    seconds: float


class Result(NamedTuple):
    """The maps and the quality of a fit with actions."""

    forecast: Forecast
    quality: Quality


def run(out: Path) -> None:
    """Fit, print a table and how to read it, write terrain.png into the folder ``out``."""
    out.mkdir(parents=True, exist_ok=True)
    console = Console()
    data = terrain()
    rows = split(len(data.y), TEST_FRACTION, SEED)
    console.print(
        f"{len(data.y):,} elevations around Blanca Peak, Colorado: {len(rows.train):,} to train on, "
        f"{len(rows.test):,} to test on.\n"
    )
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("steps"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        results = [_result(data, rows, budget, progress) for budget in BUDGETS]
    local = _local(data, rows)
    console.print()
    console.print(_table([*(result.quality for result in results), local]))
    console.print(_reading(results[0].quality, results[-1].quality, local))

    picture = out / "terrain.png"
    save(_poster(data, rows, results), picture)
    console.print(f"\nPicture: {picture}", soft_wrap=True)


def _result(data: Dataset, rows: Split, budget: Budget, progress: Progress) -> Result:
    X, y = data.X[rows.train], data.y[rows.train]
    scaler = Standardizer.fit(X, y)
    X, y = scaler.inputs(X).float(), scaler.targets(y).float()
    prior = GP(Scale(Matern32(X.shape[1], LENGTHSCALE)), noise=GaussianNoise(NOISE))
    method = CaGPOpt.from_data(prior, X, budget.num_actions, reblock_at=())

    label = f"{budget.num_actions:>3} actions"
    if progress.disable:
        progress.console.print(f"{label}: {NUM_STEPS} steps")
    task = progress.add_task(label, total=NUM_STEPS)
    fitted = fit(
        method,
        X,
        y,
        num_steps=NUM_STEPS,
        lr={"hyperparameters": budget.lr, "actions": ACTIONS_LR},
        callback=lambda step: progress.update(task, completed=step.number),
    )
    if len(fitted.steps) < NUM_STEPS:
        raise ValueError(f"the fit with {budget.num_actions} actions ended early. {fitted.reason}")

    posterior = method.condition(X, y)
    test = posterior.predict(scaler.inputs(data.X[rows.test]).float(), noise=True)
    quality = _quality(f"{budget.num_actions} actions", test, data.y[rows.test], scaler, fitted.seconds)
    maps = _maps(posterior.predict(scaler.inputs(torch.from_numpy(_nodes(PREDICTED))).float(), noise=True), scaler)
    forecast = Forecast(budget.num_actions, *maps, rmse=quality.rmse, coverage=quality.scores.coverage)
    return Result(forecast, quality)


def _local(data: Dataset, rows: Split) -> Quality:
    """Predict each place from its nearest rows, with error bars that follow those rows."""
    start = time.perf_counter()
    model = CaGPRegressor("local").fit(data.X[rows.train].numpy(), data.y[rows.train].numpy())
    seconds = time.perf_counter() - start
    mean, std = (torch.from_numpy(part) for part in model.predict(data.X[rows.test].numpy(), return_std=True))
    scaler = Standardizer.fit(data.X[rows.train], data.y[rows.train])
    prediction = Prediction(scaler.targets(mean), (std / scaler.target_std).square())
    return _quality("nearest rows", prediction, data.y[rows.test], scaler, seconds)


def _quality(label: str, test: Prediction, y: Tensor, scaler: Standardizer, seconds: float) -> Quality:
    y_test = scaler.targets(y)
    high = y_test > y_test.median()
    return Quality(
        label,
        metrics.scores(y_test, *test),
        metrics.rmse(y, scaler.restore_mean(test.mean)),
        coverage_low=metrics.coverage(y_test[~high], test.mean[~high], test.variance[~high]),
        coverage_high=metrics.coverage(y_test[high], test.mean[high], test.variance[high]),
        seconds=seconds,
    )


def _maps(prediction: Prediction, scaler: Standardizer) -> tuple[Map, Map]:
    """Mean and standard deviation in metres at the nodes that are drawn, by splines between those predicted."""
    coarse, fine = (np.linspace(0, 1, size) for size in (PREDICTED, DRAWN))
    values = scaler.restore_mean(prediction.mean), scaler.restore_variance(prediction.variance).sqrt()
    mean, std = (
        RectBivariateSpline(coarse, coarse, v.double().view(PREDICTED, PREDICTED).numpy())(fine, fine) for v in values
    )
    return mean, std


def _nodes(size: int) -> Map:
    """The places (size², 2) of the nodes of a map in km, row by row from south to north."""
    ticks = MARGIN + np.linspace(0, MAP_WIDTH, size)
    return np.stack(np.meshgrid(ticks, ticks), axis=-1).reshape(-1, 2)


def _table(fits: list[Quality]) -> Table:
    names = ("predicted from", "NLL", "RMSE (m)", "95 % coverage", "fit (s)")
    table = Table(*names, title="On the test rows", caption="NLL: nats per row, of standardised elevations.")
    for column in table.columns:
        column.justify = "right"
    for found in fits:
        table.add_row(
            found.label,
            f"{found.scores.nll:.3f}",
            f"{found.rmse:.1f}",
            f"{100 * found.scores.coverage:.1f} %",
            f"{found.seconds:.1f}",
        )
    return table


def _reading(few: Quality, many: Quality, local: Quality) -> str:
    return (
        f"With {many.label} instead of {few.label.split()[0]}, the error falls from {few.rmse:.0f} to "
        f"{many.rmse:.0f} m, and the error bars shrink with it. But there is only one noise level for plain and peaks: "
        f"the 95 % intervals contain {100 * many.coverage_low:.1f} % of the lower half of the elevations and "
        f"{100 * many.coverage_high:.1f} % of the upper half. "
        f'CaGPRegressor("local") predicts each place from its nearest rows, with error bars that follow them: its '
        f"error is {local.rmse:.0f} m, and its intervals contain {100 * local.coverage_low:.1f} % and "
        f"{100 * local.coverage_high:.1f} %."
    )


def _poster(data: Dataset, rows: Split, results: list[Result]) -> Figure:
    truth = CloughTocher2DInterpolator(data.X.numpy(), data.y.numpy())(_nodes(DRAWN)).reshape(DRAWN, DRAWN)
    budgets = ", ".join(str(result.forecast.num_actions) for result in results[:-1])
    figure = poster(
        truth,
        [result.forecast for result in results],
        MAP_WIDTH,
        title="Error bars that include what was not computed",
        subtitle=f"{len(rows.train):,} elevations around Blanca Peak, Colorado, summarised by {budgets} and "
        f"{results[-1].forecast.num_actions} learned weighted sums (actions). Coverage is that of 95 % intervals.",
    )
    summit(figure.axes[0], BLANCA_PEAK[0] - MARGIN, BLANCA_PEAK[1] - MARGIN, "Blanca Peak")
    return figure


if __name__ == "__main__":
    run(Path("cagp-demo"))
