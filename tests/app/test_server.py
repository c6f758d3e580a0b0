"""`sliceflow play` without a browser: who is answered, and what the tabs are told."""

import base64
import http.client
import io
import json
import os
import queue
import re
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("typer")

from PIL import Image

from models import interrupt
from running import command, environment
from sliceflow import ImageFlow
from sliceflow.app import server as serving
from sliceflow.app.pictures import Gallery, Run
from sliceflow.app.tables import Message, TableTab
from sliceflow.cli.play import (
    TableWork,
    example_table,
    find_runs,
    make_server,
    offer_run,
    play,
    read_uploaded_picture,
)
from sliceflow.datasets import load

POSIX = pytest.mark.skipif(
    os.name == "nt", reason="Windows sends no signals to other processes"
)


class Asked:
    """A running server, and requests to it as any program could send them."""

    def __init__(self, runs=()):
        models = [offer_run(run, "cpu") for run in runs]
        self.table = TableTab(TableWork, example_table())
        self.server = make_server(Gallery(models, read_uploaded_picture), self.table)
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    def raw(self, method, path, body=None, **headers):
        """(status, headers, body); `path` is all of it, the token included."""
        line = http.client.HTTPConnection(
            "127.0.0.1", self.server.server_port, timeout=60
        )
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        line.request(method, path, body, headers)
        answer = line.getresponse()
        found = answer.status, dict(answer.headers), answer.read()
        line.close()
        return found

    def sent(self, name, length, body=b"", *more):
        """A connection on which a request was begun, by hand."""
        line = socket.create_connection(
            ("127.0.0.1", self.server.server_port), timeout=10
        )
        head = [f"POST /{self.server.token}/api/{name} HTTP/1.1", *more]
        head += [f"Host: 127.0.0.1:{self.server.server_port}", *length, "", ""]
        line.sendall("\r\n".join(head).encode() + body)
        return line

    def get(self, name="", **headers):
        return self.raw("GET", f"/{self.server.token}/{name}", **headers)

    def post(self, name, body=b"{}", words="", **headers):
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        path = f"/{self.server.token}/api/{name}?{words}"
        return self.raw("POST", path, body, **headers)

    def said(self, name, body=b"{}", **more):
        """The JSON of an answer that succeeded."""
        status, _, text = self.post(name, body, **more)
        assert status == 200, text
        return json.loads(text)

    def error(self, name, body=b"{}", **more):
        """The error of an answer that failed, with its hint."""
        status, _, text = self.post(name, body, **more)
        assert status == 422, text
        found = json.loads(text)
        if not found["hint"]:
            return found["error"]
        return f"{found['error']}; {found['hint']}"

    def close(self):
        self.server.shutdown()
        self.server.server_close()
        self.table.close()
        self.thread.join()


@pytest.fixture(scope="module")
def here():
    asked = Asked()
    yield asked
    asked.close()


class TestWhoIsAnswered:
    def test_only_this_computer_can_reach_it(self, here):
        assert here.server.socket.getsockname()[0] == "127.0.0.1"
        others = {
            info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None)
        } - {"127.0.0.1"}
        for address in others:
            with socket.socket(
                socket.AF_INET6 if ":" in address else socket.AF_INET
            ) as line:
                line.settimeout(2)
                assert line.connect_ex((address, here.server.server_port)) != 0, address

    @pytest.mark.parametrize(
        "path",
        [
            "/",
            "/page.js",
            "/wrong/page.js",
            "//",
            "/%00/",
            "/%C3%A9/",
            "/../",
            "/api/runs",
            "*",
        ],
    )
    @pytest.mark.parametrize("method", ["GET", "POST"])
    def test_nothing_without_the_token(self, here, method, path):
        status, _, body = here.raw(method, path, b"{}" if method == "POST" else None)
        assert status == 403
        assert here.server.token.encode() not in body
        token = here.server.token
        for wrong in (token[:-1], token + "x", token.swapcase()):
            assert here.raw("GET", f"/{wrong}/")[0] == 403

    @pytest.mark.parametrize(
        "host", ["evil.example", "evil.example:80", "127.0.0.1", "0.0.0.0:{port}", ""]
    )
    def test_another_host_name_is_refused(self, here, host):
        assert here.get(Host=host.format(port=here.server.server_port))[0] == 403

    def test_other_pages_cannot_post(self, here):
        assert here.get(Host=f"localhost:{here.server.server_port}")[0] == 200
        own = f"http://127.0.0.1:{here.server.server_port}"
        assert here.post("runs", Origin=own)[0] == 200
        for origin in (
            "http://evil.example",
            "null",
            "http://127.0.0.1:1",
            own + ".evil.example",
        ):
            assert here.post("runs", Origin=origin)[0] == 403
        assert here.post("runs", Sec_Fetch_Site="cross-site")[0] == 403
        assert here.post("runs", Sec_Fetch_Site="same-origin")[0] == 200

    def test_other_methods_are_refused(self, here):
        for method in ("PUT", "DELETE", "OPTIONS"):
            assert here.raw(method, f"/{here.server.token}/api/runs")[0] == 501
        assert here.get("api/runs")[0] == 405
        assert here.post("table/report")[0] == 405

    def test_the_browser_is_told_to_load_nothing_from_elsewhere(self, here):
        _, headers, body = here.get()
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert headers["Referrer-Policy"] == "no-referrer"
        assert headers["X-Content-Type-Options"] == "nosniff"
        for name in re.findall(r'(?:src|href)="([^"]+)"', body.decode()):
            assert name == "data:," or here.get(name)[0] == 200, name
        for file in here.server.files.values():
            assert not re.search(rb"https?://(?!www\.w3\.org)", file.body)


class TestWhatIsRefused:
    @pytest.mark.parametrize("name", ["table/upload", "picture", "complete"])
    def test_a_gigabyte_is_refused_before_it_is_sent(self, here, name):
        with here.sent(name, [f"Content-Length: {1 << 30}"], b"x" * 1000) as line:
            answer = line.recv(1 << 16)
        assert b" 413 " in answer.splitlines()[0]
        assert b"Connection: close" in answer

    def test_a_body_of_unknown_length_is_refused(self, here):
        with here.sent("runs", ["Transfer-Encoding: chunked"]) as line:
            assert b" 411 " in line.recv(1 << 16).splitlines()[0]
        for length, status in (
            ("-1", b" 400 "),
            ("two", b" 400 "),
            ("9" * 30, b" 413 "),
        ):
            with here.sent("runs", [f"Content-Length: {length}"]) as line:
                assert status in line.recv(1 << 16).splitlines()[0]

    def test_half_a_file_is_not_a_table(self, here):
        """The connection ends before the body does."""
        with here.sent(
            "table/upload?name=a.csv", ["Content-Length: 1000"], b"a,b\n1,2\n"
        ) as line:
            line.shutdown(socket.SHUT_WR)
            assert b" 400 " in line.recv(1 << 16).splitlines()[0]

    def test_a_body_that_does_not_come_is_not_waited_for(self, here, monkeypatch):
        monkeypatch.setattr(serving._Handler, "timeout", 0.2)
        with here.sent("runs", ["Content-Length: 100"], b"{") as line:
            answer = b"".join(iter(lambda: line.recv(1 << 16), b""))
        assert b" 408 " in answer.splitlines()[0]
        assert b"Connection: close" in answer

    @pytest.mark.parametrize(
        "name",
        [
            "../../../etc/passwd",
            "%2e%2e/%2e%2e/etc/passwd",
            "..%2f..%2fetc%2fpasswd",
            "/etc/passwd",
            "page/../../../pyproject.toml",
            "server.py",
            "....//server.py",
            "api/../server.py",
            "..\\..\\server.py",
            "index.html%00.js",
            "api/__class__",
        ],
    )
    def test_tricks_with_paths_find_nothing(self, here, name):
        status, _, body = here.get(name)
        assert status == 404
        assert b"root:" not in body

    @pytest.mark.parametrize(
        ("name", "ending"),
        [
            ("../../evil.csv", ".csv"),
            ("..\\..\\evil.tsv", ".tsv"),
            ("/etc/passwd.txt", ".txt"),
            ("C:\\x.csv", ".csv"),
            ("a\0b.csv", ".csv"),
        ],
    )
    def test_the_name_of_a_file_says_only_its_ending(self, tab, tmp_path, name, ending):
        shown = tab.upload(serving.Request({"name": name}, b"a,b\n1,2\n"))
        (file,) = (path for path in tmp_path.rglob("*") if path.is_file())
        assert file.name == f"table{ending}"
        assert file.parent.parent == tmp_path
        assert "/" not in shown["name"]
        assert "\\" not in shown["name"]

    @pytest.mark.parametrize(
        "name", ["", "x", "x.exe", ".csv/..", "x.csv.html", "x.parquet"]
    )
    def test_other_files_are_refused(self, here, name):
        assert "is not a table; pass a .csv" in here.error(
            "table/upload", b"x", words=f"name={name}"
        )

    @pytest.mark.parametrize(
        "body", [b"", b"{", b"[]", b"\xff", b'{"rows": 1}', b'{"reach": NaN}']
    )
    def test_a_broken_body_is_answered(self, here, body):
        assert here.error("about", body)


class Silent:
    """A pipe to a process that says nothing, or what the test puts into `said`."""

    def __init__(self):
        self.sent = []
        self.said = []

    def send(self, job):
        self.sent.append(job)

    def poll(self):
        return bool(self.said)

    def recv(self):
        if not self.said:
            raise EOFError
        return self.said.pop(0)


@pytest.fixture
def tab(monkeypatch, tmp_path):
    """The table of a page without its process, with its files in `tmp_path`."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    tab = TableTab(TableWork, ("wine.csv", b"a\n1\n"))
    tab._pipe = Silent()
    tab._waiting_file = None
    monkeypatch.setattr(tab, "_end", lambda: None)
    yield tab
    tab.close()
    assert not list(tmp_path.iterdir())


class TestManyConnections:
    def test_hundreds_of_strangers_do_not_keep_the_page_from_anyone(self, monkeypatch):
        monkeypatch.setattr(serving, "MAX_CONNECTIONS", 10)
        asked = Asked()
        before = threading.active_count()
        lines = []
        for _ in range(300):
            line = socket.create_connection(
                ("127.0.0.1", asked.server.server_port), timeout=10
            )
            line.sendall(b"G")
            lines.append(line)
        assert asked.get()[0] == 200  # in spite of them
        assert len(asked.server._connections) <= 10
        # Threads of strangers who were sent away end soon, but not at once.
        deadline = time.monotonic() + 30
        while threading.active_count() > before + 15 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert threading.active_count() <= before + 15
        for line in lines:
            line.close()
        asked.close()

    def test_a_request_with_the_token_is_not_closed_for_strangers(self, monkeypatch):
        monkeypatch.setattr(serving, "MAX_CONNECTIONS", 1)
        asked = Asked()
        with asked.sent("runs", ["Content-Length: 2"]) as line:
            while True not in asked.server._connections.values():
                time.sleep(0.01)
            with socket.create_connection(line.getpeername(), timeout=10) as stranger:
                assert stranger.recv(1) == b""
            line.sendall(b"{}")
            assert b" 200 " in line.recv(1 << 16).splitlines()[0]
            while True in asked.server._connections.values():
                time.sleep(0.01)
            assert asked.get()[0] == 200  # the first one is idle now, and makes room
        asked.close()


@pytest.fixture(scope="module")
def with_runs(digits_run, tmp_path_factory):
    folder, _ = digits_run
    alone = tmp_path_factory.mktemp("alone") / "digits.sliceflow"
    alone.write_bytes((folder / "model.sliceflow").read_bytes())
    top = alone.with_name("top.sliceflow")
    how = {
        "n_pixel_values": 17,
        "steps_per_stage": 1,
        "n_particles": 300,
        "random_state": 0,
    }
    ImageFlow(**how, known="top").fit(load("digits").images[:300]).save(top)
    asked = Asked([folder, alone, top])
    yield asked
    asked.close()


def pixels(address):
    head, text = address.split(",")
    assert head == "data:image/png;base64"
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(text))))


class TestPictures:
    def test_samples_are_those_of_the_model(self, with_runs, digits_run):
        import sliceflow

        assert len(with_runs.said("runs")["runs"]) == 3
        about = with_runs.said("about", {"run": 0})
        assert (about["width"], about["height"], about["known"]) == (8, 8, None)
        assert about["classes"] == [str(i) for i in range(10)]
        assert len(about["examples"]) == 8
        found = with_runs.said("samples", {"run": 0, "label": "3", "seed": 5, "n": 4})
        assert found["labels"] == ["3"] * 4
        flow = sliceflow.load(digits_run[0], device="cpu")
        ours = flow.sample(4, y=3, random_state=5) * (255 / 16)
        assert np.array_equal([pixels(p) for p in found["pictures"]], ours.round())

    def test_a_sample_comes_from_noise_and_has_neighbors(self, with_runs):
        asked = {"run": 0, "label": "", "seed": 1, "n": 3}
        last = with_runs.said("samples", asked)["pictures"]
        found = with_runs.said("chosen", asked | {"index": 2})
        assert found["snapshots"][-1] == last[2]
        assert found["snapshots"][0] != last[2]
        assert len(found["nearest"]) == 5
        alone = with_runs.said("chosen", asked | {"run": 1, "index": 2})
        assert alone["snapshots"] == found["snapshots"]
        assert "name its run folder" in alone["data"]

    def test_neighbors_may_be_few_and_mirrored(self):
        """A flow that was fitted to mirror images may copy those."""
        images = np.zeros((3, 4, 4), np.uint8)
        images[0, :, 0] = 255
        images[1, 0] = 255
        images[2, 3] = 255
        flow = ImageFlow(
            n_particles=300, steps_per_stage=1, mirror=True, random_state=0
        ).fit(images)
        copy = images[:1, :, ::-1]
        flow.evolution = lambda *_, **__: np.stack((np.zeros_like(copy), copy))
        data = SimpleNamespace(x=images)
        gallery = Gallery([Run("three", lambda: flow, lambda: (data, None))], None)
        body = json.dumps({"run": 0, "seed": 0, "n": 1, "index": 0}).encode()
        found = gallery.chosen(serving.Request({}, body))
        assert len(found["nearest"]) == 3
        assert np.array_equal(pixels(found["nearest"][0]), copy[0])

    @pytest.mark.parametrize(
        ("asked", "words"),
        [
            ({"run": 9}, "run=9 is not in 0 to 2"),
            ({"n": 2.5}, "n is not a whole number"),
            ({"n": float("inf")}, "n is not a whole number"),
            ({"seed": True}, "seed is not a whole number"),
            ({"n": 1000}, "n=1000 is not in 1 to 100"),
            ({"label": "cat"}, "has no class 'cat'"),
            ({"run": 2}, "see the tab Complete"),
        ],
    )
    def test_what_makes_no_sense_is_told(self, with_runs, asked, words):
        good = {"run": 0, "label": "", "seed": 0, "n": 2}
        assert words in with_runs.error("samples", good | asked)

    def test_completions_keep_what_is_known(self, with_runs):
        known = np.zeros((8, 8), bool)
        known[:, :5] = True
        picture = with_runs.said("about", {"run": 0})["examples"][3]
        asked = {"run": 0, "picture": picture, "known": known.tolist(), "seed": 0}
        done = np.array(
            [pixels(p) for p in with_runs.said("complete", asked)["pictures"]]
        )
        assert (done[:, known] == pixels(picture)[known]).all()
        assert len(np.unique(done.reshape(len(done), -1), axis=0)) > 1
        alone = with_runs.said("complete", asked | {"run": 1})[
            "pictures"
        ]  # it keeps its pictures
        assert np.array_equal([pixels(p) for p in alone], done)
        assert "every pixel is known" in with_runs.error(
            "complete", asked | {"known": [[True] * 8] * 8}
        )
        assert "known has shape" in with_runs.error(
            "complete", asked | {"known": [[True]]}
        )

    def test_a_model_with_a_known_part_completes_by_itself(self, with_runs):
        about = with_runs.said("about", {"run": 2})
        known = np.array(about["known"], bool)
        assert known[:4].all()
        assert not known[4:].any()
        picture = with_runs.said("about", {"run": 0})["examples"][0]
        asked = {"run": 2, "picture": picture, "seed": 0}
        done = np.array(
            [pixels(p) for p in with_runs.said("complete", asked)["pictures"]]
        )
        assert (done[:, known] == pixels(picture)[known]).all()

    def test_an_uploaded_picture_is_read_like_those_of_a_folder(self, with_runs):
        half = np.zeros((16, 16), np.uint8)
        stream = io.BytesIO()
        turned = Image.Exif()
        half[:8] = 255
        turned[0x0112] = 6  # a camera that was held upright
        Image.fromarray(half).save(stream, "PNG", exif=turned)
        found = pixels(
            with_runs.said("picture", stream.getvalue(), words="run=0")["picture"]
        )
        assert found.shape == (8, 8)
        assert found[:, -1].mean() > 250
        assert found[:, 0].mean() < 5

    def test_a_broken_picture_is_told_without_the_place_where_it_lay(self, with_runs):
        said = with_runs.error("picture", b"GIF89a, but not really", words="run=0")
        assert said.startswith("the picture cannot be read")
        assert "/" not in said.replace("'the picture'", "")
        assert "there is no picture" in with_runs.error(
            "complete", {"run": 0, "seed": 0}
        )
        wrong = {"run": 0, "seed": 0, "picture": "data:image/png,?"}
        assert "cannot be read" in with_runs.error("complete", wrong)

    def test_a_picture_that_unpacks_to_gigabytes_is_refused(
        self, with_runs, monkeypatch
    ):
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
        Image.fromarray(np.zeros((64, 64), np.uint8)).save(
            stream := io.BytesIO(), "PNG"
        )
        assert "exceeds limit" in with_runs.error(
            "picture", stream.getvalue(), words="run=0"
        )


WORDS = ("went", "home", "and", "slept", "well")
CSV = "age,city,visits,note\n" + "".join(
    f"{20 + i * 7 % 50},{'Rome' if i % 3 else 'Oslo'},{i % 5},"
    f"{' '.join(WORDS[(i * j) % 5] for j in range(3 + i % 9))} on day {i}\n"
    for i in range(140)
)


def until(here, state):
    """What the tab of a table shows when it has nothing to do: it is in this state."""
    for _ in range(1200):
        shown = here.said("table")
        if shown["state"] not in ("reading", "fitting"):
            break
        time.sleep(0.1)
    assert shown["state"] == state, shown
    return shown


@pytest.fixture(scope="module")
def with_table():
    """A server that has read its first table, which `first` shows."""
    asked = Asked()
    asked.first = until(asked, "columns")
    yield asked
    asked.close()


class TestTables:
    @pytest.mark.slow
    def test_a_table_from_file_to_new_rows(self, with_table):
        with_table.said("table/upload", CSV.encode(), words="name=people.csv")
        shown = until(with_table, "columns")
        kinds = {row["column"]: row["kind"] for row in shown["columns"]}
        assert kinds == {
            "age": "integer",
            "city": "category",
            "visits": "integer",
            "note": "drop",
        }
        assert "free text" in shown["columns"][3]["note"]
        assert shown["rows"] == 140
        asked = {
            "columns": {"note": "drop", "visits": "category"},
            "constraints": ["age >= 20"],
        }
        with_table.said("table/fit", asked)
        until(with_table, "fitted")
        status, headers, page = with_table.get("api/table/report")
        assert status == 200
        assert "script" not in headers["Content-Security-Policy"]
        for word in (
            "people: new rows",
            "sliceflow fit people.csv",
            "visits=category",
            "age &gt;= 20",
        ):
            assert word in page.decode()
        _, headers, rows = with_table.post("table/samples", {"n": 25, "seed": 3})
        lines = rows.decode().splitlines()
        assert lines[0] == "age,city,visits"
        assert len(lines) == 26
        assert with_table.post("table/samples", {"n": 25, "seed": 3})[2] == rows
        given = with_table.post(
            "table/samples", {"n": 5, "seed": 3, "given": {"city": "Rome"}}
        )[2]
        assert {line.split(",")[1] for line in given.decode().splitlines()[1:]} == {
            "Rome"
        }
        assert "Paris" in with_table.error(
            "table/samples", {"n": 5, "seed": 3, "given": {"city": "Paris"}}
        )
        assert with_table.post("table/imputed", {"seed": 0})[0] == 200
        for wrong in (
            {"n": 0},
            {"n": 10**9},
            {"n": "x"},
            {"n": 1, "seed": -1},
            {"n": 1, "given": 3},
        ):
            assert with_table.error("table/samples", {"seed": 0} | wrong)
        with_table.said(
            "table/fit", {"columns": {"note": "integer"}}
        )  # the library's own words
        assert "is text such as" in until(with_table, "columns")["error"]

    @pytest.mark.slow
    def test_a_fit_is_cancelled_or_dies_and_is_done_again(self, with_table):
        with_table.said("table/upload", CSV.encode(), words="name=people.csv")
        until(with_table, "columns")
        with_table.said("table/fit", {"columns": {"note": "drop"}})
        shown = with_table.said("table/cancel")
        assert shown["state"] == "columns"
        assert shown["note"] == "Cancelled."
        assert shown["kinds"] == {"note": "drop"}
        none = "there is no fitted table; fit one first"
        assert with_table.error("table/samples", {"n": 1, "seed": 0}) == none
        with_table.said("table/fit", {"columns": {"note": "drop"}})
        with_table.table._process.kill()
        assert "ended by itself" in until(with_table, "columns")["error"]
        with_table.said("table/fit", {"columns": {"note": "drop"}})
        until(with_table, "fitted")

    def test_a_second_file_waits_its_turn(self, tab):
        tab.upload(serving.Request({"name": "a.csv"}, b"a\n1\n"))
        shown = tab.upload(serving.Request({"name": "b.csv"}, b"b\n2\n"))
        assert (shown["name"], shown["next"], shown["state"]) == (
            "a.csv",
            "b.csv",
            "reading",
        )
        tab._pipe.said.append(Message("read", {"columns": [], "rows": 1}))
        shown = tab.status()
        assert (shown["name"], shown["state"]) == ("b.csv", "reading")
        assert "next" not in shown
        assert [job.method for job in tab._pipe.sent] == ["read", "read"]

    def test_whoever_waits_for_rows_is_told_that_none_will_come(self, tab):
        fitted = {"state": "fitted", "name": "a.csv", "columns": [], "rows": 3}
        tab._state = fitted
        with pytest.raises(ValueError, match="ended by itself"):
            tab.samples(serving.Request({}, b'{"n": 1, "seed": 0}'))
        tab._state = fitted
        tab._pipe.send = lambda job: tab._pipe.said.append(Message("sample", b"a\n1\n"))
        assert (
            tab.samples(serving.Request({}, b'{"n": 1, "seed": 0}')).body == b"a\n1\n"
        )

    def test_there_is_a_table_at_first(self, with_table):
        shown = with_table.first
        assert (shown["name"], shown["rows"]) == ("wine.csv", 178)
        assert {row["column"]: row["kind"] for row in shown["columns"]}[
            "kind"
        ] == "category"

    @pytest.mark.parametrize(
        ("body", "words"),
        [
            (b"", "empty"),
            (b"\xff\xfe\x00", ""),
            (b"a,b\n1,2,3,4\n", "row 2 has 4 cells"),
        ],
    )
    def test_a_broken_table_gets_the_librarys_own_message(
        self, with_table, body, words
    ):
        with_table.said("table/upload", body, words="name=broken.csv")
        shown = until(with_table, "empty")
        assert words in shown["error"]
        assert "/tmp" not in shown["error"]

    def test_a_bad_cell_is_named_by_its_row_in_the_file(self, with_table):
        lines = ["a,b", *(f"{i},{i % 7}" for i in range(150))]
        lines[9] = "oops,3"
        with_table.said("table/upload", "\n".join(lines).encode(), words="name=t.csv")
        column, _ = until(with_table, "columns")["columns"]
        assert (column["kind"], column["refused"]) == ("drop", True)
        assert "row 10 of the file, column 'a': the cell holds 'oops'" in column["note"]
        with_table.said("table/fit", {"columns": {"a": "continuous"}})
        error = until(with_table, "columns")["error"]
        assert "row 10 of the file, column 'a': the cell holds 'oops'" in error
        assert error.endswith("; fix the cells, or choose category for a")

    def test_a_fit_needs_a_table(self, tab):
        with pytest.raises(
            ValueError, match="there is no table to fit; drop a file first"
        ):
            tab.fit(serving.Request({}, b"{}"))
        for body in (
            b'{"columns": [1]}',
            b'{"constraints": "a"}',
            b'{"constraints": [1]}',
        ):
            with pytest.raises(ValueError, match="columns is no object"):
                tab.fit(serving.Request({}, body))


class TestCommand:
    def test_it_opens_the_browser_unless_told_not_to(self, monkeypatch, capsys):
        opened = queue.Queue()
        monkeypatch.setattr("webbrowser.open", opened.put)
        monkeypatch.setattr("sliceflow.cli.play._open_first", lambda gallery: None)
        monkeypatch.setattr("sliceflow.app.server.PlayServer.serve_forever", interrupt)
        play([], no_browser=True, device="cpu")
        play([], no_browser=False, device="cpu")
        address = opened.get(timeout=10)
        assert opened.empty()
        assert f"open {address}\nCtrl-C ends it." in capsys.readouterr().out

    @POSIX
    @pytest.mark.parametrize(
        "number",
        [
            "SIGINT",
            *(pytest.param(n, marks=pytest.mark.slow) for n in ("SIGTERM", "SIGHUP")),
        ],
    )
    def test_it_serves_until_it_is_ended_and_leaves_nothing(self, tmp_path, number):
        process = subprocess.Popen(
            command("play", "--no-browser"),
            cwd=tmp_path,
            text=True,
            env=environment() | {"TMPDIR": str(tmp_path)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=lambda: signal.signal(
                signal.SIGHUP, signal.SIG_DFL
            ),  # nohup would ignore it
        )
        address = process.stdout.readline().split()[-1]
        port, token = re.fullmatch(
            r"http://127\.0\.0\.1:(\d+)/([\w-]{32})/", address
        ).groups()
        line = http.client.HTTPConnection("127.0.0.1", int(port), timeout=30)
        line.request("GET", f"/{token}/")
        assert b"sliceflow play" in line.getresponse().read()
        line.request("POST", f"/{token}/api/table/upload?name=a.csv", CSV.encode())
        assert json.loads(line.getresponse().read())["state"] == "reading"
        assert [path.name for path in tmp_path.rglob("*.csv")] == ["table.csv"]
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        workers = children.read_text().split() if children.exists() else []
        process.send_signal(getattr(signal, number))  # SIGHUP: the terminal was closed
        out, err = process.communicate(timeout=30)
        assert (process.returncode, err) == (0, "")
        assert out.endswith("ended\n")
        assert not list(tmp_path.rglob("*.csv"))
        assert not [pid for pid in workers if Path(f"/proc/{pid}").exists()]

    def test_runs_of_pictures_are_found_the_last_one_first(self, tmp_path):
        for i, name in enumerate(("old", "new", "table")):
            (tmp_path / name).mkdir()
            (tmp_path / name / "model.sliceflow").touch()
            os.utime(tmp_path / name / "model.sliceflow", (i, i))
            (
                tmp_path / name / ("samples.csv" if name == "table" else "samples.png")
            ).touch()
        assert [path.name for path in find_runs(tmp_path)] == ["new", "old"]
        assert find_runs(tmp_path / "nothing") == []
