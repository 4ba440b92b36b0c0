"""What processes agree on that have a part of a table each: its columns, and the statistics of all rows."""

from functools import reduce
from typing import TYPE_CHECKING

import numpy as np
import torch

from cagp.column_kinds import NUMBER, WORDS, Column
from cagp.data.encoding import Encoder
from cagp.data.scaling import ColumnMoments
from cagp.ranks import Ranks

if TYPE_CHECKING:
    from cagp.estimators.pieces import Moments, Scan

FAILURES: tuple[type[Exception], ...] = (ValueError, OSError)
"""What reading a part of a table can raise: then all processes raise it."""


def agreed_scan(scan: "Scan", ranks: Ranks) -> "Scan":
    """The scan with the columns and targets of process 0, if all parts of the table have them; on all processes.

    Values that are missing in one part count as missing in all.
    """
    columns = {column.name: column for column in scan.encoder.columns}
    first = ranks.from_first(
        lambda: {
            "names": list(columns),
            "targets": list(scan.target_names),
            "matrix": scan.target_is_matrix,
            "dtype": scan.target_dtype.name,
            "frame": scan.encoder.names_in is not None,
        }
    )
    ranks.together(lambda: _check_columns(columns, scan, first["names"], first["targets"]), FAILURES)
    missing = ranks.any(*(columns[name].missing for name in first["names"]))
    agreed = [columns[name]._replace(missing=gaps) for name, gaps in zip(first["names"], missing, strict=True)]
    return scan._replace(
        encoder=Encoder(agreed, first["frame"]),
        target_is_matrix=first["matrix"],
        target_dtype=np.dtype(first["dtype"]),
    )


def _check_columns(columns: dict[str, Column], scan: "Scan", names: list[str], targets: list[str]) -> None:
    other = [column for column in columns.values() if column.kind != NUMBER]
    if other:
        raise ValueError(
            f"column {other[0].name!r} holds {WORDS[other[0].kind]}; with shards=True every input is a number, since "
            "no process sees all rows. Encode the column, or drop it."
        )
    if sorted(columns) != sorted(names) or list(scan.target_names) != targets:
        raise ValueError(
            f"a part of the table has the columns {', '.join([*columns, *scan.target_names])}, and a second "
            f"part {', '.join([*names, *targets])}; expected the same columns in all parts."
        )
    if len(targets) > 1:
        raise ValueError(f"the targets are {', '.join(targets)}; with shards=True a model has one: fit each alone.")


def agreed_moments(part: "Moments", ranks: Ranks) -> "Moments":
    """Statistics and samples of the rows of all processes, from those of each; on all processes."""
    if ranks.size == 1:
        return part
    return part._replace(
        inputs=_joined(part.inputs, ranks),
        targets=_joined(part.targets, ranks),
        logs=_joined(part.logs, ranks),
        missing=ranks.add_up(torch.from_numpy(part.missing.astype(np.float64))).numpy().astype(np.int64),
        spaced=gathered(part.spaced[:: ranks.size], ranks),
        sample_codes=gathered(part.sample_codes, ranks),
        sample_targets=gathered(part.sample_targets, ranks),
    )


def gathered(values: np.ndarray, ranks: Ranks) -> np.ndarray:
    """The rows of all processes, in the order of these; on all processes."""
    part = torch.from_numpy(np.ascontiguousarray(values, dtype=np.float64))
    return torch.cat(ranks.exchange([part] * ranks.size)).numpy()


def _joined(moments: ColumnMoments, ranks: Ranks) -> ColumnMoments:
    parts = ranks.exchange([torch.stack(list(moments))] * ranks.size)
    return reduce(ColumnMoments.joined, (ColumnMoments(*part.clone().unbind()) for part in parts))
