"""The six tables of the paper's experiments, by name: ``fetch("bike")``.

Columns, transformations and rows are those of the paper: 90/10 splits and standard units come later, by the training
rows. A table is found in a folder of yours, in the cache, or at the UCI archive, in this order.
"""

import io
import os
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
import pandas as pd
import torch

from cagp.data import Dataset
from cagp.files import replacing
from cagp_bench.data.downloads import DownloadError, check_digest, digest_of, download

DATA_VARIABLE, CACHE_VARIABLE = "CAGP_DATA", "CAGP_CACHE"
UCI = "https://archive.ics.uci.edu"
POWER_START = pd.Timestamp("2006-12-16T17:24")
VOICE = [
    "Jitter(%)",
    "Jitter(Abs)",
    "Jitter:RAP",
    "Jitter:PPQ5",
    "Jitter:DDP",
    "Shimmer",
    "Shimmer(dB)",
    "Shimmer:APQ3",
    "Shimmer:APQ5",
    "Shimmer:APQ11",
    "Shimmer:DDA",
    "NHR",
    "HNR",
    "RPDE",
    "DFA",
    "PPE",
]
HOURLY = [
    "instant",
    "dteday",
    "season",
    "yr",
    "mnth",
    "hr",
    "holiday",
    "weekday",
    "workingday",
    "weathersit",
    "temp",
    "atemp",
    "hum",
    "windspeed",
    "casual",
    "registered",
]
METERS = ["Global_reactive_power", "Voltage", "Global_intensity", "Sub_metering_1", "Sub_metering_2", "Sub_metering_3"]
KEGG_COLUMNS, KEGG_CONSTANT, KEGG_SHARE, KEGG_GAPS = 28, 10, 21, 4


class Columns(NamedTuple):
    """Inputs and targets as the paper's loaders give them, float64."""

    X: np.ndarray
    y: np.ndarray


@final
class PaperTable(NamedTuple):
    """Where a table comes from and how its raw file becomes inputs and targets."""

    name: str
    words: str  # its columns and its target
    num_rows: int
    names: tuple[str, ...]  # of the columns of X, then of y
    raw_file: str  # as the UCI archive calls it
    addresses: tuple[str, ...]
    read: Callable[[Any], Columns]  # from an open raw file
    uci_id: int
    sha256: str | None = None  # of the raw file; None where no digest was published

    @property
    def num_dims(self) -> int:
        return len(self.names) - 1


# ---- raw files ----


def read_parkinsons(file: Any) -> Columns:
    """All columns but total_UPDRS, which is the target."""
    frame = pd.read_csv(file)
    return _columns(frame, PAPER_TABLES["parkinsons"].names, "parkinsons_updrs.data")


def read_bike(file: Any) -> Columns:
    """All columns but cnt; the date in days since the first one; the target is log(cnt)."""
    frame = pd.read_csv(file)
    if "dteday" in frame:
        days = pd.to_datetime(frame["dteday"], format="%Y-%m-%d")
        frame["dteday"] = (days - pd.Timestamp("2011-01-01")) / pd.Timedelta(days=1)
    found = _columns(frame, (*HOURLY, "cnt"), "hour.csv")
    return found._replace(y=np.log(found.y))


def read_protein(file: Any) -> Columns:
    """F1 to F9; the target is log(1 + RMSD)."""
    frame = pd.read_csv(file)
    found = _columns(frame, (*(f"F{j}" for j in range(1, 10)), "RMSD"), "CASP.csv")
    return found._replace(y=np.log1p(found.y))


def read_keggu(file: Any) -> Columns:
    """27 of 28 numbers, without the constant 10th; the target is the logarithm of the last.

    Networks with a missing value, and those whose 21st number, a share, exceeds 1, are left out with all their rows.
    """
    frame = pd.read_csv(file, header=None, na_values="?")
    _check_width(frame, 1 + KEGG_COLUMNS, "Reaction Network (Undirected).data")
    numbers = frame.iloc[:, 1:].set_axis(range(1, KEGG_COLUMNS + 1), axis=1).astype(np.float64)
    left_out = frame.loc[numbers[KEGG_GAPS].isna() | (numbers[KEGG_SHARE] > 1), 0]
    numbers = numbers.loc[~frame[0].isin(left_out)].drop(columns=KEGG_CONSTANT)
    values = numbers.to_numpy()
    return Columns(values[:, :-1], np.log(values[:, -1]))


def read_road(file: Any) -> Columns:
    """Longitude and latitude; the target is the altitude. The number of the road is not an input."""
    frame = pd.read_csv(file, header=None)
    _check_width(frame, 4, "3D_spatial_network.txt")
    values = frame.to_numpy(np.float64)
    return Columns(values[:, 1:3], values[:, 3])


def read_power(file: Any) -> Columns:
    """Six readings and the days since the first row; the target is the global active power. Rows with gaps go out."""
    frame = pd.read_csv(file, sep=";", na_values="?", low_memory=False).dropna()
    if "Date" in frame and "Time" in frame:
        times = pd.to_datetime(frame["Date"] + " " + frame["Time"], format="%d/%m/%Y %H:%M:%S")
        frame["days"] = (times - POWER_START) / pd.Timedelta(days=1)
    return _columns(frame, (*METERS, "days", "Global_active_power"), "household_power_consumption.txt")


def _columns(frame: pd.DataFrame, names: tuple[str, ...], file: str) -> Columns:
    """Columns by name; the last one is the target."""
    absent = [name for name in names if name not in frame.columns]
    if absent:
        raise ValueError(
            f"{file} lacks the columns {', '.join(absent)}; it has {', '.join(map(str, frame.columns))}. Expected the "
            "file of the UCI archive as it is."
        )
    values = frame.loc[:, list(names)].to_numpy(np.float64)
    return Columns(values[:, :-1], values[:, -1])


def _check_width(frame: pd.DataFrame, expected: int, file: str) -> None:
    if frame.shape[1] != expected:
        raise ValueError(
            f"{file} has {frame.shape[1]} columns, expected {expected}: the file of the UCI archive as it is."
        )


PAPER_TABLES = {
    table.name: table
    for table in (
        PaperTable(
            "parkinsons",
            "a clinical score (total UPDRS) from voice measurements",
            5_875,
            ("subject#", "age", "sex", "test_time", "motor_UPDRS", *VOICE, "total_UPDRS"),
            "parkinsons_updrs.data",
            (
                f"{UCI}/static/public/189/parkinsons+telemonitoring.zip",
                f"{UCI}/ml/machine-learning-databases/parkinsons/telemonitoring/parkinsons_updrs.data",
            ),
            read_parkinsons,
            189,
        ),
        PaperTable(
            "bike",
            "the logarithm of the bicycles rented in an hour; two of the inputs add up to them",
            17_379,
            (*HOURLY, "log(cnt)"),
            "hour.csv",
            (
                f"{UCI}/static/public/275/bike+sharing+dataset.zip",
                f"{UCI}/ml/machine-learning-databases/00275/Bike-Sharing-Dataset.zip",
            ),
            read_bike,
            275,
        ),
        PaperTable(
            "protein",
            "log(1 + RMSD) of protein structures",
            45_730,
            (*(f"F{j}" for j in range(1, 10)), "log(1 + RMSD)"),
            "CASP.csv",
            (
                f"{UCI}/static/public/265/physicochemical+properties+of+protein+tertiary+structure.zip",
                f"{UCI}/ml/machine-learning-databases/00265/CASP.csv",
            ),
            read_protein,
            265,
        ),
        PaperTable(
            "keggu",
            "the logarithm of a feature of metabolic networks; 71 % of the rows are copies of others",
            63_608,
            (*(f"raw{j}" for j in range(1, KEGG_COLUMNS) if j != KEGG_CONSTANT), "log(raw28)"),
            "Reaction Network (Undirected).data",
            (
                f"{UCI}/static/public/221/kegg+metabolic+reaction+network+undirected.zip",
                f"{UCI}/ml/machine-learning-databases/00221/Reaction%20Network%20(Undirected).data",
            ),
            read_keggu,
            221,
        ),
        PaperTable(
            "road",
            "altitude by longitude and latitude along the roads of North Jutland",
            434_874,
            ("longitude", "latitude", "altitude"),
            "3D_spatial_network.txt",
            (
                f"{UCI}/static/public/246/3d+road+network+north+jutland+denmark.zip",
                f"{UCI}/ml/machine-learning-databases/00246/3D_spatial_network.txt",
            ),
            read_road,
            246,
        ),
        PaperTable(
            "power",
            "a household's active power each minute, from six other readings and the time",
            2_049_280,
            (*METERS, "days", "Global_active_power"),
            "household_power_consumption.txt",
            (
                f"{UCI}/static/public/235/individual+household+electric+power+consumption.zip",
                f"{UCI}/ml/machine-learning-databases/00235/household_power_consumption.zip",
            ),
            read_power,
            235,
        ),
    )
}
"""The tables of the paper's Table 1."""


# ---- where they are ----


def cache_folder() -> Path:
    """Where downloads and prepared tables are kept: CAGP_CACHE, or ``cagp`` in the user's folder for caches."""
    if os.environ.get(CACHE_VARIABLE):
        return Path(os.environ[CACHE_VARIABLE])
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local")) / "cagp"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "cagp"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cagp"


def paper_table(name: str) -> PaperTable:
    """The table of this name; ValueError lists the names that there are."""
    if name not in PAPER_TABLES:
        raise ValueError(f"the data set is {name!r}, expected one of {', '.join(PAPER_TABLES)}.")
    return PAPER_TABLES[name]


def fetch(
    name: str,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    allow_download: bool = True,
    progress: bool = True,
) -> Dataset:
    """Inputs and targets of a table of the paper, float64: "parkinsons", "bike", "protein", "keggu", "road", "power".

    Args:
        data_dir: a folder with your own copy, by default that of the variable CAGP_DATA: ``NAME.npz`` with arrays X
            and y, or the raw file of the UCI archive, as it is or in a ZIP file.
        cache_dir: where downloads are kept; by default CAGP_CACHE, or the user's folder for caches.
        allow_download: False: raise FileNotFoundError instead of asking the UCI archive.
        progress: show a download on the standard error.
    """
    table = paper_table(name)
    source = find_source(table, data_dir, cache_dir, allow_download=allow_download, progress=progress)
    columns = _read(table, source)
    return Dataset(torch.from_numpy(columns.X), torch.from_numpy(columns.y), table.names)


def prepared_file(
    name: str,
    data_dir: str | os.PathLike[str] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    *,
    allow_download: bool = True,
    progress: bool = True,
) -> Path:
    """An NPZ file with the table, its columns named, and the target called y: what commands read for ``dataset:NAME``.

    It is in the cache, under the digest of the file that it was made from.
    """
    table = paper_table(name)
    source = find_source(table, data_dir, cache_dir, allow_download=allow_download, progress=progress)
    folder = _cache(cache_dir) / "prepared" / digest_of(source)[:16]
    path = folder / f"{name}.npz"
    if not path.is_file():
        columns = _read(table, source)
        folder.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            np.savez(file, X=columns.X, y=columns.y, names=np.array(table.names[:-1]))
    return path


def find_source(
    table: PaperTable,
    data_dir: str | os.PathLike[str] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    *,
    allow_download: bool = True,
    progress: bool = True,
) -> Path:
    """The file that a table is read from, downloaded if it is nowhere on this machine."""
    given = os.environ.get(DATA_VARIABLE) if data_dir is None else data_dir
    if data_dir is not None and not Path(data_dir).is_dir():
        raise FileNotFoundError(f"data_dir is {os.fspath(data_dir)}, which is not a folder.")
    downloads = _cache(cache_dir) / "downloads"
    for folder in [Path(given), downloads] if given else [downloads]:
        for name in _file_names(table):
            if (folder / name).is_file():
                check_digest(folder / name, table.sha256 if name == table.raw_file else None)
                return folder / name
    nowhere = _nowhere(table, given, downloads)
    if not allow_download:
        raise FileNotFoundError(f"{nowhere}.")
    downloads.mkdir(parents=True, exist_ok=True)
    failures = []
    for address in table.addresses:
        path = downloads / _cached_name(table, address)
        try:
            known = table.sha256 if path.name == table.raw_file else None
            download([address], path, sha256=known, progress=progress)
            return path
        except DownloadError as error:
            failures.append(str(error))
    raise FileNotFoundError(f"{nowhere}; the download failed: {'; '.join(failures)}.")


def _cache(cache_dir: str | os.PathLike[str] | None) -> Path:
    return cache_folder() if cache_dir is None else Path(cache_dir)


def _cached_name(table: PaperTable, address: str) -> str:
    return f"{table.name}.zip" if address.endswith(".zip") else table.raw_file


def _file_names(table: PaperTable) -> Iterator[str]:
    """The names that a copy of a table can have."""
    yield f"{table.name}.npz"
    yield table.raw_file
    yield f"{table.name}.zip"
    for address in table.addresses:
        if address.endswith(".zip"):
            yield address.rsplit("/", 1)[1]


def _nowhere(table: PaperTable, given: str | os.PathLike[str] | None, downloads: Path) -> str:
    looked = f"{os.fspath(given)} and {downloads}" if given else str(downloads)
    return (
        f"the data set {table.name} is not on this machine (looked in {looked}). Put {table.raw_file}, or the ZIP file "
        f"with it, from {UCI}/dataset/{table.uci_id} into a folder, and name the folder with data_dir (--data-dir) or "
        f"{DATA_VARIABLE}"
    )


# ---- reading ----


def _read(table: PaperTable, source: Path) -> Columns:
    """The columns of a source, of the size that the table has."""
    columns = _npz(source) if source.suffix == ".npz" else _raw(table, source)
    n, d = columns.X.shape
    if (n, d, len(columns.y)) != (table.num_rows, table.num_dims, table.num_rows):
        raise ValueError(
            f"{source} gives {n:,} rows of {d} inputs and {len(columns.y):,} targets for the data set {table.name}, "
            f"expected {table.num_rows:,} rows of {table.num_dims} inputs."
        )
    if not (np.isfinite(columns.X).all() and np.isfinite(columns.y).all()):
        raise ValueError(f"{source} has values that are missing or not finite; expected none in {table.name}.")
    return columns


def _npz(source: Path) -> Columns:
    try:
        with np.load(source, allow_pickle=False) as file:
            return Columns(file["X"].astype(np.float64), file["y"].astype(np.float64))
    except (KeyError, ValueError, zipfile.BadZipFile, EOFError) as error:
        raise ValueError(f"{source} cannot be read as an NPZ file with arrays X and y: {error}") from error


def _raw(table: PaperTable, source: Path) -> Columns:
    with _opened(table, source) as file:
        return table.read(file)


@contextmanager
def _opened(table: PaperTable, source: Path) -> Iterator[Any]:
    """The raw file, also from inside a ZIP file."""
    if source.suffix != ".zip":
        with source.open("rb") as file:
            yield file
        return
    try:
        with zipfile.ZipFile(source) as archive:
            inside = [name for name in archive.namelist() if name.rsplit("/", 1)[-1] == table.raw_file]
            if not inside:
                listed = ", ".join(archive.namelist())
                raise ValueError(f"{source} has no {table.raw_file}; it has {listed or 'no files'}.")
            content = io.BytesIO(archive.read(inside[0]))
    except zipfile.BadZipFile as error:
        raise ValueError(f"{source} is not a ZIP file ({error}); remove it to download it again.") from error
    yield content
