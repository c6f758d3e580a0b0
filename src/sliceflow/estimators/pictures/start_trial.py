"""Where particles of few color pictures start: a trial on held-out pictures decides.

Particles that start as mosaics look like photographs, and copy less than particles that
start as noise. But mosaics of pictures with one clear object stay collages of several:
900 small pictures of a circle, a square or a cross each are told from held-out ones
with an AUC of .84; particles that start as noise with .58.

Of photographs of CIFAR-10, too, noise may have an AUC that is lower by .18, but a
classifier finds it far worse: the trial compares principal components, which hardly see
details. So the trial takes noise only if mosaics are bad and noise is much better.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sliceflow.engine.random import Seed
from sliceflow.estimators.pictures.parameters import PictureParameters
from sliceflow.estimators.pictures.plan import PicturePlan
from sliceflow.estimators.pictures.rows import PictureRows
from sliceflow.metrics.distances import principal_axes, two_sample_score
from sliceflow.metrics.rows import as_flat_rows

if TYPE_CHECKING:
    from sliceflow.estimators.pictures.fit import PlannedPictureFit

# Fits pictures on trial, and gives the pixels (m, c, h, w) of the particles.
TrialFit: TypeAlias = Callable[[PictureRows, PictureParameters, Seed], NDArray[Any]]

# With more pictures there is no trial, which would take longer than a fit on a GPU.
MAX_PICTURES_OF_TRIAL = 3_000
# With fewer pictures in all, too few can be held out to tell two starts apart.
MIN_PICTURES_OF_TRIAL = 200
# The pictures and particles of a trial: more would only take longer.
MAX_FITTED_PICTURES = 800
N_TRIAL_PARTICLES = 500
# The share of the pictures that are held out.
HELD_OUT_SHARE = 0.3
# Samples that a detector cannot tell from held-out pictures better than this are good
# enough: the second trial, which takes longer, is left out. Mosaics of photographs had
# AUCs of .67 at most. With a limit of .6, CIFAR-10 by class would start as
# noise, with three times the FD (benchmarks/RESULTS.md).
GOOD_DETECTION = 0.7
# The AUC of samples that start as noise must be lower by this. Noise copies pictures
# more often, so it should win clearly. The AUC of some hundred pictures has an error of
# about .03.
MIN_AUC_GAIN = 0.1
# Pictures are compared in this many principal components, as FD-PCA32 does.
N_COMPONENTS = 32


def needs_trial(plan: PicturePlan) -> bool:
    """Whether a trial decides where the particles of a planned fit start."""
    return (
        plan.options.start == "auto"
        and plan.mosaic_size > 0
        and plan.n_ranks == 1
        and MIN_PICTURES_OF_TRIAL <= plan.n_pictures <= MAX_PICTURES_OF_TRIAL
    )


def noise_is_better(planned_fit: PlannedPictureFit, fit_on_trial: TrialFit) -> bool:
    """Try both starts: whether samples from noise are more like held-out pictures.

    They must be much more like them. The other start is the mosaics of the plan. Two
    small fits of some of the pictures decide, or only the first. `fit_on_trial` makes
    them.
    """
    plan = planned_fit.plan
    seed = planned_fit.seed.child("start")
    split = _draw_split(planned_fit.rows, seed)

    def detection_of(start: int | Literal["noise"]) -> float:
        """Fit with this start: the AUC of telling samples from held-out pictures."""
        parameters = _trial_parameters(planned_fit.parameters, start, plan)
        samples = fit_on_trial(split.train, parameters, seed)
        return _detection(samples, split.held_out, split.train.pixels)

    auc_of_mosaics = detection_of(plan.mosaic_size)
    if auc_of_mosaics < GOOD_DETECTION:
        return False
    return auc_of_mosaics - detection_of("noise") >= MIN_AUC_GAIN


class _Split(NamedTuple):
    """Pictures to fit in a trial, and pixels (n, c, h, w) of pictures that judge it."""

    train: PictureRows
    held_out: NDArray[Any]


def _draw_split(rows: PictureRows, seed: Seed) -> _Split:
    """Draw the pictures of a trial at random."""
    shuffled = np.argsort(seed.normal(len(rows), 1).numpy().ravel())
    n_held_out = int(HELD_OUT_SHARE * len(shuffled))
    train = rows.take(shuffled[n_held_out:][:MAX_FITTED_PICTURES])
    return _Split(train, held_out=rows.pixels[shuffled[:n_held_out]])


def _trial_parameters(
    parameters: PictureParameters, start: int | Literal["noise"], plan: PicturePlan
) -> PictureParameters:
    """The parameters of a quick fit with this start, which stores no model."""
    transport = parameters.transport
    if plan.n_separate_classes:
        # Separate maps need histograms; "auto" would sort the few points of a trial.
        transport = plan.transport
    return replace(
        parameters,
        options=replace(parameters.options, start=start, n_knots=0),
        amplifier=plan.amplifier,
        transport=transport,
        n_clusters=1,
        n_particles=N_TRIAL_PARTICLES,
        quality="draft",
        steps_per_stage=None,
    )


def _detection(
    samples: NDArray[Any], held_out: NDArray[Any], fitted: NDArray[Any]
) -> float:
    """The AUC of a forest that tells samples from held-out pictures (n, c, h, w)."""
    mean, axes = principal_axes(as_flat_rows(fitted), N_COMPONENTS)
    sample_components = (as_flat_rows(samples) - mean) @ axes.T
    held_out_components = (as_flat_rows(held_out) - mean) @ axes.T
    return two_sample_score(sample_components, held_out_components, scoring="roc_auc")
