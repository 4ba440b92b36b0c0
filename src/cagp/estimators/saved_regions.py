"""Saved models in regions: a file for each region beside a small one; processes read and write those they need."""

from pathlib import Path
from typing import Any

import torch

from cagp.estimators.fitted_state import check_columns, check_sizes
from cagp.kernels import Kernel
from cagp.posteriors import LocalPosterior, Posterior, posterior_from_state
from cagp.posteriors.nearest_rows import checked_scale
from cagp.posteriors.storing import DTYPES
from cagp.prior import GP
from cagp.ranks import Ranks
from cagp.shards import RegionPosterior, Regions
from cagp.storage import stored_digest
from cagp.tensor_files import load_state, save_state

REGION_KIND, REGION_VERSION = "cagp region", 1


def region_path(path: Path, region: int, count: int) -> Path:
    """The file of a region, counted from 1 in its name."""
    return path.with_name(f"{path.name}.region-{region + 1}-of-{count}")


def save_regions(posterior: RegionPosterior, path: Path, dtype: torch.dtype | None) -> dict[str, Any]:
    """Write the files of all regions, each by its process, and return what the model's own file says of them.

    On all processes; if one cannot write, all raise.
    """
    ranks, count = posterior.ranks, posterior.regions.num_regions

    def write() -> dict[int, str]:
        digests = {}
        for region in posterior.own:
            own = region_path(path, region, count)
            state = posterior.of_region(region).state(dtype)
            save_state(own, {"posterior": state}, REGION_KIND, REGION_VERSION)
            digests[region] = stored_digest(own)
        return digests

    digests = ranks.together(write, (OSError, ValueError))
    known = [ranks.words_of(region % ranks.size, digests.get(region, "")) for region in range(count)]
    held = ranks.add_up(
        torch.tensor([float(sum(len(posterior.of_region(r).X) for r in posterior.own))], dtype=torch.float64)
    )
    return {
        "class": type(posterior).__name__,
        "prior": posterior.prior.state(),
        "dtype": str(posterior.X.dtype).removeprefix("torch."),
        "max_bytes": int(posterior.max_bytes),
        "local_scale": posterior.local_scale,
        "X": {"shape": [int(held[0]), posterior.X.shape[1]]},  # of all regions, with the rows that several hold
        "regions": dict(posterior.regions._asdict()),
        "digests": known,
    }


def is_in_regions(state: Any) -> bool:
    """Whether a stored posterior is one in regions."""
    return isinstance(state, dict) and state.get("class") == RegionPosterior.__name__


def regions_from_state(state: dict[str, Any], path: Path, kernel: Kernel | None) -> Posterior:
    """The posterior of ``save_regions``; this process opens the files of its regions when it first needs them."""
    regions, digests = Regions(**state["regions"]), list(state["digests"])
    count, d = regions.lower.shape
    if not _are_boxes(regions, count, d) or len(digests) != count or not all(isinstance(text, str) for text in digests):
        raise ValueError(f"it does not have {count} regions with a file each as cagp stores them")
    for region in range(count):
        if not region_path(path, region, count).exists():
            raise FileNotFoundError(
                f"{region_path(path, region, count)} does not exist, where {path} keeps a region; put it there, or "
                "save the model again."
            )

    def open_region(region: int) -> LocalPosterior:
        own = region_path(path, region, count)
        stored = load_state(own, REGION_KIND, REGION_VERSION, mapped=True)
        if stored_digest(own) != digests[region]:
            raise ValueError(f"{own} is of another model than {path}; put the right file there, or save again.")
        found = posterior_from_state(stored["posterior"], kernel)
        if not isinstance(found, LocalPosterior):
            raise ValueError(f"{own} holds a {type(found).__name__}, expected the nearest rows of a region.")
        check_columns(found, d)
        check_sizes(found)
        return found

    prior = GP.from_state(state["prior"], kernel)
    like = torch.empty(0, d, dtype=DTYPES[state["dtype"]])
    options = (like, checked_scale(state["local_scale"]), open_region, int(state["max_bytes"]))
    return RegionPosterior(prior, regions, Ranks.here(), *options)


def _are_boxes(regions: Regions, count: int, num_inputs: int) -> bool:
    """Whether lower and upper ends of the regions, and the unit of distances, are what they should be."""
    lower, upper, unit = regions
    shapes = [tuple(values.shape) for values in regions]
    return (
        shapes == [(count, num_inputs), (count, num_inputs), (num_inputs,)]
        and all(values.is_floating_point() for values in regions)
        and bool((lower <= upper).all())
        and bool(((unit > 0) & unit.isfinite()).all())
    )
