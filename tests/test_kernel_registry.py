"""The one list of kernels agrees with the classes, and needs neither torch nor NumPy."""

import inspect
import subprocess
import sys

import pytest

from cagp import kernels
from cagp.kernel_registry import KERNELS, NAMES


def test_the_registry_has_every_kernel_of_the_package_and_no_other():
    concrete = {
        name
        for name, kind in vars(kernels).items()
        if isinstance(kind, type) and issubclass(kind, kernels.Kernel) and not inspect.isabstract(kind)
    }
    assert {entry.class_name for entry in KERNELS.values()} == concrete
    assert all(name == entry.name for name, entry in KERNELS.items())
    assert all(kernels.kernel_class(name).__name__ == entry.class_name for name, entry in KERNELS.items())
    stationary = {n for n in KERNELS if issubclass(kernels.kernel_class(n), kernels.Stationary)}
    assert {name for name, entry in KERNELS.items() if entry.stationary} == stationary
    assert set(NAMES) == {*stationary, "periodic"}
    with pytest.raises(ValueError, match="kernel is 'Matern32', expected one of matern12, matern32"):
        kernels.kernel_class("Matern32")


def test_the_registry_needs_no_torch():
    source = inspect.getsource(sys.modules["cagp.kernel_registry"])
    program = f"import sys\nexec({source!r})\nprint('torch' in sys.modules, 'numpy' in sys.modules, len(NAMES))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False", str(len(NAMES))]
