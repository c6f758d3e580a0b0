"""The pages of docs/commands: their commands and flags exist, and all are there."""

import importlib.util
import re
from pathlib import Path

import pytest

pytest.importorskip("typer")

import typer

from sliceflow.cli.commands import app

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "commands"
COMMANDS = typer.main.get_command(app).commands
FLAGS = {
    verb: {name for p in COMMANDS[verb].params for name in p.opts + p.secondary_opts}
    for verb in COMMANDS
}


def script():
    spec = importlib.util.spec_from_file_location(
        "pages", ROOT / "examples" / "command_pages.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_command_has_a_page_and_the_page_is_in_the_navigation():
    assert {page.stem for page in PAGES.glob("*.md")} == set(COMMANDS)
    assert set(script().ORDER) == set(COMMANDS)
    navigation = (ROOT / "mkdocs.yml").read_text()
    overview = (ROOT / "docs" / "how-to" / "command-line.md").read_text()
    for verb in COMMANDS:
        assert f"commands/{verb}.md" in navigation
        assert f"(../commands/{verb}.md)" in overview


@pytest.mark.parametrize("verb", sorted(COMMANDS))
def test_the_table_of_flags_is_that_of_the_command(verb):
    text = (PAGES / f"{verb}.md").read_text()
    assert script().flags(verb) in text, "run: python examples/command_pages.py --flags"
    assert "*Real output: not yet" not in text


@pytest.mark.parametrize(
    "page",
    [
        *sorted(PAGES.glob("*.md")),
        ROOT / "README.md",
        ROOT / "docs" / "how-to" / "command-line.md",
    ],
    ids=lambda page: page.stem,
)
def test_the_commands_of_a_page_exist_with_their_flags(page):
    fenced = re.compile(r"^```(?:sh|console)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
    blocks = "".join(fenced.findall(page.read_text()))
    lines = re.findall(
        r"^(?:\$ )?(?:timeout \S+ \d+ )?(sliceflow .*)$", blocks, re.MULTILINE
    )
    assert lines
    for line in lines:
        words = re.split(r"#|&&", line)[0].split()[1:]
        if words[0].startswith("--"):  # of the command itself: --help, --version
            continue
        assert words[0] in COMMANDS, line
        for word in words[1:]:
            if word.startswith("-") and word != "-":
                assert word in FLAGS[words[0]] | {"--help"}, line


@pytest.mark.parametrize("page", sorted(PAGES.glob("*.md")), ids=lambda page: page.stem)
def test_flags_that_the_text_names_exist(page):
    every = set().union(*FLAGS.values())
    assert set(re.findall(r"`(--[a-z-]+)`", page.read_text())) <= every
