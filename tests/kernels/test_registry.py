"""Which kernels a device gets, and a whole flow by those of a GPU."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from sliceflow import ImageFlow, kernels
from sliceflow.kernels import reference


@pytest.fixture
def fresh():
    kernels._cpu_kernels.cache_clear()
    kernels._gpu_kernels.cache_clear()
    yield
    kernels._cpu_kernels.cache_clear()
    kernels._gpu_kernels.cache_clear()


def test_nobody_goes_round_the_registry():
    """Only the kernels themselves import the modules of a device."""
    home = Path(kernels.__file__).parent
    past = re.compile(
        r"kernels\.(reference|cpu|triton)|kernels import .*\b(reference|cpu|triton)\b"
    )
    files = [f for f in home.parent.rglob("*.py") if home not in f.parents]
    assert len(files) > 40
    assert [str(f) for f in files if past.search(f.read_text())] == []


WHY = [  # device, module that is missing, version of ROCm, what is said
    ("cpu", "sliceflow.kernels.cpu", None, "numba cannot be imported"),
    ("cuda", "triton", None, "Triton cannot be imported"),
    ("cuda", "nothing", "6.4", "is built for AMD GPUs (ROCm)"),
]


@pytest.mark.parametrize(("device", "missing", "hip", "why"), WHY)
def test_the_reference_takes_over_with_one_warning(
    device, missing, hip, why, monkeypatch, fresh
):
    message = (
        re.escape(why)
        + ".*; the slower plain-torch kernels are used on the .PU. .* brings"
    )
    for name in [n for n in sys.modules if n.startswith("sliceflow.kernels.triton")]:
        monkeypatch.delitem(sys.modules, name)
    # An imported module is also an attribute of its package.
    monkeypatch.delattr(kernels, "cpu", raising=False)
    monkeypatch.delattr(kernels, "triton", raising=False)
    monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.setattr(torch.version, "hip", hip)
    with pytest.warns(RuntimeWarning, match=message) as warned:
        found = [kernels.for_device(name) for name in (device, torch.device(device))]
    assert all(k is reference for k in found)
    assert len(warned) == 1


@pytest.mark.parametrize(
    ("transport", "amplifier"),
    [
        ("sorted", None),
        pytest.param("sorted", 10, marks=pytest.mark.slow),
        pytest.param("histogram", 10, marks=pytest.mark.slow),
        pytest.param("histogram", np.inf, marks=pytest.mark.slow),
    ],
)
def test_what_a_gpu_fits_others_sample(transport, amplifier, monkeypatch):
    """In the interpreter.

    Some tiles fill the rotations of the kernels, and some do not.
    """
    pytest.importorskip("triton", reason="Triton is not installed")
    if torch.cuda.is_available():
        pytest.skip("on a GPU the tests of model files compare it with the CPU")
    from sliceflow.kernels import triton as gpu

    images, labels = load_digits(n_class=2, return_X_y=True)
    images = images.reshape(-1, 4, 2, 4, 2).mean(axis=(2, 4)).round().astype(np.uint8)
    options = dict(
        schedule="3[3] 4[4]", steps_per_stage=1, n_particles=400, n_pixel_values=17
    )
    options |= dict(patch_basis="pixels", random_state=0, transport=transport)
    options |= {} if amplifier is None else {"amplifier": amplifier}
    y, asked = ((), None) if amplifier is None else ((labels,), labels[:20])

    def sampled(flow):
        return flow.sample(20, y=asked, random_state=1).astype(int)

    with monkeypatch.context() as patch:
        patch.setattr(kernels, "for_device", lambda _: gpu)
        patch.setattr(kernels, "for_tensor", lambda _: gpu)
        flow = ImageFlow(**options).fit(images, *y)
        theirs = sampled(flow)
    assert theirs.std() > 3
    assert np.mean(sampled(flow) != theirs) < 0.02
