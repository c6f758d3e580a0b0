"""A lock on a run folder. The system gives it back when the process ends, however it ends."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from sliceflow.cli.failures import Failed

__all__ = ["Lock"]


class Lock:
    """Held by one process at a time; the file that is left by a killed one locks nothing.

    Where the file system knows no locks, nothing is locked.
    """

    NAME = ".lock"

    def __init__(self, folder: Path) -> None:
        self._path, self._file = folder / self.NAME, -1

    def take(self) -> None:
        """Take it, or refuse to be the second one. A folder that is not there has no lock yet."""
        while self._file < 0 and self._path.parent.is_dir():
            try:
                file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
            except OSError:  # of a folder that cannot be written to, something else will tell
                return
            try:
                _lock(file)
            except BlockingIOError as error:
                other = os.read(file, 20).decode(errors="replace").strip()
                os.close(file)
                raise Failed(
                    f"another fit is writing to {self._path.parent}" + (other and f": process {other}"),
                    "wait until it has ended, or pass another --out",
                ) from error
            except OSError:
                os.close(file)
                return
            if self._is_there(file):
                os.ftruncate(file, 0)
                os.write(file, b"%d\n" % os.getpid())
                self._file = file
            else:  # the one before has just ended, and removed its file
                os.close(file)

    def give_back(self) -> None:
        """Give it back, and remove its file."""
        if self._file < 0:
            return
        file, self._file = self._file, -1
        if os.name == "nt":  # an open file cannot be removed there, maybe not by others either
            os.close(file)
        with suppress(OSError):
            self._path.unlink()
        if os.name != "nt":
            os.close(file)

    def _is_there(self, file: int) -> bool:
        try:
            return os.path.samestat(os.fstat(file), os.stat(self._path))
        except FileNotFoundError:
            return False


def _lock(file: int) -> None:
    """Lock an open file, or raise BlockingIOError; another OSError where there are no locks."""
    if os.name == "nt":
        import msvcrt

        os.lseek(file, 1 << 20, os.SEEK_SET)  # a place of its own: what is locked cannot be read
        try:
            msvcrt.locking(file, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
        except PermissionError as error:
            os.lseek(file, 0, os.SEEK_SET)
            raise BlockingIOError from error
        os.lseek(file, 0, os.SEEK_SET)
        return
    import fcntl

    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
