"""Two kinds of flowers in a meadow, three kinds of soil: probabilities that know where nothing was seen."""

import numpy as np
import pandas as pd

from cagp import CaGPClassifier

# 700 plants with their place and the soil they grow on. Clover likes the south, and every soil but sand.
rng = np.random.default_rng(0)
table = pd.DataFrame({"east": rng.uniform(0, 10, 700), "north": rng.uniform(0, 10, 700)})
table["soil"] = rng.choice(["clay", "loam", "sand"], 700)
log_odds = 2 * np.sin(table["east"]) - 0.6 * (table["north"] - 5) - 2 * (table["soil"] == "sand")
plant = np.where(rng.random(700) < 1 / (1 + np.exp(-log_odds)), "clover", "daisy")
X, X_new, y, y_new = table[:500], table[500:], plant[:500], plant[500:]

model = CaGPClassifier(max_epochs=40).fit(X, y)
found = model.scores(X_new, y_new)
print(f"Log loss of {len(y_new)} new plants: {found.log_loss:.2f}, error {found.error:.0%}.")
print(f"Calibration error {found.calibration_error:.2f}: predicted probabilities are close to observed frequencies.")

places = pd.DataFrame({"east": [1.5, 1.5, 200.0], "north": [2.0, 2.0, 300.0], "soil": ["loam", "sand", "loam"]})
for (_, place), (clover, _) in zip(places.iterrows(), model.predict_proba(places), strict=True):
    print(f"{place['soil']} at ({place['east']:.1f}, {place['north']:.1f}): clover with probability {clover:.2f}")
print("The last place is far away: the model says that it does not know.")
