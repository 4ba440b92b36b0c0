"""The labels of a classifier: of any type outside, columns of zeros and ones inside."""

from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Float, Int
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d
from torch import Tensor

from cagp.likelihoods import class_likelihood

KINDS = {"U": "text", "b": "boolean", "i": "integer", "u": "integer", "f": "number"}
"""Types of labels that a file can hold, by the letters of NumPy."""


LARGEST_OFFSET = 1e6


class Labels(NamedTuple):
    """The classes in order, and the class of each row."""

    classes: np.ndarray
    codes: Int[np.ndarray, " n"]

    @classmethod
    def learn(cls, y: Any) -> "Labels":
        """The classes of these labels, sorted; raises ValueError for labels that no classifier can learn."""
        values = _column(y)
        if len(values) == 0:
            raise ValueError("y has 0 labels, while a minimum of 2 is required to learn.")
        try:
            check_classification_targets(values)
            classes, codes = np.unique(values, return_inverse=True)
        except TypeError as error:
            raise ValueError(f"y has labels of types that cannot be sorted ({error}); make all text.") from error
        if len(classes) < 2:
            raise ValueError(
                f"y has one class, {classes.tolist()[0]!r}, in all {len(values):,} rows; expected at least 2 classes."
            )
        return cls(classes, codes.reshape(-1))

    def weights(self, class_weight: Any) -> Float[np.ndarray, " n"] | None:
        """What each row weighs by its class, as scikit-learn's ``class_weight`` says; None where all weigh one."""
        if class_weight is None:
            return None
        if isinstance(class_weight, str) and class_weight == "balanced":
            of_class = len(self.codes) / (len(self.classes) * np.bincount(self.codes))
            return of_class[self.codes]
        if not isinstance(class_weight, dict):
            raise ValueError(f'class_weight is {class_weight!r}, expected None, "balanced" or a dict by label.')
        known = self.classes.tolist()
        strange = [label for label in class_weight if label not in known]
        if strange:
            raise ValueError(
                f"class_weight has a weight for {strange[0]!r}, which is no class; the classes are "
                f"{', '.join(map(repr, known[:10]))}."
            )
        of_class = np.array([class_weight.get(label, 1.0) for label in known], dtype=float)
        if not (np.isfinite(of_class) & (of_class > 0)).all():
            raise ValueError(f"class_weight has weights {of_class.tolist()}, expected positive numbers.")
        return of_class[self.codes]

    def indicators(self) -> Float[np.ndarray, "n q"]:
        """A column that is one for the second of two classes; a column for each of several."""
        if len(self.classes) == 2:
            return self.codes[:, None].astype(float)
        return (self.codes[:, None] == np.arange(len(self.classes))).astype(float)


def codes_of(classes: np.ndarray, y: Any) -> Int[np.ndarray, " n"]:
    """The place of each label among the classes; ValueError for a label that is none of them."""
    values = _column(y)
    places = {label: place for place, label in enumerate(classes.tolist())}
    codes = [places.get(label, -1) for label in values.tolist()]
    unknown = [row for row, code in enumerate(codes) if code < 0]
    if unknown:
        first = values.tolist()[unknown[0]]
        raise ValueError(
            f"y has {len(unknown):,} labels that fit has not seen (first {first!r} in row {unknown[0]}); "
            f"the classes are {', '.join(map(repr, classes.tolist()[:10]))}."
        )
    return np.asarray(codes, dtype=np.int64)


def name_of(y: Any) -> str:
    """The name of a column of labels; "y" where it has none."""
    name = y.columns[0] if isinstance(y, pd.DataFrame) else getattr(y, "name", None)
    return name if isinstance(name, str) else "y"


def column_of(y: Any) -> np.ndarray:
    """Labels as a vector, also with missing ones."""
    values = y.cpu().numpy() if isinstance(y, Tensor) else y.to_numpy() if hasattr(y, "to_numpy") else np.asarray(y)
    return column_or_1d(values, warn=True, dtype=None)


def _column(y: Any) -> np.ndarray:
    if y is None:
        raise ValueError("This classifier requires y to be passed, but the target y is None.")
    if isinstance(y, Tensor):
        y = y.cpu().numpy()
    if isinstance(y, pd.DataFrame | pd.Series):
        missing = np.asarray(y.isna()).reshape(-1)
        y = y.astype(object) if missing.any() else y
    else:
        y = y if isinstance(y, np.ndarray) else np.asarray(y)
        missing = np.asarray(pd.isna(y)).reshape(-1)
    if missing.any():
        raise ValueError(
            f"Input y contains NaN: {int(missing.sum()):,} labels are missing (first in row {int(missing.argmax())}); "
            "leave these rows out."
        )
    values = column_or_1d(y, warn=True)
    if values.dtype.kind == "f" and np.isinf(values).any():
        raise ValueError("Input y contains infinity; labels are classes.")
    return values


def classes_state(classes: np.ndarray) -> dict[str, Any]:
    """The classes as a file can hold them."""
    kind = classes.dtype.kind
    values = classes.tolist()
    if kind == "O" and all(isinstance(value, str) for value in values):
        kind = "U"
    if kind not in KINDS:
        raise ValueError(f"classes of dtype {classes.dtype} cannot be stored; expected text, numbers or booleans.")
    dtype = "object" if classes.dtype.kind == "O" else "str" if kind == "U" else classes.dtype.name
    return {"dtype": dtype, "values": values}


def classes_from_state(state: Any) -> np.ndarray:
    """The inverse of ``classes_state``; ValueError where it is not such a state."""
    wrong = ValueError("it does not have classes as cagp stores it")
    if not isinstance(state, dict) or not isinstance(state.get("dtype"), str) or not isinstance(state["values"], list):
        raise wrong
    values, text = state["values"], state["dtype"] in ("object", "str")
    if len(values) < 2 or not all(isinstance(v, str if text else bool | int | float) for v in values):
        raise wrong
    try:
        dtype = np.dtype(state["dtype"])
        classes = np.array(values, dtype=dtype)
    except (TypeError, ValueError, OverflowError) as error:
        raise wrong from error
    if (not text and dtype.kind not in KINDS) or len(set(values)) != len(values) or classes.tolist() != values:
        raise wrong
    return classes


def labels_state(model: Any) -> dict[str, Any]:
    """What a file holds of a classifier besides its posteriors."""
    return {
        "classes": classes_state(model.classes_),
        "target": model.target_name_,
        "likelihood": model.likelihood,
        "offsets": [float(offset) for offset in model.offsets_],
    }


def restore_labels(model: Any, state: Any) -> None:
    """Set classes, likelihood and offsets of a classifier; raises ValueError where it does not have them."""
    if not hasattr(model, "likelihood"):
        if state is not None:
            raise ValueError("it does not have labels as cagp stores it")
        return
    if not isinstance(state, dict):
        raise ValueError("it does not have labels as cagp stores it")
    classes, offsets = classes_from_state(state.get("classes")), state.get("offsets")
    expected = 1 if len(classes) == 2 else len(classes)
    if not isinstance(offsets, list) or not all(type(o) is float and abs(o) < LARGEST_OFFSET for o in offsets):
        raise ValueError("it does not have offsets as cagp stores it")
    if state.get("likelihood") != model.likelihood:
        raise ValueError("it does not have labels as cagp stores it")
    if len(offsets) != expected or model.units_.num_targets != expected:
        raise ValueError(f"it has {len(classes)} classes and {model.units_.num_targets} latent functions")
    if not isinstance(state.get("target"), str):
        raise ValueError("it does not have target as cagp stores it")
    model.classes_, model.offsets_, model.target_name_ = classes, offsets, state["target"]
    model.likelihood_ = class_likelihood(model.likelihood, len(classes)).requires_grad_(False)
