"""The labels of a classifier: of any type outside, columns of zeros and ones inside."""

from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Float, Int
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d
from torch import Tensor

from cagp.fields import checked, list_of, record, strange, text, that

KINDS = "Ubiuf"
"""Types of labels that a file can hold, by the letters of NumPy: text, booleans, integers and numbers."""

_label = that(lambda value: isinstance(value, str | bool | int | float))


class Labels(NamedTuple):
    """The classes in order, and the name of the column that had them."""

    classes: np.ndarray
    name: str

    @classmethod
    def learn(cls, y: Any) -> "tuple[Labels, Int[np.ndarray, ' n']]":
        """The classes of these labels, sorted, and the class of each row; ValueError for what is not one."""
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
        name = y.columns[0] if isinstance(y, pd.DataFrame) else getattr(y, "name", None)
        return cls(classes, name if isinstance(name, str) else "y"), codes.reshape(-1)

    def row_noise(self, codes: Int[np.ndarray, " n"], class_weight: Any) -> Float[np.ndarray, " n"] | None:
        """1 / weight of each row by its class, as scikit-learn's ``class_weight`` says; None where all weigh one."""
        if class_weight is None:
            return None
        if isinstance(class_weight, str) and class_weight == "balanced":
            return 1 / (len(codes) / (len(self.classes) * np.bincount(codes)))[codes]
        if not isinstance(class_weight, dict):
            raise ValueError(f'class_weight is {class_weight!r}, expected None, "balanced" or a dict by label.')
        classes = self.classes.tolist()
        strangers = [label for label in class_weight if label not in classes]
        if strangers:
            raise ValueError(
                f"class_weight has a weight for {strangers[0]!r}, which is no class; the classes are "
                f"{', '.join(map(repr, classes[:10]))}."
            )
        of_class = np.array([class_weight.get(label, 1.0) for label in classes], dtype=float)
        if not (np.isfinite(of_class) & (of_class > 0)).all():
            raise ValueError(f"class_weight has weights {of_class.tolist()}, expected positive numbers.")
        return 1 / of_class[codes]

    def indicators(self, codes: Int[np.ndarray, " n"]) -> Float[np.ndarray, "n q"]:
        """A column that is one for the second of two classes; a column for each of several."""
        if len(self.classes) == 2:
            return codes[:, None].astype(float)
        return (codes[:, None] == np.arange(len(self.classes))).astype(float)

    # ---- files ----

    def state(self) -> dict[str, Any]:
        """As a file can hold them."""
        kind, values = self.classes.dtype.kind, self.classes.tolist()
        if kind == "O" and all(isinstance(value, str) for value in values):
            kind = "U"
        if kind not in KINDS:
            raise ValueError(
                f"classes of dtype {self.classes.dtype} cannot be stored; expected text, numbers or booleans."
            )
        dtype = "object" if self.classes.dtype.kind == "O" else "str" if kind == "U" else self.classes.dtype.name
        return {"classes": {"dtype": dtype, "values": values}, "target": self.name}

    @classmethod
    def from_state(cls, state: Any) -> "Labels":
        """The inverse of ``state``; ValueError where it is not such a state."""
        stored = checked(
            state, {"classes": record({"dtype": text, "values": list_of(_label, least=2)}), "target": text}
        )
        values, dtype, classes = stored["classes"]["values"], stored["classes"]["dtype"], None
        with suppress(TypeError, ValueError, OverflowError):
            kind = "U" if dtype in ("object", "str") else np.dtype(dtype).kind
            if kind in KINDS and all(isinstance(value, str) == (kind == "U") for value in values):
                classes = np.array(values, dtype=dtype)
        if classes is None or len(set(values)) != len(values) or classes.tolist() != values:
            raise strange("classes")
        return cls(classes, stored["target"])


def codes_of(classes: np.ndarray, y: Any) -> Int[np.ndarray, " n"]:
    """The place of each label among the classes; ValueError for a label that is none of them."""
    values, listed = _column(y).tolist(), classes.tolist()
    places = {label: place for place, label in enumerate(listed)}
    codes = [places.get(label, -1) for label in values]
    unknown = [row for row, code in enumerate(codes) if code < 0]
    if unknown:
        raise ValueError(
            f"y has {len(unknown):,} labels that fit has not seen (first {values[unknown[0]]!r} in row {unknown[0]}); "
            f"the classes are {', '.join(map(repr, listed[:10]))}."
        )
    return np.asarray(codes, dtype=np.int64)


def column_of(y: Any) -> np.ndarray:
    """Labels as a vector, also with missing ones."""
    values = y.cpu().numpy() if isinstance(y, Tensor) else y.to_numpy() if hasattr(y, "to_numpy") else np.asarray(y)
    return column_or_1d(values, warn=True, dtype=None)


def _column(y: Any) -> np.ndarray:
    """Labels as a vector, none missing."""
    if y is None:
        raise ValueError("This classifier requires y to be passed, but the target y is None.")
    if isinstance(y, Tensor):
        y = y.cpu().numpy()
    y = y if isinstance(y, np.ndarray | pd.DataFrame | pd.Series) else np.asarray(y)
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
