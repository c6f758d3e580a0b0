"""Every Python block of README and docs runs, page by page, as a reader would paste it."""

import re
from pathlib import Path

import matplotlib
import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
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


def test_pages_say_nothing_of_where_they_were_made():
    for page in PAGES:
        assert not re.search(r"/work/|/root/|\.library", page.read_text()), page


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_pictures_and_links_between_pages_exist(page):
    for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
        if "://" not in target and not target.startswith("mailto:"):
            assert (page.parent / target).exists(), f"{page.name} points to {target}"
