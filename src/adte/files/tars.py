"""The members of a tar, all of them or an error: `tarfile` takes a damaged header for the end."""

from __future__ import annotations

import tarfile
import warnings
from collections.abc import Iterator

__all__ = ["Header", "members"]

PIECE = 2048 * tarfile.BLOCKSIZE
MAGIC, AT = b"ustar", 257  # of a header, and where it stands in its block


class Header(tarfile.TarInfo):
    """A header whose damage is an error wherever it lies; for `tarfile.open(…, tarinfo=Header)`."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Header:
        try:
            return super().frombuf(buf, encoding, errors)
        except tarfile.HeaderError as error:
            if any(buf):  # else the end mark, or no more bytes
                raise tarfile.ReadError(str(error)) from error
            raise


def members(archive: tarfile.TarFile, name: str) -> Iterator[tarfile.TarInfo]:
    """The members in order, of an archive with `Header`; none is held in memory.

    One that was cut off between two members cannot be told from one whose writer left the end mark
    out: a warning says so.
    """
    while (info := archive.next()) is not None:
        archive.members.clear()  # type: ignore[attr-defined]
        yield info
    file = archive.fileobj
    assert file is not None
    if file.tell() == archive.offset:
        warnings.warn(
            f"the archive {name!r} has no end mark; if it was cut off, images are missing: make it "
            "again",
            stacklevel=3,
        )
    while piece := file.read(PIECE):
        if any(piece.startswith(MAGIC, at) for at in range(AT, len(piece), tarfile.BLOCKSIZE)):
            raise tarfile.ReadError("it goes on after an end mark")
