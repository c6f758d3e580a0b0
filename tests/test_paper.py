"""The paper's tables and figures: every command runs at a tiny scale and leaves what it promises."""

import json
from importlib import import_module

import numpy as np
import pytest
from paper import __main__ as every
from paper import common, curves
from PIL import Image

TINY = ["--scale", "tiny", "--device", "cpu"]
SLOW = {"figure6"}  # the same at every scale
SCORED = {"figure3", "figure4", "figure5", "figure7", "table1", "table3", "table4"}
NAMES = [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in every.NAMES]


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """One folder for all: the classifier is trained once."""
    return tmp_path_factory.mktemp("paper")


def made(name, out):
    """What a command writes; it is run once."""
    if not (out / f"{name}.json").exists():
        import_module(f"paper.{name}").main([*TINY, "--out", str(out)])
    return json.loads((out / f"{name}.json").read_text())


@pytest.mark.parametrize("name", NAMES)
def test_a_command_writes_numbers_a_table_and_a_picture(name, out):
    kept = made(name, out)
    told = (out / f"{name}.md").read_text()
    assert kept["command"].startswith(f"python -m benchmarks.paper.{name} --scale tiny")
    assert kept["rows"]
    assert kept["machine"]["date"] in told
    assert told.startswith(f"### {kept['what']}")
    assert "object at" not in json.dumps(kept)
    pictures = list(out.glob(f"{name}-*.png"))
    assert len(pictures) == (0 if name == "table2" else 1)
    for path in pictures:
        assert np.ptp(np.asarray(Image.open(path).convert("L"))) > 100
    if name in SCORED:
        assert "FD is not FID" in told
        (network,) = kept["scored by"].values()
        assert network["trained on"] == 300
        assert 0 < network["accuracy"] <= 1


def test_floors_stand_beside_scores(out):
    rows = made("table1", out)["rows"]["digits"]["scores"]
    assert rows.keys() == {"batched", "offline"}
    for score in rows.values():
        assert score["FD"] > score["FD floor"] > 0
    assert made("figure5", out)["rows"]["digits"]["observed pixels kept"] == 1


def test_the_whole_scale_wants_the_papers_sets(capsys):
    with pytest.raises(SystemExit):
        import_module("paper.table1").main(["--scale", "full"])
    assert "--data-root" in capsys.readouterr().err


def test_a_set_that_a_figure_does_not_have_is_told(tmp_path):
    with pytest.raises(SystemExit, match="mnist, fashion-mnist, cifar10; --datasets celeba"):
        import_module("paper.figure4").main([*TINY, "--datasets", "celeba", "--out", str(tmp_path)])


def test_our_presets_are_the_papers_table(out):
    made("table2", out)
    assert (out / "table2.md").read_text().count(" yes |") == 3


def test_directions_of_the_first_figure_have_unit_length(out):
    rows = made("figure1", out)["rows"]
    assert [length for _, length in rows] == ["1.0000"] * 6


def test_fid_is_added_where_weights_are_given(tmp_path, monkeypatch):
    seen = {}

    def fid(samples, real, **given):
        seen.update(given, samples=len(samples), real=real.shape)
        return common.metrics.FID(1.5, 0.1, 768, "network", "weights", "train", 300, 300, 150)

    def inception_features(images, **given):
        assert given["weights"].name == "some.pth"
        return np.zeros((len(images), 768), np.float32)

    monkeypatch.setattr(common.metrics, "fid", fid)
    monkeypatch.setattr(common.metrics, "inception_features", inception_features)
    given = ["--fid-weights", "some.pth", "--fid-layer", "768", "--out", str(tmp_path)]
    kept = import_module("paper.figure4").main([*TINY, *given])
    assert kept["rows"]["digits"]["FID"]["value"] == 1.5
    assert (seen["layer"], seen["weights"].name, seen["n_pixel_values"], seen["real"]) == (
        768,
        "some.pth",
        17,
        (300, 768),
    )
    assert "1.5 (FID-768, floor 0.1)" in (tmp_path / "figure4.md").read_text()
    assert "FID-768 with some.pth" in (tmp_path / "figure4.md").read_text()


def test_curves_show_fid_where_there_is_one_and_else_fd():
    row = {"FD": 3.0, "FD floor": 0.5}
    assert curves.score_of(row) == ("FD", 3.0, 0.5)
    assert curves.score_of(row | {"FID": {"value": 1.5, "floor": 0.1, "layer": 768}}) == (
        "FID-768",
        1.5,
        0.1,
    )


@pytest.mark.parametrize("floor", [0.02, 0.4])
def test_curves_are_drawn_whether_the_floor_is_near_or_far(tmp_path, floor):
    rows = [{"FD": fd, "FD floor": floor} for fd in (0.6, 0.5)]
    points = [(10.0 ** (k + 1), f"{k} s", row) for k, row in enumerate(rows)]
    curves.draw(tmp_path / "c.png", {"ours": points}, "title", "x")
    with Image.open(tmp_path / "c.png") as drawn:
        assert len(np.unique(np.asarray(drawn.convert("L")))) > 10
