"""Whole flows by the Triton kernels, in the interpreter: other kernels sample the same from them."""

from contextlib import contextmanager

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

pytest.importorskip("triton", reason="Triton is not installed")
if torch.cuda.is_available():
    pytest.skip("on a GPU tests/test_model_file.py compares it with the CPU", allow_module_level=True)

from sliceflow import ImageFlow, kernels
from sliceflow.kernels import triton as gpu

IMAGES, LABELS = load_digits(n_class=2, return_X_y=True)
IMAGES = IMAGES.reshape(-1, 4, 2, 4, 2).mean(axis=(2, 4)).round().astype(np.uint8)
TOP = np.zeros((4, 4), dtype=bool)
TOP[:2] = True
# Tiles whose rotations are filled up for the kernels, and of 16 values, which are not.
OPTIONS = dict(
    schedule="3[3] 4[4]",
    quality=1,
    n_particles=400,
    n_pixel_values=17,
    patch_basis="pixels",
    random_state=0,
)


@contextmanager
def kernels_of_a_gpu():
    """Everything is computed by them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "for_device", lambda _: kernels.complete(gpu))
        patch.setattr(kernels, "for_tensor", lambda _: kernels.complete(gpu))
        yield


@pytest.mark.parametrize(
    ("transport", "amplifier", "known"),
    [
        ("sorted", None, None),
        ("sorted", 10, None),
        pytest.param("histogram", 10, None, marks=pytest.mark.slow),
        pytest.param("histogram", np.inf, None, marks=pytest.mark.slow),
        ("histogram", None, TOP),
    ],
    ids=["sorted", "sorted, classes", "classes", "classes apart", "completed"],
)
def test_what_a_gpu_fits_others_sample(transport, amplifier, known):
    options, labels = OPTIONS | dict(transport=transport, observed=known), None
    if amplifier is not None:
        options, labels = options | dict(amplifier=amplifier), LABELS

    def made(flow):
        if known is not None:
            return flow.inpaint(IMAGES[:20], 2, random_state=1).astype(int)
        mixture = np.full((20, 2), 0.5)
        given = [()] if labels is None else [(LABELS[:20],), (mixture,)]
        return np.stack([flow.sample(20, *y, random_state=1) for y in given]).astype(int)

    with kernels_of_a_gpu():
        flow = ImageFlow(**options).fit(IMAGES, labels)
        theirs = made(flow)
    assert theirs.std() > 3
    assert np.mean(made(flow) != theirs) < 0.02
