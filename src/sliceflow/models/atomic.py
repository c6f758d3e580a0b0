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
    path: str | os.PathLike[str], put: Callable[[BinaryIO], object]
) -> None:
    """Write a new file beside `path` by `put`, flush it to disk, and rename it. An error changes nothing.

    It keeps the mode and, where allowed, the owner. A link's target is replaced; only files can be.
    """
    old = _file_at(path)
    target = Path(os.path.realpath(path))
    beside = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    # At no time may it be readable by anyone who could not read the old one.
    mode = 0o666 if old is None else stat.S_IMODE(old.st_mode) & 0o600
    try:
        with open(
            beside, "xb", opener=lambda name, flags: os.open(name, flags, mode)
        ) as file:
            if (
                old is not None
            ):  # the same owner, where that is allowed, and the same mode
                if hasattr(os, "chown"):
                    with suppress(OSError):
                        os.chown(beside, old.st_uid, old.st_gid)
                os.chmod(beside, stat.S_IMODE(old.st_mode))
            put(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, target)
    except BaseException as error:
        with suppress(
            OSError
        ):  # Windows removes no file that is read-only; what went wrong counts
            beside.unlink(missing_ok=True)
        if (
            isinstance(error, OSError) and error.errno is not None
        ):  # a full disk names no file
            error.filename = os.fspath(path)
        raise
    if os.name == "posix":  # flush the name, too
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _file_at(path: str | os.PathLike[str]) -> os.stat_result | None:
    """The status of the file to be replaced, or None; an OSError for anything but a file."""
    name = os.fspath(path)
    if not os.path.basename(name):  # or it would replace the folder
        raise IsADirectoryError(f"{name!r} names no file; give the name of a file")
    try:
        old = os.stat(path)
    except FileNotFoundError:
        return None
    except ValueError as error:  # NUL, or what the system cannot encode
        raise ValueError(f"{name!r} cannot name a file: {error}") from error
    if stat.S_ISDIR(old.st_mode):
        raise IsADirectoryError(f"{name} is a folder; give the name of a file")
    if not stat.S_ISREG(old.st_mode):
        raise FileExistsError(
            f"{name} is a pipe, a socket or a device, which is not replaced"
        )
    return old
