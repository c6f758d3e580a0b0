"""`sliceflow evaluate`: what is measured against what, and what the report shows."""

import json
import re
import shutil

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("typer")

from running import done, inside, refused
from sliceflow import TableFlow
from sliceflow.cli import report
from sliceflow.cli.table_run import choose_target
from sliceflow.datasets import load


@pytest.mark.parametrize("kind", ["digits_run", "table_run"])
def test_a_run_is_measured_again_with_the_same_numbers_and_report(
    kind, request, tmp_path
):
    run = shutil.copytree(request.getfixturevalue(kind)[0], tmp_path / "run")
    before = (run / "evaluation.json").read_text(), (run / "report.html").read_text()
    for name in ("evaluation.json", "report.html"):
        (run / name).unlink()
    found = json.loads(done("evaluate", run, "--json"))
    assert (
        (run / "evaluation.json").read_text(),
        (run / "report.html").read_text(),
    ) == before
    assert found == json.loads(before[0])
    (run / "config.json").write_text("{")
    refused(inside("evaluate", run), 1, "config.json is damaged", "fit the run again")


def test_other_pictures_are_compared_if_they_are_alike(digits_run, tmp_path):
    test = load("digits", "test").images
    np.save(tmp_path / "test.npy", test)
    np.save(tmp_path / "floats.npy", (test / 16).astype(np.float32))
    np.save(tmp_path / "fitted.npy", load("digits").images[:200])
    before = sorted(path.stat().st_mtime_ns for path in digits_run[0].iterdir())
    own = json.loads((digits_run[0] / "evaluation.json").read_text())
    found = json.loads(
        done("evaluate", digits_run[0], "--against", tmp_path / "test.npy", "--json")
    )
    labeled = ("recognized",)  # an array without labels
    assert found["metrics"] == [
        one for one in own["metrics"] if one["name"] not in labeled
    ]
    said = done("evaluate", digits_run[0], "--against", tmp_path / "fitted.npy")
    assert "fitted.npy, of which 200 were fitted" in said
    assert sorted(path.stat().st_mtime_ns for path in digits_run[0].iterdir()) == before
    np.save(tmp_path / "large.npy", np.zeros((20, 9, 9), np.uint8))
    words = ("evaluate", digits_run[0], "--against", tmp_path / "large.npy")
    refused(inside(*words), 2, "20 pictures of 9×9", "like those that were fitted")
    refused(
        inside(*words[:-1], tmp_path / "floats.npy"),
        2,
        "500 pictures of 8×8",
        "pixel values",
    )
    refused(inside(*words[:-1], "nowhere"), 2, "--against nowhere", "pass data")


def test_other_rows_of_a_table_need_its_columns(table_run, people, tmp_path):
    frame = pd.read_csv(people)
    frame.iloc[:, ::-1].to_csv(tmp_path / "turned.csv", index=False)
    said = done("evaluate", table_run[0], "--against", tmp_path / "turned.csv")
    assert "turned.csv, of which 200 were fitted" in said
    frame.drop(columns="age").to_csv(tmp_path / "less.csv", index=False)
    words = ("evaluate", table_run[0], "--against", tmp_path / "less.csv")
    refused(inside(*words), 2, "5 columns", "like those that were fitted")


def test_data_that_have_gone_are_missed_by_name(table_run, tmp_path, people):
    run = shutil.copytree(table_run[0], tmp_path / "run")
    config = (run / "config.json").read_text()
    (run / "config.json").write_text(config.replace("people.csv", "gone.csv"))
    refused(inside("evaluate", run), 1, "cannot be read again", "gone.csv", "in place")
    refused(
        inside("evaluate", run, "--data-root", "."), 2, "named sets", "leave it out"
    )


def plain(page):
    return re.sub(r"base64,[A-Za-z0-9+/=]+", "", page)


@pytest.mark.parametrize("kind", ["pictures", "table"])
def test_the_report_needs_nothing_from_elsewhere(kind, request):
    run = request.getfixturevalue("digits_run" if kind == "pictures" else "table_run")[
        0
    ]
    page = (run / "report.html").read_text()
    links = re.findall(r'(?:src|href|srcset)="([^"]{0,40})', page)
    assert all(link.startswith("data:") for link in links)
    assert not re.search(r"https?:|<script", plain(page))
    assert "default-src 'none'" in page
    assert all(re.findall(r'<img alt="([^"]*)"', page))
    assert all('role="img"' in drawing for drawing in re.findall(r"<svg[^>]*>", page))
    verdict = json.loads((run / "evaluation.json").read_text())["verdict"]
    first = page.index("<h2>")
    for answer in verdict.values():
        heading = page.index(f"<h2>{answer['question']} <strong", first)
        assert f">{answer['grade']}</strong>" in page[heading : heading + 100]
    assert first == page.index("<h2>May I use it?")


def test_the_report_of_pictures_shows_classes_neighbors_and_start(digits_run):
    page = plain((digits_run[0] / "report.html").read_text())
    texts = re.findall(r'<img alt="([^"]*)"', page)
    assert [f"10 samples of class {c}" for c in range(10)] == [
        t for t in texts if "of class" in t
    ]
    assert any("nearest training pictures" in text for text in texts)
    for word in (
        "1297 pictures",
        "Particles start as noise",
        "real rows",
        "sliceflow fit digits --out",
    ):
        assert word in page


def test_the_report_of_a_table_plots_its_columns(table_run):
    page = (table_run[0] / "report.html").read_text()
    for name in ("plan", "age", "spent", "start", "end"):
        assert f"<h3>{name}</h3>" in page
    assert re.search(r"missing \d+\.\d %, samples \d+\.\d %", page)
    assert "Associations" in page
    assert "start &lt;= end" in page


def test_the_report_of_a_table_answers_whether_it_may_be_shared(table_run):
    page = (table_run[0] / "report.html").read_text()
    assert "Share samples, not the model file: it contains your rows." in page
    assert "The column mail tells who it is; its values are made up." in page
    assert "Nobody has attacked the samples" in page
    assert page.count("<th>nearest row</th>") == 3
    rules = page[page.index("Rules found in your table") :]
    assert "<td>start &lt;= end</td>" in rules


def test_attacks_are_in_the_verdict_the_report_and_the_file(table_run, tmp_path):
    run = shutil.copytree(table_run[0], tmp_path / "run")
    said = done("evaluate", run, "--attack", "--shadows", 8)
    assert "attacking a model of 100 rows, and 8 shadow models: about" in said
    assert "shadow model 1 of 8, about" in said
    assert re.search(r"^verbatim values +0\.\d{3}", said, re.MULTILINE)
    found = json.loads((run / "evaluation.json").read_text())
    names = [attack["name"] for attack in found["attacks"]["attacks"]]
    assert names[-1] == "shadow models, outliers"
    assert found["attacks"]["counts"]["members"] == 100
    share = [finding["text"] for finding in found["verdict"]["sharing"]["findings"]]
    assert any("attack succeeds" in text for text in share)
    page = (run / "report.html").read_text()
    assert "<h2>Attacks</h2>" in page
    assert "Nobody has attacked" not in page


def test_attacks_are_refused_where_they_mean_nothing(digits_run, table_run, tmp_path):
    words = ("evaluate", table_run[0], "--attack")
    refused(inside("evaluate", digits_run[0], "--attack"), 2, "for tables", "leave it")
    refused(inside(*words, "--against", "x.csv"), 2, "exclude each other", "choose one")
    refused(inside(*words, "--shadows", 3), 2, "--shadows 3 are too few", "8 or more")
    rows = "".join(f"{i / 7},{i % 5}\n" for i in range(40))
    (tmp_path / "t.csv").write_text("a,b\n" + rows)
    done("fit", tmp_path / "t.csv", "--out", tmp_path / "run")
    refused(
        inside("evaluate", tmp_path / "run", "--attack"), 1, "held out", "--holdout"
    )


def test_names_are_escaped_on_the_page(tmp_path):
    rows = "".join(f"{i / 7},{i % 5},{'uv'[i % 2]}\n" for i in range(40))
    (tmp_path / "t.csv").write_text("<b>a,c&d,kind\n" + rows)
    done("fit", tmp_path / "t.csv", "--out", tmp_path / "run")
    page = (tmp_path / "run" / "report.html").read_text()
    assert "<b>" not in page
    assert "<h3>&lt;b&gt;a</h3>" in page
    assert "<h3>c&amp;d</h3>" in page


@pytest.mark.parametrize(
    ("columns", "target"),
    [
        ({"x": "number", "zip": "number"}, "x"),
        ({"kind": "label", "user_id": "number", "when": "date"}, "kind"),
        ({"x": "number", "city": "places"}, "x"),
        ({"zip": "number", "PLZ": "places"}, None),
        ({"idea": "label", "width": "number"}, "width"),
    ],
)
def test_the_default_target_is_something_that_one_would_predict(columns, target):
    rng = np.random.default_rng(0)
    cells = {
        "number": rng.integers(10_000, 99_999, 300),
        "label": rng.choice(["a", "b"], 300),
        "places": rng.choice([f"town {k}" for k in range(60)], 300),
        "date": pd.date_range("2024-01-01", periods=300),
    }
    frame = pd.DataFrame({name: cells[what] for name, what in columns.items()})
    model = TableFlow(random_state=0).fit(frame)
    assert choose_target(model.columns_) == target


def test_ranges_of_the_report_are_those_of_numbers_and_dates():
    numbers = np.random.default_rng(0).gamma(2, 900, 300)
    days = pd.Timestamp("2023-05-09") + pd.to_timedelta(np.arange(300), "D")
    prices = pd.Series([f"${number:,.2f}" for number in numbers])
    plot = report._plot_column("price", prices, prices)
    low, high = (float(end.strip("$").replace(",", "")) for end in plot["ends"])
    assert [low, high] == [round(numbers.min(), 2), round(numbers.max(), 2)]
    texts = pd.Series([f"{day:%d.%m.%Y}" for day in days])
    plot = report._plot_column("day", texts, texts)
    assert plot["ends"] == ("09.05.2023", "03.03.2024")


def test_a_run_folder_with_a_model_of_other_data_is_refused(
    digits_run, table_run, tmp_path
):
    run = tmp_path / "run"
    shutil.copytree(table_run[0], run)
    shutil.copy(digits_run[0] / "model.sliceflow", run)
    said = inside("evaluate", run)
    refused(said, 1, "of type ImageFlow", "rows of", "fit the run again")
