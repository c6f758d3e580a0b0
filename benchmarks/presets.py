"""The presets that are measured, with the shape and the number of their pictures."""

from dataclasses import dataclass

from sliceflow.engine.random import Seed
from sliceflow.spaces.pictures import schedules

__all__ = ["CIFAR10", "CLASSES", "MNIST", "SEED", "Preset", "Shape"]

Shape = tuple[int, int, int]  # (C, h, w)

CLASSES = 10
SEED = Seed(0)


@dataclass(frozen=True)
class Preset:
    """A schedule in the paper's notation and the pictures it is for."""

    name: str
    schedule: str
    shape: Shape
    n_data: int

    def stages(self, n_steps: int = 1) -> list[schedules.PictureStage]:
        """The stages, of so many steps each."""
        return schedules.from_string(self.schedule, *self.shape[1:], n_steps)

    @property
    def top_patches(self) -> list[int]:
        """The patch sizes at the full resolution."""
        return [stage.patch for stage in self.stages() if (stage.h, stage.w) == self.shape[1:]]


MNIST = Preset("mnist", schedules.PRESETS["mnist"], (1, 28, 28), 60_000)
CIFAR10 = Preset("cifar10", schedules.PRESETS["cifar10"], (3, 32, 32), 100_000)  # with mirror images
