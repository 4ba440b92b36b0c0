"""The benchmarks use what users of cagp have: its public names, and the submodules that docs/api.md lists."""

import ast
import re
from importlib import import_module
from pathlib import Path

import cagp
import cagp_bench

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted(Path(cagp_bench.__file__).parent.rglob("*.py"))


def documented() -> set[str]:
    """The submodules that docs/api.md lists in its table, and those of the names that it describes."""
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    described = re.findall(r"^::: (cagp(?:\.\w+)+)\.\w+$", page, flags=re.MULTILINE)
    return {*re.findall(r"`(cagp(?:\.\w+)+)`", page.split("\n## ", 1)[0]), *described}


def imported(path: Path) -> set[tuple[str, str]]:
    """Modules of cagp that a file imports, with the names that it takes from them; "" for the module itself."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {(alias.name, "") for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {(node.module or "", alias.name) for alias in node.names}
    return {(module, name) for module, name in found if module.split(".")[0] == "cagp"}


def test_only_public_names_and_documented_submodules_are_imported():
    wrong = [
        (path.relative_to(ROOT).as_posix(), module, name)
        for path in FILES
        for module, name in imported(path)
        if not is_public(module, name)
    ]
    assert not wrong, "list these modules in docs/api.md, or do without them"


def is_public(module: str, name: str) -> bool:
    """Whether the submodule is documented and the name is one that it offers."""
    if f"{module}.{name}" in documented():
        return True
    if module != "cagp" and module not in documented():
        return False
    offered = getattr(import_module(module), "__all__", [name])
    return not name or (name in offered and not name.startswith("_"))


def test_the_core_does_not_import_the_benchmarks():
    for path in Path(cagp.__file__).parent.rglob("*.py"):
        assert "cagp_bench" not in path.read_text(encoding="utf-8"), path
