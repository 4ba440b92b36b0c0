"""What ``cagp reproduce`` can make: an experiment NAME is in the module of this name.

To add something, write a module with an ``Experiment`` (see ``cagp_bench.reproduce.experiment``) called
``EXPERIMENT``, and add a line here: the command line, ``all``, ``claims`` and the tests read this table.
"""

from importlib import import_module
from typing import Any

SIZES = ("tiny", "quick", "full")
"""How much is measured: for tests, within minutes, and as in the paper."""


CHOICES = {
    "visual-abstract": "predictives of exact GP, SVGP and three CaGPs in one dimension",
    "training-losses": "ELBO against the projected-data loss, and their predictives",
    "policies": "actions, and their distance to the leading eigenvectors in training",
    "learning-curves": "loss and test error against training time",
    "coverage": "coverage error of 95 % intervals during training",
    "hyperparameters": "noise, outputscale and lengthscales during training",
    "learning-rates": "test error for each learning rate",
    "inducing-points": "SVGP's inducing points in 1 to 25 dimensions",
    "costs": "memory of a training step, and the cost of CaGP-CG beside CGGP",
}
"""Each experiment, with its line in the help."""


def experiment(name: str) -> Any:
    """The ``Experiment`` of this name; its module is imported here."""
    if name not in CHOICES:
        raise ValueError(f"{name!r} is not an experiment; expected one of {', '.join(CHOICES)}.")
    return import_module(f"cagp_bench.reproduce.{name.replace('-', '_')}").EXPERIMENT
