"""The suites of ``cagp bench run``, as data: tables, methods, seeds, budgets and learning rates. Imports no torch.

An entry is a line of the resulting table. Its ``sweep`` holds settings that are tried one after the other; which of
them a table shows is decided by validation rows (and, in a column of its own, by test rows as in the paper).
"""

import itertools
import json
from pathlib import Path
from typing import Any, Literal, NamedTuple

from cagp_bench.choices import CONTENDERS
from cagp_bench.gp_settings import gp_settings

Protocol = Literal["gp", "table"]


KEY = ("table", "protocol", "method", "seed", "rows", "settings")
"""What two records of the same run have in common."""


class Entry(NamedTuple):
    """A method with its settings: a line of a table."""

    label: str
    method: str  # of ``GP_METHODS`` or, for the protocol "table", of ``CONTENDERS``
    settings: dict[str, Any] = {}
    sweep: dict[str, list[Any]] = {}
    protocol: Protocol = "gp"
    max_rows: int | None = None  # it is not run on tables with more training rows: their cells are missing
    quick: dict[str, Any] = {}  # other settings for ``--quick``
    quick_rows: int | None = None  # ``max_rows`` for ``--quick``, if smaller


class Suite(NamedTuple):
    """What is measured, and how long and how large a run may get."""

    name: str
    words: str
    tables: list[str]  # "dataset:bike", "folder:wind_farm" (a file in the data folder), "sample:terrain", or a path
    entries: list[Entry]
    seeds: list[int] = [0]
    floors: list[float | None] = [None]  # noise floors that every entry of the protocol "gp" is run with
    rows: int | dict[str, int] | None = None  # random rows of each table, or by table; of the others all
    max_time: str = "1h"
    max_memory: str = "8GB"


class Task(NamedTuple):
    """One run."""

    table: str
    label: str
    protocol: Protocol
    method: str
    seed: int
    rows: int | None
    settings: dict[str, Any]
    max_rows: int | None


def tasks_of(suite: Suite, quick: bool = False, changes: dict[str, Any] | None = None) -> list[Task]:
    """Every run of a suite, table by table.

    Args:
        quick: shorter runs with the first learning rate and the first noise floor.
        changes: settings that replace those of all entries of the protocol "gp"; ``fit_time`` also that of others.
    """
    return [
        Task(table, entry.label, entry.protocol, entry.method, seed, rows, settings, _limit(entry, quick))
        for table in suite.tables
        for rows in [_rows(suite, table)]
        for seed in suite.seeds
        for entry in suite.entries
        for settings in _settings(entry, suite.floors, quick, changes or {})
    ]


def _rows(suite: Suite, table: str) -> int | None:
    return suite.rows.get(table) if isinstance(suite.rows, dict) else suite.rows


def _limit(entry: Entry, quick: bool) -> int | None:
    limits = [rows for rows in (entry.max_rows, entry.quick_rows if quick else None) if rows is not None]
    return min(limits) if limits else None


def _settings(entry: Entry, floors: list[float | None], quick: bool, changes: dict[str, Any]) -> list[dict[str, Any]]:
    """All settings of an entry: those of the protocol "gp" with every default, so that a record is complete."""
    sweep = {key: values for key, values in entry.sweep.items() if key not in changes}
    fixed = {**entry.settings}
    if quick:
        fixed |= {**{key: values[0] for key, values in sweep.items()}, **entry.quick}
        sweep = {}
    if entry.protocol == "table":
        limit = {"fit_time": changes["fit_time"]} if "fit_time" in changes else {}
        return [fixed | limit if CONTENDERS[entry.method].takes_limit else fixed]
    found = []
    if quick:
        floors = floors[:1]
    for floor in floors if "noise_floor" not in changes else [None]:
        for values in itertools.product(*sweep.values()):
            given = {**fixed, **({} if floor is None else {"noise_floor": floor})}
            found.append(gp_settings({**given, **dict(zip(sweep, values, strict=True)), **changes})._asdict())
    return [given for number, given in enumerate(found) if given not in found[:number]]


def suite_from_file(path: Path) -> Suite:
    """A suite of your own from a JSON file with the fields of ``Suite``; ValueError says what is wrong with it."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        entries = [Entry(**entry) for entry in values.pop("entries")]
        suite = Suite(**{"name": path.stem, "words": "", **values, "entries": entries})
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(
            f"{path} is not a suite: {error}. Expected JSON with tables, and entries of a label and a method; see "
            "bench/docs/suites.md."
        ) from error
    tasks_of(suite)  # an unknown setting is an error now
    return suite


# ---- the paper's Table 1 ----

RATES = [1.0, 0.1, 0.01, 0.001, 0.0001]
"""The learning rates that the paper's Table S1 sweeps; CaGP-Opt has the first three, CaGP-CG the first two."""

ADAM = {"optimizer": "adam", "epochs": 1000}
LBFGS = {"optimizer": "lbfgs", "epochs": 100, "double": True}
INDUCING = {"budget": 1024, "inducing": "random"}
OURS = {"start": "neighbours", "blocks": "spatial", "patience": 4, "evaluations": 15}
NEAREST = {"start": "data", "double": True, "epochs": 300, "validation": False}

TABLE1 = [
    Entry(
        "CholeskyGP, L-BFGS",
        "exact",
        LBFGS,
        {"lr": [0.1, 1.0, 0.01, 0.001, 0.0001]},
        max_rows=16_000,
        quick={"epochs": 3, "fit_time": "90s", "evaluations": 3},
        quick_rows=6_000,
    ),
    Entry(
        "SGPR, Adam",
        "sgpr",
        {**ADAM, **INDUCING},
        {"lr": [0.1, 1.0, 0.01, 0.001, 0.0001]},
        quick={"epochs": 100, "fit_time": "60s", "evaluations": 10},
    ),
    Entry(
        "SGPR, L-BFGS",
        "sgpr",
        {**LBFGS, **INDUCING},
        {"lr": RATES},
        quick={"epochs": 5, "fit_time": "60s", "evaluations": 5},
    ),
    Entry(
        "SVGP, Adam",
        "svgp",
        {**ADAM, **INDUCING},
        {"lr": [0.1, 0.01, 1.0, 0.001, 0.0001]},
        quick={"epochs": 60, "fit_time": "60s", "evaluations": 10},
    ),
    Entry(
        "CGGP, L-BFGS",
        "cggp",
        LBFGS,
        {"lr": [0.1, 1.0, 0.01, 0.001, 0.0001]},
        max_rows=60_000,
        quick={"epochs": 2, "fit_time": "60s", "evaluations": 1},
        quick_rows=6_000,
    ),
    Entry(
        "CaGP-CG, Adam",
        "cg",
        {**ADAM, "epochs": 250},
        {"lr": [1.0, 0.1]},
        max_rows=60_000,
        quick={"epochs": 25, "fit_time": "60s", "evaluations": 5},
        quick_rows=6_000,
    ),
    Entry(
        "CaGP-Opt, Adam",
        "opt",
        ADAM,
        {"lr": [1.0, 0.1, 0.01]},
        quick={"epochs": 100, "fit_time": "60s", "evaluations": 10},
    ),
    Entry(
        "CaGP-Opt, L-BFGS",
        "opt",
        LBFGS,
        {"lr": [1.0, 0.1, 0.01]},
        quick={"epochs": 10, "fit_time": "60s", "evaluations": 10},
    ),
    Entry(
        "CaGP-Opt, our blocks",
        "opt",
        {**ADAM, "blocks": "spatial", "start": "data", "epochs": 300},
        quick={"epochs": 100, "fit_time": "60s", "evaluations": 10},
    ),
    Entry(
        "CaGP-Opt, our blocks and start",
        "opt",
        {**ADAM, **OURS, "epochs": 300},
        quick={"epochs": 60, "fit_time": "60s", "evaluations": 6},
    ),
    Entry(
        "CaGP-Opt, our blocks, start and noise",
        "opt",
        {**ADAM, **OURS, "epochs": 300, "calibrate": True},
        quick={"epochs": 60, "fit_time": "60s", "evaluations": 6},
    ),
    Entry("CaGP-Local", "local", NEAREST, quick={"epochs": 150}),
    Entry("CaGP-Local, local scale", "local-scale", NEAREST, quick={"epochs": 150}),
    Entry("hybrid", "hybrid", NEAREST, quick={"epochs": 150}),
]

PEERS = [
    Entry(label, method, protocol="table", max_rows=most)
    for label, method, most in (
        ("CaGPRegressor()", "default", None),
        ("CaGP-Local", "local", None),
        ("CaGP-Opt", "opt", None),
        ("SVGP of this package", "svgp-512", None),
        ("GPyTorch, exact", "gpytorch-exact", 6_000),
        ("GPyTorch, SGPR", "gpytorch-sgpr", 100_000),
        ("GPyTorch, SVGP", "gpytorch-svgp", None),
        ("scikit-learn, exact", "sklearn-gp", 3_000),
        ("GPBoost, Vecchia", "gpboost", None),
        ("LightGBM", "lightgbm", None),
        ("CatBoost", "catboost", None),
        ("histogram boosting", "hist", None),
        ("histogram boosting, quantiles", "hist-quantiles", None),
    )
]


def with_limit(entry: Entry, fit_time: str) -> Entry:
    """The entry with a limit of time for its fit, if it can be told one."""
    able = CONTENDERS[entry.method].takes_limit
    return entry._replace(settings={**entry.settings, "fit_time": fit_time}) if able else entry


_SAME = {"budget": 64, "start": "neighbours", "blocks": "spatial", "inducing": "greedy", "epochs": 60, "evaluations": 6}
_SAME |= {"fit_time": "20s"}
_ORDERED = {**_SAME, "blocks": "ordered"}
ACTIONS = [
    Entry("CaGP-Opt", "blocks-constant", _SAME),
    Entry("CaGP-Opt, leave-one-out loss", "blocks-loo", _SAME),
    Entry("CaGP-Opt, calibrated noise", "blocks-constant", {**_SAME, "calibrate": True}),
    Entry("CaGP-Opt, leave-one-out loss, calibrated noise", "blocks-loo", {**_SAME, "calibrate": True}),
    Entry("constant block actions", "blocks-fixed", _SAME),
    Entry("constant block actions, leave-one-out loss", "blocks-fixed-loo", _SAME),
    Entry("CaGP-Opt, the paper's blocks and weights", "blocks-random", _ORDERED),
    Entry("SGPR", "sgpr-noise", _SAME),
    Entry("pseudo-inputs", "pseudo-inputs", _SAME),
    Entry("pseudo-inputs, leave-one-out loss", "pseudo-inputs-loo", _SAME),
    Entry("CaGP-CG", "policy-lanczos", _SAME),
    Entry("CaGP-CG, gradients through the actions", "krylov", _SAME),
    Entry("half Lanczos, half pivoted rows", "policy-mix", _SAME),
    Entry("pivoted rows", "policy-pivoted", _SAME),
]

_TINY = {"budget": 32, "evaluations": 3}
SMOKE = [
    Entry("CholeskyGP, L-BFGS", "exact", {**LBFGS, "epochs": 2, **_TINY}),
    Entry("SVGP, Adam", "svgp", {"epochs": 20, "lr": 0.1, **_TINY}),
    Entry("CaGP-Opt, Adam", "opt", {"epochs": 20, **_TINY}, {"lr": [1.0, 0.1]}),
    Entry("CaGP-Local", "local", {**NEAREST, "epochs": 20}),
    Entry("scikit-learn, exact", "sklearn-gp", protocol="table"),
]

FOUR = ["dataset:parkinsons", "dataset:bike", "dataset:protein", "dataset:keggu"]
LARGE = {"folder:wind_farm": 100_000, "folder:ocean_atlas": 200_000, "folder:dem_trinidad": 100_000}
"""Large tables in the data folder, and how many of their rows are used where every method has a minute."""

SUITES = {
    suite.name: suite
    for suite in (
        Suite("smoke", "every part of a suite on 400 rows, in less than a minute", ["sample:terrain"], SMOKE, rows=400),
        Suite(
            "table1",
            "the paper's Table 1: its methods and ours, its learning rates, two noise floors",
            [*FOUR, "dataset:road", "dataset:power"],
            TABLE1,
            [0, 1, 2, 3, 4],
            [1e-4, 1e-6],
            max_time="12h",
        ),
        Suite(
            "peers",
            "our regressors beside other packages on the four smaller tables and three large ones",
            [*FOUR, *LARGE],
            PEERS,
            max_time="2h",
        ),
        Suite(
            "equal-time",
            "the same with a minute for each fit, and at most 200,000 rows",
            [*FOUR, *LARGE],
            [with_limit(entry, "1min") for entry in PEERS],
            rows=LARGE,
            max_time="15min",
        ),
        Suite(
            "opt",
            "CaGP-Opt by the paper's protocol, with our start and blocks",
            FOUR,
            [
                Entry("CaGP-Opt", "opt", {**OURS, "calibrate": True}),
                Entry("CaGP-Opt, leave-one-out loss", "blocks-loo", {**OURS, "calibrate": True}),
                Entry("CaGP-Opt, start from the data", "opt", {**OURS, "start": "data", "calibrate": True}),
                Entry("CaGP-Opt, the paper's start and blocks", "opt", {"patience": 4, "evaluations": 15}),
            ],
        ),
        Suite(
            "actions",
            "kinds of shared actions and losses at equal rank, with equal limits of training time",
            FOUR,
            ACTIONS,
            rows=4_000,
            max_time="3min",
        ),
        Suite(
            "n-actions",
            "how many actions a table needs: CaGP-Opt with 32 to 512, by our protocol",
            ["dataset:bike"],
            [Entry(f"{n} actions", "opt", {**OURS, "budget": n, "calibrate": True}) for n in (32, 64, 128, 256, 512)],
            rows=4_000,
        ),
        Suite(
            "local",
            "CaGP-Local with fixed settings, with a local scale, and beside shared actions",
            FOUR,
            [
                Entry("CaGP-Local", "local", {**NEAREST, "noise_floor": 1e-9}),
                Entry("CaGP-Local, local scale", "local-scale", {**NEAREST, "noise_floor": 1e-9}),
                Entry("hybrid", "hybrid", {**NEAREST, "noise_floor": 1e-9}),
                Entry("GPBoost, Vecchia", "gpboost", protocol="table"),
            ],
        ),
    )
}
"""What ``cagp bench run`` knows by name."""


class Published(NamedTuple):
    """A line of the paper's Table 1: means over five seeds at the epoch with the lowest mean test NLL."""

    nll: float
    rmse: float
    lr: float
    epoch: int


PUBLISHED = {
    "parkinsons": {
        "CholeskyGP, L-BFGS": Published(-3.645, 0.001, 0.1, 100),
        "SGPR, Adam": Published(-2.837, 0.031, 0.1, 268),
        "SGPR, L-BFGS": Published(-3.245, 0.007, 1.0, 100),
        "SVGP, Adam": Published(-2.858, 0.006, 0.1, 1000),
        "CGGP, L-BFGS": Published(-2.663, 0.019, 0.1, 81),
        "CaGP-CG, Adam": Published(-2.936, 0.009, 1.0, 250),
        "CaGP-Opt, Adam": Published(-3.384, 0.004, 1.0, 956),
        "CaGP-Opt, L-BFGS": Published(-3.449, 0.002, 0.01, 37),
    },
    "bike": {
        "CholeskyGP, L-BFGS": Published(-3.472, 0.006, 0.1, 100),
        "SGPR, Adam": Published(-2.121, 0.026, 0.1, 948),
        "SGPR, L-BFGS": Published(-3.017, 0.009, 1.0, 100),
        "SVGP, Adam": Published(-2.256, 0.020, 0.01, 1000),
        "CGGP, L-BFGS": Published(-1.952, 0.024, 1.0, 15),
        "CaGP-CG, Adam": Published(-2.042, 0.024, 1.0, 250),
        "CaGP-Opt, Adam": Published(-2.401, 0.018, 1.0, 1000),
        "CaGP-Opt, L-BFGS": Published(-2.438, 0.017, 1.0, 100),
    },
    "protein": {
        "SGPR, Adam": Published(0.844, 0.561, 0.1, 993),
        "SGPR, L-BFGS": Published(0.846, 0.562, 0.1, 96),
        "SVGP, Adam": Published(0.851, 0.564, 0.01, 996),
        "CGGP, L-BFGS": Published(0.853, 0.517, 0.1, 35),
        "CaGP-CG, Adam": Published(0.820, 0.542, 1.0, 27),
        "CaGP-Opt, Adam": Published(0.829, 0.545, 0.1, 941),
        "CaGP-Opt, L-BFGS": Published(0.830, 0.545, 1.0, 84),
    },
    "keggu": {
        "SGPR, Adam": Published(-0.681, 0.123, 0.1, 143),
        "SGPR, L-BFGS": Published(-0.712, 0.118, 1.0, 100),
        "SVGP, Adam": Published(-0.710, 0.118, 0.01, 988),
        "CGGP, L-BFGS": Published(-0.512, 0.120, 0.1, 30),
        "CaGP-CG, Adam": Published(-0.699, 0.120, 1.0, 229),
        "CaGP-Opt, Adam": Published(-0.693, 0.120, 1.0, 990),
        "CaGP-Opt, L-BFGS": Published(-0.694, 0.120, 0.01, 40),
    },
    "road": {
        "SVGP, Adam": Published(0.149, 0.277, 0.001, 998),
        "CaGP-Opt, Adam": Published(-0.291, 0.159, 0.1, 1000),
    },
    "power": {
        "SVGP, Adam": Published(-2.104, 0.029, 0.01, 399),
        "CaGP-Opt, Adam": Published(-2.103, 0.030, 0.1, 200),
    },
}
"""What the paper reports, by table and label."""
