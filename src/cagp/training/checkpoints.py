"""Checkpoints of fits and tasks of searches: files that are always safe to delete, to start from scratch."""

from pathlib import Path

from cagp.storage import State, load_state, save_state

KIND, VERSION = "checkpoint", 2


def save_checkpoint(path: Path, state: State) -> None:
    """Write the state; tensors keep their bits."""
    save_state(path, state, KIND, VERSION)


def load_checkpoint(path: Path) -> State:
    """Read a state back, or raise ValueError if the file is not a complete checkpoint of this version."""
    return load_state(path, KIND, VERSION, remedy="delete it to start from scratch")
