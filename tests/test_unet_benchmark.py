"""The network that benchmarks/unet.py compares the flow with: it learns, and all of it runs."""

import json

import numpy as np
import torch
import unet

from sliceflow.datasets import Pictures

CPU = torch.device("cpu")


def test_the_network_has_as_many_parameters_as_it_says():
    parameters = sum(p.numel() for p in unet.UNet(3, 128).parameters())
    assert 17e6 < parameters < 19e6
    sizes = {unet.UNet(1, 8)(torch.zeros(2, 1, h, w), torch.rand(2)).shape for h, w in [(8, 8), (9, 6)]}
    assert sizes == {(2, 1, 8, 8), (2, 1, 9, 6)}


def test_the_network_learns_where_pixels_are_bright():
    rng = np.random.default_rng(0)
    images = rng.integers(0, 3, (64, 6, 6)).astype(np.uint8)
    images[:, :, :3] += 13
    model = unet.Trained(
        Pictures(images, None, 16, "halves"), False, 8, 32, CPU, seed=0, rate=5e-3, warm=1
    )
    for _ in range(30):
        model.step()
    samples = model.sample(40, 6)
    assert samples.shape == (40, 6, 6)
    assert samples[:, :, :3].mean() > samples[:, :, 3:].mean() + 8


def test_the_comparison_runs(tmp_path):
    rows = unet.main(
        "digits --device cpu --width 8 --batch 8 --seconds 0.1 0.2 --quality 1 --samples 60 --heun 1 "
        f"--rows 200 --epochs 1 --out {tmp_path}".split()
    )
    assert [row["model"].split(",")[0] for row in rows] == ["sliceflow", "U-Net", "U-Net"]
    assert all(np.isfinite(row["FD"]) and 0 <= row["copies"] <= 1 for row in rows)
    assert len(json.loads((tmp_path / "unet.json").read_text())["rows"]) == 3
    assert {path.name for path in tmp_path.glob("*.png")} == {"unet-0.png", "unet-1.png", "flow-0.png"}
