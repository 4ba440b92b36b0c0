"""The demo, in small: every fit is a row of the table and a number in its reading."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
import torch

from cagp.data import terrain

DEMO = Path(__file__).parents[1] / "examples" / "demo.py"


@pytest.mark.slow
@pytest.mark.usefixtures("annotations_off")  # integers for floats, as a user may write them
def test_the_table_and_the_picture_show_actions_and_nearest_rows(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(DEMO.parent)  # as for a script, which imports what lies beside it
    spec = spec_from_file_location("demo", DEMO)
    demo = module_from_spec(spec)
    spec.loader.exec_module(demo)
    data = terrain()
    rows = torch.randperm(len(data.y), generator=torch.Generator().manual_seed(0))[:1500]
    monkeypatch.setattr(demo, "terrain", lambda: data._replace(X=data.X[rows], y=data.y[rows]))
    monkeypatch.setattr(demo, "BUDGETS", (demo.Budget(4, 0.4), demo.Budget(32, 0.2)))
    for name, value in (("NUM_STEPS", 5), ("PREDICTED", 8), ("DRAWN", 16)):
        monkeypatch.setattr(demo, name, value)
    demo.run(tmp_path)
    shown = " ".join(capsys.readouterr().out.split())
    assert "1,350 to train on, 150 to test on" in shown
    for label in ("4 actions", "32 actions", "nearest rows"):
        assert f"│ {label} │" in shown
    errors = [float(shown.split(f"│ {label} │")[1].split("│")[1]) for label in ("4 actions", "32 actions")]
    assert f"the error falls from {errors[0]:.0f} to {errors[1]:.0f} m" in shown
    nearest = float(shown.split("│ nearest rows │")[1].split("│")[1])
    assert nearest < errors[1]
    assert f"its error is {nearest:.0f} m" in shown
    assert (tmp_path / "terrain.png").stat().st_size > 10_000
