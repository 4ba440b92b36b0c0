"""What ``cagp reproduce`` can make. Imports nothing of this package but ``lazy_module``.

To add something, write a module with an ``Experiment`` (see ``cagp_bench.reproduce.experiment``) called
``EXPERIMENT``, and add a line here: the command line, ``all``, ``claims`` and the tests read this table.
"""

from typing import NamedTuple

from cagp.lazy import lazy_module

SIZES = ("tiny", "quick", "full")
"""How much is measured: for tests, within minutes, and as in the paper."""


class Choice(NamedTuple):
    """An experiment: its line in the help, and the module that has it."""

    words: str
    module: str


CHOICES = {
    "visual-abstract": Choice(
        "predictives of exact GP, SVGP and three CaGPs in one dimension", "cagp_bench.reproduce.visual_abstract"
    ),
    "training-losses": Choice(
        "ELBO against the projected-data loss, and their predictives", "cagp_bench.reproduce.training_losses"
    ),
    "policies": Choice(
        "actions, and their distance to the leading eigenvectors in training", "cagp_bench.reproduce.policies"
    ),
    "learning-curves": Choice("loss and test error against training time", "cagp_bench.reproduce.learning_curves"),
    "coverage": Choice("coverage error of 95 % intervals during training", "cagp_bench.reproduce.coverage"),
    "hyperparameters": Choice(
        "noise, outputscale and lengthscales during training", "cagp_bench.reproduce.hyperparameters"
    ),
    "learning-rates": Choice("test error for each learning rate", "cagp_bench.reproduce.learning_rates"),
    "inducing-points": Choice("SVGP's inducing points in 1 to 25 dimensions", "cagp_bench.reproduce.inducing_points"),
    "costs": Choice("memory of a training step, and the cost of CaGP-CG beside CGGP", "cagp_bench.reproduce.costs"),
}


def experiment(name: str):
    """The ``Experiment`` of this name; its module is imported here."""
    if name not in CHOICES:
        raise ValueError(f"{name!r} is not an experiment; expected one of {', '.join(CHOICES)}.")
    return lazy_module(CHOICES[name].module).EXPERIMENT
