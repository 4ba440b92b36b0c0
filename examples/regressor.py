"""Use the scikit-learn estimator: error bars, intervals, the parts of the uncertainty, saving and loading."""

import tempfile
from pathlib import Path

import numpy as np
from sklearn.model_selection import train_test_split

import cagp
from cagp import CaGPRegressor
from cagp.data import terrain

# 3,000 places in the Rocky Mountains, with their elevations in metres.
data = terrain()
X, X_test, y, y_test = train_test_split(data.X.numpy(), data.y.numpy(), train_size=3000, test_size=1000, random_state=0)

model = CaGPRegressor(max_epochs=20).fit(X, y)
print(model.fit_report_.splitlines()[0])

mean, std = model.predict(X_test, return_std=True)
lower, upper = model.predict_interval(X_test, level=0.9)
inside = ((lower <= y_test) & (y_test <= upper)).mean()
print(f"error {np.sqrt(((mean - y_test) ** 2).mean()):.0f} m, typical error bar {np.median(std):.0f} m")
print(f"{inside:.0%} of the test rows lie in their 90% intervals")

# Would more data or more computation help?
_, parts = model.predict(X_test, return_components=True)
for name in ("noise", "latent", "computational"):
    print(f"{name:14} {np.sqrt(parts[name].mean()):5.1f} m")

# Error bars without noise, and whether the variance is guaranteed to be at least that of the exact Gaussian process.
_, std_of_function = model.predict(X_test, return_std=True, noise=False)
print(f"without noise: typical error bar {np.median(std_of_function):.0f} m")
print(f"guarantee: {model.guarantee_}")

# The file holds numbers and text, and no code. The loaded model predicts the same to the last bit.
with tempfile.TemporaryDirectory() as folder:
    path = model.save(Path(folder) / "terrain.cagp")
    print(f"{path.name} has {path.stat().st_size / 1000:.0f} kB")
    assert (cagp.load(path).predict(X_test) == mean).all()
