"""Files that are written whole or not at all; what is in them is the caller's business."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

__all__ = ["write_atomically"]


def write_atomically(path: str | os.PathLike[str], put: Callable[[BinaryIO], object]) -> None:
    """Fill a new file beside `path`, bring it to the disk, and let it take the name at once.

    A file that was there keeps its mode, and its owner where that is allowed. A symbolic link stays
    one: the file it leads to is replaced. Folders, pipes, sockets and devices are refused.

    Parameters
    ----------
    path : a file in a folder that exists
    put : writes everything to the open file that it is given; if it raises, nothing has changed

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_atomically(f"{folder}/x", lambda file: print(file.write(b"all of it")))
    9
    """
    old = _file_at(path)
    target = Path(os.path.realpath(path))
    beside = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    # From its first byte on, nobody may read it who could not read the old one.
    mode = 0o666 if old is None else stat.S_IMODE(old.st_mode) & 0o600
    try:
        with open(beside, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            if old is not None:
                _take_after(beside, old)
            put(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, target)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    if os.name == "posix":  # the name, too, is to be on the disk
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _file_at(path: str | os.PathLike[str]) -> os.stat_result | None:
    """What is known of the file that is to be replaced, or None; anything else is refused."""
    if not os.path.basename(os.fspath(path)):  # or the folder's own name would be taken
        raise IsADirectoryError(f"{os.fspath(path)!r} names no file; give the name of a file")
    try:
        old = os.stat(path)
    except FileNotFoundError:
        return None
    except ValueError as error:  # NUL, or what the system cannot spell
        raise ValueError(f"{os.fspath(path)!r} cannot name a file: {error}") from error
    if stat.S_ISDIR(old.st_mode):
        raise IsADirectoryError(f"{os.fspath(path)} is a folder; give the name of a file")
    if not stat.S_ISREG(old.st_mode):
        raise FileExistsError(
            f"{os.fspath(path)} is a pipe, a socket or a device, which is not replaced; "
            "give the name of a file"
        )
    return old


def _take_after(new: Path, old: os.stat_result) -> None:
    """Give a file the owner, as far as that is allowed, and the mode of another."""
    if hasattr(os, "chown"):
        with suppress(OSError):
            os.chown(new, old.st_uid, old.st_gid)
    os.chmod(new, stat.S_IMODE(old.st_mode))
