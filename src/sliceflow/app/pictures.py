"""The tabs of pictures: samples of models, their way, their neighbours, completions."""

from __future__ import annotations

import base64
import io
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sliceflow.app.server import MOST_SEED, Request, whole

__all__ = ["Gallery", "Run"]

MOST = 100  # pictures at a time
_FRAMES, _NEAREST, _EXAMPLES = 32, 5, 8
_PICTURES = 8  # completions


class Run:
    """A model and, where they can be found, its data.

    Parameters
    ----------
    name : shown on the page
    load : the fitted estimator
    read : the training pictures and those that were held out, or None; each with x and labels. An
        error says why there are none
    """

    def __init__(self, name: str, load: Callable[[], Any], read: Callable[[], tuple[Any, Any]]) -> None:
        self.name, self._load, self._read = name, load, read
        self.lock = threading.RLock()
        self._flow: Any = None
        self._data: tuple[Any, Any] | None = None
        self._missing: Exception | None = None

    @property
    def flow(self) -> Any:
        """The model, loaded once."""
        with self.lock:
            self._flow = self._flow or self._load()
            return self._flow

    @property
    def pictures(self) -> Any:
        """The model, if it is one of pictures."""
        if not hasattr(self.flow, "layout_"):
            kind = "a table" if type(self.flow).__name__ == "TableFlow" else "rows of numbers"
            raise ValueError(
                f"{self.name} is a model of {kind}, not of pictures; sliceflow sample draws from it"
            )
        return self.flow

    def data(self) -> tuple[Any, Any]:
        """Training pictures, and held-out ones or None."""
        with self.lock:
            if self._data is None and self._missing is None:
                try:
                    self._data = self._read()
                except Exception as error:
                    self._missing = error
            if self._data is None:
                raise ValueError(f"the training pictures of {self.name} are not here: {self._missing}")
            return self._data


class Gallery:
    """What the page asks about some runs.

    Parameters
    ----------
    runs : the models
    read : turns a file into pictures of a layout, (1, h, w[, c]), and refuses a broken one
    """

    def __init__(self, runs: Sequence[Run], read: Callable[[Path, Any], np.ndarray]) -> None:
        self.runs, self._read = runs, read

    def names(self, request: Request) -> dict[str, Any]:
        """The runs by name."""
        return {"runs": [run.name for run in self.runs]}

    def about(self, request: Request) -> dict[str, Any]:
        """Size, classes and known part of a model, and some pictures that it can complete."""
        run = self._run(request.json)
        with run.lock:
            flow = run.pictures
            observed, layout = flow.observed_, flow.layout_
            out = {
                "width": layout.width,
                "height": layout.height,
                "classes": [str(c) for c in getattr(flow, "classes_", ())],
                "observed": None if observed is None else observed.astype(int).tolist(),
                "examples": [],
                "data": "",
            }
            try:
                train, test = run.data()
                some = (train if test is None else test).x
                some = some[np.linspace(0, len(some) - 1, min(len(some), _EXAMPLES)).astype(int)]
                out["examples"] = self._shown(flow, some)
            except ValueError as error:
                out["data"] = str(error)
        return out

    def samples(self, request: Request) -> dict[str, Any]:
        """Offline samples."""
        run = self._run(request.json)
        with run.lock:
            x, labels = self._sampled(run, request.json)
            shown = None if labels is None else [str(label) for label in labels]
            return {"pictures": self._shown(run.flow, x), "labels": shown}

    def chosen(self, request: Request) -> dict[str, Any]:
        """One of the samples on its way, and the training pictures nearest to it."""
        from sliceflow import metrics

        asked = request.json
        run, i = self._run(asked), whole(asked, "index", 0, MOST - 1)
        with run.lock:
            flow = run.pictures
            way = self._sampled(run, asked, _FRAMES)
            if i >= way.shape[1]:
                raise ValueError(f"there are {way.shape[1]} samples; {i} is not one of them")
            out: dict[str, Any] = {"frames": self._shown(flow, way[:, i]), "nearest": [], "data": ""}
            try:
                train = run.data()[0].x
                k = min(_NEAREST, len(train))
                near, _ = metrics.nearest_pictures(way[-1, i : i + 1], train, k, mirror=flow.mirror)
                out["nearest"] = self._shown(flow, near[0])
            except ValueError as error:
                out["data"] = str(error)
        return out

    def upload(self, request: Request) -> dict[str, Any]:
        """An uploaded picture in the size and colours of a model."""
        run = self._run({"run": request.words.get("run", "")})
        return {"picture": self._shown(run.pictures, self._picture(run, request.body))[0]}

    def completed(self, request: Request) -> dict[str, Any]:
        """Completions of a picture, of which the white part of the mask is known."""
        from sliceflow.engine.random import Seed
        from sliceflow.spaces.pictures.inpainting import complete_pictures

        asked = request.json
        run, n, seed = self._run(asked), _PICTURES, whole(asked, "seed", 0, MOST_SEED)
        flow = run.pictures
        picture = self._picture(run, _bytes_of(asked.get("picture")))
        with run.lock:
            if flow.observed_ is not None:
                return {"pictures": self._shown(flow, flow.inpaint(picture, n, random_state=seed)[0])}
            mask = np.asarray(asked.get("mask"), dtype=bool)
            try:
                train = run.data()[0]
            except ValueError as error:
                raise ValueError(
                    f"{error}. To complete pictures without them, fit a model of one known part: "
                    "sliceflow fit … --observed top, or --mask mask.png"
                ) from error
            done = complete_pictures(
                picture, mask, train.x, n=n, n_pixel_values=flow.n_pixel_values, seed=Seed(seed)
            )
        return {"pictures": self._shown(flow, done[0])}

    def _run(self, asked: dict[str, Any]) -> Run:
        if not self.runs:
            raise ValueError("there is no run of pictures here; make one with sliceflow fit digits")
        return self.runs[whole(asked, "run", 0, len(self.runs) - 1)]

    def _sampled(self, run: Run, asked: dict[str, Any], frames: int = 0) -> Any:
        """Samples and labels, or with `frames` the samples on their way."""
        flow, n = run.pictures, whole(asked, "n", 1, MOST)
        if flow.observed_ is not None:
            raise ValueError(f"{run.name} completes pictures, and makes none; see the tab Complete")
        y, label = None, str(asked.get("label") or "")
        if label:
            classes = {str(c): c for c in getattr(flow, "classes_", ())}
            if label not in classes:
                raise ValueError(f"{run.name} has no class {label!r}; it has {', '.join(classes)}")
            y = classes[label]
        how = {"y": y, "random_state": whole(asked, "seed", 0, MOST_SEED)}
        if frames:
            return np.asarray(flow.evolution(n, n_frames=frames, **how))
        x, labels = flow.sample(n, return_y=True, **how)
        return np.asarray(x), labels

    def _picture(self, run: Run, body: bytes) -> np.ndarray:
        """A picture like those of the model, through the same reader as files of the command line."""
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "picture")
            file.write_bytes(body)
            try:
                return self._read(file, run.pictures.layout_)
            except Exception as error:
                message = str(error).replace(str(file), "the picture")
                raise ValueError(message) from error

    def _shown(self, flow: Any, pictures: Any) -> list[str]:
        """Pictures as addresses that hold the picture itself."""
        from PIL import Image

        out = []
        values, many = np.asarray(pictures), flow.layout_.n_pixel_values
        top = 1.0 if values.dtype.kind == "f" or many is None else many - 1.0
        for picture in (values * (255 / top)).round().clip(0, 255).astype(np.uint8):
            grey = picture.ndim == 3 and picture.shape[2] == 1
            stream = io.BytesIO()
            Image.fromarray(picture[..., 0] if grey else picture).save(stream, "PNG")
            out.append("data:image/png;base64," + base64.b64encode(stream.getvalue()).decode())
        return out


def _bytes_of(address: Any) -> bytes:
    head, comma, text = str(address).partition(",")
    if not comma or not head.startswith("data:image/"):
        raise ValueError("there is no picture; choose or upload one")
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise ValueError("the picture is damaged; choose or upload it again") from None
