"""How large the code is, and how much of it one fit passes: lines, files, functions, scans of the data.

    .venv/bin/python tools/house.py

It measures the ``cagp`` that its interpreter imports, so that two versions can be compared.
"""

import ast
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import cagp
from cagp import CaGPRegressor

PACKAGE = Path(cagp.__file__).parent
SCANS = [(np, "isfinite"), (np, "isnan"), (torch, "isfinite"), (torch, "isnan"), (torch.Tensor, "isfinite")]
SCANS += [(torch.Tensor, "isnan"), (torch.Tensor, "__contains__")]


def functions_of(path: Path) -> Iterator[tuple[int, str]]:
    """The length and the name of every function of a file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef):
            yield (node.end_lineno or node.lineno) - node.lineno + 1, f"{path.name}:{node.name}"


def sizes(folder: Path) -> None:
    """Print the lines of a package, and its longest file and function."""
    files = sorted(folder.rglob("*.py"))
    lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in files}
    longest = max(files, key=lambda path: lines[path])
    length, name = max(function for path in files for function in functions_of(path))
    print(f"{folder.name}: {sum(lines.values()):,} lines of Python in {len(files)} files;", end=" ")
    print(f"longest file {longest.name} ({lines[longest]}), longest function {name} ({length})")


def passed_by(run: Callable[[], Any]) -> str:
    """How many files and functions of the package a call passes. Imports at the top of a module are not counted."""
    codes = set()

    def note(frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(str(PACKAGE)):
            codes.add((frame.f_code.co_filename, frame.f_code.co_qualname, frame.f_code.co_firstlineno))

    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
    names = {code for code in codes if code[1] != "<module>" and not code[1].endswith(("<genexpr>", "comp>"))}
    return f"{len({code[0] for code in names})} files, {len(names)} functions"


def scans_by(run: Callable[[], Any], X: np.ndarray) -> tuple[int, Counter[str]]:
    """How often a call looks for missing or infinite values in a matrix as wide as ``X``, and from where.

    Parts of ``X`` count from a tenth of its rows on.
    """
    callers: Counter[str] = Counter()

    def counting(function: Callable[..., Any]) -> Callable[..., Any]:
        def scan(values: Any, *arguments: Any, **options: Any) -> Any:
            shape = tuple(np.shape(values))
            if len(shape) == 2 and shape[1] == X.shape[1] and shape[0] >= len(X) / 10:
                frame = sys._getframe(1)
                while frame.f_back is not None and not frame.f_code.co_filename.startswith(str(PACKAGE)):
                    frame = frame.f_back
                callers[f"{Path(frame.f_code.co_filename).name}:{frame.f_code.co_name}"] += 1
            return function(values, *arguments, **options)

        return scan

    before = [(place, name, getattr(place, name)) for place, name in SCANS if hasattr(place, name)]
    for place, name, function in before:
        setattr(place, name, counting(function))
    try:
        run()
    finally:
        for place, name, function in before:
            setattr(place, name, function)
    return sum(callers.values()), callers


def table(num_rows: int) -> tuple[np.ndarray, np.ndarray]:
    """A smooth function of seven inputs with noise."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(num_rows, 7))
    return X, np.sin(2 * X[:, 0]) + X[:, 1] + 0.1 * rng.normal(size=num_rows)


def by_command_line(X: np.ndarray, y: np.ndarray) -> Callable[[], None]:
    """``cagp fit`` on a CSV file, in this process."""

    def run() -> None:
        from cagp.__main__ import main

        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "table.csv"
            names = ",".join([*(f"x{j}" for j in range(X.shape[1])), "y"])
            np.savetxt(path, np.column_stack([X, y]), delimiter=",", header=names, comments="")
            out = str(path.with_suffix(".cagp"))
            sys.argv = ["cagp", "fit", str(path), "--target", "y", "--out", out, "--quiet"]
            assert main() in (0, None)

    return run


def seconds_of(command: list[str], times: int = 7) -> float:
    """The median of the seconds that a command takes."""
    code = "import subprocess, sys, time\nt = time.perf_counter()\nsubprocess.run(sys.argv[1:], stdout=-3, check=True)"
    code += "\nprint(time.perf_counter() - t)"
    runs = [
        subprocess.run([sys.executable, "-c", code, *command], capture_output=True, text=True) for _ in range(times)
    ]
    return float(np.median([float(run.stdout) for run in runs]))


def main() -> None:
    """Print all figures."""
    sizes(PACKAGE)
    bench = PACKAGE.parent.parent / "bench" / "src" / "cagp_bench"
    if bench.is_dir():
        sizes(bench)
    print(f"{len(cagp.__all__)} names in cagp.__all__")
    X, y = table(2300)
    print(f"CaGPRegressor().fit on 2,300 rows passes {passed_by(lambda: CaGPRegressor().fit(X, y))}")
    print(f"cagp fit table.csv on 2,300 rows passes {passed_by(by_command_line(X, y))}")
    X, y = table(6000)
    count, callers = scans_by(lambda: CaGPRegressor().fit(X, y), X)
    print(f"X is scanned {count} times in CaGPRegressor().fit on 6,000 rows: {dict(callers)}")
    run = [sys.executable, "-m", "cagp", "--help"]
    print(f"cagp --help takes {seconds_of(run):.2f} s", end="; ")
    run = [sys.executable, "-c", "from cagp import CaGPRegressor"]
    print(f"from cagp import CaGPRegressor takes {seconds_of(run):.2f} s")


if __name__ == "__main__":
    main()
