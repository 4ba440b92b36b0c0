"""Checkpoints of fits and tasks of searches: files of ``cagp.storage`` that one may always delete and start afresh."""

from pathlib import Path

from cagp.storage import State, load_state, save_state

KIND, VERSION = "checkpoint", 2


def save_checkpoint(path: Path, state: State) -> None:
    """Write the state; tensors keep their bits."""
    save_state(path, state, KIND, VERSION)


def load_checkpoint(path: Path) -> State:
    """Read a state back, or raise ValueError where the file is not a whole checkpoint of this version."""
    return load_state(path, KIND, VERSION, remedy="delete it to start afresh")
