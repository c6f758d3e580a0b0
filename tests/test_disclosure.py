"""What a file tells of the data is what is said of it."""

import json
import math
import re

import numpy as np
import pytest
from typer.testing import CliRunner

from sliceflow import ImageFlow, PictureOptions, SlicedWassersteinFlow, TableFlow, VectorOptions, load
from sliceflow.cli import commands
from sliceflow.engine.transports import Histogram
from sliceflow.models import file as container
from sliceflow.models.disclosure import holds_data, knots_and_rows

RNG = np.random.default_rng(0)
X = RNG.normal(3, 7, size=(200, 3))
PICTURES = RNG.integers(0, 17, (90, 4, 4)).astype(np.uint8)


def fitted(n_particles=200, transport="auto", **options):
    on = dict(random_state=0, device="cpu", transport=transport)
    return SlicedWassersteinFlow(n_particles, 3, options=VectorOptions(**options), **on).fit(X)


def pictures(n_knots="auto", **changes):
    on = dict(random_state=0, device="cpu", options=PictureOptions(n_knots=n_knots))
    return ImageFlow(quality=1, n_pixel_values=17, **on, **changes)


def found(path):
    """The share of all values of X that stand in the file's tensors, to a thousandth of σ."""
    _, tensors = container.read(path)
    shift, scale = tensors["shift"][0].numpy(), tensors["scale"][0].numpy()
    values = np.concatenate([t.numpy().ravel() for n, t in tensors.items() if n.endswith(".values")])
    hits = [np.abs(values + (shift[j] - x) / scale[j]).min() < 1e-3 for j in range(3) for x in X[:, j]]
    return np.mean(hits)


def said(path):
    ran = CliRunner().invoke(commands.app, ["info", str(path), "--json"])
    assert ran.exit_code == 0, ran.output
    return json.loads(ran.stdout)["values of the data"]


def test_with_a_knot_for_every_row_the_data_are_in_the_file_and_info_says_so(tmp_path):
    fitted().save(tmp_path / "m")
    assert found(tmp_path / "m") > 0.8
    assert holds_data(load(tmp_path / "m", device="cpu"))
    assert re.fullmatch(r"in the maps: 5\d\d knots of a map for 200 rows", said(tmp_path / "m"))


def test_with_fewer_knots_than_rows_they_are_averaged(tmp_path):
    fitted(n_knots=50).save(tmp_path / "m")
    assert found(tmp_path / "m") < 0.5
    assert holds_data(load(tmp_path / "m", device="cpu")) is False
    what = r"averaged: [67]\d knots of a map for 200 rows, and the ends of every column exactly"
    assert re.fullmatch(what, said(tmp_path / "m"))


def test_more_particles_than_rows_do_not_hide_the_rows():
    assert holds_data(fitted(None))  # 512 knots, 10,000 particles
    assert holds_data(fitted(None, n_knots=150)) is False


def test_maps_of_every_kind_are_counted():
    assert knots_and_rows(fitted(transport=Histogram(64), n_axis_steps=0)) == (64, 200)
    flow = pictures(8, n_particles=400, transport="histogram").fit(PICTURES)
    assert knots_and_rows(flow) == (128, 90)  # single pixels keep all bins
    assert knots_and_rows(pictures(4, n_particles=100).fit(PICTURES)) == (32, 90)
    rare = np.arange(90) < 7  # a class with maps of its own, of seven pictures
    flow.set_params(amplifier=math.inf).fit(PICTURES, rare)
    assert knots_and_rows(flow) == (128, 7)
    assert holds_data(flow)


def test_a_model_of_a_table_holds_its_rows():
    pd = pytest.importorskip("pandas")
    table = pd.DataFrame({"a": X[:, 0], "b": list("xy") * (len(X) // 2)})
    assert holds_data(TableFlow(random_state=0, device="cpu").fit(table)) is True


def test_rows_that_were_added_and_forgotten_are_counted():
    flow = SlicedWassersteinFlow(
        300, 2, random_state=0, device="cpu", options=VectorOptions(n_knots=150)
    ).partial_fit(X)
    assert knots_and_rows(flow)[1] == 200
    assert knots_and_rows(flow.forget(X[:80]))[1] == 120
    flow = pictures(n_particles=100).partial_fit(PICTURES)
    assert knots_and_rows(flow)[1] == 90


def test_files_of_early_versions_do_not_tell(tmp_path):
    fitted().save(tmp_path / "m")
    text, tensors = container.read(tmp_path / "m")
    del text["rows"]
    container.write(tmp_path / "m", text, tensors)
    flow = load(tmp_path / "m", device="cpu")
    assert holds_data(flow) is None
    assert said(tmp_path / "m").startswith("unknown whether the maps hold any")
    flow.save(tmp_path / "again")
    assert container.read(tmp_path / "again")[0]["rows"] is None


@pytest.mark.parametrize("rows", [0, -1, 1.5, "many", True])
def test_a_wrong_number_of_rows_is_refused(tmp_path, rows):
    fitted().save(tmp_path / "m")
    text, tensors = container.read(tmp_path / "m")
    container.write(tmp_path / "m", text | {"rows": rows}, tensors)
    with pytest.raises(ValueError, match=r"rows is .*; it must be an integer of at least 1"):
        load(tmp_path / "m", device="cpu")
