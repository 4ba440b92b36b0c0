"""What the test rows have in common with the training rows, in words: the same rows, the same inputs, a group."""

from collections.abc import Mapping

from cagp.estimators.overlap import MANY_IN_GROUPS, Overlap, group_words, overlap_with
from cagp.report.html import count, text
from cagp.report.rows import HeldOutRows
from cagp.report.subject import Model, regressor_inputs, regressor_of


def overlap_of(model: Model, rows: HeldOutRows) -> Overlap:
    """What the rows of the report have in common with the training rows that the model keeps."""
    return overlap_with(regressor_of(model).fitted, regressor_inputs(model, rows.X), rows.y)


def tested_rows(overlap: Overlap) -> str:
    """Which rows the model is tested on, after "is tested on"."""
    if overlap.num_same_inputs is None:
        return (
            f"{count(overlap.num_rows, 'row')}. It keeps no training rows, so this page cannot tell whether these are "
            "other rows."
        )
    if overlap.is_training:
        return f"{count(overlap.num_rows, 'row')} that were used in training."
    rows = f"{count(overlap.num_rows, 'other row')}."
    return rows if overlap.is_large or not overlap.num_same_inputs else f"{rows} {overlap.words()}"


def warning(overlap: Overlap, shared_groups: Mapping[str, float]) -> str:
    """What makes the test too easy, for the top of the page; empty if nothing does."""
    sentences = [overlap.words()] if overlap.is_large else []
    sentences += [
        f"{group_words(text(name, 60), found)}: split by this column."
        for name, found in shared_groups.items()
        if found >= MANY_IN_GROUPS
    ]
    return "".join(f'<p class="warning" role="note"><strong>Warning.</strong> {words}</p>' for words in sentences)
