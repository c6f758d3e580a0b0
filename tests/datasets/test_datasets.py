"""Data sets: every format as tiny files, whole, damaged and hostile."""

import gzip
import io
import os
import pickle
import re
import struct
import sys
import tracemalloc
import zipfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from sliceflow.datasets import DatasetError, available, load

rng = np.random.default_rng(0)
GRAY = rng.integers(0, 256, (6, 5, 4), dtype=np.uint8)
LABELS = np.array([3, 1, 4, 1, 5, 9])
COLOR = rng.integers(0, 256, (2, 32, 32, 3), dtype=np.uint8)
ROWS = COLOR.transpose(0, 3, 1, 2).reshape(2, 3072)
IMAGES = "train-images-idx3-ubyte"
TARGETS = "train-labels-idx1-ubyte"


def idx(array):
    return (
        bytes((0, 0, 8, array.ndim))
        + struct.pack(f">{array.ndim}I", *array.shape)
        + array.tobytes()
    )


def write_mnist(folder, images=GRAY, labels=LABELS, pack=None):
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in ((IMAGES, images), (TARGETS, labels.astype(np.uint8))):
        data = array if isinstance(array, bytes) else idx(array)
        if pack:
            (folder / f"{name}.gz").write_bytes(pack(data))
        else:
            (folder / name).write_bytes(data)
    return folder


def batch(labels=(3, 7), data=ROWS):
    return {"batch_label": "training batch", "labels": list(labels), "data": data}


def write_cifar(folder, train, test=None, ending=""):
    folder.mkdir(parents=True, exist_ok=True)
    for i in range(1, 6):
        (folder / f"data_batch_{i}{ending}").write_bytes(train)
    (folder / f"test_batch{ending}").write_bytes(train if test is None else test)
    return folder


def picture(path, shape=(8, 8, 3), value=None, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    if value is None:
        pixels = rng.integers(0, 256, shape, dtype=np.uint8)
    else:
        pixels = np.full(shape, value, dtype=np.uint8)
    Image.fromarray(pixels).save(path, **options)
    return pixels


def refused(message, *args, error=DatasetError, **options):
    with pytest.raises(error, match=re.escape(message)) as caught:
        load(*args, **options)
    return str(caught.value)


# Names, paths, places


def test_digits_are_split_once_and_for_all():
    train = load("digits")
    test = load("digits", "test")
    assert train.images.shape == (1297, 8, 8)
    assert test.images.shape == (500, 8, 8)
    assert (train.n_pixel_values, train.name, train.images.dtype) == (
        17,
        "digits",
        np.uint8,
    )
    assert max(train.images.max(), test.images.max()) == 16
    assert np.array_equal(load("digits", "test").images, test.images)
    assert np.bincount(train.labels).sum() + np.bincount(test.labels).sum() == 1797
    assert min(np.bincount(test.labels)) >= 48


def test_what_cannot_be_loaded_is_refused_with_its_name(tmp_path):
    picture(tmp_path / "a.png")
    (tmp_path / "notes.txt").write_text("hello")
    known = "digits, mnist, fashion-mnist, cifar10, celeba"
    refused(f"'minst' is neither a known set ({known})", "minst")
    refused(
        "cifar10 has no split 'valid'; it has train, test", "cifar10", "valid", tmp_path
    )
    refused("has no split 'test': a path is read whole", tmp_path, "test")
    refused(
        "is not a folder of pictures, an .npy or an .npz file", tmp_path / "notes.txt"
    )
    refused("size=2.5 must be None or an int", tmp_path, size=2.5, error=ValueError)
    refused("size=4 is for celeba and folders", "digits", size=4, error=ValueError)


def test_root_is_the_argument_then_the_variable_then_the_cache(tmp_path, monkeypatch):
    for i, place in enumerate(("argument", "variable", "cache/sliceflow")):
        write_mnist(tmp_path / place, GRAY + np.uint8(i))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("SLICEFLOW_DATA", raising=False)
    assert np.array_equal(load("mnist").images, GRAY + np.uint8(2))
    monkeypatch.setenv("SLICEFLOW_DATA", str(tmp_path / "variable"))
    assert np.array_equal(load("mnist").images, GRAY + np.uint8(1))
    assert np.array_equal(load("mnist", root=tmp_path / "argument").images, GRAY)
    missing = tmp_path / "nowhere"
    said = refused(
        "mnist: no train-images-idx3-ubyte",
        "mnist",
        root=missing,
        error=FileNotFoundError,
    )
    for part in (f"{IMAGES}.gz", f"{missing}/mnist", "SLICEFLOW_DATA", "download=True"):
        assert part in said


def test_available_wants_every_file(tmp_path):
    nothing = dict.fromkeys(("mnist", "fashion-mnist", "cifar10", "celeba"), False)
    assert available(tmp_path) == {"digits": True} | nothing
    write_cifar(tmp_path / "cifar-10-batches-py", b"never read")
    picture(tmp_path / "celeba/img_align_celeba/000001.jpg")
    folder = write_mnist(tmp_path / "MNIST" / "raw")
    assert not available(tmp_path)["mnist"]
    for name in (IMAGES, TARGETS):
        (folder / name.replace("train", "t10k")).write_bytes(b"")
    found = {"mnist": True, "cifar10": True, "celeba": True}
    assert available(tmp_path) == {"digits": True} | nothing | found


# idx files


@pytest.mark.parametrize("pack", [None, gzip.compress], ids=["plain", "gz"])
@pytest.mark.parametrize(
    ("name", "folder"),
    [("mnist", "MNIST/raw"), ("mnist", "."), ("fashion-mnist", "fashion-mnist")],
)
def test_idx_files_are_read_in_every_layout(name, folder, pack, tmp_path):
    write_mnist(tmp_path / folder, pack=pack)
    read = load(name, root=tmp_path)
    assert np.array_equal(read.images, GRAY)
    assert np.array_equal(read.labels, LABELS)
    assert (read.n_pixel_values, read.name, read.labels.dtype) == (256, name, np.int64)
    read.images[0] = 0  # the user's own copy


@pytest.mark.parametrize("pack", [None, gzip.compress], ids=["plain", "gz"])
@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            b"<html>not found</html>",
            "is not an idx3 file of bytes: it starts with b'<htm'",
        ),
        (idx(GRAY)[:9], "cannot be read"),
        (
            idx(GRAY)[:-1],
            "damaged or empty: its header gives sizes (6, 5, 4), 120 bytes",
        ),
        (idx(GRAY) + bytes(5_000_000), "its header gives sizes (6, 5, 4), 120 bytes"),
        (idx(GRAY[:0]), "its header gives sizes (0, 5, 4), 0 bytes"),
        (
            b"\0\0\x08\3" + b"\xff" * 12 + bytes(5_000_000),
            "its header gives sizes (4294967295, ",
        ),
    ],
    ids=["not idx", "header", "cut", "too long", "none", "vast"],
)
def test_damaged_idx_files_are_named_before_they_are_unpacked(
    data, message, pack, tmp_path
):
    write_mnist(tmp_path, images=data, pack=pack)
    tracemalloc.start()
    said = refused(message, "mnist", root=tmp_path)
    assert tracemalloc.get_traced_memory()[1] < 2_000_000
    tracemalloc.stop()
    assert str(tmp_path / IMAGES) in said
    write_mnist(tmp_path, labels=LABELS[:-1], pack=pack)
    refused("has 5 labels", "mnist", root=tmp_path)


# CIFAR-10

PYTHON_2 = (  # as cPickle wrote the published files: byte strings, numpy.core
    b"\x80\x02}q\x01(U\x04dataq\x02cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b"
    b"\x87R(K\x01K\x02M\x00\x0c\x86cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xff"
    b"J\xff\xff\xff\xffK\x00tb\x89T\x00\x18\x00\x00"
    + ROWS.tobytes()
    + b"tbU\x06labels](K\x03K\x07eu."
)
BINARY = np.concatenate([np.array([[3], [7]], np.uint8), ROWS], axis=1).tobytes()
GOOD_BATCHES = {
    f"protocol {p}": (pickle.dumps(batch(), protocol=p), "") for p in (0, 2, 5)
} | {
    "Python 2": (PYTHON_2, ""),
    "Fortran order, protocol 5": (
        pickle.dumps(batch(data=np.asfortranarray(ROWS)), protocol=5),
        "",
    ),
    "binary": (BINARY, ".bin"),
}


@pytest.mark.parametrize("case", GOOD_BATCHES)
def test_cifar_batches_are_read_however_they_were_written(case, tmp_path):
    data, ending = GOOD_BATCHES[case]
    write_cifar(tmp_path / "cifar-10-batches-py", data, ending=ending)
    train = load("cifar10", "train", tmp_path)
    test = load("cifar10", "test", tmp_path)
    assert np.array_equal(train.images, np.concatenate([COLOR] * 5))
    assert np.array_equal(train.labels, [3, 7] * 5)
    assert np.array_equal(test.images, COLOR)
    assert (test.n_pixel_values, test.name, test.labels.dtype) == (
        256,
        "cifar10",
        np.int64,
    )
    test.images[0] = 0


class Calls:
    """Pickles as a call of any function."""

    def __init__(self, *call):
        self.call = call

    def __reduce__(self):
        return self.call[0], self.call[1:]


def forged(old, new):
    """A batch with other bytes in the description of its array."""
    return pickle.dumps(batch()).replace(old, new)


@pytest.mark.parametrize(
    ("data", "ending", "message"),
    [
        (pickle.dumps(Calls(os.system, "touch owned")), "", "system, which is refused"),
        (pickle.dumps(Calls(np.load, "x")), "", "numpy.load, which is refused"),
        (pickle.dumps(batch(data=Calls(np.ndarray, (1 << 50,)))), "", "cannot be read"),
        (pickle.dumps(Calls(bytearray, 1 << 50)), "", "which is refused"),
        (b"\x80\x02]r\xff\xff\xff\xff.", "", "memo index of 4294967295"),
        (forged(b"u1", b"O8"), "", "its data are 'O8' instead of bytes"),
        (pickle.dumps(batch(labels=[1])), "", "has 1 labels but data (2, 3072)"),
        (
            BINARY[:-1],
            ".bin",
            "is truncated: 6145 bytes are not whole pictures of 3073",
        ),
        (b"\x63" + BINARY[1:], ".bin", "has labels 7 to 99; CIFAR-10's are 0 to 9"),
    ],
    ids=[
        "command",
        "load",
        "array",
        "bytes",
        "memo",
        "objects",
        "labels",
        "cut",
        "CIFAR-100",
    ],
)
def test_bad_batches_are_named_and_never_run(
    data, ending, message, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    write_cifar(tmp_path, BINARY, test=data, ending=ending)
    said = refused(message, "cifar10", "test", tmp_path)
    assert str(tmp_path / f"test_batch{ending}") in said
    assert not (tmp_path / "owned").exists()


# Any damage whatever


def archive():
    buffer = io.BytesIO()
    np.savez_compressed(buffer, images=GRAY, labels=LABELS)
    return buffer.getvalue()


WHOLE_SPACE = {
    "idx": (idx(GRAY), lambda data, at: (write_mnist(at, data), "mnist")),
    "gz": (gzip.compress(idx(GRAY)), lambda data, at: (write_mnist(at, data), "mnist")),
    "pickle": (
        pickle.dumps(batch()),
        lambda data, at: (write_cifar(at, data), "cifar10"),
    ),
    "npz": (
        archive(),
        lambda data, at: ((at / "a.npz").write_bytes(data), at / "a.npz"),
    ),
}


@pytest.mark.parametrize("kind", WHOLE_SPACE)
@given(data=st.data())
def test_a_damaged_file_is_read_or_refused_and_nothing_else(
    kind, data, tmp_path_factory
):
    whole, write = WHOLE_SPACE[kind]
    damaged = bytearray(whole)
    near = st.integers(0, len(whole) - 1) | st.integers(0, min(300, len(whole)) - 1)
    for at in data.draw(st.lists(near, max_size=3)):
        damaged[at] = data.draw(st.integers(0, 255))
    del damaged[data.draw(near | st.just(len(whole))) :]
    folder = tmp_path_factory.mktemp("damaged")
    _, name = write(bytes(damaged), folder)
    try:
        read = load(name, root=folder)
    except DatasetError as error:
        message = str(error)
        file = error.file
    else:
        assert len(read.labels) == len(read.images) > 0
        return
    assert str(folder) in message
    assert file.is_relative_to(folder)


# CelebA


def coordinates(path, w, h, scale=1):
    """A picture that says where each of its pixels is: red is x, green is y."""
    path.parent.mkdir(parents=True, exist_ok=True)
    y, x = np.mgrid[:h, :w]
    pixels = np.stack([x * scale, y * scale, 0 * x], axis=-1).astype(np.uint8)
    Image.fromarray(pixels).save(path, format="png")  # no loss: readers go by content


@pytest.mark.parametrize(("w", "h", "scale"), [(178, 218, 1), (89, 109, 2)])
def test_faces_are_the_middle_140_of_178x218_whatever_the_scale(w, h, scale, tmp_path):
    coordinates(tmp_path / "celeba/img_align_celeba/000001.jpg", w, h, scale)
    read = load("celeba", root=tmp_path)
    assert read.images.shape == (1, 64, 64, 3)
    assert read.labels is None
    x = read.images[0, ..., 0].astype(float)
    y = read.images[0, ..., 1].astype(float)
    # Of pixel i, in full-size pixels:
    center = 2.1875 * (np.arange(64) + 0.5) - scale / 2
    assert np.abs(x[32] - (19 + center)).max() < 1
    assert np.abs(y[:, 32] - (39 + center)).max() < 1
    if scale == 1:  # a crop of whole pixels is exact
        exact = load("celeba", root=tmp_path, size=140).images[0]
        assert np.array_equal(exact[0, :, 0], np.arange(19, 159))
        assert np.array_equal(exact[:, 0, 1], np.arange(39, 179))


def test_the_partition_file_makes_the_splits(tmp_path):
    for i in range(1, 5):
        picture(
            tmp_path / f"celeba/img_align_celeba/00000{i}.jpg",
            (109, 89, 3),
            value=50 * i,
        )
    partition = tmp_path / "celeba" / "list_eval_partition.txt"
    assert len(load("celeba", root=tmp_path).images) == 4
    refused(
        f"without {partition} all pictures are 'train', none 'valid'",
        "celeba",
        "valid",
        tmp_path,
    )
    partition.write_text("000001.jpg 0\n000002.jpg 0\n000003.jpg 1\n000004.jpg 1\n")
    levels = load("celeba", "valid", tmp_path).images.mean((1, 2, 3))
    assert np.allclose(levels, [150, 200], atol=2)
    refused("puts none of the 4 pictures into 'test'", "celeba", "test", tmp_path)
    partition.write_text("nonsense\n")
    refused(f"{partition} cannot be read", "celeba", "valid", tmp_path)
    picture(tmp_path / "celeba/img_align_celeba/000001.jpg", (64, 64, 3))
    partition.unlink()
    refused("64x64 is not in proportion to CelebA's 178x218", "celeba", root=tmp_path)


# Folders


def test_subfolders_are_classes_in_order_and_gray_becomes_color_beside_color(
    tmp_path,
):
    names = ("dog/2", "dog/1", "cat/2", "cat/1")
    pixels = {name: picture(tmp_path / f"{name}.png") for name in names}
    picture(tmp_path / ".hidden" / "1.png")
    (tmp_path / "cat" / "notes.txt").write_text("not a picture")
    read = load(str(tmp_path))
    assert read.labels.tolist() == ["cat", "cat", "dog", "dog"]
    assert np.array_equal(read.images, [pixels[name] for name in sorted(names)])
    gray = picture(tmp_path / "cat" / "1.PNG", (8, 8))
    assert np.array_equal(
        load(tmp_path).images[0], np.repeat(gray[..., None], 3, axis=-1)
    )
    alone = load(tmp_path / ".hidden")
    assert (alone.labels, alone.n_pixel_values, alone.name) == (None, 256, ".hidden")


def test_mixed_sizes_need_a_size(tmp_path):
    picture(tmp_path / "a.png", (8, 12), value=9)
    assert load(tmp_path).images.shape == (1, 8, 12)
    picture(tmp_path / "b.png", (20, 10), value=200)
    assert "b.png is 10x20; pass size=" in refused("a.png is 12x8 but", tmp_path)
    assert load(tmp_path, size=5).images[:, 2, 2].tolist() == [9, 200]


def test_photographs_are_upright_and_transparent_pixels_white(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was held on its side
    pixels = np.zeros((8, 16, 4), np.uint8)
    pixels[:, :8, :3] = 255
    pixels[:, :12, 3] = 255
    Image.fromarray(pixels).save(tmp_path / "a.png", exif=exif)
    read = load(tmp_path).images[0]
    assert read.shape == (16, 8, 3)
    assert read[:, 0, 0].tolist() == [255] * 8 + [0] * 4 + [255] * 4


def test_folders_that_are_no_sets_of_pictures_are_refused(tmp_path, monkeypatch):
    refused(f"{tmp_path} holds no pictures (.bmp, .gif, .jpeg", tmp_path)
    # PostScript is not even tried.
    (tmp_path / "a.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%EndComments\n")
    refused("none of 1 pictures can be read; the first:", tmp_path, skip_broken=True)
    Image.fromarray(np.full((4, 4), 40_000, np.uint16)).save(tmp_path / "a.png")
    # Old versions of Pillow read it as "I", newer ones as "I;16".
    message = refused("a.png cannot be read: its pixels (I", tmp_path)
    assert ") have more than 256 levels" in message
    picture(tmp_path / "cats" / "b.png")
    refused(f"{tmp_path} holds both pictures and folders of pictures", tmp_path)
    monkeypatch.setitem(sys.modules, "PIL", None)
    refused(
        'pip install "sliceflow[images]"', tmp_path / "cats", error=ModuleNotFoundError
    )


def test_a_broken_picture_is_named_or_skipped(tmp_path):
    good = picture(tmp_path / "cat" / "1.png")
    picture(tmp_path / "cat" / "2.png")
    whole = (tmp_path / "cat" / "2.png").read_bytes()
    (tmp_path / "cat" / "2.png").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "dog").mkdir()
    for i in range(4):
        (tmp_path / "dog" / f"{i}.jpg").write_bytes(b"not a picture")
    other = picture(tmp_path / "dog" / "9.png")
    said = refused(f"{tmp_path / 'cat' / '2.png'} cannot be read", tmp_path)
    assert "skip_broken=True" in said
    with pytest.warns(
        UserWarning, match="skipped 5 of 7 pictures: .*2.png.*0.jpg.*1.jpg.*…"
    ) as caught:
        read = load(tmp_path, skip_broken=True)
    assert caught[0].filename == __file__
    assert read.labels.tolist() == ["cat", "dog"]
    assert np.array_equal(read.images, [good, other])


# Arrays


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize("shape", [(6, 4, 5), (6, 8, 9, 3)])
def test_arrays_keep_their_type(dtype, shape, tmp_path):
    array = np.asfortranarray(rng.integers(0, 256, shape).astype(dtype))
    np.save(tmp_path / "a.npy", array)
    np.savez_compressed(tmp_path / "b.npz", pictures=array, y=LABELS)
    for name, labels in (("a.npy", None), ("b.npz", LABELS.tolist())):
        read = load(tmp_path / name)
        assert np.array_equal(read.images, array)
        assert read.images.dtype == dtype
        assert (read.n_pixel_values, read.name) == (256, name[0])
        assert (None if read.labels is None else read.labels.tolist()) == labels


@pytest.mark.parametrize("name", ["A.NPY", "A.Npz"])
def test_endings_of_arrays_may_be_capitals(name, tmp_path):
    with (tmp_path / name).open("wb") as file:
        if name == "A.NPY":
            np.save(file, GRAY)
        else:
            np.savez(file, images=GRAY)
    assert np.array_equal(load(tmp_path / name).images, GRAY)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (
            dict(a=GRAY, b=GRAY),
            "has arrays ['a', 'b']; name the one of pictures 'images'",
        ),
        (dict(x=GRAY, y=LABELS[1:]), "labels of shape (5,) for 6 pictures"),
        (dict(x=GRAY[0]), "holds uint8 (5, 4), not pictures (n, h, w) or (n, h, w, c)"),
        (dict(x=np.full((2, 2, 2), None)), "allow_pickle=False"),
    ],
    ids=["two", "labels", "vectors", "objects"],
)
def test_arrays_that_are_no_pictures(arrays, message, tmp_path):
    np.savez(tmp_path / "a.npz", **arrays)
    assert str(tmp_path / "a.npz") in refused(message, tmp_path / "a.npz")


@pytest.mark.parametrize("container", ["npy", "npz"])
def test_a_header_that_promises_too_much_is_not_believed(container, tmp_path):
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        buffer,
        {"descr": "|u1", "fortran_order": False, "shape": (1 << 16, 1 << 10, 1 << 10)},
    )
    data = buffer.getvalue() + bytes(100)
    path = tmp_path / f"a.{container}"
    path.write_bytes(data)
    if container == "npz":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
            packed.writestr("images.npy", data)
    tracemalloc.start()
    promise = "its header promises (65536, 1024, 1024) of uint8, 68719476736 bytes"
    refused(f"{promise}, and it has", path)
    assert tracemalloc.get_traced_memory()[1] < 2_000_000
    tracemalloc.stop()
