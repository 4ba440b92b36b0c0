"""Lazy modules: nothing is imported before it is used, and then it is the module itself."""

import subprocess
import sys
import threading

import pytest

from cagp.lazy import lazy_module


@pytest.fixture
def example(tmp_path, monkeypatch):
    """A package that nobody has imported, whose module notes how often it was executed."""
    package = tmp_path / "slow_package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "part.py").write_text(
        "import time\nimport builtins\n"
        "builtins.slow_package_runs = getattr(builtins, 'slow_package_runs', 0) + 1\n"
        "time.sleep(0.05)\nvalue = 3\ndef twice(x):\n    return 2 * x\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("builtins.slow_package_runs", 0, raising=False)
    yield "slow_package.part"
    for name in ("slow_package.part", "slow_package"):
        sys.modules.pop(name, None)


def runs() -> int:
    import builtins

    return builtins.slow_package_runs  # pyright: ignore[reportAttributeAccessIssue]


def test_a_module_is_imported_at_its_first_use(example):
    module = lazy_module(example)
    assert "not imported yet" in repr(module)
    assert (runs(), example in sys.modules, "slow_package" in sys.modules) == (0, False, False)
    assert module.twice(module.value) == 6
    assert runs() == 1
    assert "twice" in dir(module)
    assert ", imported" in repr(module)
    import slow_package  # pyright: ignore[reportMissingImports]

    assert slow_package.part is sys.modules[example]  # as after an ordinary import
    assert lazy_module(example) is slow_package.part
    with pytest.raises(AttributeError, match="has no attribute 'thrice'"):
        module.thrice  # noqa: B018


def test_attributes_are_those_of_the_module(example, monkeypatch):
    module = lazy_module(example)
    with monkeypatch.context() as patch:
        patch.setattr(module, "value", 5)
        assert sys.modules[example].value == 5
    assert (module.value, sys.modules[example].value) == (3, 3)
    del module.value
    assert not hasattr(sys.modules[example], "value")


def test_threads_import_it_once(example):
    module, found = lazy_module(example), []
    threads = [threading.Thread(target=lambda: found.append(module.twice(4))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (found, runs()) == ([8] * 8, 1)


def test_a_module_that_does_not_exist_is_an_import_error_when_it_is_used():
    module = lazy_module("no_such_package_at_all")
    with pytest.raises(ModuleNotFoundError, match="no_such_package_at_all"):
        module.name  # noqa: B018


HOOKED = """
import sys
from jaxtyping import install_import_hook

install_import_hook("cagp", "beartype.beartype")
import cagp.quantities
from cagp.lazy import lazy_module

sys.modules.pop("cagp.metrics", None)
metrics = lazy_module("cagp.metrics")
assert "cagp.metrics" not in sys.modules
try:
    metrics.rmse("text", "text")
except Exception as error:
    assert "TypeCheck" in type(error).__name__, type(error)
else:
    raise AssertionError("the hook did not see the import")
"""


def test_the_hook_that_checks_shapes_sees_the_import():
    subprocess.run([sys.executable, "-c", HOOKED], check=True, timeout=120)
