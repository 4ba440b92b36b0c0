"""The public surface: about thirty names, each imported when it is first used, and the same for type checkers."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import cagp


def typed_names() -> set[str]:
    """What type checkers see: the imports under TYPE_CHECKING."""
    tree = ast.parse(Path(cagp.__file__).read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    return {alias.name for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}


def test_type_checkers_and_python_see_the_same_names():
    assert typed_names() == set(cagp.__all__)
    assert 25 <= len(cagp.__all__) <= 35
    assert set(cagp.__all__) <= set(dir(cagp))


@pytest.mark.parametrize("name", cagp.__all__)
def test_every_name_is_what_its_module_has(name):
    value = getattr(cagp, name)
    home = importlib.import_module(
        value.__name__ if hasattr(value, "__path__") or hasattr(value, "__file__") else value.__module__
    )
    assert value is home or getattr(home, name) is value


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'cagp' has no attribute 'NoSuchName'"):
        cagp.NoSuchName  # noqa: B018
    with pytest.raises(ImportError, match="NoSuchName"):
        from cagp import NoSuchName  # noqa: F401


def test_importing_cagp_loads_nothing():
    code = "import sys, cagp; sys.exit(' '.join({'torch', 'numpy', 'cagp.kernels'} & set(sys.modules)) or 0)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
