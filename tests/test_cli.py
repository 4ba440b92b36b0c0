"""The command line: help, versions, wrong usage, and commands of a package that is not installed."""

import subprocess
import sys
from importlib import metadata

import pytest

from cagp.cli import app, main
from cagp.cli.plugins import plugin


def test_help_and_version_are_printed(capsys):
    for arguments, words in ((["--help"], "cagp bench engine"), (["--version"], "cagp 0."), (["fit", "-h"], "--seed")):
        with pytest.raises(SystemExit) as exit_:
            main(arguments)
        assert exit_.value.code == 0
        assert words in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["fits"], "argument COMMAND: invalid choice: 'fits'"),
        (["fit"], "cagp fit: error: the following arguments are required: TABLE"),
        (["info", "m.cagp", "--nonsense"], "cagp info: error: unrecognized arguments: --nonsense"),
    ],
)
def test_wrong_usage_is_exit_code_two(words, message, capsys):
    with pytest.raises(SystemExit) as exit_:
        main(words)
    assert exit_.value.code == 2
    assert message in capsys.readouterr().err


def test_a_command_loads_its_own_options_alone():
    code = (
        "import sys\nfrom cagp.cli import main\ntry:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "loaded = {name.split('.')[2] for name in sys.modules if name.startswith('cagp.cli.')}\n"
        "heavy = {'torch', 'cagp_bench'} & set(sys.modules)\n"
        "sys.exit(' '.join(heavy | (loaded & {'fit', 'predict', 'compare'})) or 0)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("words", [["bench", "engine"], ["reproduce", "claims"], ["fit", "dataset:bike", "--out", "m"]])
def test_what_the_second_package_adds_says_how_to_install_it(words, monkeypatch, capsys):
    monkeypatch.setattr("cagp.cli.plugins.entry_points", lambda **_: ())
    assert main(words) == 2
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1
    assert "is part of the package cagp-bench, which is not installed: pip install cagp-bench" in error


def test_an_installed_package_adds_commands(monkeypatch, capsys):
    def add_to(command):
        command.add_argument("--rows", type=int)
        command.set_defaults(run=lambda arguments: print(arguments.rows) or 0)

    entry = metadata.EntryPoint("bench", "elsewhere:add_to", "cagp.commands")
    monkeypatch.setattr(metadata.EntryPoint, "load", lambda _: add_to)
    monkeypatch.setattr("cagp.cli.plugins.entry_points", lambda **wanted: [entry] if wanted["name"] == "bench" else [])
    assert plugin("cagp.commands", "bench", "cagp bench") is add_to
    assert main(["bench", "--rows", "3"]) == 0
    assert capsys.readouterr().out == "3\n"
    assert app.PLUGINS == ("bench", "reproduce")
