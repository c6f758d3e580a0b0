"""report.html: what is on the page, and how a browser shows it."""

import re
import shutil
import subprocess

import pytest

pytest.importorskip("typer")

NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)
ALONE = "style-src 'unsafe-inline'"  # how the page's own policy ends


def test_the_report_needs_nothing_from_elsewhere(digits_run):
    page = (digits_run[0] / "report.html").read_text()
    links = re.findall(r'(?:src|href|srcset)="([^"]{0,40})', page)
    assert len(links) > 15
    assert all(link.startswith("data:") for link in links)
    plain = re.sub(r"base64,[A-Za-z0-9+/=]+", "", page)
    assert not re.search(r"https?:|<script", plain)
    assert "default-src 'none'" in plain


def test_the_report_shows_all_that_is_promised_with_text_for_what_is_drawn(digits_run):
    page = (digits_run[0] / "report.html").read_text()
    texts = re.findall(r'<img alt="([^"]*)"', page)
    assert all(texts)
    assert [f"10 samples of class {c}" for c in range(10)] == [t for t in texts if "of class" in t]
    assert sum("of the way" in text for text in texts) == 6
    assert any("nearest training pictures" in text for text in texts)
    for drawing in re.findall(r"<svg.*?</svg>", page, re.DOTALL):
        assert 'role="img"' in drawing
        assert re.search(r"<title id=[^>]*>[^<]+</title><desc id=[^>]*>[^<]+</desc>", drawing)
    assert "<svg" in page
    for words in ("1297 pictures", "Distance per stage", "8×8[5]", "FD-PCA32", "floor", "holdout"):
        assert words in page
    assert "sliceflow fit digits --out" in page


def test_names_are_escaped_on_the_page(tmp_path):
    from running import FEW, inside

    rows = "".join(f"{i / 7},{i % 5},{'uv'[i % 2]}\n" for i in range(40))
    (tmp_path / "t.csv").write_text("<b>a,c&d,kind\n" + rows)
    words = ("--target", "kind", *FEW, "--out", tmp_path / "run")
    assert inside("fit", tmp_path / "t.csv", *words).returncode == 0
    page = (tmp_path / "run" / "report.html").read_text()
    assert "<b>" not in page
    assert "&lt;b&gt;a" in page
    assert "c&amp;d over &lt;b&gt;a" in page


def seen(page, tmp_path, width, scheme):
    """What Chromium measured of the page in a window of this width, and what its console said."""
    measuring = (
        "<script>document.documentElement.dataset.seen=[innerWidth,document.documentElement.scrollWidth,"
        "[...document.images].filter(i=>!i.complete||!i.naturalWidth).length,"
        "performance.getEntriesByType('resource').filter(e=>!e.name.startsWith('data:')).length,"
        "getComputedStyle(document.body).backgroundColor].join('|')</script></body>"
    )
    assert ALONE in page
    text = page.replace(ALONE, ALONE + "; script-src 'unsafe-inline'").replace("</body>", measuring)
    (tmp_path / "page.html").write_text(text, encoding="utf-8")
    # An iframe, as a window of Chromium is never narrower than 500 pixels.
    frame = tmp_path / "frame.html"
    frame.write_text(
        f'<iframe src="page.html" width="{width}" height="900"></iframe><script>onload=()=>'
        "document.title=frames[0].document.documentElement.dataset.seen</script>"
    )
    result = subprocess.run(
        [
            CHROMIUM,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--allow-file-access-from-files",
            "--enable-logging=stderr",
            "--host-resolver-rules=MAP * ~NOTFOUND",
            f"--user-data-dir={tmp_path / 'profile'}",
            f"--blink-settings=preferredColorScheme={scheme}",
            "--window-size=1300,1000",
            "--dump-dom",
            frame.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=60,
    )
    found = re.search(r"<title>(\d+)\|(\d+)\|(\d+)\|(\d+)\|([^<]*)</title>", result.stdout)
    assert found is not None, result.stdout[:500] + result.stderr[-500:]
    console = [line for line in result.stderr.splitlines() if "CONSOLE" in line]
    return (*map(int, found.groups()[:4]), found[5], console)


browser = pytest.mark.skipif(
    CHROMIUM is None, reason=f"needs a browser to look at the page: none of {', '.join(NAMES)} is here"
)


@pytest.mark.browser
@browser
@pytest.mark.parametrize("scheme", [0, 1], ids=["dark", "light"])
@pytest.mark.parametrize("width", [1200, 390], ids=["desktop", "phone"])
def test_the_report_opens_in_a_browser(digits_run, tmp_path, width, scheme):
    page = (digits_run[0] / "report.html").read_text()
    inner, scroll, missing, requests, background, console = seen(page, tmp_path, width, scheme)
    assert inner == width
    assert scroll <= width  # nothing sticks out
    assert missing == 0
    assert requests == 0
    assert console == []
    assert background == ("rgb(20, 23, 28)" if scheme == 0 else "rgb(255, 255, 255)")


@pytest.mark.browser
@browser
def test_a_page_that_asked_for_something_from_elsewhere_would_be_caught(digits_run, tmp_path):
    page = (digits_run[0] / "report.html").read_text()
    page = page.replace("<h1>", '<img alt="" src="http://elsewhere.invalid/x.png"><h1>')
    _, _, missing, _, _, console = seen(page, tmp_path, 390, 1)
    assert missing == 1
    assert any("Content Security Policy" in line for line in console)
