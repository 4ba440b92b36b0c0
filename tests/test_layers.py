"""Imports inside the package go in one direction only: that of the map in CONTRIBUTING.md."""

import ast
import re
from pathlib import Path

import cagp

MAP = Path(__file__).resolve().parents[1] / "CONTRIBUTING.md"


def order_of_the_map(text: str) -> list[str]:
    """The modules and packages below src/cagp/ that the map lists, in its order."""
    block = text.split("    src/cagp/\n", 1)[1].split("\n\n", 1)[0]
    return re.findall(r"^      (\w+)(?:\.py|/) ", block, flags=re.MULTILINE)


ORDER = order_of_the_map(MAP.read_text(encoding="utf-8"))
UPWARDS = {"estimators/regressors.py": {"cagp.report"}, "estimators/classifier.py": {"cagp.report"}}
"""``model.report(...)`` writes a page by the layer above; nothing else looks up."""

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
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            # Modules that are loaded when they are first used are imports, too.
            names |= {c.value for c in ast.walk(node) if isinstance(c, ast.Constant) and isinstance(c.value, str)}
    names -= UPWARDS.get(path.relative_to(ROOT).as_posix(), set())
    ours = [name.split(".") for name in names if name.split(".")[0] == "cagp"]
    layers = {parts[1] if len(parts) > 1 else "" for parts in ours}
    return {layer if (ROOT / layer).is_dir() or (ROOT / f"{layer}.py").is_file() else "" for layer in layers}


def violations(layer: str, imports: set[str], exported: set[str]) -> list[str]:
    """Imports of ``layer`` that do not go downwards; ``exported`` is what importing cagp itself brings in."""
    needed = (imports - {""}) | (exported if "" in imports else set())
    return sorted(other for other in needed if other != layer and ORDER.index(other) >= ORDER.index(layer))


def test_every_module_has_a_place_in_the_order():
    new = {layer_of(path) for path in FILES} - {"", "__main__", *ORDER}
    assert not new, f"{sorted(new)} are new: add them to the map in {MAP}, below everything they import"


def test_the_map_lists_what_there_is():
    assert len(ORDER) == len(set(ORDER)) > 30
    for name in ORDER:
        assert (ROOT / name).is_dir() or (ROOT / f"{name}.py").is_file(), f"the map lists {name}, which does not exist"


def test_imports_go_downwards():
    exported, wrong = imported_layers(ROOT / "__init__.py") - {""}, []
    for path in (path for path in FILES if layer_of(path) in ORDER):
        imports, name = imported_layers(path), path.relative_to(ROOT).as_posix()
        wrong += [f"{name} imports {other}, which has no place in the map" for other in imports - {"", *ORDER}]
        later = violations(layer_of(path), imports & {"", *ORDER}, exported)
        wrong += [f"{name} imports {other}, which comes later in the map" for other in later]
    assert not wrong, wrong


UNIX = {"crypt", "fcntl", "grp", "nis", "posix", "pty", "pwd", "readline", "resource", "syslog", "termios", "tty"}


def test_no_import_fails_on_windows():
    """Modules that exist on Unix alone are imported inside functions, or in a ``try``."""
    for path in FILES:
        body = ast.parse(path.read_text()).body
        names = {alias.name for node in body if isinstance(node, ast.Import) for alias in node.names}
        names |= {node.module for node in body if isinstance(node, ast.ImportFrom) and node.module}
        assert not {name.split(".")[0] for name in names} & UNIX, path


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
        ('prior = import_module("cagp.prior")', "prior"),
    ]:
        source.write_text(
            f"import torch\nfrom cagp.checks import check_matrix\nfrom cagp.engine.native import f\n{line}\n"
        )
        assert imported_layers(source) == {"checks", "engine", layer}, line
        assert violations("engine", imported_layers(source), {"kernels", "prior"}) == ["prior"], line
        assert violations("cli", imported_layers(source), {"kernels", "prior"}) == [], line
