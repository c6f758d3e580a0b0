"""`sliceflow play` in Chromium: every tab, with the mouse and with the keyboard."""

import threading
from importlib.util import find_spec

import numpy as np
import pytest

pytest.importorskip("typer")

from PIL import Image

from sliceflow.app.pictures import Gallery
from sliceflow.app.tables import TableTab
from sliceflow.cli.play import (
    TableWork,
    example_table,
    make_server,
    offer_run,
    read_uploaded_picture,
)

pytestmark = pytest.mark.browser
TABS = ("points", "pictures", "complete", "table")
CSV = "age,city,visits\n" + "".join(
    f"{20 + i * 7 % 50},{'Rome' if i % 3 else 'Oslo'},{i % 5}\n" for i in range(140)
)


@pytest.fixture(scope="module")
def address(digits_run):
    table = TableTab(TableWork, example_table())
    gallery = Gallery([offer_run(digits_run[0], "cpu")], read_uploaded_picture)
    serving = make_server(gallery, table)
    thread = threading.Thread(target=serving.serve_forever, daemon=True)
    thread.start()
    yield serving.address
    serving.shutdown()
    serving.server_close()
    table.close()
    thread.join()


@pytest.fixture
def page(chromium, address):
    opened = chromium.page(address)
    opened.run("""
    const play = document.getElementById("play");
    if (play.textContent === "Pause") play.click();  // it moves by itself
    document.getElementById("reset").click();
    return null;""")
    yield opened
    opened.close()


def says(page, id, words):
    page.wait(f"document.getElementById({id!r}).textContent.includes({words!r})")


def set_to(page, id, value):
    page.run(f"""
    const node = document.getElementById({id!r});
    node.value = {value!r};
    for (const kind of ["input", "change"]) {{
      node.dispatchEvent(new Event(kind, {{ bubbles: true }}));
    }}
    return null;""")


def ready(page, tab):
    """Open a tab, and wait until it has loaded what it shows."""
    page.click(f"tab-{tab}")
    if tab == "pictures":
        says(page, "pictures-status", "samples in")
        page.run("document.querySelector('#grid button').click(); return null")
        says(page, "pictures-status", "Sample 1.")
    elif tab == "complete":
        says(page, "complete-status", "Hide any part")
    elif tab == "table":
        says(page, "table-status", ": ")


class TestPictures:
    def test_class_seed_and_number(self, page):
        ready(page, "pictures")
        before = page.run("return document.querySelector('#grid img').src")
        set_to(page, "label", "7")
        set_to(page, "many", "6")
        set_to(page, "seed", "4")
        page.click("tab-pictures")
        page.run("document.querySelector('#pictures-form button').click(); return null")
        says(page, "pictures-status", "6 samples in")
        names = page.run(
            "return [...document.querySelectorAll('#grid img')].map((i) => i.alt)"
        )
        assert names == [f"Sample {i}, class 7" for i in range(1, 7)]
        assert page.run("return document.querySelector('#grid img').src") != before

    def test_a_sample_is_followed_from_its_start(self, page):
        ready(page, "pictures")
        last = page.run("return document.querySelector('#grid img').src")
        assert page.run("return document.getElementById('way').src") == last
        assert page.text("way-text") == "the sample"
        set_to(page, "time", "0")
        assert page.run("return document.getElementById('way').src") != last
        assert page.text("way-text") == "the start"
        assert page.run("return document.querySelectorAll('#nearest img').length") == 5


class TestComplete:
    def test_a_hidden_part_is_completed(self, page):
        ready(page, "complete")
        page.click("show-all")
        page.drag("mask", [(0.55, 0.1), (0.9, 0.9)])
        page.click("complete")
        says(page, "complete-status", "8 completions")
        assert (
            page.run("return document.querySelectorAll('#completions img').length") == 9
        )
        assert (
            page.run("return document.querySelector('#completions img').alt")
            == "The original"
        )
        page.click("show-all")
        page.click("complete")
        says(page, "complete-status", "every pixel is known")

    def test_own_pictures_and_broken_ones(self, page, tmp_path):
        ready(page, "complete")
        good = tmp_path / "good.png"
        bad = tmp_path / "bad.png"
        Image.fromarray(np.full((30, 20), 200, np.uint8)).save(good)
        bad.write_bytes(b"\x89PNG\r\n, but no more")
        page.choose("file", bad)
        says(page, "complete-status", "the picture cannot be read")
        page.choose("file", good)
        says(page, "complete-status", "good.png, in the size")


class TestTable:
    def test_a_file_that_is_too_large_is_not_sent(self, page, tmp_path):
        ready(page, "table")
        huge = tmp_path / "huge.csv"
        with huge.open("wb") as stream:
            stream.truncate(65 << 20)
        page.choose("csv", huge)
        says(page, "table-status", "the limit is 64 MiB")
        assert "error" in page.run(
            "return document.getElementById('table-status').className"
        )

    @pytest.mark.slow
    def test_reload_in_the_middle_of_a_fit_and_rows_with_a_condition(
        self, page, tmp_path
    ):
        (tmp_path / "people.csv").write_text(CSV)
        ready(page, "table")
        page.choose("csv", tmp_path / "people.csv")
        says(page, "table-status", "people.csv: 140 rows. Correct")
        page.run("""
        document.querySelector('[data-column=visits]').value = 'category';
        return null;""")
        set_to(page, "constraints", "age >= 20")
        page.click("fit")
        page.wait("!document.getElementById('working').hidden")
        page.reload()
        page.wait("!document.getElementById('working').hidden")
        says(page, "table-status", "Fitted and measured in")
        assert (
            page.run("return document.querySelector('[data-column=visits]').value")
            == "category"
        )
        report = "document.getElementById('report').contentDocument.body.innerText"
        page.wait(f"{report}.includes('Measures')")
        if find_spec("axe_core_python"):
            assert page.accessible() == []
        page.resize(360, 900)
        assert page.run("return document.documentElement.scrollWidth") <= 360
        page.downloads(tmp_path)
        set_to(page, "rows", "50")
        set_to(page, "given", "city")
        set_to(page, "value", "Oslo")
        page.click("download")
        says(page, "table-status", "Saved 50 new rows")
        for _ in range(100):
            if (file := tmp_path / "people-samples.csv").exists():
                break
            page.run("return new Promise((done) => setTimeout(done, 50))")
        lines = file.read_text().splitlines()
        assert len(lines) == 51
        assert {line.split(",")[1] for line in lines[1:]} == {"Oslo"}
        page.click("impute")
        says(page, "table-status", "missing cells filled")
        assert page.errors() == []


@pytest.mark.parametrize(("width", "scheme"), [(1200, "light"), (360, "dark")])
def test_every_tab_is_accessible_and_fits(chromium, address, tmp_path, width, scheme):
    page = chromium.page(address, width=width, scheme=scheme)
    for tab in TABS:
        ready(page, tab)
        page.picture(tmp_path / f"{tab}.png")
        assert Image.open(tmp_path / f"{tab}.png").width == width
        ground = page.run("return getComputedStyle(document.body).backgroundColor")
        wide = page.run("return document.documentElement.scrollWidth")
        assert wide <= width, tab
        assert ground == (
            "rgb(20, 23, 28)" if scheme == "dark" else "rgb(255, 255, 255)"
        )
        if find_spec("axe_core_python"):
            assert page.accessible() == [], tab
    assert page.errors() == []
    page.close()


def test_the_keyboard_is_enough(page):
    def focus():
        return page.run("return document.activeElement.id")

    def tab_to(id):
        for _ in range(60):
            page.key("Tab")
            if focus() == id:
                return
        raise AssertionError(f"{id} cannot be reached")

    page.key("Tab")
    assert focus() == "tab-points"
    tab_to("canvas")
    page.click("clear")
    for key in ("ArrowLeft", "Enter", "ArrowUp", "ArrowUp", "Enter", "Enter", "Enter"):
        page.key(key)
    assert page.text("status") == "12 data."
    tab_to("play")
    page.key("Enter")
    page.wait("parseFloat(document.getElementById('number').textContent) > 2")
    page.key(" ")
    says(page, "status", "Paused.")
    page.open(page.address)
    page.key("Tab")
    page.key("ArrowRight")
    assert focus() == "tab-pictures"
    says(page, "pictures-status", "samples in")
    tab_to("many")
    page.key("Enter")  # a form is sent by Enter
    says(page, "pictures-status", "samples in")
    page.key("Tab")  # the button
    page.key("Tab")
    page.key("Enter")
    says(page, "pictures-status", "Sample 1.")
    tab_to("time")
    page.key("ArrowLeft", 3)
    assert "of the steps" in page.text("way-text")
    page.run("document.getElementById('tab-pictures').focus(); return null")
    page.key("ArrowRight")
    says(page, "complete-status", "Hide any part")
    tab_to("mask")
    page.key("Enter")
    page.key("ArrowUp", 2)
    page.key("Enter")
    tab_to("complete")
    page.key("Enter")
    says(page, "complete-status", "8 completions")
