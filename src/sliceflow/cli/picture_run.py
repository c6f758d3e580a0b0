"""The run of a model of pictures: its samples, and what they are compared with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sliceflow.app.pictures import as_bytes
from sliceflow.cli import report
from sliceflow.cli.data import PictureInput
from sliceflow.cli.fitted_run import Evidence, FittedRun
from sliceflow.cli.grids import (
    arrange_by_class,
    make_grid,
    write_arrays,
    write_evolution,
    write_image,
)
from sliceflow.cli.results import Result
from sliceflow.cli.run_folder import RunFolder

if TYPE_CHECKING:
    from sliceflow import ImageFlow
    from sliceflow.app.server import JsonObject
    from sliceflow.metrics import Attacks, Report

# The most samples of pictures that are drawn and measured: more cost time, and say
# little more.
MAX_PICTURES = 2000


class PictureSamples(NamedTuple):
    """New pictures (n, h, w[, c]) of a model, and their labels."""

    x: NDArray[Any]
    labels: NDArray[Any] | None


@dataclass(frozen=True, eq=False)
class PictureRun(FittedRun[PictureInput, PictureSamples]):
    """A fitted model of pictures, its data, and where messages go."""

    model: ImageFlow

    def draw_samples(self) -> PictureSamples:
        """As many samples as training pictures, 2,000 at most.

        Samples of a model with classes have those of the training pictures. A model
        that completes pictures completes held-out ones.
        """
        train = self.train
        seed = self.settings.seed
        if self.model.known is not None:
            to_complete = train if self.held_out is None else self.held_out
            pictures = _evenly_spaced(to_complete.x, MAX_PICTURES)
            completions = np.asarray(self.model.inpaint(pictures, random_state=seed))
            return PictureSamples(completions[:, 0], None)
        labels = None
        if train.labels is not None:
            labels = _evenly_spaced(train.labels, MAX_PICTURES)
        n = min(train.n_rows, MAX_PICTURES)
        x = self.model.sample(n, y=labels, random_state=seed)
        return PictureSamples(np.asarray(x), labels)

    def write_samples(self, samples: PictureSamples, folder: RunFolder) -> None:
        """Write samples as arrays, a grid and an animation, and the history."""
        write_arrays(folder / "samples.npz", samples.labels, images=samples.x)
        pixels = as_bytes(samples.x, self.train.n_pixel_values)
        rows, _ = arrange_by_class(pixels, samples.labels)
        write_image(folder / "samples.png", make_grid(rows), optimize=True)
        self.output.say(f"wrote {folder / 'samples.png'}")
        animation = folder / "evolution.gif"
        write_evolution(self.model, self.train.x, animation, self.settings.seed)
        folder.write_history(self.model.history_)

    def measure(
        self, samples: PictureSamples, attacks: Attacks | None = None
    ) -> Result:
        """Measure samples of the model, beside held-out pictures."""
        from_mosaics = self.model.plan_.mosaic_size > 0
        evidence = Evidence(attacks, from_mosaics=from_mosaics)
        return self.measure_and_judge(samples, evidence=evidence)

    def _compare(self, samples: PictureSamples, held_out: PictureInput) -> Report:
        from sliceflow import metrics
        from sliceflow.devices import resolve_device

        train = self.train
        labels = None
        if (
            samples.labels is not None
            and train.labels is not None
            and held_out.labels is not None
        ):
            labels = (samples.labels, train.labels, held_out.labels)
        return metrics.report(
            samples.x,
            train.x,
            held_out.x,
            y=labels,
            kind="pictures",
            device=str(resolve_device(self.settings.device)),
            notify=self.output.say,
        )

    def describe(self, samples: PictureSamples) -> JsonObject:
        """Grids of samples, and of their nearest training pictures."""
        return report.describe_pictures(
            self.train, samples.x, samples.labels, mirror=self.model.mirror
        )


def _evenly_spaced(rows: NDArray[Any], n: int) -> NDArray[Any]:
    """At most n rows, at equal distances."""
    indices = np.linspace(0, len(rows) - 1, min(n, len(rows))).astype(int)
    return np.asarray(rows[indices])
