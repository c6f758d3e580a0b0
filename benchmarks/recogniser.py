"""A small convolutional classifier: which class a made picture looks like."""

import numpy as np
import torch
from torch import Tensor, nn

__all__ = ["Recogniser"]


class Recogniser:
    """Trained on real pictures; tells the class of others.

    Parameters
    ----------
    images, labels : (n, h, w) of integers 0..levels-1, and class numbers
    epochs : passes over the pictures
    """

    def __init__(
        self,
        images: np.ndarray,
        labels: np.ndarray,
        *,
        levels: int,
        device: torch.device,
        epochs: int = 5,
    ) -> None:
        self.levels, self.device = levels, device
        self.n_classes = int(labels.max()) + 1
        side = images.shape[1] // 4
        torch.manual_seed(0)
        self.net = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(64 * side * side, 128), nn.ReLU(), nn.Dropout(0.3),
            nn.Linear(128, self.n_classes),
        ).to(device)  # fmt: skip
        x, y = self._read(images), torch.as_tensor(labels).long().to(device)
        best = torch.optim.Adam(self.net.parameters(), 2e-3)
        for _ in range(epochs):
            for rows in torch.randperm(len(x)).split(128):
                rows = rows.to(device)
                loss = nn.functional.cross_entropy(self.net(x[rows]), y[rows])
                best.zero_grad()
                loss.backward()
                best.step()
        self.net.eval()

    def _read(self, images: np.ndarray) -> Tensor:
        x = torch.as_tensor(np.asarray(images)).to(self.device).float()
        return (x * (2 / (self.levels - 1)) - 1)[:, None]

    @torch.no_grad()
    def classes(self, images: np.ndarray) -> np.ndarray:
        """The class number of every picture."""
        found = [
            self.net(self._read(part)).argmax(1)
            for part in np.array_split(images, 1 + len(images) // 5000)
        ]
        return torch.cat(found).cpu().numpy()
