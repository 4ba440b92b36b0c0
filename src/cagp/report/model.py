"""What the sections on the fitted model show, the same for regressors and classifiers."""

from importlib.metadata import version
from typing import Any

import numpy as np

from cagp.plots import Vector
from cagp.recipes.table import method_words
from cagp.report.subject import Subject


def model_values(subject: Subject, goal: str, **values: Any) -> dict[str, dict[str, Any]]:
    """The values of the sections on the data, the lengthscales, the training and the fit.

    Args:
        goal: what is predicted, in words.
        values: of the section on the data, where there are such: overlap with the training rows, ranges and trees.
    """
    model = subject.model
    data = {"subject": subject, "goal": goal, "method": method_words(model.method_)}
    return {
        "data": data | {"overlap": None, "ranges": [], "trees": []} | values,
        "relevance": relevance_of(subject),
        "learning": learning_of(model.fit_result_),
        "fit": {"model": model, "version": version("cagp")},
    }


def varying(subject: Subject) -> np.ndarray:
    """Which encoded inputs vary among the test rows; all of them if none does.

    The lengthscale of an input that is constant in training remains at its starting value and means nothing.
    """
    encoder, codes = subject.encoded_rows
    inputs = encoder.expand(codes)
    varies = np.array([len(np.unique(column[np.isfinite(column)])) > 1 for column in inputs.T])
    return varies if varies.any() else np.ones_like(varies)


def relevance_of(subject: Subject) -> dict[str, Any]:
    """Inputs that vary and their lengthscales, the shortest first, and the parts of the kernel."""
    model, kept = subject.model, varying(subject)
    lengthscales = np.asarray(model.lengthscales_, float).ravel()[kept]
    order = np.argsort(lengthscales, kind="stable")
    return {
        "names": [str(name) for name in np.asarray(model.feature_names_out_)[kept][order]],
        "lengthscales": lengthscales[order] if np.isfinite(lengthscales).all() else None,
        "num_constant": int((~kept).sum()),
        "kernel": model.kernel_parts_,
    }


def learning_of(result: Any) -> dict[str, Any]:
    """The loss and the evaluations against training time."""
    steps = [] if result is None else [step for step in result.steps if np.isfinite(step.loss)]
    evaluated = [(step.seconds, name, value) for step in steps for name, value in (step.evaluation or {}).items()]
    evaluations: dict[str, tuple[Vector, Vector]] = {}
    for name in dict.fromkeys(name for _, name, _ in evaluated):
        points = np.array([(at, value) for at, other, value in evaluated if other == name and value is not None], float)
        if len(points):
            evaluations[name] = points[:, 0], points[:, 1]
    seconds, losses = (np.array([getattr(step, name) for step in steps], float) for name in ("seconds", "loss"))
    return {"result": result, "seconds": seconds, "losses": losses, "evaluations": evaluations}
