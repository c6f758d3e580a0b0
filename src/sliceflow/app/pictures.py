"""The tabs Pictures and Complete: samples of models, neighbors, completions."""

from __future__ import annotations

import base64
import io
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sliceflow.errors import DataError, HintedError, ParameterError

if TYPE_CHECKING:
    from PIL.Image import Image
    from sklearn.base import BaseEstimator

    from sliceflow import ImageFlow, SlicedWassersteinFlow
    from sliceflow.app.server import JsonObject, Request
    from sliceflow.estimators.pictures.layout import Layout

    _Handler = Callable[["Gallery", Request, "OpenRun"], JsonObject]

# How many pictures fit on the page: samples, snapshots of a sample on its way, its
# nearest training pictures, examples to complete, and completions.
_MAX_SAMPLES = 100
_N_SNAPSHOTS = 32
_N_NEIGHBORS = 5
_N_EXAMPLES = 8
_N_COMPLETIONS = 8


def class_named(
    model: SlicedWassersteinFlow | ImageFlow, label: str, model_name: str
) -> Any:
    """The class of a model that is written like `label`."""
    classes = {str(known): known for known in getattr(model, "classes_", ())}
    if not classes:
        fact = f"{model_name} was fitted without labels"
        raise DataError(fact, "ask for no class")
    if label not in classes:
        fact = f"{model_name} has no class {label!r}"
        raise DataError(fact, f"its classes: {', '.join(classes)}")
    return classes[label]


def as_bytes(pictures: NDArray[Any], n_pixel_values: int | None) -> NDArray[np.uint8]:
    """Pictures (…, h, w[, c]) as bytes from 0 to 255.

    Floats are from 0 to 1; whole pixels are below `n_pixel_values`.
    """
    brightest = 1.0
    if pictures.dtype.kind != "f" and n_pixel_values is not None:
        brightest = n_pixel_values - 1.0
    scaled = (pictures * (255.0 / brightest)).round()
    return np.asarray(scaled.clip(0, 255).astype(np.uint8))


def as_image(pixels: NDArray[Any]) -> Image:
    """Bytes (h, w) or (h, w, c) as a picture of Pillow, one pixel for one pixel."""
    from PIL import Image

    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[..., 0]
    return Image.fromarray(np.ascontiguousarray(pixels))


class RunPictures(Protocol):
    """The data of a run: pictures (n, h, w[, c])."""

    @property
    def x(self) -> NDArray[Any]: ...


@dataclass(frozen=True)
class Run:
    """A model that can be loaded, and the data to which it was fitted.

    `load` returns the model. `read` returns its training pictures and held-out ones (or
    None), or raises an error that says why there are none.
    """

    name: str
    load: Callable[[], BaseEstimator]
    read: Callable[[], tuple[RunPictures, RunPictures | None]]


@dataclass(frozen=True)
class OpenRun:
    """The one run that is in memory, with its data or the reason why it has none."""

    index: int
    name: str
    model: ImageFlow
    train: RunPictures | None
    held_out: RunPictures | None
    why_no_data: str

    @property
    def layout(self) -> Layout:
        layout: Layout = self.model.plan_.layout
        return layout

    def as_data_urls(self, pictures: Any) -> list[str]:
        """Pictures (n, h, w[, c]) as data URLs, which contain the picture itself."""
        urls = []
        for pixels in as_bytes(np.asarray(pictures), self.layout.n_pixel_values):
            stream = io.BytesIO()
            as_image(pixels).save(stream, "PNG")
            text = base64.b64encode(stream.getvalue()).decode()
            urls.append(f"data:image/png;base64,{text}")
        return urls


class _SampleRequest:
    """A request of the tab Pictures: how many samples, which class and which seed."""

    def __init__(self, request: Request, run: OpenRun) -> None:
        if run.model.known is not None:
            fact = f"{run.name} completes pictures, and makes none"
            raise DataError(fact, "see the tab Complete")
        self.label: Any = None
        label = str(request.json.get("label") or "")
        if label:
            self.label = class_named(run.model, label, run.name)
        self.n = request.integer("n", _MAX_SAMPLES, minimum=1)
        self.seed = request.seed


def _with_open_run(handler: _Handler) -> Callable[[Gallery, Request], JsonObject]:
    """Answer one request at a time, with the run open that it names."""

    @wraps(handler)
    def handle_alone(self: Gallery, request: Request) -> JsonObject:
        with self.lock:
            run = self.open(request.integer("run", len(self.runs) - 1))
            return handler(self, request, run)

    return handle_alone


class Gallery:
    """Answers what the page asks about runs; one run at a time is in memory.

    Parameters
    ----------
    runs : the runs that the page offers
    read_pictures : turns a file into pictures like those of a layout
    """

    def __init__(
        self,
        runs: Sequence[Run],
        read_pictures: Callable[[Path, Layout], NDArray[Any]],
    ) -> None:
        self.runs = runs
        self.lock = threading.RLock()
        self._read_pictures = read_pictures
        self._open_run: OpenRun | None = None

    def open(self, index: int) -> OpenRun:
        """Load the model of a run, which replaces the one in memory."""
        with self.lock:
            if self._open_run is None or self._open_run.index != index:
                self._open_run = None  # free its memory before another one is loaded
                self._open_run = self._load(index)
            return self._open_run

    def _load(self, index: int) -> OpenRun:
        """The model of a run, with its data if they can be read."""
        from sliceflow import ImageFlow

        run = self.runs[index]
        model = run.load()
        if not isinstance(model, ImageFlow):
            fact = f"{run.name} is not a model of pictures"
            raise DataError(fact, "draw from it with sliceflow sample")
        train = None
        held_out = None
        why_no_data = ""
        try:
            train, held_out = run.read()
        except Exception as error:
            why_no_data = str(error)
        return OpenRun(index, run.name, model, train, held_out, why_no_data)

    @_with_open_run
    def about(self, request: Request, run: OpenRun) -> JsonObject:
        """Size, classes and known part of a model, and pictures to complete."""
        from sliceflow.estimators.pictures.known_parts import as_known

        known = None
        if run.model.known is not None:
            is_known = as_known(run.model.known, run.layout)
            known = is_known.astype(int).tolist()
        examples: list[str] = []
        shown = run.held_out or run.train
        if shown is not None:
            n = min(len(shown.x), _N_EXAMPLES)
            evenly_spaced = np.linspace(0, len(shown.x) - 1, n).astype(int)
            examples = run.as_data_urls(shown.x[evenly_spaced])
        return {
            "width": run.layout.width,
            "height": run.layout.height,
            "classes": [str(label) for label in getattr(run.model, "classes_", ())],
            "known": known,
            "examples": examples,
            "data": run.why_no_data,
        }

    @_with_open_run
    def samples(self, request: Request, run: OpenRun) -> JsonObject:
        """New samples and their classes."""
        wanted = _SampleRequest(request, run)
        pictures, labels = run.model.sample(
            wanted.n, y=wanted.label, random_state=wanted.seed, return_y=True
        )
        names = None
        if labels is not None:
            names = [str(label) for label in labels]
        return {"pictures": run.as_data_urls(pictures), "labels": names}

    @_with_open_run
    def chosen(self, request: Request, run: OpenRun) -> JsonObject:
        """One of the samples on its way, and the training pictures nearest to it."""
        from sliceflow import metrics

        wanted = _SampleRequest(request, run)
        i = request.integer("index", wanted.n - 1)
        evolutions = run.model.evolution(
            wanted.n, y=wanted.label, random_state=wanted.seed, n_snapshots=_N_SNAPSHOTS
        )
        snapshots = np.asarray(evolutions)[:, i]
        nearest: list[str] = []
        if run.train is not None:
            k = min(_N_NEIGHBORS, len(run.train.x))
            neighbors, _ = metrics.nearest_pictures(
                snapshots[-1:], run.train.x, k, mirror=run.model.mirror
            )
            nearest = run.as_data_urls(neighbors[0])
        return {
            "snapshots": run.as_data_urls(snapshots),
            "nearest": nearest,
            "data": run.why_no_data,
        }

    @_with_open_run
    def upload(self, request: Request, run: OpenRun) -> JsonObject:
        """An uploaded picture, in the size of the model's pictures."""
        picture = self._decode(request.body, run.layout)
        return {"picture": run.as_data_urls(picture)[0]}

    @_with_open_run
    def completed(self, request: Request, run: OpenRun) -> JsonObject:
        """Completions of a picture; `known` says which of its pixels are known."""
        head, _, text = str(request.json.get("picture")).partition("base64,")
        if not head.startswith("data:image/"):
            raise DataError("there is no picture", "choose or upload one")
        picture = self._decode(base64.b64decode(text), run.layout)
        is_known = None
        if run.model.known is None:  # else the model has a known part of its own
            is_known = np.asarray(request.json.get("known"), dtype=bool)
        try:
            completions = run.model.inpaint(
                picture, is_known, n=_N_COMPLETIONS, random_state=request.seed
            )
        except ParameterError as error:
            if error.parameter != "save_rows":
                raise
            hint = "fit it with --save-rows, or for one part with --known"
            raise DataError(f"{run.name} {error.fact}", hint) from error
        return {"pictures": run.as_data_urls(completions[0])}

    def _decode(self, body: bytes, layout: Layout) -> NDArray[Any]:
        """A picture (1, h, w[, c]), read as the command line reads files."""
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "picture")
            file.write_bytes(body)
            try:
                return self._read_pictures(file, layout)
            except Exception as error:
                fact = str(error)
                if isinstance(error, HintedError):
                    fact = error.fact
                # The page does not show where on this computer the file was.
                fact = fact.replace(str(file), "the picture")
                raise DataError(fact) from error
