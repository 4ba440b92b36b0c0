"""The folder beside a model in which ``cagp fit`` keeps checkpoints until the model is saved."""

import json
import shutil
from contextlib import ExitStack
from pathlib import Path

from cagp.cli.console import UsageError
from cagp.files import locked_folder, write_atomically
from cagp.memory import default_memory_limit
from cagp.training import CHECKPOINT

RUN = "run.json"
"""What a resumed run needs besides checkpoints: which fit it is, and its memory limit."""


class CheckpointFolder:
    """Checkpoints of one fit, which another run can continue."""

    def __init__(self, model: Path):
        self.path = model.with_name(model.name + ".checkpoints")

    @property
    def is_begun(self) -> bool:
        """Whether there is a checkpoint to continue from."""
        return any(self.path.glob(f"**/{CHECKPOINT}"))

    def lock(self, resume: bool, resources: ExitStack) -> None:
        """Make the folder for this process alone, until ``resources`` are closed; UsageError if another fit began."""
        self.path.mkdir(exist_ok=True)
        resources.enter_context(locked_folder(self.path, "another fit"))
        resources.callback(self._remove_unless_begun)
        if self.is_begun and not resume:
            raise UsageError(
                f"{self.path} contains checkpoints of an unfinished fit. Run the same command with --resume to "
                "continue it, or delete the folder to start from scratch."
            )

    def memory_limit(self, fit: str, asked: int | None) -> int:
        """The memory limit in bytes: a resumed run has that of the run it continues, however much is free by now.

        Args:
            fit: what the fit depends on, as a short text; ValueError where the folder belongs to a different fit.
            asked: the limit that the user asks for.
        """
        path = self.path / RUN
        if path.exists() and self.is_begun:
            try:
                stored = json.loads(path.read_text(encoding="utf-8"))
                stored_fit, limit = str(stored["fit"]), int(stored["memory"])
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(f"{path} cannot be read: {error}; delete its folder to start from scratch.") from error
            if stored_fit != fit:
                raise ValueError(
                    f"{self.path} belongs to another fit (other data or options); run the command that made it, or "
                    "delete the folder to start from scratch."
                )
            return limit if asked is None else asked
        limit = default_memory_limit() if asked is None else asked
        write_atomically(path, json.dumps({"fit": fit, "memory": limit}).encode())
        return limit

    def remove(self) -> None:
        """Remove the folder. Its checkpoints go first: if this is interrupted, the rest is not a fit to resume."""
        for checkpoint in self.path.glob(f"**/{CHECKPOINT}"):
            checkpoint.unlink()
        shutil.rmtree(self.path)

    def _remove_unless_begun(self) -> None:
        """Remove a folder without a checkpoint: there is nothing in it to continue from."""
        if not self.is_begun:
            shutil.rmtree(self.path, ignore_errors=True)
