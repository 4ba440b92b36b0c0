"""Where a table comes from: arrays or a frame in memory, pieces on disk, or a part of it for each process."""

from typing import Any, NamedTuple

from cagp.data.splits import validation_rule
from cagp.data.tables import Chunks, open_chunks
from cagp.estimators.pieces import learn_chunks
from cagp.estimators.regions import learn_regions
from cagp.estimators.rows import Fit, Prepared, missing_words
from cagp.estimators.units import Units


class Table(NamedTuple):
    """What ``fit`` was given."""

    X: Any
    y: Any = None
    sample_noise: Any = None
    time: Any = None
    group: Any = None


def prepare(table: Table, fit: Fit) -> Prepared:
    """The units of a table, its rows in them, and the recipe to train on these; on all processes.

    The rows of a table in pieces stay on disk. With ``shards``, each process learns from its own part of the table.
    """
    (X, y, sample_noise, time, group), options, kind, ranks = table, fit.options, fit.kind, fit.ranks
    recipe, is_in_pieces = kind.recipe(0), isinstance(X, Chunks)
    in_regions = recipe.shards
    if is_in_pieces and y is not None:
        raise ValueError("y is given beside a table in pieces, which has its own targets; leave y out.")
    if is_in_pieces and sample_noise is not None:
        raise ValueError(
            "sample_noise is given beside a table in pieces; give it with the pieces: open_chunks(..., noise=COLUMN), "
            "or (X, y, noise)."
        )
    if not is_in_pieces and y is None:
        name = type(options).__name__
        raise ValueError(f"This {name} estimator requires y to be passed, but the target y is None.")
    if not is_in_pieces and not in_regions:
        kind.check(y, sample_noise, ranks, in_memory=True)
        units, rows = Units.learn(X, y, sample_noise, options.categories, options.exposure)
        notes = missing_words(rows.num_missing, rows.num_rows, rows.num_targets)
        notes += units.encoder.missing_words(rows.inputs)
        rule, words = validation_rule(rows.num_rows + rows.num_missing, rows.places, time, group)
        prepared = kind.prepare(units, rows._replace(rule=rule), fit)
        return prepared._replace(notes=[*notes, *words, *prepared.notes])
    where = "in regions" if in_regions else "in pieces"
    if time is not None or group is not None:
        raise ValueError(f"time and group need the table in memory, and it is {where}; leave them out.")
    kind.check(y, sample_noise, ranks, in_memory=False)
    if options.copies == "once":
        raise ValueError(f'copies is "once", which needs the table in memory, and it is {where}; use "keep".')
    if in_regions and is_in_pieces:
        return learn_regions(fit, recipe, X.part(ranks.rank, ranks.size))
    if in_regions:
        return learn_regions(fit, recipe, open_chunks([(X, y) if sample_noise is None else (X, y, sample_noise)]))
    prepared = learn_chunks(fit, recipe, X)
    prepared.units.check_same(prepared.rows, ranks)
    return prepared
