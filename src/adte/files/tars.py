"""The members of a tar, all of them or an error: `tarfile` takes a damaged header for the end."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from tarfile import (  # type: ignore[attr-defined]
    BLOCKSIZE,
    EmptyHeaderError,
    EOFHeaderError,
    HeaderError,
    ReadError,
    TarFile,
    TarInfo,
)

__all__ = ["Header", "members"]

PIECE = 2048 * BLOCKSIZE
MAGIC, AT = b"ustar", 257  # of a header, and where it stands in its block


class Header(TarInfo):
    """A header whose damage is an error wherever it lies; for `tarfile.open(…, tarinfo=Header)`."""

    @classmethod
    def fromtarfile(cls, tarfile: TarFile) -> Header:
        """Not `frombuf`, which security releases of Python no longer ask."""
        try:
            return super().fromtarfile(tarfile)
        except (EmptyHeaderError, EOFHeaderError):
            raise  # no more bytes, or the end mark
        except HeaderError as error:
            file = tarfile.fileobj
            assert file is not None
            file.seek(tarfile.offset)
            if any(file.read(BLOCKSIZE)):  # else an end mark that was cut off
                raise ReadError(str(error)) from error
            raise


def members(archive: TarFile, name: str) -> Iterator[TarInfo]:
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
        if any(piece.startswith(MAGIC, at) for at in range(AT, len(piece), BLOCKSIZE)):
            raise ReadError("it goes on after an end mark")
