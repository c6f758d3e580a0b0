"""FID through torch-fidelity's network with made-up weights, and what is said if it is missing."""

import sys
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from scipy.linalg import sqrtm

from sliceflow.metrics import fid, inception_features
from sliceflow.metrics.inception import extractor_class

torch_fidelity = find_spec("torch_fidelity")
needs_it = pytest.mark.skipif(torch_fidelity is None, reason="torch-fidelity is not installed")
rng = np.random.default_rng(0)
IMAGES = rng.integers(0, 256, (7, 8, 8, 3)).astype(np.uint8)


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """A file of random weights, saved from the network itself."""
    build = extractor_class()
    home = build.__init__.__globals__
    home["load_state_dict_from_url"] = lambda *args, **kwargs: {}
    build.load_state_dict = lambda self, state: None
    torch.manual_seed(0)
    network = build("made-up", ["2048"])
    for p in network.parameters():
        if p.ndim == 4:
            torch.nn.init.kaiming_normal_(p)
    path = tmp_path_factory.mktemp("fid") / "made-up.pth"
    torch.save(network.state_dict(), path)
    return path


@needs_it
@pytest.mark.parametrize("layer", [768, pytest.param(2048, marks=pytest.mark.slow)])
def test_fid_is_the_distance_of_the_networks_features(weights, layer):
    samples, real = IMAGES[:3] // 2, IMAGES[3:]
    found = fid(samples, real, layer=layer, weights=weights, device="cpu", split="test")
    network = extractor_class()("same", [str(layer)], str(weights))
    a, b = (
        network(torch.from_numpy(part.transpose(0, 3, 1, 2).copy()))[0].double().numpy()
        for part in (samples, real)
    )
    assert a.shape == (3, layer)
    mu, cov_a, cov_b = a.mean(0) - b.mean(0), np.cov(a.T), np.cov(b.T)
    # By the eigenvalues of the small matrix that has the same ones as Σ_a Σ_b.
    centred = [(x - x.mean(0)) / np.sqrt(len(x) - 1) for x in (a, b)]
    small = centred[0] @ centred[1].T
    cross = np.trace(sqrtm(small @ small.T + 1e-12 * np.eye(3))).real
    exact = mu @ mu + np.trace(cov_a) + np.trace(cov_b) - 2 * cross
    assert found.value == pytest.approx(exact, rel=1e-4)
    assert found.value > found.floor > 0
    known = inception_features(real, layer, weights=weights, device="cpu")
    again = fid(samples, known, layer=layer, weights=weights, device="cpu", split="test")
    assert again == found
    assert (found.n_samples, found.n_real, found.n_floor, found.layer) == (3, 4, 2, layer)
    for word in (
        f"FID-{layer}",
        "test split",
        "torch-fidelity",
        "other weights made-up.pth",
        "3 samples",
    ):
        assert word in str(found)


@needs_it
def test_grey_pictures_of_few_levels_are_shown_in_grey(weights):
    grey = rng.integers(0, 17, (2, 8, 8)).astype(np.uint8)
    rgb = np.repeat((grey * (255 / 16)).round().astype(np.uint8)[..., None], 3, axis=3)
    ours = inception_features(grey, 64, weights=weights, n_pixel_values=17, device="cpu")
    assert np.array_equal(ours, inception_features(rgb, 64, weights=weights, device="cpu"))


@needs_it
def test_torchvision_is_not_imported_and_the_package_is_left_as_it_was(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision", None)  # as if it were missing
    assert extractor_class().__name__ == "FeatureExtractorInceptionV3"
    assert "torch_fidelity" not in sys.modules or hasattr(sys.modules["torch_fidelity"], "__version__")


@needs_it
def test_missing_or_foreign_weights_are_told(weights, tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match=r"no\.pth is not a file.*https://github.com/toshas"):
        fid(IMAGES, IMAGES, weights=tmp_path / "no.pth")
    other = tmp_path / "other.pth"
    torch.save({"a": torch.zeros(3)}, other)
    with pytest.raises(ValueError, match="not hold the weights of the FID network"):
        fid(IMAGES, IMAGES, weights=other)
    torch.save(print, other)  # a pickle that is not tensors
    with pytest.raises(ValueError, match="not a file of weights"):
        fid(IMAGES, IMAGES, weights=other)
    with pytest.raises(ValueError, match="layer=100"):
        fid(IMAGES, IMAGES, weights=weights, layer=100)
    with pytest.raises(ValueError, match="float64 of shape"):
        inception_features(IMAGES / 255, weights=weights)


@needs_it
def test_without_a_network_it_says_what_to_fetch(tmp_path, monkeypatch):
    from urllib.error import URLError

    from sliceflow.metrics import inception

    def refuse(*args, **kwargs):
        raise URLError("no route to host")

    def build():
        made = extractor_class()
        made.__init__.__globals__["load_state_dict_from_url"] = refuse
        return made

    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    monkeypatch.setattr(inception, "extractor_class", build)
    with pytest.raises(FileNotFoundError, match=r"no route to host.*6726825d\.pth.*weights=PATH"):
        fid(IMAGES, IMAGES)


def test_without_the_package_the_error_says_how_to_get_it(monkeypatch, tmp_path):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install 'sliceflow\[metrics\]'"):
        extractor_class()
