"""Every Python block of README and docs runs, page by page, as a reader would paste it."""

import re
import shutil
from importlib import import_module
from pathlib import Path

import matplotlib
import pytest
import yaml

import sliceflow

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
OTHERS = [*sorted(ROOT.glob("C*.md")), *sorted((ROOT / "benchmarks").glob("*.md"))]
BLOCK = re.compile(r"^( *)```python\n(.*?)^\1```", re.DOTALL | re.MULTILINE)


def blocks(page: Path) -> list[str]:
    return [
        re.sub(rf"^{indent}", "", text, flags=re.MULTILINE)
        for indent, text in BLOCK.findall(page.read_text())
    ]


LONG_PAGES = ("pictures.md", "evaluate.md", "tutorial.md", "online.md")  # many seconds


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(p, marks=pytest.mark.slow) if p.name in LONG_PAGES else p
        for p in PAGES
        if blocks(p)
    ],
    ids=lambda p: str(p.relative_to(ROOT)),
)
def test_the_examples_of_a_page_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for data in page.parent.glob("*.csv"):
        shutil.copy(data, tmp_path)
    matplotlib.use("Agg")
    namespace = {"__name__": "example"}
    for block in blocks(page):
        exec(compile(block, str(page), "exec"), namespace)


def test_pages_name_no_folder_of_the_machine_they_were_made_on():
    for page in (*PAGES, *OTHERS):
        text = page.read_text().replace("/path/to/", "")
        assert not re.search(r"(?<![\w:/.~…-])/[A-Za-z_.]+/[\w.-]+", text), page


def anchors(page: Path) -> set[str]:
    """What the headings of a page are called in links."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\s-]", "", h).strip().lower().replace(" ", "-") for h in headings}


@pytest.mark.parametrize("page", [*PAGES, *OTHERS], ids=lambda p: str(p.relative_to(ROOT)))
def test_pictures_and_links_between_pages_exist(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" in target or target.startswith("mailto:"):
            continue
        name, _, place = target.partition("#")
        other = page.parent / name if name else page
        assert other.exists(), f"{page.name} points to {target}"
        assert not place or place in anchors(other), f"{page.name} points to {target}"


def test_every_picture_is_on_a_page():
    text = "".join(page.read_text() for page in (*PAGES, *OTHERS))
    for picture in (ROOT / "docs" / "images").iterdir():
        assert f"images/{picture.name})" in text, picture.name


# What users import beside the names of `sliceflow.__all__`.
MORE_PUBLIC_NAMES = (
    "errors.NotEnoughMemoryError",
    "errors.ParameterError",
    "inference.Posterior",
    "inference.posterior",
    "ranks.LostRank",
    "ranks.Ranks",
    "ranks.joined",
    "storage.disclosure.holds_data",
    *(f"datasets.{name}" for name in sliceflow.datasets.__all__),
    *(f"metrics.{name}" for name in sliceflow.metrics.__all__),
)
DIRECTIVE = re.compile(r"^::: (\S+)\n(?:    options:\n((?:      .*\n)*))?", re.MULTILINE)


def find(name: str):
    """The object that a dotted name stands for, module or not."""
    first, *rest = name.split(".")
    found = import_module(first)
    for part in rest:
        try:
            found = getattr(found, part)
        except AttributeError:
            found = import_module(f"{found.__name__}.{part}")
    return found


def documented() -> set[str]:
    """What the reference pages show: names as users write them, and the members listed of modules."""
    names = set()
    for page in (ROOT / "docs" / "reference").glob("*.md"):
        for name, options in DIRECTIVE.findall(page.read_text() + "\n"):
            names.add(name)
            members = re.search(r"^      members: \[(.*)\]$", options, re.MULTILINE)
            names |= {f"{name}.{member}" for member in members[1].split(", ")} if members else set()
    return names


@pytest.mark.parametrize("name", sorted({*sliceflow.__all__, *MORE_PUBLIC_NAMES} - {"__version__"}))
def test_every_public_name_is_on_a_reference_page(name):
    assert f"sliceflow.{name}" in documented()


@pytest.mark.parametrize("name", sorted(documented()))
def test_reference_pages_show_public_names_only(name):
    assert find(name) is not None
    short = name.removeprefix("sliceflow.")
    assert short.split(".")[0] in sliceflow.__all__ or short in MORE_PUBLIC_NAMES


def test_every_page_is_in_the_navigation_once():
    def pages(part):
        if isinstance(part, str):
            return [part]
        items = part.values() if isinstance(part, dict) else part
        return [page for item in items for page in pages(item)]

    listed = pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    docs = ROOT / "docs"
    there = [*docs.rglob("*.md"), *docs.rglob("*.html")]
    assert sorted(listed) == sorted(page.relative_to(docs).as_posix() for page in there)
