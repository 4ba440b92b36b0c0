"""What processes agree on that have a part of a table each: its columns, and the statistics of all rows."""

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from cagp.column_kinds import NUMBER, WORDS, Column
from cagp.data.encoding import Encoder
from cagp.data.scaling import ColumnMoments
from cagp.estimators.rows import TrainingRows
from cagp.ranks import Ranks

if TYPE_CHECKING:
    from cagp.estimators.pieces import Moments, Scan

FAILURES: tuple[type[Exception], ...] = (ValueError, OSError)
"""What reading a part of a table can raise: then all processes raise it."""


def agreed_scan(scan: "Scan", ranks: Ranks) -> "Scan":
    """The scan with the columns and targets of process 0, if all parts of the table have them; on all processes.

    Values that are missing in one part count as missing in all.
    """
    columns = scan.encoder.columns
    told = ranks.from_first(lambda: {"names": [column.name for column in columns], "targets": list(scan.target_names)})
    own = {column.name: column for column in columns}
    ranks.together(lambda: _check_columns(own, scan, told["names"], told["targets"]), FAILURES)
    missing = ranks.any(*(own[name].missing for name in told["names"]))
    agreed = [own[name]._replace(missing=gaps) for name, gaps in zip(told["names"], missing, strict=True)]
    form = {
        "matrix": scan.target_is_matrix,
        "dtype": scan.target_dtype.name,
        "frame": scan.encoder.names_in is not None,
    }
    told = ranks.from_first(lambda: form)
    return scan._replace(
        encoder=Encoder(agreed, told["frame"]),
        target_is_matrix=told["matrix"],
        target_dtype=np.dtype(told["dtype"]),
    )


def _check_columns(own: dict[str, Column], scan: "Scan", names: list[str], targets: list[str]) -> None:
    other = [column for column in own.values() if column.kind != NUMBER]
    if other:
        raise ValueError(
            f"column {other[0].name!r} holds {WORDS[other[0].kind]}; with shards=True every input is a number, since "
            "no process sees all rows. Encode the column, or drop it."
        )
    if sorted(own) != sorted(names) or list(scan.target_names) != targets:
        raise ValueError(
            f"a part of the table has the columns {', '.join([*own, *scan.target_names])}, and a second "
            f"part {', '.join([*names, *targets])}; expected the same columns in all parts."
        )
    if len(targets) > 1:
        raise ValueError(f"the targets are {', '.join(targets)}; with shards=True a model has one: fit each alone.")


def agreed_moments(found: "Moments", ranks: Ranks) -> "Moments":
    """Statistics and samples of the rows of all processes, from those of each; on all processes."""
    if ranks.size == 1:
        return found
    inputs, targets, logs = (_joined(part, ranks) for part in (found.inputs, found.targets, found.logs))
    missing = ranks.add_up(torch.from_numpy(found.missing.astype(np.float64))).numpy().astype(np.int64)
    spaced = gathered(found.spaced[:: ranks.size], ranks)
    codes, values = gathered(found.sample.inputs, ranks), gathered(found.sample.targets, ranks)
    # The sample is positive only where all rows are.
    values[0] = np.where(targets.least.numpy() <= 0, targets.least.numpy(), values[0])
    noise = None if found.sample.noise is None else np.zeros_like(values)
    return found._replace(
        inputs=inputs,
        targets=targets,
        logs=logs,
        missing=missing,
        spaced=spaced,
        sample=TrainingRows(codes, values, noise, 0, np.arange(len(codes))),
    )


def gathered(values: np.ndarray, ranks: Ranks) -> np.ndarray:
    """The rows of all processes, in the order of these; on all processes."""
    own = torch.from_numpy(np.ascontiguousarray(values, dtype=np.float64))
    return torch.cat(ranks.exchange([own] * ranks.size)).numpy()


def _joined(moments: ColumnMoments, ranks: Ranks) -> ColumnMoments:
    parts = ranks.exchange([torch.stack(list(moments))] * ranks.size)
    total: ColumnMoments | None = None
    for part in parts:
        own = ColumnMoments(*_rows(part))
        total = own if total is None else total.joined(own)
    assert total is not None
    return total


def _rows(part: Tensor) -> list[Tensor]:
    return [row.clone() for row in part]
