"""Where a table comes from: arrays or a frame in memory, pieces on disk, or a part of it for each process.

A source reads the table once for all kinds of targets and methods, and returns ``Prepared``.
"""

from dataclasses import dataclass
from typing import Any, final

from cagp.data.chunks import Chunks, open_chunks
from cagp.data.splits import validation_rule
from cagp.estimators.pieces import learn_chunks
from cagp.estimators.regions import learn_regions
from cagp.estimators.rows import Fit, Prepared, missing_words
from cagp.estimators.target_kinds import TargetKind
from cagp.estimators.units import Units


@final
@dataclass(frozen=True)
class InMemory:
    """A table in memory, with its targets; ``time`` and ``group`` say how rows are held out."""

    X: Any
    y: Any
    sample_noise: Any = None
    time: Any = None
    group: Any = None

    def check(self, fit: Fit) -> None:
        """Raise ValueError for what this kind of targets cannot do."""
        fit.kind.check(self.y, self.sample_noise, fit.ranks, in_memory=True)

    def prepare(self, fit: Fit) -> Prepared:
        """The units of the table, its rows in them, and the recipe to train on these; on all processes."""
        options = fit.options
        units, rows = Units.learn(self.X, self.y, self.sample_noise, options.categories, options.exposure)
        notes = missing_words(rows.num_missing, rows.num_rows, rows.num_targets)
        notes += units.encoder.missing_words(rows.inputs)
        rule, words = validation_rule(rows.num_rows + rows.num_missing, rows.places, self.time, self.group)
        prepared = fit.kind.prepare(units, rows._replace(rule=rule), fit)
        return prepared._replace(notes=[*notes, *words, *prepared.notes])


@final
@dataclass(frozen=True)
class OnDisk:
    """A table in pieces, with its targets. Its rows stay on disk, so that they can be more than fit into memory.

    Args:
        in_regions: each process learns from its own part of the table, in a region of the inputs.
    """

    chunks: Chunks
    in_regions: bool = False
    is_shared: bool = True  # whether all processes have the same pieces

    def check(self, fit: Fit) -> None:
        """Raise ValueError for what needs the table in memory."""
        fit.kind.check(None, None, fit.ranks, in_memory=False)
        if fit.options.copies == "once":
            raise ValueError(f'copies is "once", which needs the table in memory, and it is {self.where}; use "keep".')

    @property
    def where(self) -> str:
        """Where the rows are, in words."""
        return "in regions" if self.in_regions else "in pieces"

    def prepare(self, fit: Fit) -> Prepared:
        """The units of the table, its rows in them, and the recipe to train on these; on all processes."""
        recipe, ranks = fit.kind.recipe(0), fit.ranks
        if self.in_regions and recipe.name == "local":
            part = self.chunks.part(ranks.rank, ranks.size) if self.is_shared else self.chunks
            return learn_regions(fit, recipe, part)
        prepared = learn_chunks(fit, recipe, self.chunks)
        prepared.units.check_same(prepared.rows, ranks)
        return prepared


Source = InMemory | OnDisk


def table_source(
    name: str, kind: TargetKind, X: Any, y: Any, sample_noise: Any = None, time: Any = None, group: Any = None
) -> Source:
    """The source of what ``fit`` was given; ValueError for arguments that do not go together.

    Args:
        name: of the class of the estimator.
    """
    in_regions = kind.recipe(0).shards
    if isinstance(X, Chunks):
        if y is not None:
            raise ValueError("y is given beside a table in pieces, which has its own targets; leave y out.")
        source = OnDisk(X, in_regions)
        if sample_noise is not None:
            raise ValueError(
                "sample_noise is given beside a table in pieces; give it with the pieces: open_chunks(..., "
                "noise=COLUMN), or (X, y, noise)."
            )
    elif y is None:
        raise ValueError(f"This {name} estimator requires y to be passed, but the target y is None.")
    elif not in_regions:
        return InMemory(X, y, sample_noise, time, group)
    else:
        piece = (X, y) if sample_noise is None else (X, y, sample_noise)
        source = OnDisk(open_chunks([piece]), in_regions, is_shared=False)
    if time is not None or group is not None:
        raise ValueError(f"time and group need the table in memory, and it is {source.where}; leave them out.")
    return source
