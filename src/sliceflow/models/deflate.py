"""Bytes made small by zlib, and back: of the expected length, or a ValueError."""

from __future__ import annotations

import zlib

__all__ = ["deflated", "inflated"]


def deflated(whole: bytes) -> bytes:
    """Bytes that `inflated` reads.

    zlib looks for runs only (Z_RLE). Of maps, Z_FILTERED is 1 % smaller and fourteen times as slow to
    write; the default strategy, Huffman codes alone and lzma give larger files.
    """
    stream = zlib.compressobj(9, zlib.DEFLATED, 15, 9, zlib.Z_RLE)
    return stream.compress(whole) + stream.flush()


def inflated(packed: bytes, size: int, what: str, wrong: str) -> bytes:
    """The bytes of `deflated`; no more than `size` are made.

    Parameters
    ----------
    what : is in the plural, for the message if zlib fails
    wrong : the message if there are not `size` bytes

    Examples
    --------
    >>> inflated(deflated(b"abc"), 3, "letters", "there are not three letters")
    b'abc'
    """
    stream = zlib.decompressobj()
    try:
        whole = stream.decompress(packed, size + 1)
    except zlib.error as error:
        raise ValueError(f"{what} cannot be unpacked: {error}") from error
    if len(whole) != size or not stream.eof or stream.unused_data:
        raise ValueError(wrong)
    return whole
