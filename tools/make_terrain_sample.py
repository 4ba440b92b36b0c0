"""Write the terrain sample of ``cagp.data``: 20,000 random posts of a window of the Trinidad, Colorado elevation model.

    python tools/make_terrain_sample.py dem_trinidad.npz

The argument holds ``X`` (km east and north of the sheet's centre) and ``y`` (elevation in whole metres) of every post,
as float32, in the order of the grid: 1,201 rows from south to north, 2,401 columns from west to east.
"""

import sys
from pathlib import Path

import numpy as np

GRID = (1201, 2401)
WEST, SOUTH, WIDTH = -56.0, 1.0, 24.0  # km: the Blanca Peak massif in the Sangre de Cristo Range
NUM_POSTS = 20_000
SEED = 0
TARGET = Path(__file__).parents[1] / "src" / "cagp" / "data" / "terrain.npz"


def main(source: str) -> None:
    with np.load(source, allow_pickle=False) as file:
        X, elevation = file["X"].astype(np.float64), file["y"].reshape(GRID)
    east, north = X[: GRID[1], 0], X[:: GRID[1], 1]
    columns = np.flatnonzero((east >= WEST) & (east < WEST + WIDTH))
    rows = np.flatnonzero((north >= SOUTH) & (north < SOUTH + WIDTH))
    window = elevation[np.ix_(rows, columns)]

    chosen = np.zeros(window.size, dtype=bool)
    chosen[np.random.default_rng(SEED).choice(window.size, NUM_POSTS, replace=False)] = True
    heights = window.reshape(-1)[chosen].astype(np.int16)
    np.savez_compressed(
        TARGET,
        chosen=np.packbits(chosen),  # one bit per post of the window, row by row
        rises=np.diff(heights, prepend=np.int16(0)),  # metres, from one chosen post to the next
        shape=np.array(window.shape),
        spacing=np.array([np.ptp(east) / (GRID[1] - 1), np.ptp(north) / (GRID[0] - 1)]),  # km
    )
    print(f"{TARGET}: {NUM_POSTS} of {window.size} posts, {heights.min()} to {heights.max()} m")


if __name__ == "__main__":
    main(*sys.argv[1:])
