"""Files that are written completely or not at all."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO


def write_atomically(
    path: str | os.PathLike[str], write: Callable[[BinaryIO], object]
) -> None:
    """Write a file so that `path` is the old or the whole new file, whatever happens.

    `write` fills a new file beside `path`, which is flushed to disk and then renamed.
    If anything fails, the old file is as it was. The new file keeps the mode of the old
    one and, where that is allowed, its owner. If `path` is a link, its target is
    replaced. Only files can be replaced: a folder, a pipe or a device is an OSError.
    """
    old = _status_of_file(path)
    target = Path(os.path.realpath(path))
    new = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    if old is None:
        mode = 0o666  # less what the user's umask takes away
    else:
        # At no time may anybody read the new file who could not read the old one.
        mode = stat.S_IMODE(old.st_mode) & 0o600

    def open_with_mode(name: str, flags: int) -> int:
        return os.open(name, flags, mode)

    try:
        with open(new, "xb", opener=open_with_mode) as file:
            if old is not None:
                _copy_owner_and_mode(new, old)
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, target)
    except BaseException as error:
        # Windows does not remove read-only files. The first error counts, not this one.
        with suppress(OSError):
            new.unlink(missing_ok=True)
        # The error of a full disk does not name the file.
        if isinstance(error, OSError) and error.errno is not None:
            error.filename = os.fspath(path)
        raise
    if os.name == "posix":
        _flush_folder(target.parent)


def _status_of_file(path: str | os.PathLike[str]) -> os.stat_result | None:
    """The status of the file to be replaced, or None; an OSError for anything else."""
    name = os.fspath(path)
    if not os.path.basename(name):  # a name that ends in a slash is a folder
        raise IsADirectoryError(f"{name!r} names no file; give the name of a file")
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    except ValueError as error:  # NUL, or what the system cannot encode
        raise ValueError(f"{name!r} cannot name a file: {error}") from error
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(f"{name} is a folder; give the name of a file")
    if not stat.S_ISREG(status.st_mode):
        raise FileExistsError(
            f"{name} is a pipe, a socket or a device, which is not replaced"
        )
    return status


def _copy_owner_and_mode(path: Path, old: os.stat_result) -> None:
    """Give a file the mode of the old one and, where that is allowed, its owner."""
    if hasattr(os, "chown"):
        with suppress(OSError):
            os.chown(path, old.st_uid, old.st_gid)
    os.chmod(path, stat.S_IMODE(old.st_mode))


def _flush_folder(folder: Path) -> None:
    """Flush the folder's list of names to disk, after one of its files was renamed."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
