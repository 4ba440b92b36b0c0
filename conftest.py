"""Shape annotations are checked, property tests are reproducible, and real data is found or its tests are skipped."""

import os
import signal
import warnings
from collections import defaultdict
from pathlib import Path

from jaxtyping import install_import_hook

install_import_hook(["cagp", "cagp_bench"], "beartype.beartype")  # before the first import of cagp, here or in a test

import jaxtyping  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402
import torch  # noqa: E402
from hypothesis import HealthCheck, settings  # noqa: E402

with warnings.catch_warnings():  # without compiled kernels the tests of them are skipped, and the others run
    warnings.filterwarnings("ignore", "cagp was installed without its compiled kernels", RuntimeWarning)
    import cagp  # noqa: F401
    from cagp.engine import INSTRUCTION_SETS, CompiledBackend

settings.register_profile(
    "cagp", deadline=None, derandomize=True, max_examples=40, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("cagp")

# Started in the background, a shell has its programs ignore Ctrl-C, and their children with them.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The workers share the cores: more threads would only wait. ThreadSanitizer needs some (CONTRIBUTING.md).
torch.set_num_threads(int(os.environ.get("CAGP_TEST_THREADS", "1")))


# Where an assertion of a module of helpers fails, the values are shown, as in a test.
pytest.register_assert_rewrite(
    "cli_problems", "engine_problems", "fit_problems", "inference_problems", "local_problems", "persistence_problems"
)


@pytest.hookimpl(tryfirst=True)  # before cases are chosen by their markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of a grid that is marked ``thinned(count)``, that many cases, evenly spaced, run always; the others are slow."""
    grids = defaultdict(list)
    for item in items:
        if item.get_closest_marker("thinned") is not None:
            grids[item.nodeid.split("[")[0]].append(item)
    for grid in grids.values():
        kept = set(np.linspace(0, len(grid) - 1, grid[0].get_closest_marker("thinned").args[0]).round().astype(int))
        for place in set(range(len(grid))) - kept:
            grid[place].add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def data_directory() -> Path:
    """Where the real data sets are: CAGP_DATA, or shared/data beside the repository."""
    default = Path(__file__).resolve().parents[1] / "shared" / "data"
    directory = Path(os.environ.get("CAGP_DATA", default))
    if not directory.is_dir():
        pytest.skip(f"no real data in {directory}; set CAGP_DATA to a directory of .npz files")
    return directory


@pytest.fixture(scope="session")
def real_data(data_directory):
    """A function of a name and a number of rows: standardised float64 inputs and targets, in a fixed random order."""

    def load(name: str, num_rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        path = data_directory / f"{name}.npz"
        if not path.is_file():
            pytest.skip(f"no {path.name} in {data_directory}")
        with np.load(path, allow_pickle=False) as file:
            X, y = file["X"].astype(np.float64), file["y"].astype(np.float64)
        rows = np.random.default_rng(0).permutation(len(y))[:num_rows]
        X, y = X[rows], y[rows]
        spread = X.std(0)
        X = (X - X.mean(0)) / np.where(spread > 0, spread, 1.0)
        return torch.from_numpy(X), torch.from_numpy((y - y.mean()) / y.std())

    return load


@pytest.fixture
def annotations_off():
    """Shape annotations unchecked, as users run: what a wrong argument then meets is the package's own validation."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(params=INSTRUCTION_SETS)
def instruction_set(request) -> CompiledBackend:
    """The compiled backend restricted to one instruction set."""
    return CompiledBackend(request.param)


@pytest.fixture
def global_generator_stays():
    """No test, and nothing that it calls, draws from the global generator."""
    state = torch.get_rng_state()
    yield
    assert torch.equal(state, torch.get_rng_state())


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> Path:
    """A table, and models of one target and of two, made by the command line."""
    from cli_problems import fit, houses

    folder = tmp_path_factory.mktemp("houses")
    houses().to_csv(folder / "houses.csv", index=False)
    houses(40, seed=1).to_csv(folder / "new.csv", index=False)
    fit(folder, "price.cagp", "--target", "price", "--drop", "id", "rent")
    fit(folder, "both.cagp", "--target", "price", "rent", "--drop", "id", "--method", "local", "--n-neighbors", "8")
    return folder
