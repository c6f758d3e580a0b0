"""Every Python block of README and docs runs, page by page."""

import re
import shutil
from pathlib import Path

import pytest
import yaml

import sliceflow
from running import few_trees

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
ALL_PAGES = [
    *PAGES,
    *sorted(ROOT.glob("C*.md")),
    *sorted((ROOT / "benchmarks").glob("*.md")),
]
BLOCK = re.compile(r"^( *)```python\n(.*?)^\1```", re.DOTALL | re.MULTILINE)
QUICK = (  # the others fit for many seconds
    "README.md",
    "architecture.md",
    "datasets.md",
    "index.md",
    "many-machines.md",
    "save-and-load.md",
    "tables.md",
    "vectors.md",
)
# What users import beside the names of `sliceflow.__all__`.
MODULES = ("datasets", "inference", "metrics")
NAMES = ("errors.NotEnoughMemoryError", "errors.ParameterError")
NAMES += ("errors.DataError", "errors.DataWarning")
NAMES += ("ranks.LostRankError", "ranks.Communicator", "ranks.joined")


def blocks(page: Path) -> list[str]:
    return [
        re.sub(rf"^{indent}", "", text, flags=re.MULTILINE)
        for indent, text in BLOCK.findall(page.read_text())
    ]


def test_the_examples_compile():
    for page in PAGES:
        for block in blocks(page):
            compile(block, str(page), "exec")


@pytest.mark.parametrize(
    "page",
    [
        p if p.name in QUICK else pytest.param(p, marks=pytest.mark.slow)
        for p in PAGES
        if blocks(p)
    ],
    ids=lambda p: str(p.relative_to(ROOT)),
)
def test_the_examples_of_a_page_run(page, tmp_path, monkeypatch, one_comparison):
    """Their trials and measures are short: the results of examples do not need them."""
    import matplotlib

    matplotlib.use("Agg")
    monkeypatch.chdir(tmp_path)
    for data in page.parent.glob("*.csv"):
        shutil.copy(data, tmp_path)
    namespace = {"__name__": "example"}
    with few_trees():
        for block in blocks(page):
            exec(compile(block, str(page), "exec"), namespace)


def test_pages_name_no_folder_of_the_machine_they_were_made_on():
    for page in ALL_PAGES:
        text = page.read_text().replace("/path/to/", "")
        assert not re.search(r"(?<![\w:/.~…-])/[A-Za-z_.]+/[\w.-]+", text), page


def anchors(page: Path) -> set[str]:
    """What the headings of a page are called in links."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {
        re.sub(r"[^\w\s-]", "", h).strip().lower().replace(" ", "-") for h in headings
    }


def test_links_between_pages_lead_somewhere_and_every_picture_is_shown():
    for page in ALL_PAGES:
        for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
            if "://" in target or target.startswith("mailto:"):
                continue
            name, _, place = target.partition("#")
            other = page.parent / name if name else page
            assert other.exists(), f"{page.name} points to {target}"
            assert not place or place in anchors(other), (
                f"{page.name} points to {target}"
            )
    text = "".join(page.read_text() for page in ALL_PAGES)
    hidden = [
        p.name for p in (DOCS / "images").iterdir() if f"images/{p.name})" not in text
    ]
    assert not hidden


def test_the_reference_shows_every_public_name_and_no_other():
    directive = re.compile(
        r"^::: (\S+)\n(?:    options:\n((?:      .*\n)*))?", re.MULTILINE
    )
    shown = set()
    for page in (DOCS / "reference").glob("*.md"):
        for name, options in directive.findall(page.read_text() + "\n"):
            members = re.search(r"^      members: \[(.*)\]$", options, re.MULTILINE)
            names = (
                {f"{name}.{member}" for member in members[1].split(", ")}
                if members
                else set()
            )
            shown |= {name} | names
    public = {
        f"sliceflow.{name}" for name in {*sliceflow.__all__, *NAMES} - {"__version__"}
    }
    for module in MODULES:
        public |= {
            f"sliceflow.{module}.{name}" for name in getattr(sliceflow, module).__all__
        }
    assert not public - shown
    own = {f"sliceflow.{name}" for name in sliceflow.__all__}
    strange = {
        name for name in shown - public if ".".join(name.split(".")[:2]) not in own
    }
    assert not strange


def test_every_page_is_in_the_navigation_once():
    def pages(part):
        if isinstance(part, str):
            return [part]
        items = part.values() if isinstance(part, dict) else part
        return [page for item in items for page in pages(item)]

    listed = pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    there = [*DOCS.rglob("*.md"), *DOCS.rglob("*.html")]
    assert sorted(listed) == sorted(page.relative_to(DOCS).as_posix() for page in there)


def test_named_files_exist():
    """CONTRIBUTING sent readers to a file that had another name by then."""
    named = re.findall(r"`([\w/]+\.py)`", (ROOT / "CONTRIBUTING.md").read_text())
    assert len(named) > 20
    existing = []
    for folder in ("src", "tests", "benchmarks", "examples", "scripts"):
        existing += [path.as_posix() for path in (ROOT / folder).rglob("*.py")]
    for name in named:
        assert any(path.endswith(f"/{name}") for path in existing), name
