"""Schedules: the stages of an `ImageFlow`, for the parameter `schedule`."""

from sliceflow.estimators.pictures.schedules import (
    PictureStage,
    auto,
    from_string,
    paper,
)

__all__ = [
    "PictureStage",
    "auto",
    "from_string",
    "paper",
]
