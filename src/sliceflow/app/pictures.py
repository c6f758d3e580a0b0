"""The tabs of pictures: samples of models, their way, their neighbours, completions."""

from __future__ import annotations

import base64
import io
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sliceflow.app.server import MOST_SEED, Request, whole

__all__ = ["Gallery", "Run", "known_part"]

MOST = 100  # pictures at a time
_FRAMES, _NEAREST, _EXAMPLES, _COMPLETIONS = 32, 5, 8, 8


def known_part(flow: Any) -> np.ndarray | None:
    """(h, w) booleans, True where a model that completes one part knows the pixels; None for others."""
    from sliceflow.spaces.pictures.layout import part_of

    if getattr(flow, "observed", None) is None:
        return None
    return np.asarray(part_of(flow.observed, flow.plan_.layout))


@dataclass(frozen=True)
class Run:
    """A model and, where they can be found, its data.

    Parameters
    ----------
    name : shown on the page
    load : returns the fitted estimator
    read : returns the training pictures and those that were held out, or None; each with x and labels.
        An error says why there are none
    """

    name: str
    load: Callable[[], Any]
    read: Callable[[], tuple[Any, Any]]


@dataclass
class _Opened:
    """The one model that is in memory, its data, or why there are none."""

    name: str
    flow: Any
    data: tuple[Any, Any] | None = None
    missing: str = ""

    def pictures(self) -> tuple[Any, Any]:
        """Training pictures, and held-out ones or None."""
        if self.data is None:
            raise ValueError(f"the training pictures of {self.name} are not here: {self.missing}")
        return self.data


class Gallery:
    """What the page asks about some runs. One model is open at a time, and one request answered.

    Parameters
    ----------
    runs : the models
    read : turns a file into pictures of a layout, (1, h, w[, c]), and refuses a broken one
    """

    def __init__(self, runs: Sequence[Run], read: Callable[[Path, Any], np.ndarray]) -> None:
        self.runs, self._read = runs, read
        self._lock, self._opened, self._which = threading.RLock(), _Opened("", None), -1

    def names(self, request: Request) -> dict[str, Any]:
        """The runs by name."""
        return {"runs": [run.name for run in self.runs]}

    def open(self, which: int) -> _Opened:
        """The model of a run, which replaces the one in memory."""
        with self._lock:
            if which != self._which:
                run = self.runs[which]
                self._opened, self._which = _Opened("", None), -1  # first free the other one
                flow = run.load()
                if (name := type(flow).__name__) != "ImageFlow":
                    kind = "a table" if name == "TableFlow" else "rows of numbers"
                    other = f"{run.name} is a model of {kind}, not of pictures"
                    raise ValueError(f"{other}; draw from it with sliceflow sample")
                opened = _Opened(run.name, flow)
                try:
                    opened.data = run.read()
                except Exception as error:
                    opened.missing = str(error)
                self._opened, self._which = opened, which
            return self._opened

    def about(self, request: Request) -> dict[str, Any]:
        """Size, classes and known part of a model, and some pictures that it can complete."""
        with self._lock:
            run = self._run(request.json)
            flow, observed, layout = run.flow, known_part(run.flow), run.flow.plan_.layout
            examples = np.empty(0)
            if run.data is not None:
                train, test = run.data
                x = (train if test is None else test).x
                examples = x[np.linspace(0, len(x) - 1, min(len(x), _EXAMPLES)).astype(int)]
            return {
                "width": layout.width,
                "height": layout.height,
                "classes": [str(c) for c in getattr(flow, "classes_", ())],
                "observed": None if observed is None else observed.astype(int).tolist(),
                "examples": _shown(flow, examples),
                "data": run.missing,
            }

    def samples(self, request: Request) -> dict[str, Any]:
        """Offline samples."""
        with self._lock:
            run = self._run(request.json)
            n, how = _how(run, request.json)
            x, labels = run.flow.sample(n, **how, return_y=True)
            shown = None if labels is None else [str(label) for label in labels]
            return {"pictures": _shown(run.flow, x), "labels": shown}

    def chosen(self, request: Request) -> dict[str, Any]:
        """One of the samples on its way, and the training pictures nearest to it."""
        from sliceflow import metrics

        asked = request.json
        i = whole(asked, "index", 0, MOST - 1)
        with self._lock:
            run = self._run(asked)
            n, how = _how(run, asked)
            if i >= n:
                raise ValueError(f"there are {n} samples; {i} is not one of them")
            way = np.asarray(run.flow.evolution(n, n_frames=_FRAMES, **how))
            out: dict[str, Any] = {"frames": _shown(run.flow, way[:, i]), "nearest": []}
            out["data"] = run.missing
            if run.data is not None:
                train = run.data[0].x
                k, mirror = min(_NEAREST, len(train)), run.flow.mirror
                near, _ = metrics.nearest_pictures(way[-1, i : i + 1], train, k, mirror=mirror)
                out["nearest"] = _shown(run.flow, near[0])
        return out

    def upload(self, request: Request) -> dict[str, Any]:
        """An uploaded picture in the size and colours of a model."""
        with self._lock:
            run = self._run({"run": request.words.get("run", "")})
            return {"picture": _shown(run.flow, self._picture(run.flow, request.body))[0]}

    def completed(self, request: Request) -> dict[str, Any]:
        """Completions of a picture, of which the white part of the mask is known."""
        asked = request.json
        seed = whole(asked, "seed", 0, MOST_SEED)
        with self._lock:
            run = self._run(asked)
            picture = self._picture(run.flow, _bytes_of(asked.get("picture")))
            fixed = run.flow.observed is not None
            mask = None if fixed else np.asarray(asked.get("mask"), dtype=bool)
            try:
                done = run.flow.inpaint(picture, mask, n=_COMPLETIONS, random_state=seed)
            except ValueError as error:  # in the words of the command line
                text = str(error).replace("keep_rows=True", "--keep-rows")
                raise ValueError(text.replace("observed=", "--observed")) from error
            return {"pictures": _shown(run.flow, done[0])}

    def _run(self, asked: dict[str, Any]) -> _Opened:
        if not self.runs:
            raise ValueError("there is no run of pictures here; make one with sliceflow fit digits")
        return self.open(whole(asked, "run", 0, len(self.runs) - 1))

    def _picture(self, flow: Any, body: bytes) -> np.ndarray:
        """A picture like those of the model, through the same reader as files of the command line."""
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "picture")
            file.write_bytes(body)
            try:
                return self._read(file, flow.plan_.layout)
            except Exception as error:
                raise ValueError(str(error).replace(str(file), "the picture")) from error


def _how(run: _Opened, asked: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """How many samples of a model are asked for, and its other arguments."""
    if run.flow.observed is not None:
        raise ValueError(f"{run.name} completes pictures, and makes none; see the tab Complete")
    y, label = None, str(asked.get("label") or "")
    if label:
        classes = {str(c): c for c in getattr(run.flow, "classes_", ())}
        if label not in classes:
            raise ValueError(f"{run.name} has no class {label!r}; it has {', '.join(classes)}")
        y = classes[label]
    seed = whole(asked, "seed", 0, MOST_SEED)
    return whole(asked, "n", 1, MOST), {"y": y, "random_state": seed}


def _shown(flow: Any, pictures: Any) -> list[str]:
    """Pictures as addresses that hold the picture itself."""
    from PIL import Image

    out = []
    values, many = np.asarray(pictures), flow.plan_.layout.n_pixel_values
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
