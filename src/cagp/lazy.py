"""Modules that are imported when they are first used, so that a command that does not need them starts at once."""

import importlib
import sys
from types import ModuleType
from typing import Any


def lazy_module(name: str) -> ModuleType:
    """The module if it is already imported; otherwise an object that imports it when an attribute is first used.

        plt = lazy_module("matplotlib.pyplot")  # imports nothing
        plt.figure()                            # imports matplotlib, once

    The import is an ordinary one: it takes the lock of the import system, so that threads may use the object at the
    same time, and import hooks see it. Until then ``sys.modules`` has no entry, unlike with ``importlib``'s LazyLoader:
    scikit-learn looks there to see whether torch is in use, and would import it.
    """
    return sys.modules.get(name) or _LazyModule(name)


class _LazyModule(ModuleType):
    """Stands for a module: every attribute is read from, and written to, the module itself."""

    def __getattribute__(self, attribute: str) -> Any:
        if attribute in ("__name__", "__class__"):
            return super().__getattribute__(attribute)
        return getattr(importlib.import_module(self.__name__), attribute)

    def __setattr__(self, attribute: str, value: Any) -> None:
        setattr(importlib.import_module(self.__name__), attribute, value)

    def __delattr__(self, attribute: str) -> None:
        delattr(importlib.import_module(self.__name__), attribute)

    def __dir__(self) -> list[str]:
        return dir(importlib.import_module(self.__name__))

    def __repr__(self) -> str:
        state = "imported" if self.__name__ in sys.modules else "not imported yet"
        return f"<lazy module {self.__name__!r}, {state}>"
