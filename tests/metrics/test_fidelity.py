"""FID: what torch-fidelity is given, and what is said where it is missing."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from sliceflow.metrics import fid

GREY = np.random.default_rng(0).integers(0, 17, (5, 8, 8)).astype(np.uint8)


def test_torch_fidelity_gets_bytes_of_three_channels(monkeypatch, tmp_path):
    given = {}

    def calculate_metrics(**arguments):
        given.update(arguments)
        return {"frechet_inception_distance": 3.5}

    stub = SimpleNamespace(calculate_metrics=calculate_metrics)
    monkeypatch.setitem(sys.modules, "torch_fidelity", stub)
    assert fid(GREY, GREY[:3], n_pixel_values=17, weights=tmp_path / "w.pth", device="cpu") == 3.5
    assert (len(given["input1"]), len(given["input2"])) == (5, 3)
    assert (given["fid"], given["cuda"]) == (True, False)
    assert isinstance(given["input1"], torch.utils.data.Dataset)
    first = given["input1"][0]
    assert (first.dtype, first.shape) == (torch.uint8, (3, 8, 8))
    assert np.array_equal(first[1].numpy(), (GREY[0] * (255 / 16)).round())
    assert given["feature_extractor_weights_path"] == str(tmp_path / "w.pth")
    colour = np.stack((GREY, GREY + 1, GREY + 2), axis=3)
    fid(colour, colour, device="cpu")
    assert np.array_equal(given["input1"][1].numpy(), colour[1].transpose(2, 0, 1))


def test_without_torch_fidelity_the_error_names_the_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch_fidelity", None)
    with pytest.raises(ImportError, match=r"pip install 'sliceflow\[metrics\]'"):
        fid(GREY, GREY)


def test_pictures_are_whole_numbers():
    with pytest.raises(ValueError, match="float64 of shape"):
        fid(GREY / 17, GREY)
