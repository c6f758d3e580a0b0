"""What `--help` shows of every command, as a terminal renders it."""

import re

import pytest

pytest.importorskip("typer")

import typer

from running import inside
from sliceflow.cli.commands import app

COMMANDS = typer.main.get_command(app).commands


def shown(monkeypatch, *words, width):
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERMINAL_WIDTH", str(width))
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", width)
    result = inside(*words, "--help")
    assert result.returncode == 0, result.stderr
    assert max(map(len, result.stdout.splitlines())) <= width
    return result.stdout


@pytest.mark.parametrize("width", [72, 100])
@pytest.mark.parametrize("verb", ["", *sorted(COMMANDS)])
def test_every_flag_is_shown_whole_and_no_switch_takes_a_value(monkeypatch, verb, width):
    text = shown(monkeypatch, *([verb] if verb else []), width=width)
    assert "bool" not in text.lower()
    for param in COMMANDS[verb].params if verb else ():
        for name in param.opts if param.param_type_name == "option" else ():
            assert re.search(rf"{name}\b", text), name
    assert re.search(r"--help +-h +Show this message", text)


def test_defaults_are_shown_also_where_they_depend_on_the_data(monkeypatch):
    text = " ".join(shown(monkeypatch, "fit", width=120).replace("│", " ").split())
    assert re.search(r"--amplifier .*? own maps\. \[default: \(by size\)\] --clusters", text)
    assert re.search(r"--clusters .*? means none\. \[default: \(by size\)\] --mirror", text)
    assert "[default: standard]" in text
    assert '"1[1] 4[4,3] 8[5]"' in text  # brackets are no markup
