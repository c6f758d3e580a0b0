"""A lock on a run folder. The system releases it when the process ends, however it ends."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from filelock import FileLock, Timeout

from sliceflow.cli.failures import Failed

__all__ = ["Lock"]


class Lock:
    """Held by one process at a time. The file that a killed process leaves behind locks nothing."""

    NAME = ".lock"

    def __init__(self, folder: Path) -> None:
        self._path = folder / self.NAME
        self._lock = FileLock(self._path)

    def take(self) -> None:
        """Take the lock, or fail if another process has it. A missing folder has no lock yet."""
        if self._lock.is_locked or not self._path.parent.is_dir():
            return
        try:
            self._lock.acquire(timeout=0.2)  # time to try again if a holder has just removed the file
        except Timeout as error:
            holder = ""
            with suppress(OSError, ValueError):
                holder = f": process {int(self._path.read_text())}"
            raise Failed(
                f"another fit is writing to {self._path.parent}{holder}",
                "wait until it has ended, or pass another --out",
            ) from error
        except OSError:  # a folder that cannot be written to fails later, with a better message
            return
        with suppress(OSError):
            self._path.write_text(f"{os.getpid()}\n")

    def close(self) -> None:
        """Release the lock, and remove its file."""
        if self._lock.is_locked:
            with suppress(OSError):
                self._path.unlink()
            self._lock.release()
