"""Temperatures are a climate plus local effects: boosted trees learn the one, the Gaussian process learns the other."""

import numpy as np
import pandas as pd

from cagp import CaGPRegressor

# 2,000 measurements on a map. The climate depends on height, ground, season and hour, with jumps and
# interactions. On top of it, neighbouring places are alike.
rng = np.random.default_rng(0)
num_rows = 2000
table = pd.DataFrame({"east": rng.uniform(0, 10, num_rows), "north": rng.uniform(0, 10, num_rows)})
table["height"] = rng.exponential(0.4, num_rows)  # in km
table["ground"] = rng.choice(["sand", "grass", "forest", "water"], num_rows)
table["hour"] = rng.uniform(0, 24, num_rows)
table["day"] = rng.integers(1, 366, num_rows)

summer = table["day"].between(120, 300)
swing = table["ground"].map({"sand": 6.0, "grass": 4.0, "forest": 2.0, "water": 0.5}) * np.where(summer, 1.5, 1)
climate = 8 - 6.5 * table["height"] + 9 * summer - swing * np.cos(2 * np.pi * (table["hour"] - 3) / 24)
climate -= 3 * ((table["height"] > 0.5) & ~summer)  # snow
waves, phases = rng.normal(scale=1.5, size=(2, 40)), rng.uniform(0, 2 * np.pi, 40)
local = 1.5 / np.sqrt(40) * np.cos(table[["east", "north"]].to_numpy() @ waves + phases).sum(axis=1)
y = (climate + local + 0.3 * rng.normal(size=num_rows)).rename("temperature")
X, X_new, y, y_new = table[:800], table[800:], y[:800], y[800:]

model = CaGPRegressor().fit(X, y)
print(model.choice_, end="\n\n")

# What was tried, in this order. A gain is over the best model before.
for trial in model.choices_:
    gain = "" if trial["gain"] is None else f"{trial['gain']:+.3f} ± {trial['gain_error']:.3f} nats per row"
    print(f"{trial['model']:28} {gain:32} {trial['outcome']}")


def error(predicted):
    """The root mean squared error of predictions at the new rows."""
    return np.sqrt(np.mean((predicted - y_new) ** 2))


# What the trees explain, and what the Gaussian process adds. effort="fast" tries no trees.
alone = CaGPRegressor(effort="fast").fit(X, y)
print(f"\nErrors at {len(y_new):,} new rows, whose temperatures vary by {y_new.std():.2f} degrees:")
print(f"  Gaussian process alone         {error(alone.predict(X_new)):.2f}")
print(f"  trees alone                    {error(model.prior_mean(X_new)):.2f}")
print(f"  trees and Gaussian process     {error(model.predict(X_new)):.2f}")
lower, upper = model.predict_interval(X_new, level=0.95)
print(f"{np.mean((lower <= y_new) & (y_new <= upper)):.0%} of the new rows lie in their 95 % intervals.")
