"""Downloads: resumed where they stopped, checked, unpacked without trusting the archive."""

from __future__ import annotations

import hashlib
import lzma
import os
import shutil
import tarfile
import tempfile
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from http.client import HTTPException
from pathlib import Path, PurePosixPath
from typing import IO

from adte.core.errors import InputError, unknown
from adte.data.registry import DatasetInfo, Download, dataset_info
from adte.files.inputs import is_archive
from adte.files.whole import check_no_link, make_folder, reason

__all__ = ["Progress", "download", "fetch_file", "unpack"]

Progress = Callable[[str, int, int | None], None]  # file, bytes so far, bytes in all
BLOCK = 1 << 20


def download(
    name: str | DatasetInfo,
    folder: str | os.PathLike[str],
    progress: Progress | None = None,
    mirror: str | None = None,
    only: Sequence[str] = (),
    keep: bool = False,
) -> list[Path]:
    """Download the files of a data set into a folder, verify and unpack them.

    What is there already is not downloaded again, and an interrupted download continues. Then
    `load_dataset(f"{name}:{folder}")` reads the set.

    Args:
        name: name of the set, or its `DatasetInfo`.
        folder: folder to download into; it is created if needed.
        progress: called with the name of a file, its bytes so far and its bytes in all.
        mirror: address of a folder with the same files, to download from instead; for sets whose
            own address is gone or needs a login.
        only: names of the files to download, such as blur.tar of ImageNet-C; by default all.
        keep: keep the archives after unpacking.

    Returns:
        The paths of the downloaded files.

    Raises:
        InputError: if the set cannot be downloaded by a program, or a file fails its check.
    """
    info = name if isinstance(name, DatasetInfo) else dataset_info(name)
    files = info.downloads
    if odd := set(only) - {f.file for f in files}:
        raise unknown(f"file of {info.title}", min(odd), [f.file for f in files])
    files = tuple(f for f in files if not only or f.file in only)
    if not files or (mirror is None and not all(f.url for f in files)):
        raise InputError(f"{info.title} cannot be downloaded by a program: {info.how}")
    target = make_folder(os.path.expanduser(folder))
    done = []
    for file in files:
        mark = target / f".{file.file}.done"
        check_no_link(target, mark.name, file.into, *file.inner)
        if mark.is_file() and mark.read_text() == file.checksum:
            done.append(target / file.file)
            continue
        path = fetch_file(file, target, progress, mirror)
        if is_archive(file.file):
            unpack(path, target / file.into)
            for inner in file.inner:
                unpack(target / inner, (target / inner).parent)
            mark.write_text(file.checksum)
            if not keep:
                path.unlink()
        done.append(path)
    return done


def fetch_file(
    file: Download, folder: Path, progress: Progress | None = None, mirror: str | None = None
) -> Path:
    """One file, whole and checked. A part that is there already is gone on from."""
    path, part = folder / file.file, folder / f"{file.file}.part"
    if path.is_file() and checks(path, file):
        return path
    check_no_link(folder, part.name)
    url = f"{mirror.rstrip('/')}/{file.file}" if mirror else file.url
    if url is None:
        raise InputError(f"{file.file} has no address to fetch it from; give a mirror")
    try:
        _fetch(url, file, part, progress)
    except (urllib.error.URLError, HTTPException, OSError) as error:
        have = part.stat().st_size if part.exists() else 0
        raise InputError(
            f"the download of {url} stopped after {have} bytes ({error}); run it again to go on"
        ) from error
    if not checks(part, file):
        part.unlink()  # going on from bad bytes would never end well
        raise InputError(
            f"{url} is not the published file (its size or {file.checksum.partition(':')[0]} "
            "differs); it was removed: run it again, or fetch the file from elsewhere"
        )
    os.replace(part, path)
    return path


def _fetch(url: str, file: Download, part: Path, progress: Progress | None) -> None:
    start = part.stat().st_size if part.exists() else 0
    if file.bytes is not None and start >= file.bytes:
        return
    free = shutil.disk_usage(part.parent).free
    if file.bytes is not None and file.bytes - start > free:
        raise InputError(
            f"{file.file} has {file.bytes:,} bytes, but only {free:,} are free at "
            f"{str(part.parent)!r}; choose another folder"
        )
    request = urllib.request.Request(url, headers={"User-Agent": "adte"})
    if start:
        request.add_header("Range", f"bytes={start}-")
    try:
        answer = urllib.request.urlopen(request, timeout=60)  # nosec B310  # file: is for --from
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416 and start:  # nothing is left to send: the part is whole
            return
        raise
    with answer:
        begin = f"bytes {start}-"
        resumed = answer.status == 206 and answer.headers.get("Content-Range", "").startswith(begin)
        start = start if resumed else 0
        length = answer.headers.get("Content-Length")
        total = start + int(length) if length else file.bytes
        with part.open("ab" if resumed else "wb") as out:
            while block := answer.read(BLOCK):
                out.write(block)
                start += len(block)
                if progress:
                    progress(file.file, start, total)
        if total is not None and start < total:
            raise OSError(f"{total - start} bytes are missing")


def checks(path: Path, file: Download) -> bool:
    """Whether a file has the size and the checksum of the published one, where they are known."""
    if file.bytes is not None and path.stat().st_size != file.bytes:
        return False
    kind, _, wanted = file.checksum.partition(":")
    if not wanted:
        return True
    digest = hashlib.new(kind, usedforsecurity=False)
    with path.open("rb") as f:
        while block := f.read(BLOCK):
            digest.update(block)
    return digest.hexdigest().startswith(wanted)  # some publish its beginning


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a tar or zip, all of it or nothing. A member that would land outside is an error, also
    where it would by a link that is in the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".unpack-", dir=folder) as scratch:
        try:
            for name, content in _members(archive):
                target = Path(scratch, *_safe(name, archive).parts)
                target.parent.mkdir(parents=True, exist_ok=True)
                with content, target.open("wb") as out:
                    shutil.copyfileobj(content, out, BLOCK)
        except (
            tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError,
            RuntimeError,
        ) as error:  # fmt: skip  # the last: a zip with a password
            said = f"{error}; fetch it again"
            if isinstance(error, OSError) and error.errno is not None:  # not the archive's fault
                said = reason(error)
            raise InputError(f"{str(archive)!r} cannot be unpacked: {said}") from error
        for member in Path(scratch).rglob("*"):
            check_no_link(folder, str(member.relative_to(scratch)))
        _merge(Path(scratch), folder)


def _merge(source: Path, target: Path) -> None:
    for entry in sorted(source.iterdir()):
        place = target / entry.name
        if entry.is_dir() and place.is_dir():
            _merge(entry, place)
        else:
            os.replace(entry, place)


def _safe(name: str, archive: Path) -> PurePosixPath:
    path = PurePosixPath(name.replace("\\", "/"))
    if not path.parts or path.is_absolute() or ".." in path.parts or ":" in path.parts[0]:
        raise InputError(
            f"{str(archive)!r} holds {name!r}, which would land outside the folder; do not use it"
        )
    return path


def _members(archive: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """Names and contents of the regular files of an archive."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as z:
            for entry in z.infolist():
                if not entry.is_dir():
                    yield entry.filename, z.open(entry)
        return
    with tarfile.open(archive) as tar:
        for member in tar:
            if member.issym() or member.islnk() or member.isdev():
                raise InputError(
                    f"{str(archive)!r} holds {member.name!r}, which is no plain file; do not use it"
                )
            content = tar.extractfile(member) if member.isfile() else None
            if content is not None:
                yield member.name, content
        while tar.fileobj is not None and tar.fileobj.read(BLOCK):
            pass  # to the end, where a compressed tar has its checksum
