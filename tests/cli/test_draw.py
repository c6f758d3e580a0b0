"""`sliceflow sample`, `inpaint` and `impute`: what they write, and what they refuse."""

import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from PIL import Image

pytest.importorskip("typer")

import sliceflow
from running import FEW, done, environment, inside, refused
from sliceflow.cli.data import read_data
from sliceflow.cli.settings import Settings
from sliceflow.datasets import load


@pytest.fixture(scope="module")
def top_run(tmp_path_factory):
    """A model that completes the lower half of digits."""
    folder = tmp_path_factory.mktemp("top") / "run"
    done("fit", "digits", "--known", "top", *FEW, "--no-measure", "--out", folder)
    return folder


@pytest.fixture(scope="module")
def digit(tmp_path_factory):
    """One held-out digit, as an array and as the path of a picture."""
    image = load("digits", "test").images[0]
    path = tmp_path_factory.mktemp("digit") / "digit.png"
    Image.fromarray((image * (255 / 16)).round().astype(np.uint8)).save(path)
    return image, path


def test_samples_come_as_grid_folder_and_array(digits_run, tmp_path):
    run = digits_run[0]
    done("sample", run, "--n", 9, "--out", tmp_path / "grid.png")
    with Image.open(tmp_path / "grid.png") as grid:
        assert grid.size == (
            182,
            182,
        )  # three by three, each enlarged sevenfold, with gaps
    done("sample", run, "--n", 12, "--label", 3, "--out", tmp_path / "threes")
    assert sorted(path.name for path in (tmp_path / "threes").iterdir())[-1] == "11.png"
    done("sample", run, "--n", 20, "--seed", 4, "--out", tmp_path / "all.npz")
    with np.load(tmp_path / "all.npz") as arrays:
        flow = sliceflow.load(run, device="cpu")
        x, y = flow.sample(20, random_state=4, return_y=True)
        assert np.array_equal(arrays["images"], x)
        assert np.array_equal(arrays["labels"], y)
    refused(
        inside("sample", run, "--out", tmp_path / "all.npz"),
        2,
        "already exists",
        "--force",
    )


def test_a_class_may_have_any_name(tmp_path):
    images = np.arange(8 * 16).reshape(8, 4, 4).astype(np.uint8)
    names = np.array(["a; x", "b"] * 4)
    flow = sliceflow.ImageFlow(steps_per_stage=1, n_particles=20, random_state=0)
    model = tmp_path / "names.sliceflow"
    flow.fit(images, names).save(model)
    words = ("sample", model, "--n", 3, "--out", tmp_path / "x.npz", "--label")
    refused(inside(*words, "c"), 2, "no class 'c'", "a; x, b")
    refused(inside(*words, "c; d"), 2, "no class 'c; d'", "a; x, b")
    done(*words, "a; x")
    with np.load(tmp_path / "x.npz") as arrays:
        assert set(arrays["labels"]) == {"a; x"}


def test_rows_of_a_table_with_what_is_given(table_run, tmp_path, one_comparison):
    run = table_run[0]
    out = tmp_path / "new.csv"
    done("sample", run, "--n", 30, "--given", "plan=gold", "--out", out)
    new = pd.read_csv(out)
    assert len(new) == 30
    assert set(new["plan"]) == {"gold"}
    done("sample", run, "--n", 5, "--out", tmp_path / "new.parquet")
    assert len(pd.read_parquet(tmp_path / "new.parquet")) == 5
    words = ("sample", run, "--out", tmp_path / "x.csv")
    said = inside(*words[:3], tmp_path / "old.csv", "--given", "age=999", "--quiet")
    assert "is outside the table's values" in said.stderr  # also if it is quiet
    assert not said.stdout
    refused(inside(*words, "--given", "plan=iron"), 2, "--given plan=iron", "gold")
    refused(
        inside(*words, "--given", "height=3"), 2, "does not name a column", "plan, age"
    )
    refused(inside(*words, "--given", "Plam=gold"), 2, "did you mean 'plan'?")
    refused(inside(*words, "--given", "plan"), 2, "says nothing of plan", "plan=value")
    refused(inside(*words, "--given", "age>x"), 2, "--given age>x: 'x' does not fit")
    refused(inside(*words, "--label", "gold"), 2, "--label is for classes", "--given")
    refused(inside("sample", run, "--out", tmp_path / "x.png"), 2, ".png", ".csv")


def test_ranges_of_rows_are_given_by_bounds(table_run, tmp_path, one_comparison):
    out = tmp_path / "new.csv"
    given = (
        "--given",
        "age>40",
        "--given",
        "age <= 50",
        "--given",
        "start>=2021-06-01",
    )
    done("sample", table_run[0], "--n", 30, *given, "--out", out)
    new = pd.read_csv(out)
    assert new["age"].between(41, 50).all()
    assert new["start"].min() >= "2021-06-01"
    words = ("sample", table_run[0], "--out", tmp_path / "x.csv")
    twice = ("--given", "age>40", "--given", "age=30")
    refused(inside(*words, *twice), 2, "age is given twice", "age=a|b")


def test_rows_go_to_stdout(table_run, people, digits_run, tmp_path):
    out = tmp_path / "new.csv"
    done("sample", table_run[0], "--n", 5, "--out", out)
    printed = done("sample", table_run[0], "--n", 5, "--out", "-")
    assert printed == out.read_text()
    printed = done("impute", table_run[0], people, "--out", "-")
    assert printed.splitlines()[0] == "plan,age,spent,start,end,mail"
    assert len(printed.splitlines()) == 201
    words = ("sample", table_run[0], "--out", "-", "--json")
    refused(inside(*words), 2, "--json and --out - both print", "choose one")
    words = ("impute", table_run[0], people, "--out", "-", "--n", 2)
    refused(inside(*words), 2, "one table, not 2")
    refused(inside("sample", digits_run[0], "--out", "-"), 2, "is for tables", ".png")


def test_halves_are_completed_and_the_given_half_is_kept(top_run, digit, tmp_path):
    image, path = digit
    out = tmp_path / "done.npz"
    said = done("inpaint", top_run, path, "--n", 3, "--out", out)
    assert "3 completions of each of 1 pictures" in said
    with np.load(out) as arrays:
        assert arrays["images"].shape == (3, 8, 8)
        assert (arrays["images"][:, :4] == image[:4]).all()
    Image.new("L", (9, 8)).save(tmp_path / "large.png")
    words = (
        "inpaint",
        top_run,
        tmp_path / "large.png",
        "--n",
        1,
        "--out",
        tmp_path / "x.png",
    )
    refused(inside(*words), 2, "9x8", "--resize")
    done(*words, "--resize")
    with Image.open(tmp_path / "x.png") as page:
        assert page.size == (
            (2 * 9 - 1) * 7,
            8 * 7,
        )  # what was given, and one completion
        pixels = np.asarray(page)[3::7, 3::7]
    assert (pixels[4:, :8] == 128).all()  # what was not known is shown gray
    refused(
        inside("sample", top_run, "--out", tmp_path / "y.png"),
        2,
        "completes",
        "inpaint",
    )


def test_a_model_that_keeps_its_pictures_completes_any_part(tmp_path):
    shades = np.random.default_rng(0).integers(0, 256, (150, 1, 1, 3))
    images = np.broadcast_to(shades, (150, 6, 6, 3)).astype(np.uint8)  # one color each
    np.savez(tmp_path / "colors.npz", images=images)
    np.save(tmp_path / "given.npy", images[:2])
    run = tmp_path / "run"
    out = tmp_path / "done.npz"
    done("fit", tmp_path / "colors.npz", *FEW, "--out", run)
    assert "mosaics of" in (run / "report.html").read_text()
    words = ("inpaint", run, tmp_path / "given.npy", "--n", 3, "--out", out, "--force")
    refused(inside(*words), 2, "one known part", "--known top", "--known picture.png")
    refused(
        inside(*words, "--known", "left", "--label", "2"),
        2,
        "fitted without classes",
        "--conditional",
    )
    known = Image.new("L", (6, 6), 255)
    known.paste(0, (2, 2, 4, 4))
    known.save(tmp_path / "hole.png")
    for part in (tmp_path / "hole.png", "border"):
        done(*words, "--known", part)
        with np.load(out) as arrays:
            drawn = arrays["images"].reshape(2, 3, 6, 6, 3).astype(int)
        assert (drawn[:, :, 0] == images[:2, None, 0]).all()
        assert np.abs(drawn[:, :, 2:4, 2:4] - shades[:2, None]).mean() < 25


def test_a_model_that_keeps_none_says_how_to_keep_them(digit, tmp_path):
    flow = sliceflow.ImageFlow(
        n_pixel_values=17, steps_per_stage=1, n_particles=300, random_state=0
    )
    flow.fit(load("digits").images[:300]).save(tmp_path / "none.sliceflow")
    words = ("inpaint", tmp_path / "none.sliceflow", digit[1], "--known", "left")
    words = (*words, "--out", tmp_path / "x.png")
    refused(inside(*words), 1, "--save-rows")


@pytest.mark.parametrize(
    ("size", "value", "said"),
    [((8, 8), 255, "is all white"), ((9, 8), 0, "is 9x8"), (None, 0, "cannot")],
)
def test_a_picture_that_marks_no_known_part_is_refused(tmp_path, size, value, said):
    path = tmp_path / "known.png"
    path.write_text("no picture") if size is None else Image.new("L", size, value).save(
        path
    )
    refused(
        inside("fit", "digits", *FEW, "--known", path, "--out", tmp_path / "x"),
        2,
        said,
        "white",
    )


def test_missing_cells_are_filled_and_all_others_stay(table_run, people, tmp_path):
    out = tmp_path / "full.csv"
    given = tmp_path / "given.csv"
    read_data(Settings(str(people)))[0].x.to_csv(given, index=False)
    said = done("impute", table_run[0], given, "--out", out)
    before = pd.read_csv(given)
    after = pd.read_csv(out)
    assert f"filled {before.isna().sum().sum()} cells" in said
    assert not after.isna().any().any()
    there = before.notna()
    assert (after.where(there) == before.where(there)).to_numpy()[there].all()
    done("impute", table_run[0], given, "--n", 2, "--out", tmp_path / "many.csv")
    assert {path.name for path in tmp_path.glob("many*")} == {
        "many-1.csv",
        "many-2.csv",
    }
    refused(inside("impute", people, "--out", tmp_path / "x.png"), 2, ".png", ".csv")


def test_a_table_is_fitted_and_filled_by_kinds(tmp_path):
    given = tmp_path / "given.csv"
    out = tmp_path / "full.csv"
    rows = [f"{1000 + k % 3},{k % 3}.5,{'' if k % 5 else 'x'}" for k in range(60)]
    given.write_text("\n".join(["zip,x,note", *rows, "1001,,", ",2.5,", ""]))
    said = done(
        "impute", given, "--column", "zip=category", "--drop", "note", "--out", out
    )
    before = pd.read_csv(given, dtype=str, keep_default_na=False)
    after = pd.read_csv(out, dtype=str, keep_default_na=False)
    assert after["zip"].tolist() == [*before["zip"][:-1], "1002"]
    assert after["x"].tolist() == [*before["x"][:-2], "1.5", "2.5"]
    assert after["note"].tolist() == before["note"].tolist()
    assert "filled 2 cells, 50 are left empty" in said


def test_a_model_of_another_kind_is_refused(
    digits_run, table_run, people, digit, tmp_path
):
    words = ("impute", digits_run[0], people, "--out", tmp_path / "x.csv")
    refused(inside(*words), 2, "not a model of a table", "a run of a table")
    words = ("inpaint", table_run[0], digit[1], "--out", tmp_path / "x.png")
    refused(inside(*words), 2, "not a model of pictures", "impute")
    words = ("sample", digits_run[0], "--given", "a=1", "--out", tmp_path / "x.png")
    refused(inside(*words), 2, "--given is for tables", "--label")


SAMPLE_WITHOUT_TORCH = """
import gc
import sys
from sliceflow.cli import main
main()
unneeded = {"torch", "numba", "PIL", "jinja2", "matplotlib", "sliceflow.metrics"}
assert not unneeded & set(sys.modules), unneeded & set(sys.modules)
assert "sklearn.tree" in sys.modules
assert gc.isenabled()
assert len(gc.get_objects()) < gc.get_freeze_count()
"""


@pytest.mark.parametrize("tree_settings", [(5, 2), (5, 2, 8)], ids=["trees", "near"])
def test_rows_of_a_table_are_drawn_without_torch(tmp_path, tree_settings):
    """It takes seconds to import, and five rows should be there in two.

    Nor is what is imported searched for garbage, again and again.
    """
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "plan": rng.choice(["free", "gold"], 60),
            "seats": rng.integers(1, 9, 60),
            "fee": rng.normal(size=60).round(2),
            "start": pd.Timestamp("2024-01-01") + pd.to_timedelta(range(60), "D"),
        }
    )
    frame.loc[3, "fee"] = np.nan
    flow = sliceflow.TableFlow(tree_settings=tree_settings, random_state=0).fit(frame)
    model = tmp_path / "table.sliceflow"
    flow.save(model)
    words = ["sample", str(model), "-n", "5", "--seed", "3", "--out", "-"]
    process = subprocess.run(
        [sys.executable, "-c", SAMPLE_WITHOUT_TORCH, *words],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=120,
    )
    assert process.returncode == 0, process.stderr
    rows = flow.sample(5, random_state=3)
    assert process.stdout == rows.to_csv(index=False)
