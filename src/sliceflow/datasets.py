"""Pictures from files: the named sets, folders of pictures, arrays. Nothing is scaled or encoded here.

Files are checked before they are believed: a header is held against its file's size before anything
is allocated from it, and of a pickle nothing is ever run.
"""

from __future__ import annotations

import gzip
import importlib.util
import io
import math
import os
import pickle
import pickletools
import re
import struct
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.lib import format as npy
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["DatasetError", "Pictures", "available", "load"]

_SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".webp")
_MOST_INFLATION = 1032  # deflate packs no tighter, so no zip or gz holds more
_ALLOWED = (
    r"numpy\.(ndarray|dtype|_?core\.(multiarray\._reconstruct|numeric\._frombuffer))|_codecs\.encode"
)


class _Set(NamedTuple):
    torchvision: str
    folders: tuple[str, ...]
    files: Mapping[str, tuple[str, ...]]  # of each split
    ending: str  # that each file may have instead


_IDX = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
_BATCHES = {"train": tuple(f"data_batch_{i}" for i in range(1, 6)), "test": ("test_batch",)}
_FACES = {"train": ("*.jpg",), "valid": ("*.jpg",), "test": ("*.jpg",)}
_BATCH_FOLDERS = ("cifar-10-batches-bin", "cifar-10-batches-py", "cifar10", "")
_SETS = {
    "mnist": _Set("MNIST", ("MNIST/raw", "mnist", ""), _IDX, ".gz"),
    "fashion-mnist": _Set("FashionMNIST", ("FashionMNIST/raw", "fashion-mnist", ""), _IDX, ".gz"),
    "cifar10": _Set("CIFAR10", _BATCH_FOLDERS, _BATCHES, ".bin"),
    "celeba": _Set("CelebA", ("celeba/img_align_celeba", "img_align_celeba"), _FACES, ""),
}


class DatasetError(ValueError):
    """A file does not hold what its name or its header says; the message names it."""


@dataclass(frozen=True, eq=False)
class Pictures:
    """Pictures as they were stored.

    Attributes
    ----------
    images : (n, h, w) or (n, h, w, c) array of uint8, or of the type in a .npy or .npz file
    labels : (n,) array: class numbers, or names of folders; None where there are none
    levels : a whole pixel is one of 0..levels-1: 17 for digits, else 256 (an array file does not say)
    name : of the set, the folder or the file
    """

    images: np.ndarray
    labels: np.ndarray | None
    levels: int
    name: str


def load(
    name_or_path: str | os.PathLike[str],
    split: str = "train",
    root: str | os.PathLike[str] | None = None,
    *,
    size: int | None = None,
    skip_broken: bool = False,
    download: bool = False,
) -> Pictures:
    """Pictures of a named set, a folder, or a .npy or .npz file.

    Parameters
    ----------
    name_or_path : "digits", "mnist", "fashion-mnist", "cifar10", "celeba", or a path
        A folder with one subfolder per class gives labels. A name comes before a path: write
        ``"./mnist"`` for a folder of that name. An .npz holds `images` or `x`, or only one array, and
        maybe `labels` or `y`.
    split : "train" or "test", for CelebA also "valid"; a path has only "train"
    root : the folder of the named sets; None takes the environment variable SLICEFLOW_DATA, else
        the folder sliceflow in the user's cache
    size : for folders and CelebA (where None is 64): crop the middle square and resize it to this side
    skip_broken : leave pictures out that cannot be read, with a warning, instead of an error
    download : get a named set that is missing through torchvision, if that is installed

    Examples
    --------
    >>> from sliceflow.datasets import load
    >>> digits = load("digits")
    >>> digits.images.shape, digits.images.dtype, digits.levels
    ((1297, 8, 8), dtype('uint8'), 17)
    >>> load("digits", split="test").labels.shape
    (500,)
    """
    path, named = Path(name_or_path).expanduser(), name_or_path in ("digits", *_SETS)
    if size is not None and (not isinstance(size, int) or isinstance(size, bool) or size < 1):
        raise ValueError(f"size={size!r} must be None or an int of at least 1")
    if size is not None and (name_or_path != "celeba" if named else path.is_file()):
        raise ValueError(f"size={size} is for celeba and folders; {path} is read as it was stored")
    if named:
        return _named(str(name_or_path), split, _root(root), size, skip_broken, download)
    if not path.exists():
        known = ", ".join(("digits", *_SETS))
        raise DatasetError(f"{str(path)!r} is neither a known set ({known}) nor an existing path")
    if split != "train":
        raise DatasetError(f"{path} has no split {split!r}: a path is read whole, as 'train'")
    if path.is_dir():
        return _folder(path, size, skip_broken)
    if path.suffix not in (".npy", ".npz"):
        raise DatasetError(f"{path} is not a folder of pictures, an .npy or an .npz file")
    return _array_file(path)


def available(root: str | os.PathLike[str] | None = None) -> dict[str, bool]:
    """Which named sets are found with all their files; nothing is read.

    Examples
    --------
    >>> available("/nowhere")["digits"], available("/nowhere")["mnist"]
    (True, False)
    """

    def found(name: str) -> bool:
        try:
            return all(_find(name, _root(root), files) for files in set(_SETS[name].files.values()))
        except FileNotFoundError:
            return False

    return {"digits": True} | {name: found(name) for name in _SETS}


def _root(root: str | os.PathLike[str] | None) -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "sliceflow")
    return Path(root or os.environ.get("SLICEFLOW_DATA") or cache).expanduser()


def _named(
    name: str, split: str, root: Path, size: int | None, skip_broken: bool, download: bool
) -> Pictures:
    splits = _SETS[name].files if name in _SETS else ("train", "test")
    if split not in splits:
        raise DatasetError(f"{name} has no split {split!r}; it has {', '.join(splits)}")
    if name == "digits":
        return _digits(split)
    try:
        files = _find(name, root, _SETS[name].files[split])
    except FileNotFoundError:
        if not download or importlib.util.find_spec("torchvision") is None:
            raise
        datasets: Any = importlib.import_module("torchvision.datasets")
        getattr(datasets, _SETS[name].torchvision)(str(root), download=True)
        files = _find(name, root, _SETS[name].files[split])
    if name == "celeba":
        return _celeba(files, split, size or 64, skip_broken)
    images, labels = _cifar(files) if name == "cifar10" else _idx_pair(files)
    return Pictures(images, labels, 256, name)


def _find(name: str, root: Path, wanted: tuple[str, ...]) -> list[Path]:
    """The wanted files, all from one folder, each as it is or with the set's other ending."""
    places = [root / folder for folder in _SETS[name].folders]
    ending, missing = _SETS[name].ending, list(wanted)
    for place in places:
        found = {f: sorted(place.glob(f)) or sorted(place.glob(f + ending)) for f in wanted}
        if all(found.values()):
            return [path for paths in found.values() for path in paths]
        missing = min(missing, [f for f in wanted if not found[f]], key=len)
    raise FileNotFoundError(
        f"{name}: no {missing[0]}{f' or {missing[0]}{ending}' if ending else ''} in "
        f"{', '.join(map(str, places))}; put the published files there, name the folder above with "
        "root= or the environment variable SLICEFLOW_DATA, or pass download=True, which needs "
        "torchvision (pip install torchvision)"
    )


@contextmanager
def _naming(file: Path) -> Iterator[None]:
    """Whatever a decoder finds wrong becomes a DatasetError that names the file."""
    try:
        yield
    except (DatasetError, MemoryError, PermissionError):
        raise
    except Exception as error:
        raise DatasetError(f"{file} cannot be read: {str(error) or type(error).__name__}") from error


def _digits(split: str) -> Pictures:
    images, labels = load_digits()["images"], load_digits()["target"]
    rows = train_test_split(np.arange(len(labels)), test_size=500, stratify=labels, random_state=0)
    chosen = rows[0 if split == "train" else 1]
    return Pictures(images[chosen].astype(np.uint8), labels[chosen], 17, "digits")


def _idx_pair(files: Sequence[Path]) -> tuple[np.ndarray, np.ndarray]:
    images, labels = _idx(files[0], 3), _idx(files[1], 1)
    if len(labels) != len(images):
        raise DatasetError(f"{files[1]} has {len(labels)} labels, {files[0]} {len(images)} pictures")
    return images, labels.astype(np.int64)


def _idx(file: Path, rank: int) -> np.ndarray:
    """An idx file, gzipped or not: 00 00 08 rank, the sizes as big-endian uint32, then bytes."""
    with _naming(file), file.open("rb") as plain:
        packed = plain.read(2) == b"\x1f\x8b"  # whatever its name: browsers unpack .gz on their own
        plain.seek(0)
        stream: Any = gzip.GzipFile(fileobj=plain) if packed else plain
        head, magic = stream.read(4 + 4 * rank), bytes((0, 0, 8, rank))
        if head[:4] != magic:
            raise DatasetError(
                f"{file} starts with {head[:4].hex(' ') or 'nothing'} instead of {magic.hex(' ')}: "
                f"it is not an idx{rank} file of bytes"
            )
        shape = struct.unpack(f">{rank}I", head[4:])
        need, most = math.prod(shape), file.stat().st_size * (_MOST_INFLATION if packed else 1)
        data = stream.read(need + 1) if need <= most else b""
        if len(data) != need or need == 0:
            raise DatasetError(
                f"{file} is truncated or damaged: its header gives sizes {shape}, {need} bytes, but "
                f"{'more' if len(data) > need > 0 else 'fewer' if need else 'no pictures'} follow"
            )
    return np.frombuffer(data, np.uint8).reshape(shape).copy()


def _cifar(files: Sequence[Path]) -> tuple[np.ndarray, np.ndarray]:
    """CIFAR-10 batches: a picture is a red, a green and a blue plane of 32×32."""
    rows, labels = [], []
    for file in files:
        with _naming(file):
            x, y = _binary_batch(file) if file.suffix == ".bin" else _pickled_batch(file)
        if x.shape != (len(y), 3072) or len(y) == 0:
            raise DatasetError(f"{file} has {len(y)} labels but data {x.shape} instead of (n, 3072)")
        if y.min() < 0 or y.max() > 9:
            raise DatasetError(f"{file} has labels {y.min()} to {y.max()}; CIFAR-10's are 0 to 9")
        rows.append(x)
        labels.append(y)
    planes = np.concatenate(rows).reshape(-1, 3, 32, 32)
    return np.ascontiguousarray(planes.transpose(0, 2, 3, 1)), np.concatenate(labels)


def _binary_batch(file: Path) -> tuple[np.ndarray, np.ndarray]:
    if (size := file.stat().st_size) % 3073:
        raise DatasetError(f"{file} is truncated: {size} bytes are not whole pictures of 3073 bytes")
    table = np.fromfile(file, np.uint8).reshape(-1, 3073)
    return table[:, 1:], table[:, 0].astype(np.int64)


class _Record:
    """What a pickle asked for, written down instead of done."""

    state: tuple[Any, ...] = ()

    def __init__(self, *args: Any) -> None:
        self.args = args

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.state = state


class _Unpickler(pickle.Unpickler):
    """Containers, numbers and text; records in place of numpy's arrays and of encoded bytes.

    Numpy's own functions would not do: a forged dtype or shape makes them write or allocate at will.
    """

    def find_class(self, module: str, name: str, /) -> Any:
        if not re.fullmatch(_ALLOWED, f"{module}.{name}"):
            raise pickle.UnpicklingError(f"its pickle asks for {module}.{name}, which is refused")
        return _Record


def _pickled_batch(file: Path) -> tuple[np.ndarray, np.ndarray]:
    raw = file.read_bytes()
    # A pass that runs nothing: every length is within the file, and no memo index makes a huge table.
    for opcode, arg, _ in pickletools.genops(raw):
        if opcode.name in ("PUT", "LONG_BINPUT") and int(arg or 0) > len(raw):
            raise pickle.UnpicklingError(f"its pickle has a memo index of {arg}")
    batch = _Unpickler(io.BytesIO(raw), encoding="latin1").load()
    labels = batch.get("labels") if isinstance(batch, dict) else None
    if not isinstance(labels, list) or not isinstance(batch.get("data"), _Record):
        raise DatasetError(f"{file} is not a CIFAR-10 batch: a dict of 'labels', a list, and 'data'")
    return _recorded_bytes(batch["data"]), np.array([int(label) for label in labels], np.int64)


def _recorded_bytes(record: _Record) -> np.ndarray:
    """The array of bytes that a record describes, as pickled by numpy on Python 2 or 3."""
    if record.state:
        _, shape, dtype, fortran, raw = record.state
    else:  # pickle protocol 5
        raw, dtype, shape, order = record.args
        fortran = order == "F"
    if dtype.args[0] != "u1":
        raise pickle.UnpicklingError(f"its data are {dtype.args[0]!r} instead of bytes, 'u1'")
    raw = raw.args[0] if isinstance(raw, _Record) else raw  # bytes that Python 3 wrote as latin1 text
    raw = raw.encode("latin1") if isinstance(raw, str) else raw
    return np.frombuffer(raw, np.uint8).reshape(shape, order="F" if fortran else "C")


def _celeba(files: Sequence[Path], split: str, size: int, skip_broken: bool) -> Pictures:
    def face(image: Image) -> Image:
        """The usual 140×140 of 178×218, in proportion."""
        w, h = image.size
        if abs(h * 178 - w * 218) > 218:  # more than a pixel off
            raise ValueError(
                f"{w}x{h} is not in proportion to CelebA's 178x218; load the folder by path"
            )
        return _square(image, w * 140 / 178, size)

    images, _ = _pictures(_in_split(files, split), face, skip_broken)
    return Pictures(images, None, 256, "celeba")


def _in_split(files: Sequence[Path], split: str) -> Sequence[Path]:
    partition = files[0].parent.parent / "list_eval_partition.txt"
    if not partition.is_file():
        if split != "train":
            raise DatasetError(f"celeba: without {partition} all pictures are 'train', none {split!r}")
        return files
    with _naming(partition):
        parts = dict(line.split() for line in partition.read_text().splitlines())
    wanted = str(("train", "valid", "test").index(split))
    chosen = [file for file in files if parts.get(file.name) == wanted]
    if not chosen:
        raise DatasetError(f"{partition} puts none of the {len(files)} pictures into {split!r}")
    return chosen


def _folder(path: Path, size: int | None, skip_broken: bool) -> Pictures:
    def inside(folder: Path) -> list[Path]:
        files = (f for f in folder.iterdir() if f.suffix.lower() in _SUFFIXES and f.is_file())
        return sorted(f for f in files if not f.name.startswith("."))

    def square(image: Image) -> Image:
        return image if size is None else _square(image, min(image.size), size)

    own = inside(path)
    folders = sorted(f for f in path.iterdir() if f.is_dir() and not f.name.startswith("."))
    in_classes = [file for folder in folders for file in inside(folder)]
    if bool(own) == bool(in_classes):
        held = (
            f"both pictures and folders of pictures, {in_classes[0].parent.name}"
            if own
            else "no pictures"
        )
        raise DatasetError(
            f"{path} holds {held} ({', '.join(_SUFFIXES)} in it or one folder per class)"
        )
    images, kept = _pictures(own or in_classes, square, skip_broken)
    labels = np.array([in_classes[i].parent.name for i in kept]) if in_classes else None
    return Pictures(images, labels, 256, path.resolve().name)


def _pictures(
    files: Sequence[Path], fit: Callable[[Image], Image], skip_broken: bool
) -> tuple[np.ndarray, list[int]]:
    """The pictures that can be read, grey if all are, and the numbers of their files."""
    images, kept, broken = np.empty(0, np.uint8), list[int](), list[str]()
    for i, file in enumerate(files):
        try:
            picture = _decode(file, fit)
        except DatasetError as error:
            if not skip_broken:
                raise DatasetError(f"{error} (skip_broken=True leaves such files out)") from error
            broken.append(str(error))
            continue
        if not kept:
            images = np.empty((len(files), *picture.shape), np.uint8)
        if picture.shape[:2] != images.shape[1:3]:
            first, this = ("{1}x{0}".format(*shape) for shape in (images.shape[1:], picture.shape))
            raise DatasetError(
                f"{files[kept[0]]} is {first} but {file} is {this}; pass size= to make them one size"
            )
        if picture.ndim == images.ndim:  # the first in colour: those before it were grey
            images = np.repeat(images[..., None], 3, axis=-1)
        images[len(kept)] = picture if picture.ndim == images.ndim - 1 else picture[..., None]
        kept.append(i)
    if not kept:
        raise DatasetError(f"none of {len(files)} pictures can be read; the first: {broken[0]}")
    if broken:
        shown = "; ".join(broken[:3]) + ("; …" if len(broken) > 3 else "")
        warnings.warn(f"skipped {len(broken)} of {len(files)} pictures: {shown}", stacklevel=4)
    return images[: len(kept)], kept


def _pillow() -> Any:
    try:
        import PIL.Image
        import PIL.ImageOps
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError('pictures need Pillow: pip install "sliceflow[images]"') from error
    return PIL


def _decode(file: Path, fit: Callable[[Image], Image]) -> np.ndarray:
    """One picture, upright, on white where it is transparent: (h, w) if stored grey, else (h, w, 3)."""
    pil = _pillow()
    formats = ("PNG", "JPEG", "BMP", "WEBP", "GIF")  # and none that runs other programs
    with _naming(file), pil.Image.open(file, formats=formats) as stored:
        image = pil.ImageOps.exif_transpose(stored)
        if image.mode[0] in "IF":
            raise ValueError(f"its pixels ({image.mode}) have more than 256 levels; make it 8-bit")
        mode = "L" if image.mode in ("1", "L", "LA") else "RGB"
        if image.has_transparency_data:
            white = pil.Image.new("RGBA", image.size, "white")
            image = pil.Image.alpha_composite(white, image.convert("RGBA"))
        return np.asarray(fit(image.convert(mode)))


def _square(image: Image, side: float, size: int) -> Image:
    """The middle square, side×side, as size×size pixels."""
    left, top = ((length - side) / 2 for length in image.size)
    if side == size:  # a crop by whole pixels resamples nothing
        left, top = math.floor(left), math.floor(top)
    lanczos = _pillow().Image.Resampling.LANCZOS
    return image.resize((size, size), lanczos, box=(left, top, left + side, top + side))


def _array_file(path: Path) -> Pictures:
    with _naming(path):
        arrays = _arrays(path)
    labels = next((arrays.pop(key) for key in ("labels", "y") if key in arrays), None)
    key = next((key for key in ("images", "x", *arrays) if key in arrays), "")
    if key not in ("images", "x") and len(arrays) != 1:
        raise DatasetError(f"{path} has arrays {sorted(arrays)}; name the one of pictures 'images'")
    images, shape = arrays[key], arrays[key].shape
    if images.dtype.kind not in "buif" or len(shape) not in (3, 4) or 0 in shape:
        raise DatasetError(
            f"{path} holds {images.dtype} {shape}, not pictures (n, h, w) or (n, h, w, c)"
        )
    if labels is not None and labels.shape != shape[:1]:
        raise DatasetError(f"{path} has labels of shape {labels.shape} for {shape[0]} pictures")
    return Pictures(images, labels, 256, path.stem)


def _arrays(path: Path) -> dict[str, np.ndarray]:
    if path.suffix == ".npy":
        with path.open("rb") as stream:
            return {"images": _array(stream, path.stat().st_size)}
    with zipfile.ZipFile(path) as archive:
        return {
            info.filename.removesuffix(".npy"): _array(
                archive.open(info), min(info.file_size, info.compress_size * _MOST_INFLATION)
            )
            for info in archive.infolist()
        }


def _array(stream: IO[bytes], size: int) -> np.ndarray:
    """An array in numpy's format, whose header may promise no more than `size` bytes."""
    head = io.BytesIO(stream.read(1 << 16))
    first = npy.read_magic(head) == (1, 0)
    read_header = npy.read_array_header_1_0 if first else npy.read_array_header_2_0
    shape, _, dtype = read_header(head)
    if (need := math.prod(shape) * dtype.itemsize) > size:
        raise ValueError(f"its header promises {shape} of {dtype}, {need} bytes, and it has {size}")
    stream.seek(0)
    array: np.ndarray = npy.read_array(stream, allow_pickle=False)
    return array
