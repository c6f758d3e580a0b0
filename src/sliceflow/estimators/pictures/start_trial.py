"""Where particles of few color pictures start: a trial on held-out pictures decides.

Particles that start as mosaics look like photographs, and copy less than particles that
start as noise. But mosaics of drawings, such as one circle, square or cross on a plain
ground, stay collages of several. What tells photographs from drawings is how much of a
picture's contrast lies at which frequencies. A sum of photographs has its contrast at
the frequencies of photographs. A sum of drawings does not have it at the frequencies of
drawings. So the trial makes a few mosaics, and a classifier tries to tell them from
held-out pictures by the energies of these frequencies.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from sliceflow.arrays import Floats
from sliceflow.estimators.pictures.parameters import PictureParameters
from sliceflow.estimators.pictures.plan import PicturePlan
from sliceflow.metrics.distances import two_sample_score

if TYPE_CHECKING:
    from sliceflow.estimators.pictures.fit import PlannedPictureFit

# With more pictures there is no trial, which would take longer than a fit on a GPU.
MAX_PICTURES_OF_TRIAL = 3_000
# With fewer pictures in all, too few can be held out to tell two starts apart.
MIN_PICTURES_OF_TRIAL = 200
# The pictures and particles of a trial: more would only take longer.
MAX_FITTED_PICTURES = 800
N_TRIAL_PARTICLES = 500
# Particles start as noise if the AUC with which mosaics are told from held-out pictures
# is at least this. Where it is about .75, of icons and emoji, both starts are about as
# good. Photographs and faces are below, drawings, digits and letters above
# (benchmarks/RESULTS.md).
MIN_AUC_OF_COLLAGES = 0.75
# Trees of the classifier. With 200, which take twice as long, AUCs differed by .01 at
# most.
N_TREES = 100
# Where the bands of frequencies end, in cycles per pixel. The largest frequency is a
# half: pixels that are black and white in turn.
BAND_ENDS = (0.04, 0.08, 0.14, 0.20, 0.28, 0.36, 0.44, 0.5)


def needs_trial(plan: PicturePlan) -> bool:
    """Whether a trial decides where the particles of a planned fit start."""
    return (
        plan.options.start == "auto"
        and plan.mosaic_size > 0
        and plan.n_ranks == 1
        and MIN_PICTURES_OF_TRIAL <= plan.n_pictures <= MAX_PICTURES_OF_TRIAL
    )


def choose_start_by_trial(
    planned_fit: PlannedPictureFit,
) -> Literal["mosaics", "noise"]:
    """Choose whether particles start as the mosaics of the plan, or as noise.

    Two small fits decide. Each starts as mosaics of one half of the pictures, and its
    particles are compared with the other half. The two AUCs are averaged.
    """
    seed = planned_fit.seed.child("start")
    parameters = _trial_parameters(planned_fit.parameters, planned_fit.plan)
    rows = planned_fit.rows
    shuffled = np.argsort(seed.normal(len(rows), 1).numpy().ravel())
    halves = np.array_split(shuffled, 2)
    aucs = []
    for train_indices, held_out_indices in (halves, halves[::-1]):
        train = rows.take(train_indices[:MAX_FITTED_PICTURES])
        samples = planned_fit.fit_on_trial(train, parameters, seed)
        auc = two_sample_score(
            band_energies(samples),
            band_energies(rows.pixels[held_out_indices]),
            scoring="roc_auc",
            n_trees=N_TREES,
        )
        aucs.append(auc)
    if np.mean(aucs) >= MIN_AUC_OF_COLLAGES:
        return "noise"
    return "mosaics"


def _trial_parameters(
    parameters: PictureParameters, plan: PicturePlan
) -> PictureParameters:
    """The parameters of a quick fit from mosaics, which stores no model."""
    transport = parameters.transport
    if plan.n_separate_classes:
        # Separate maps need histograms; "auto" would sort the few points of a trial.
        transport = plan.transport
    return replace(
        parameters,
        options=replace(parameters.options, start=plan.mosaic_size, n_knots=0),
        amplifier=plan.amplifier,
        transport=transport,
        n_clusters=1,
        n_particles=N_TRIAL_PARTICLES,
        quality="draft",
        steps_per_stage=None,
    )


def band_energies(pixels: NDArray[Any]) -> Floats:
    """Logarithms of the energies of pictures (n, c, h, w) in bands of frequencies.

    The result is (n, c·b). An energy is the mean of |F|² over a band, where F is the
    Fourier transform of a channel without its mean. A band is a square ring: its
    frequency is the larger of the vertical and the horizontal one. Bands without any
    frequency of small pictures are left out.
    """
    centered = pixels - pixels.mean(axis=(2, 3), keepdims=True, dtype=np.float64)
    energies = np.square(np.abs(np.fft.rfft2(centered)))
    height, width = pixels.shape[2:]
    down = np.abs(np.fft.fftfreq(height))
    across = np.fft.rfftfreq(width)
    frequencies = np.maximum(down[:, None], across)
    columns = []
    for low, high in pairwise((0.0, *BAND_ENDS)):
        is_in_band = (frequencies > low) & (frequencies <= high)
        if is_in_band.any():
            columns.append(energies[:, :, is_in_band].mean(axis=2))
    logarithms: Floats = np.log1p(np.concatenate(columns, axis=1))
    return logarithms
