"""Checkpoints of fits and tasks of searches: files that may always be deleted to start from scratch."""

from pathlib import Path

from cagp.storage import State
from cagp.tensor_files import load_state, save_state

KIND, VERSION = "checkpoint", 2


def save_checkpoint(path: Path, state: State) -> None:
    """Write the state; tensors keep their bits."""
    save_state(path, state, KIND, VERSION)


def load_checkpoint(path: Path) -> State:
    """The state in a file; ValueError if the file is not a complete checkpoint of this version."""
    return load_state(path, KIND, VERSION, remedy="delete it to start from scratch")
