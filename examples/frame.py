"""Fit a data frame with numbers, categories, booleans and dates: the encoding, and predictions for a new level."""

import numpy as np
import pandas as pd

from cagp import CaGPRegressor

# Rents of flats. Rent rises with the area, and how fast depends on the district.
rng = np.random.default_rng(0)
num_rows = 600
flats = pd.DataFrame(
    {
        "area": rng.uniform(20, 150, num_rows),
        "district": pd.Categorical(rng.choice(["centre", "harbour", "hill"], num_rows)),
        "balcony": rng.random(num_rows) < 0.5,
        "since": pd.Timestamp("2023-01-01") + pd.to_timedelta(rng.integers(0, 700, num_rows), unit="D"),
    }
)
per_metre = flats["district"].astype(str).map({"centre": 14.0, "harbour": 11.0, "hill": 9.0})
season = 40 * np.sin((flats["since"] - pd.Timestamp("2023-01-01")).dt.days / 365 * 2 * np.pi)
rent = per_metre * flats["area"] + 60 * flats["balcony"] + season + 30 * rng.normal(size=num_rows)

model = CaGPRegressor(max_epochs=40).fit(flats[:500], rent[:500].rename("rent"))
print(f"{model.score(flats[500:], rent[500:]):.1%} of the variance of new rents explained")
print(f"noise: ± {model.noise_std_[0]:.0f} (the true value is 30)")

print("encoded as", ", ".join(model.feature_names_out_))

# Predict the same flat in three districts.
districts = ["centre", "harbour", "hill"]
same = pd.DataFrame({"area": 80.0, "district": districts, "balcony": True, "since": pd.Timestamp("2024-03-01")})
for district, lower, upper in zip(districts, *model.predict_interval(same, level=0.9), strict=True):
    print(f"80 m² in the {district}: {lower:.0f} to {upper:.0f}")

# A district that fit did not see may be like any of the known ones: its error bar is wider.
lower, upper = model.predict_interval(same[:1].assign(district="lake"), level=0.9)
print(f"80 m² at the lake: {lower[0]:.0f} to {upper[0]:.0f}")
