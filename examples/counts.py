"""Birds counted on walks of different lengths: integers in, integers out, and the hours walked as exposure."""

import numpy as np
import pandas as pd

from cagp import CaGPRegressor

# 700 walks. More birds are seen at dawn and near water; flocks make counts vary more than chance alone would.
rng = np.random.default_rng(0)
walks = pd.DataFrame({"time": rng.uniform(4, 20, 700), "water_km": rng.exponential(2, 700)})
walks["hours"] = rng.uniform(0.5, 4, 700)
rate = np.exp(2.5 - 0.5 * np.abs(walks["time"] - 6) ** 0.5 - 0.3 * walks["water_km"])
birds = rng.poisson(walks["hours"] * rate * rng.gamma(4, 1 / 4, 700))
X, X_new, y, y_new = walks[:550], walks[550:], birds[:550], birds[550:]

model = CaGPRegressor("local", likelihood="negative_binomial", exposure="hours", max_epochs=60).fit(X, y)
print(f"Dispersion {float(model.likelihood_.dispersion):.2f}; the data were made with 0.25.")
low, high = model.predict_interval(X_new, level=0.9)
inside = np.mean((low <= y_new) & (y_new <= high))
print(f"The 90 % intervals hold {inside:.0%} of {len(y_new)} new counts.")

walk = pd.DataFrame({"time": [6.0, 6.0], "water_km": [0.5, 0.5], "hours": [1.0, 3.0]})
for hours, mean, (lower, upper) in zip(
    walk["hours"], model.predict(walk), zip(*model.predict_interval(walk, level=0.9), strict=True), strict=True
):
    print(f"A walk of {hours:.0f} h at dawn, by the water: {mean:.1f} birds on average, between {lower} and {upper}.")
