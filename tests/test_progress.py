"""Progress: plain lines on stderr without a terminal, a bar with one, nothing unless enabled."""

import io
import sys

import pytest

from cagp import progress
from cagp.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_rows_are_told_in_ten_lines(capsys):
    with Progress("predict", True, 1000) as bar:
        for _ in range(100):
            bar.advance(10)
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    assert captured.out == ""
    assert len(lines) == 10
    assert lines[0].startswith("predict: 100/1,000 rows, ")
    assert lines[-1].startswith("predict: 1,000/1,000 rows, ")


def test_tables_are_told_every_few_seconds_with_their_fraction(capsys, monkeypatch):
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    with Progress("evaluate", True) as bar:
        bar.advance(500, None)
        bar.advance(1000, 0.75)
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("evaluate: 500 rows, ")
    assert second.startswith("evaluate: 1,500 rows, ")
    assert "%" not in first
    assert second.endswith(", 75 % of the table")
    with Progress("evaluate", True) as bar:
        monkeypatch.setattr(progress, "LINE_SECONDS", 1000.0)
        bar.advance(500, 0.5)
    assert capsys.readouterr().err == ""


def test_steps_are_told_with_their_loss(capsys):
    with Progress("fit", True, 25) as bar:
        for number in range(1, 26):
            bar.step(number, 0.5, number / 4)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "fit: 3/25 steps, loss 0.5000, 4.00 steps/s"
    assert lines[-1] == "fit: 25/25 steps, loss 0.5000, 4.00 steps/s"
    assert len(lines) == 9


@pytest.mark.parametrize("enabled", [True, False])
def test_on_a_terminal_there_is_a_bar_if_enabled(enabled, monkeypatch):
    terminal = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", terminal)
    with Progress("predict", enabled, 4) as rows:
        rows.advance(4)
    with Progress("predict", enabled) as table:
        table.advance(4, 0.5)
    with Progress("fit", enabled, 2) as steps:
        steps.step(2, 0.5, 0.5)
    assert ("4/4" in terminal.getvalue()) is enabled
    assert ("loss 0.5000" in terminal.getvalue()) is enabled
