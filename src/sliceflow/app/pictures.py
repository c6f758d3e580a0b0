"""The tabs of pictures: samples of models, their way, their neighbours, completions."""

from __future__ import annotations

import base64
import io
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np

from sliceflow.app.server import Request

_MOST = 100
_FRAMES = 32
_NEAREST = 5
_EXAMPLES = 8
_COMPLETIONS = 8


def class_named(flow: Any, label: str, name: str) -> Any:
    """The class of a model that is written like `label`."""
    classes = {str(c): c for c in getattr(flow, "classes_", ())}
    if not classes:
        raise ValueError(f"{name} was fitted without labels; ask for no class")
    if label not in classes:
        raise ValueError(
            f"{name} has no class {label!r}; its classes: {', '.join(classes)}"
        )
    return classes[label]


def as_bytes(images: np.ndarray, n_pixel_values: int | None) -> np.ndarray:
    """Pictures (…, h, w[, c]) with any kind of pixels as 0 to 255; real numbers are 0 to 1."""
    top = (
        1.0
        if images.dtype.kind == "f" or n_pixel_values is None
        else n_pixel_values - 1.0
    )
    return np.asarray((images * (255.0 / top)).round().clip(0, 255).astype(np.uint8))


def single(image: np.ndarray) -> Any:
    """One picture of bytes (h, w) or (h, w, c) for Pillow, one pixel for one pixel."""
    from PIL import Image

    squeezed = image[..., 0] if image.ndim == 3 and image.shape[2] == 1 else image
    return Image.fromarray(np.ascontiguousarray(squeezed))


@dataclass(frozen=True)
class Run:
    """A model; `read` returns its training pictures and held-out ones, or says why there are none."""

    name: str
    load: Callable[[], Any]
    read: Callable[[], tuple[Any, Any]]


_Answer = Callable[["Gallery", Request], dict[str, Any]]


def _of_a_run(answer: _Answer) -> _Answer:
    """Answer one request at a time, with the model open that it names."""

    @wraps(answer)
    def locked(self: Gallery, request: Request) -> dict[str, Any]:
        with self.lock:
            self.open(request.whole("run", len(self.runs) - 1))
            return answer(self, request)

    return locked


class Gallery:
    """What the page asks about runs, one at a time; `read` turns a file into pictures of a layout."""

    flow: Any = None  # the one model in memory
    data: tuple[Any, Any] | None = None
    missing = ""  # why there are no data

    def __init__(
        self, runs: Sequence[Run], read: Callable[[Path, Any], np.ndarray]
    ) -> None:
        self.runs = runs
        self._read = read
        self.lock = threading.RLock()
        self._which = -1

    def open(self, which: int) -> None:
        """Load the model of a run, which replaces the one in memory."""
        with self.lock:
            if which == self._which:
                return
            run = self.runs[which]
            self.flow = None
            self.data = None
            self.missing = ""
            self._which = -1  # first free the other
            flow = run.load()
            if type(flow).__name__ != "ImageFlow":
                other = f"{run.name} is not a model of pictures"
                raise ValueError(f"{other}; draw from it with sliceflow sample")
            try:
                self.data = run.read()
            except Exception as error:
                self.missing = str(error)
            self.flow = flow
            self._which = which

    @_of_a_run
    def about(self, request: Request) -> dict[str, Any]:
        """Size, classes and known part of a model, and some pictures that it can complete."""
        from sliceflow.spaces.pictures.layout import as_mask

        observed = self.flow.observed
        layout = self.flow.plan_.layout
        examples = np.empty(0)
        if self.data is not None:
            train, test = self.data
            x = (train if test is None else test).x
            examples = x[np.linspace(0, len(x) - 1, min(len(x), _EXAMPLES)).astype(int)]
        return {
            "width": layout.width,
            "height": layout.height,
            "classes": [str(c) for c in getattr(self.flow, "classes_", ())],
            "observed": None
            if observed is None
            else as_mask(observed, layout).astype(int).tolist(),
            "examples": _shown(self.flow, examples),
            "data": self.missing,
        }

    @_of_a_run
    def samples(self, request: Request) -> dict[str, Any]:
        n, how = self._how(request)
        x, labels = self.flow.sample(n, **how, return_y=True)
        shown = None if labels is None else [str(label) for label in labels]
        return {"pictures": _shown(self.flow, x), "labels": shown}

    @_of_a_run
    def chosen(self, request: Request) -> dict[str, Any]:
        """One of the samples on its way, and the training pictures nearest to it."""
        from sliceflow import metrics

        n, how = self._how(request)
        i = request.whole("index", n - 1)
        strategy = np.asarray(self.flow.evolution(n, n_frames=_FRAMES, **how))
        out = {
            "frames": _shown(self.flow, strategy[:, i]),
            "nearest": [],
            "data": self.missing,
        }
        if self.data is not None:
            train = self.data[0].x
            k = min(_NEAREST, len(train))
            mirror = self.flow.mirror
            near, _ = metrics.nearest_pictures(
                strategy[-1, i : i + 1], train, k, mirror=mirror
            )
            out["nearest"] = _shown(self.flow, near[0])
        return out

    @_of_a_run
    def upload(self, request: Request) -> dict[str, Any]:
        return {"picture": _shown(self.flow, self._picture(request.body))[0]}

    @_of_a_run
    def completed(self, request: Request) -> dict[str, Any]:
        """Completions of a picture, of which the white part of the mask is known."""
        head, _, text = str(request.json.get("picture")).partition("base64,")
        if not head.startswith("data:image/"):
            raise ValueError("there is no picture; choose or upload one")
        picture = self._picture(base64.b64decode(text))
        whole = self.flow.observed is None
        mask = np.asarray(request.json.get("mask"), dtype=bool) if whole else None
        try:
            done = self.flow.inpaint(
                picture, mask, n=_COMPLETIONS, random_state=request.seed
            )
        except ValueError as error:  # in the words of the command line
            text = str(error).replace("keep_rows=True", "--keep-rows")
            raise ValueError(text.replace("observed=", "--observed")) from error
        return {"pictures": _shown(self.flow, done[0])}

    def _how(self, request: Request) -> tuple[int, dict[str, Any]]:
        """How many samples are asked for, and their other arguments."""
        name = self.runs[self._which].name
        if self.flow.observed is not None:
            raise ValueError(
                f"{name} completes pictures, and makes none; see the tab Complete"
            )
        label = str(request.json.get("label") or "")
        y = class_named(self.flow, label, name) if label else None
        return request.whole("n", _MOST, 1), {"y": y, "random_state": request.seed}

    def _picture(self, body: bytes) -> np.ndarray:
        """A picture like those of the model, through the same reader as files of the command line."""
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "picture")
            file.write_bytes(body)
            try:
                return self._read(file, self.flow.plan_.layout)
            except Exception as error:
                raise ValueError(
                    str(error).replace(str(file), "the picture")
                ) from error


def _shown(flow: Any, pictures: Any) -> list[str]:
    """Pictures as addresses that hold the picture itself."""
    out = []
    for picture in as_bytes(np.asarray(pictures), flow.plan_.layout.n_pixel_values):
        stream = io.BytesIO()
        single(picture).save(stream, "PNG")
        out.append(
            "data:image/png;base64," + base64.b64encode(stream.getvalue()).decode()
        )
    return out
