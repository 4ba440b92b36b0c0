"""The estimator: error bars, intervals, where the uncertainty comes from, and a model in a file."""

import tempfile
from pathlib import Path

import numpy as np
from sklearn.model_selection import train_test_split

import cagp
from cagp import CaGPRegressor
from cagp.data import terrain

# 3,000 places in the Rocky Mountains and their elevations in metres.
data = terrain()
X, X_test, y, y_test = train_test_split(data.X.numpy(), data.y.numpy(), train_size=3000, test_size=1000, random_state=0)

model = CaGPRegressor(max_epochs=20).fit(X, y)
print(model.fit_report_.splitlines()[0])

mean, std = model.predict(X_test, return_std=True)
lower, upper = model.predict_interval(X_test, level=0.9)
inside = ((lower <= y_test) & (y_test <= upper)).mean()
print(f"error {np.sqrt(((mean - y_test) ** 2).mean()):.0f} m, typical error bar {np.median(std):.0f} m")
print(f"{inside:.0%} of the test rows lie in their 90% intervals")

# Would more data help, or more computation?
_, parts = model.predict(X_test, return_components=True)
for name in ("noise", "latent", "computational"):
    print(f"{name:14} {np.sqrt(parts[name].mean()):5.1f} m")

with tempfile.TemporaryDirectory() as folder:
    path = model.save(Path(folder) / "terrain.cagp")
    print(f"{path.name} has {path.stat().st_size / 1000:.0f} kB")
    assert (cagp.load(path).predict(X_test) == mean).all()
