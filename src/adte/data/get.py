"""Downloads: resumed where they stopped, checked, unpacked without trusting the archive.

`pooch` resumes no download, and unpacks links: neither the checks nor the unpacking could be its.
"""

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

__all__ = ["Progress", "checks", "download", "fetch_file", "unpack"]

Progress = Callable[[str, int, int | None], None]  # file, bytes so far, bytes in all
BLOCK = 1 << 20
DAMAGE = (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError,
          RuntimeError)  # fmt: skip  # the last: a zip with a password


def download(
    name: str | DatasetInfo,
    folder: str | os.PathLike[str],
    progress: Progress | None = None,
    mirror: str | None = None,
    only: Sequence[str] = (),
    keep: bool = False,
) -> list[Path]:
    """Download the files of a data set into a folder, verify and unpack them.

    Files that were unpacked before are not downloaded again, and an interrupted download continues.
    Then `load_dataset(f"{name}:{folder}")` reads the set.

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
    known = {file.file: file for file in info.downloads}
    if odd := set(only) - set(known):
        raise unknown(f"file of {info.title}", min(odd), known)
    files = [known[file] for file in known if not only or file in only]
    if not files or (mirror is None and not all(f.url for f in files)):
        raise InputError(f"{info.title} cannot be downloaded by a program: {info.how}")
    target = make_folder(os.path.expanduser(folder))
    for file in files:
        mark = target / f".{file.file}.done"
        check_no_link(target, mark.name, file.into, *file.inner)
        if mark.is_file() and mark.read_text() == file.checksum:
            continue
        path = fetch_file(file, target, progress, mirror)
        if is_archive(file.file):
            unpack(path, target / file.into)
            for inner in file.inner:
                unpack(target / inner, (target / inner).parent)
            mark.write_text(file.checksum)
            if not keep:
                path.unlink()
    return [target / file.file for file in files]


def fetch_file(
    file: Download, folder: Path, progress: Progress | None = None, mirror: str | None = None
) -> Path:
    """One file, whole and checked; a part that an earlier download left is continued."""
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
    missing = (file.bytes or 0) - start
    if file.bytes is not None and missing <= 0:
        return
    free = shutil.disk_usage(part.parent).free
    if missing > free:
        raise InputError(
            f"{file.file} has {file.bytes:,} bytes, but only {free:,} are free at "
            f"{str(part.parent)!r}; choose another folder"
        )
    headers = {"User-Agent": "adte"} | ({"Range": f"bytes={start}-"} if start else {})
    request = urllib.request.Request(url, headers=headers)
    try:
        answer = urllib.request.urlopen(request, timeout=60)  # nosec B310  # file: is for --from
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416 and start:  # nothing is left to send: the part is whole
            return
        raise
    with answer:
        begins = answer.headers.get("Content-Range", "").startswith(f"bytes {start}-")
        resumed = answer.status == 206 and begins
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
        except DAMAGE as error:
            text = f"{error}; fetch it again"
            if isinstance(error, OSError) and error.errno is not None:  # not the archive's fault
                text = reason(error)
            raise InputError(f"{str(archive)!r} cannot be unpacked: {text}") from error
        files = [p.relative_to(scratch) for p in Path(scratch).rglob("*") if not p.is_dir()]
        for file in files:
            check_no_link(folder, str(file))
        for file in files:
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            os.replace(Path(scratch, file), folder / file)


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
            yield from ((i.filename, z.open(i)) for i in z.infolist() if not i.is_dir())
        return
    with tarfile.open(archive) as tar:
        for member in tar:
            if member.issym() or member.islnk() or member.isdev():
                raise InputError(
                    f"{str(archive)!r} holds {member.name!r}, which is no plain file; do not use it"
                )
            if member.isfile() and (content := tar.extractfile(member)):
                yield member.name, content
        while tar.fileobj is not None and tar.fileobj.read(BLOCK):
            pass  # to the end, where a compressed tar has its checksum
