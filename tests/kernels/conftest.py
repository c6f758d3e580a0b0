"""The backends that the kernels' tests compare with the reference."""

from types import SimpleNamespace

import pytest
import torch

from sliceflow.kernels import cpu, reference

DTYPES = {"cpu": [torch.float32, torch.float64], "triton": [torch.float32]}


@pytest.fixture(scope="module", params=["cpu", "triton"])
def backend(request):
    """The kernels of a module, its name, its device and its types."""
    if request.param == "triton":
        pytest.importorskip("triton", reason="Triton is not installed")
        from sliceflow.kernels import triton as module
    else:
        module = cpu
    on_gpu = request.param == "triton" and torch.cuda.is_available()
    return SimpleNamespace(
        **{kernel: getattr(module, kernel) for kernel in reference.__all__},
        name=request.param,
        module=module,
        device="cuda" if on_gpu else "cpu",
        dtypes=DTYPES[request.param],
    )
