"""Every Python block of README and docs runs, page by page, as a reader would paste it."""

import re
from pathlib import Path

import matplotlib
import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
OTHERS = [*sorted(ROOT.glob("C*.md")), *sorted((ROOT / "benchmarks").glob("*.md"))]
BLOCK = re.compile(r"^( *)```python\n(.*?)^\1```", re.DOTALL | re.MULTILINE)


def blocks(page: Path) -> list[str]:
    return [
        re.sub(rf"^{indent}", "", text, flags=re.MULTILINE)
        for indent, text in BLOCK.findall(page.read_text())
    ]


@pytest.mark.parametrize(
    "page", [p for p in PAGES if blocks(p)], ids=lambda p: str(p.relative_to(ROOT))
)
def test_the_examples_of_a_page_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
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
