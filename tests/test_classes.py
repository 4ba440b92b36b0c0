"""Every class of the package is abstract or final: a class with subclasses inside the package cannot be made itself."""

import importlib
import inspect
import pkgutil

import cagp


def classes() -> set[type]:
    names = [module.name for module in pkgutil.walk_packages(cagp.__path__, "cagp.") if "__main__" not in module.name]
    modules = [importlib.import_module(name) for name in names if not name.endswith("_native")]
    found = {kind for module in modules for kind in vars(module).values() if isinstance(kind, type)}
    return {kind for kind in found if kind.__module__.startswith("cagp.")}


def test_classes_with_subclasses_are_abstract():
    every = classes()
    parents = {base for kind in every for base in kind.__mro__[1:] if base in every}
    assert len(parents) > 8
    concrete = {f"{kind.__module__}.{kind.__qualname__}" for kind in parents if not inspect.isabstract(kind)}
    assert not concrete, "make these abstract, or their subclasses independent of them"
