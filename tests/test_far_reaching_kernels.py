"""Seasons, waves, places on the Earth, kernels of some columns: formulas, gradients, units, and how far they reach."""

import math

import numpy as np
import oracle
import pandas as pd
import pytest
import torch

from cagp import GP, ExactGPRegressor, start_from_data
from cagp.engine import backend_for, kernel_product
from cagp.kernels import (
    RBF,
    ActiveDims,
    Constant,
    Cosine,
    Decay,
    GreatCircle,
    InputUnits,
    Kernel,
    Linear,
    Matern12,
    Matern32,
    Periodic,
    RationalQuadratic,
    Scale,
    named_kernel,
)

UNITS = InputUnits(torch.tensor([10.0, 45.0]).double(), torch.tensor([30.0, 20.0]).double())


def in_units(kernel: Kernel, units: InputUnits = UNITS) -> Kernel:
    kernel.set_units(units)
    return kernel


def kernels_of_two_columns() -> dict[str, Kernel]:
    return {
        "periodic": Periodic(2, [0.7, 1.9], [0.8, 1.3]),
        "periodic in units": in_units(Periodic(2, [20.0, 35.0], [0.8, 1.3])),
        "cosine": Cosine(2, [0.7, 1.9]),
        "one cosine": ActiveDims(Cosine(1, 0.9), [1]),
        "great circle 1/2": in_units(GreatCircle(25.0, 0.5)),
        "great circle 3/2": in_units(GreatCircle(25.0)),
        "great circle 5/2": in_units(GreatCircle(25.0, 2.5)),
        "swapped": ActiveDims(in_units(GreatCircle(25.0)), [1, 0]),
        "a product of columns": ActiveDims(Matern32(1), [0]) * ActiveDims(Periodic(1), [1]),
    }


def inputs(n: int, seed: int, d: int = 2) -> torch.Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.thinned(8)
@pytest.mark.parametrize("name", kernels_of_two_columns())
def test_values_gradients_batches_and_diagonals(name):
    kernel = kernels_of_two_columns()[name]
    X, Z = inputs(9, 0), inputs(7, 1)
    np.testing.assert_allclose(kernel(X, Z).detach(), oracle.kernel_matrix(kernel, X, Z), rtol=1e-10, atol=1e-13)
    np.testing.assert_allclose(kernel.diag(X).detach(), np.diag(oracle.kernel_matrix(kernel, X, X)), rtol=1e-12)
    W = inputs(7, 2, 3)
    np.testing.assert_allclose(
        kernel_product(kernel, X, Z, W, max_bytes=512).detach(), (kernel(X, Z) @ W).detach(), rtol=1e-10, atol=1e-12
    )
    batch = torch.stack([X, 2 * X]), torch.stack([Z, Z + 1])
    for k in range(2):
        np.testing.assert_allclose(kernel(*batch)[k].detach(), kernel(batch[0][k], batch[1][k]).detach(), rtol=1e-12)
    eigenvalues = torch.linalg.eigvalsh(kernel(X, X).detach())
    assert eigenvalues[0] > -1e-12 * eigenvalues[-1]

    names = [name for name, _ in kernel.named_parameters()]

    def matrix(X, Z, *parameters):
        return torch.func.functional_call(kernel, dict(zip(names, parameters, strict=True)), (X, Z))

    leaves = [t.detach().clone().requires_grad_() for t in (X, Z, *kernel.parameters())]
    assert torch.autograd.gradcheck(matrix, leaves)
    same = X.clone().requires_grad_()
    kernel(same, same).sum().backward()
    assert bool(torch.isfinite(same.grad).all())


def test_a_wave_has_features_and_many_columns_do_not():
    X = inputs(8, 0, 3)
    kernel = Cosine(3, [0.5, 1.0, 2.0])
    features = kernel.features(X)
    assert features.shape == (8, 8)
    np.testing.assert_allclose((features @ features.mT).detach(), oracle.kernel_matrix(kernel, X, X), atol=1e-13)
    assert backend_for(Scale(ActiveDims(Cosine(1), [2])) + Linear(3), X) == "explicit features"
    assert Cosine(5).features(inputs(2, 0, 5)) is None


def test_phases_keep_their_digits_in_float32_after_many_periods():
    X = torch.linspace(1e4, 1e4 + 2, 50, dtype=torch.float32)[:, None]
    for kernel in (Periodic(1, 1.0), Cosine(1, 1.0)):
        expected = oracle.kernel_matrix(kernel, X.double(), X.double())
        np.testing.assert_allclose(kernel_product(kernel, X, X).detach(), expected, atol=1e-5)


def test_places_across_the_date_line_and_at_the_pole_are_near():
    kernel = GreatCircle(5.0)
    west, east = torch.tensor([[-179.9, 10.0]]).double(), torch.tensor([[179.9, 10.0]]).double()
    assert kernel(west, east).item() > 0.99
    pole = torch.tensor([[0.0, 89.99], [180.0, 89.99]]).double()
    assert kernel(pole, pole)[0, 1].item() > 0.999
    # A degree of latitude is a degree on a great circle: Matern 3/2 at s = √3 · 2 sin(½°) / 5°, to the chord.
    places = torch.tensor([[20.0, 3.0], [20.0, 4.0]]).double()
    s = math.sqrt(3) * 2 * math.sin(math.radians(0.5)) / math.radians(5.0)
    assert kernel(places, places)[0, 1].item() == pytest.approx((1 + s) * math.exp(-s), rel=1e-10)


def test_places_as_rows_of_longitude_and_latitude_differ_from_flat_distances():
    """Eigenvalues with distances on the plane of degrees say nothing of the sphere; on it, all places are positive."""
    rng = np.random.default_rng(0)
    X = torch.tensor(np.c_[rng.uniform(-180, 180, 300), np.degrees(np.arcsin(rng.uniform(-1, 1, 300)))])
    for smoothness in (0.5, 1.5, 2.5):
        eigenvalues = torch.linalg.eigvalsh(GreatCircle(60.0, smoothness)(X, X).detach())
        assert eigenvalues[0] > -1e-10


def test_whether_kernels_decay_along_each_column():
    decays, endless, none, unknown = Decay.DECAYS, Decay.ENDLESS, Decay.NONE, Decay.UNKNOWN

    class Own(Kernel):
        def forward(self, X, Z):
            return X @ Z.mT

    class Local(Own):
        def decay(self, column):
            return Decay.DECAYS

    some = ActiveDims(Matern32(1), [1])
    for kernel, along in (
        (RBF(2), [decays, decays]),
        (Scale(RationalQuadratic(2)), [decays, decays]),
        (GreatCircle(), [decays, decays]),
        (Periodic(2), [endless, endless]),
        (Cosine(2), [endless, endless]),
        (Linear(2), [endless, endless]),
        (Constant(), [none, none]),
        (Own(), [unknown, unknown]),
        (Local(), [decays, decays]),
        (some, [none, decays]),
        (RBF(2) + Matern12(2), [decays, decays]),
        (RBF(2) + Constant(), [endless, endless]),
        (RBF(2) + some, [endless, decays]),
        (RBF(2) * Constant(), [decays, decays]),
        (RBF(2) * Periodic(2), [endless, endless]),  # a season may fade over many periods
        (RBF(2) * ActiveDims(Periodic(1), [0]), [endless, decays]),
        (some * ActiveDims(RBF(1), [0]), [decays, decays]),
        (Own() + RBF(2), [unknown, unknown]),
        (Own() * RBF(2) + Linear(2), [endless, endless]),
        (Own() * Periodic(2), [endless, endless]),
        (Own() * some + RBF(2), [unknown, unknown]),
    ):
        assert [kernel.decay(j) for j in range(2)] == along, kernel
        assert kernel.decays(2) is (None if unknown in along else along == [decays, decays])


def test_lengthscales_of_parts_of_the_columns_are_put_together():
    kernel = ActiveDims(Matern32(2, [0.5, 2.0]), [3, 0]) * ActiveDims(Periodic(1), [1])
    assert kernel.lengthscales() is None  # nobody knows how many columns there are
    assert Scale(kernel).lengthscales(4).tolist() == pytest.approx([2.0, math.inf, math.inf, 0.5])
    both = kernel + RBF(4, [7.0, 8.0, 9.0, 10.0])
    assert both.lengthscales(4).tolist() == pytest.approx([2.0, 8.0, 9.0, 0.5])
    places = in_units(GreatCircle(10.0))
    # 10 degrees north are half a standard deviation; east, at 45 degrees, degrees are shorter by √½.
    assert places.lengthscales(2).tolist() == pytest.approx([10 / 30 * math.sqrt(2), 0.5])


def test_a_parameter_called_lengthscale_counts_as_one():
    class Own(Kernel):
        def __init__(self, lengthscale):
            super().__init__()
            self.lengthscale = torch.nn.Parameter(torch.tensor(lengthscale))

        def forward(self, X, Z):
            return torch.exp(-torch.cdist(X / self.lengthscale, Z / self.lengthscale))

    assert Scale(Own([0.5, 2.0])).lengthscales(2).tolist() == [0.5, 2.0]
    assert Own(0.5).lengthscales() is None
    assert Own(0.5).lengthscales(3).tolist() == [0.5] * 3
    assert Own([0.5, 2.0]).lengthscales(3) is None
    assert Own([0.5, -2.0]).lengthscales(2) is None
    model = ExactGPRegressor(Scale(Own([0.5, 2.0])), max_epochs=1).fit(frame()[["lat", "lon"]], frame()["year"])
    assert np.isfinite(model.lengthscales_).all()


@pytest.mark.usefixtures("annotations_off")
def test_wrong_arguments_are_told_what_is_expected():
    with pytest.raises(ValueError, match="period has 3 values, expected 1 or num_dims = 2"):
        Periodic(2, [1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match=r"smoothness is 1, expected 0.5, 1.5 or 2.5"):
        GreatCircle(smoothness=1)
    for columns in ([], "year", [1, 1]):
        with pytest.raises(ValueError, match="expected a list of different columns"):
            ActiveDims(RBF(1), columns)
    with pytest.raises(ValueError, match="columns has -1, expected positions from 0, or names"):
        ActiveDims(RBF(1), [-1])
    X = inputs(3, 0)
    with pytest.raises(ValueError, match="X has 2 columns, the ActiveDims kernel was made for column 5"):
        kernel_product(ActiveDims(RBF(1), [5]), X, X)
    with pytest.raises(ValueError, match="X has 1 columns, the RBF kernel was made for num_dims = 2"):
        kernel_product(ActiveDims(RBF(2), [1]), X, X)
    with pytest.raises(ValueError, match="X has 2 columns, the Periodic kernel was made for num_dims = 3"):
        kernel_product(Periodic(3), X, X)
    with pytest.raises(ValueError, match="called 'year', but these inputs have no names"):
        ActiveDims(RBF(1), ["year"])(X, X)
    with pytest.raises(ValueError, match="there are 3 columns, GreatCircle takes 2"):
        GreatCircle()(inputs(2, 0, 3), inputs(2, 0, 3))
    with pytest.raises(ValueError, match="the mean of its second column is 200"):
        GreatCircle().set_units(InputUnits(torch.tensor([10.0, 200.0]), torch.ones(2)))
    with pytest.raises(ValueError, match="the Periodic kernel was made for num_dims = 1; ActiveDims"):
        Periodic(1).set_units(UNITS)


def frame(n: int = 60) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "lat": rng.uniform(30, 60, n),
            "kind": rng.choice(["a", "b", "c"], n),
            "year": rng.uniform(2000, 2004, n),
            "lon": rng.uniform(-20, 40, n),
        }
    )


def test_a_regressor_speaks_of_columns_by_name_and_in_their_units(tmp_path):
    import cagp

    X = frame()
    y = np.sin(2 * np.pi * X["year"]) + 0.02 * X["lat"]
    kernel = (
        Scale(ActiveDims(GreatCircle(15.0), ["lon", "lat"]))
        + Scale(ActiveDims(Periodic(1, 1.0), ["year"]))
        + Scale(ActiveDims(RBF(3), ["kind"]))
    )
    model = ExactGPRegressor(kernel, max_epochs=1).fit(X, y)
    fitted = model.posteriors_[0].prior.kernel
    assert [part.kernel.positions for part in fitted.parts[0].parts] + [fitted.parts[1].kernel.positions] == [
        [5, 0],
        [4],
        [1, 2, 3],
    ]
    assert kernel.parts[1].kernel.columns == ("kind",)  # the kernel that was given stays as it was
    # The prior covariance of two rows by formulas in the units of the table.
    Z = model.scaler_.inputs(torch.tensor(model.encoder_.transform(X)))
    places, season = (part.kernel.kernel for part in fitted.parts[0].parts)
    x = X[["lon", "lat"]].to_numpy()
    untold = GreatCircle(places.lengthscale.item())
    np.testing.assert_allclose(
        fitted.parts[0].parts[0].kernel(Z, Z).detach(), oracle.kernel_matrix(untold, x, x), atol=1e-10
    )
    turns = (X["year"].to_numpy()[:, None] - X["year"].to_numpy()) / season.period.item()
    expected = np.exp(-2 * np.sin(np.pi * turns) ** 2 / season.lengthscale.item() ** 2)
    np.testing.assert_allclose(fitted.parts[0].parts[1].kernel(Z, Z).detach(), expected, atol=1e-10)

    model.save(tmp_path / "m.cagp")
    back = cagp.load(tmp_path / "m.cagp")
    for a, b in zip(back.predict(X, return_std=True), model.predict(X, return_std=True), strict=True):
        np.testing.assert_array_equal(a, b)
    assert back.kernel.parts[1].kernel.columns == ("kind",)
    parts = model.kernel_parts_
    assert parts == back.kernel_parts_
    assert [part["inputs"] for part in parts] == [["lon", "lat"], ["year"], ["kind=a", "kind=b", "kind=c"]]
    assert parts[1]["periods"] == [{"name": "year", "period": pytest.approx(season.period.item())}]
    assert parts[0]["parameters"]["lengthscale"] == pytest.approx(places.lengthscale.item())
    assert parts[2]["outputscale"] == pytest.approx(fitted.parts[1].outputscale.item())
    with pytest.raises(ValueError, match="the kernel is for column 'years', but the inputs are lat, kind=a"):
        ExactGPRegressor(ActiveDims(RBF(1), ["years"])).fit(X, y)


def test_a_name_stands_for_a_season_a_smooth_rest_and_a_line():
    kernel = named_kernel("periodic", 2)
    assert [type(part).__name__ for part in kernel.parts] == ["Scale", "Scale", "Linear"]
    assert kernel.decays(2) is False
    assert named_kernel("rbf", 2).decays(2)
    rng = np.random.default_rng(0)
    X = torch.tensor(np.c_[rng.uniform(0, 1, 400), rng.normal(size=400)])
    y = torch.sin(2 * torch.pi * X[:, 0] / 0.07) + 3 * X[:, 0] + 0.5 * torch.tensor(rng.normal(size=400))
    start_from_data(GP(kernel), X, y)
    period = kernel.parts[0].kernel.period
    assert period[0].item() == pytest.approx(0.07, rel=0.02)
    assert period[1].item() == pytest.approx(2 * float(X[:, 1].max() - X[:, 1].min()))  # it has none
