"""Imports inside the package go downwards only, in the order of the house."""

import ast
from pathlib import Path

import pytest

import cagp

ORDER = [
    "checks",
    "notices",
    "memory",
    "progress",
    "storage",
    "parameters",
    "kernels",
    "engine",
    "linalg",
    "training",
    "prior",
    "system",
    "solver",
    "actions",
    "projection",
    "neighbours",
    "metrics",
    "local",
    "inducing",
    "losses",
    "posteriors",
    "iterative",
    "diagnostics",
    "methods",
    "testing",
    "noise_tuning",
    "starting",
    "data",
    "action_search",
    "plots",
    "persistence",
    "report",
    "estimators",
    "demo",
    "bench",
    "cli",
]
ROOT = Path(cagp.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))


def layer_of(path: Path) -> str:
    """The module or package directly below cagp that a file belongs to; "" for cagp/__init__.py."""
    first = path.relative_to(ROOT).parts[0]
    return "" if first == "__init__.py" else first.removesuffix(".py")


def imported_layers(path: Path) -> set[str]:
    """The layers a file imports, anywhere in it; "" stands for the package itself, that is for all it exports."""
    package = ["cagp", *path.relative_to(ROOT).parts[:-1]]
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            # `from cagp import kernels` imports a layer, `from cagp.kernels import RBF` a name of one.
            names |= {f"cagp.{alias.name}" for alias in node.names} if module == "cagp" else {module}
    ours = [name.split(".") for name in names if name.split(".")[0] == "cagp"]
    layers = {parts[1] if len(parts) > 1 else "" for parts in ours}
    return {layer if (ROOT / layer).is_dir() or (ROOT / f"{layer}.py").is_file() else "" for layer in layers}


def violations(layer: str, imports: set[str], exported: set[str]) -> list[str]:
    """Imports of ``layer`` that do not go downwards; ``exported`` is what importing cagp itself brings in."""
    needed = (imports - {""}) | (exported if "" in imports else set())
    return sorted(other for other in needed if other != layer and ORDER.index(other) >= ORDER.index(layer))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_module_has_a_place_in_the_order(path):
    layer = layer_of(path)
    assert layer in ("", *ORDER), f"{layer} is new: add it to ORDER in {__file__}, below everything it imports"


@pytest.mark.parametrize("path", [p for p in FILES if layer_of(p) in ORDER], ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_go_downwards(path):
    exported = imported_layers(ROOT / "__init__.py") - {""}
    unknown = imported_layers(path) - {"", *ORDER}
    assert not unknown, f"{path.name} imports {sorted(unknown)}, which have no place in the order of {__file__}"
    wrong = violations(layer_of(path), imported_layers(path), exported)
    assert not wrong, f"{path.relative_to(ROOT)} imports {wrong}, which come later in the order {ORDER}"


def test_an_upward_import_is_noticed(tmp_path, monkeypatch):
    monkeypatch.setattr(f"{__name__}.ROOT", tmp_path)
    (tmp_path / "engine").mkdir()
    for name in ("checks", "kernels", "prior", "cli", "engine/tiles", "engine/native"):
        (tmp_path / f"{name}.py").touch()
    source = tmp_path / "engine" / "tiles.py"
    for line, layer in [
        ("from cagp.prior import GP", "prior"),
        ("from cagp import prior", "prior"),
        ("import cagp.prior as p", "prior"),
        ("from ..prior import GP", "prior"),
        ("from .. import prior", "prior"),
        ("def f():\n    import cagp.prior", "prior"),
        ("from cagp import GP", ""),
        ("import cagp", ""),
    ]:
        source.write_text(
            f"import torch\nfrom cagp.checks import check_matrix\nfrom cagp.engine.native import f\n{line}\n"
        )
        assert imported_layers(source) == {"checks", "engine", layer}, line
        assert violations("engine", imported_layers(source), {"kernels", "prior"}) == ["prior"], line
        assert violations("cli", imported_layers(source), {"kernels", "prior"}) == [], line
