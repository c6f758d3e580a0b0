"""`sliceflow play`: what the tab Table reads and writes, and the port of the page."""

import socket

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("typer")

from running import inside, refused
from sliceflow.app.server import Request
from sliceflow.app.tables import TableTab
from sliceflow.cli.play import TableWork, make_server

N = 60


@pytest.fixture
def table():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"age": rng.integers(20, 60, N), "x": rng.normal(size=N)})
    frame["x"] = frame["x"].round(2)
    return frame


def fitted(path):
    work = TableWork()
    work.read(str(path))
    work.fit({}, [], path.name, False, lambda stage: None)
    return work


def test_spreadsheets_are_read(table, tmp_path):
    path = tmp_path / "t.xlsx"
    cells = table.astype(object)
    cells.loc[3, "age"] = "unknown"
    cells.to_excel(path, index=False)
    said = TableWork().read(str(path))
    kinds = {column["column"]: column["kind"] for column in said["columns"]}
    assert kinds == {"age": "integer", "x": "continuous"}
    assert "'unknown' is taken for a missing cell" in said["columns"][0]["note"]


def test_the_tab_takes_spreadsheets():
    tab = TableTab(TableWork, ("a.csv", b"a\n1\n"))
    try:
        shown = tab.upload(Request({"name": "b.xlsx"}, b"PK"))
        assert "b.xlsx" in (shown.get("name"), shown.get("next"))
    finally:
        tab.close()


def test_downloads_are_written_as_the_upload_was(table, tmp_path):
    path = tmp_path / "t.csv"
    text = table.to_csv(index=False, sep=";", decimal=",", lineterminator="\r\n")
    path.write_bytes(text.encode())
    work = fitted(path)
    lines = work.sample(5, 0, {"age": ">40"}).decode().split("\r\n")
    assert lines[0] == "age;x"
    ages = [int(line.split(";")[0]) for line in lines[1:-1]]
    assert min(ages) > 40
    assert all("," in line or line.endswith(";0") for line in lines[1:-1])
    assert work.impute(0) == path.read_bytes()


def test_the_port_can_be_chosen_and_one_in_use_is_refused():
    class NoGallery:
        runs = ()
        about = samples = chosen = completed = upload = None

    class NoTable:
        status = upload = fit = cancel = samples = imputed = report = None

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        taken.listen()
        words = ("play", "--no-browser", "--port", port)
        refused(inside(*words), 2, f"--port {port} cannot be used", "another --port")
    server = make_server(NoGallery(), NoTable(), port)
    try:
        assert server.address.startswith(f"http://127.0.0.1:{port}/")
    finally:
        server.server_close()
