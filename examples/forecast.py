"""Forecast a trend and a season beyond the data: by the name of a kernel, and by a kernel that says what is known."""

import numpy as np

from cagp import CaGPRegressor
from cagp.kernels import Linear, Matern32, Periodic, Scale

# Eight years of weekly sales that grow by 5 a year and have a yearly season. The models forecast the last 18 months.
rng = np.random.default_rng(0)
years = np.arange(2015, 2023, 1 / 52)[:, None]
season = 6 * np.sin(2 * np.pi * years[:, 0]) + 3 * np.cos(4 * np.pi * years[:, 0])
sales = 100 + 5 * (years[:, 0] - 2015) + season + rng.normal(size=len(years))
train, test = slice(0, 338), slice(338, None)

known = Scale(Periodic(num_dims=1, period=1.0)) + Linear(num_dims=1) + Scale(Matern32(num_dims=1))

for name, kernel in {"by name": "periodic", "season known": known, "no season": "matern32"}.items():
    model = CaGPRegressor("exact", kernel=kernel).fit(years[train], sales[train])
    lower, upper = model.predict_interval(years[test])
    error = np.sqrt(np.mean((model.predict(years[test]) - sales[test]) ** 2))
    inside = np.mean((lower < sales[test]) & (sales[test] < upper))
    print(f"{name}: error {error:.2f} (noise 1.00), {inside:.0%} of the rows inside the 95% intervals")
    for part in model.kernel_parts_:
        for found in part["periods"] or []:
            print(f"  period {found['period']:.3f} years")
