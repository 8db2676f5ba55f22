"""Downloads from a server on this machine: resumed, checked, safely unpacked."""

from __future__ import annotations

import errno
import hashlib
import io
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from adte.core.errors import InputError
from adte.data import DatasetInfo, Download, download
from adte.data.get import fetch_file, unpack
from fileserver import CONTENT, Server, serving


@pytest.fixture
def server() -> Iterator[Server]:
    with serving({"data.bin": CONTENT}) as server:
        yield server


def at(server: Server, file: str = "data.bin", **facts: object) -> Download:
    checksum = "sha256:" + hashlib.sha256(server.files[file]).hexdigest()
    facts = {"bytes": len(server.files[file]), "checksum": checksum, **facts}
    return Download(file, f"{server.url}/{file}", **facts)  # type: ignore[arg-type]


def test_a_file_is_fetched_once(server: Server, tmp_path: Path) -> None:
    told: list[tuple[str, int, int | None]] = []
    path = fetch_file(at(server), tmp_path, lambda *x: told.append(x))
    assert path.read_bytes() == CONTENT
    assert told[-1] == ("data.bin", len(CONTENT), len(CONTENT))
    assert len(told) == 3
    fetch_file(at(server), tmp_path)
    assert server.ranges == [None]  # the second time nothing was asked
    assert [p.name for p in tmp_path.iterdir()] == ["data.bin"]


def test_a_download_goes_on_where_it_stopped(server: Server, tmp_path: Path) -> None:
    server.cut = 1_500_000
    with pytest.raises(InputError, match=r"stopped after 1500000 bytes.*run it again to go on"):
        fetch_file(at(server), tmp_path)
    assert not (tmp_path / "data.bin").exists()
    server.cut = None
    assert fetch_file(at(server), tmp_path).read_bytes() == CONTENT
    (tmp_path / "data.bin").rename(tmp_path / "data.bin.part")  # whole, and answered by 416
    assert fetch_file(at(server, bytes=None), tmp_path).read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=1500000-", f"bytes={len(CONTENT)}-"]
    (tmp_path / "data.bin").unlink()
    (tmp_path / "data.bin.part").write_bytes(b"x" * 1000)
    server.resumes = False  # it starts anew
    assert fetch_file(at(server), tmp_path).read_bytes() == CONTENT


def test_a_wrong_checksum_leaves_nothing(server: Server, tmp_path: Path) -> None:
    wrong = at(server, checksum="md5:" + "0" * 32)
    with pytest.raises(InputError, match=r"is not the published file \(its size or md5 differs\)"):
        fetch_file(wrong, tmp_path)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "data.bin.part").write_bytes(b"rubbish")  # resumed into a wrong whole
    with pytest.raises(InputError, match="not the published file"):
        fetch_file(at(server), tmp_path)
    assert fetch_file(at(server), tmp_path).read_bytes() == CONTENT
    gone = Download("gone.bin", f"{server.url}/gone.bin")
    with pytest.raises(InputError, match=r"stopped after 0 bytes \(HTTP Error 404"):
        fetch_file(gone, tmp_path)


def tar(members: dict[str, bytes], kind: bytes = tarfile.REGTYPE, mode: str = "w:gz") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as t:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size, info.type, info.linkname = len(content), kind, "/etc/passwd"
            t.addfile(info, io.BytesIO(content))
    return out.getvalue()


def zipped(members: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as z:
        for name, content in members.items():
            z.writestr(name, content)
    return out.getvalue()


def test_a_set_is_fetched_and_unpacked(server: Server, tmp_path: Path) -> None:
    inner = tar({"101/cat/1.jpg": b"1"})
    server.files |= {"a.tar.gz": tar({"images/dog/2.jpg": b"2"}),
                     "b.zip": zipped({"in/c.tar.gz": inner}),
                     "labels.mat": b"m"}  # fmt: skip
    info = DatasetInfo("mini", "a miniature", how="by hand", downloads=(
        at(server, "a.tar.gz", into="val"), at(server, "b.zip", inner=("in/c.tar.gz",)),
        at(server, "labels.mat")))  # fmt: skip
    download(info, tmp_path / "new")
    files = {p.relative_to(tmp_path / "new").as_posix(): p.read_bytes()
             for p in (tmp_path / "new").rglob("*")
             if p.is_file() and p.name[0] != "."}  # fmt: skip
    assert files == {"val/images/dog/2.jpg": b"2", "in/101/cat/1.jpg": b"1", "in/c.tar.gz": inner,
                     "labels.mat": b"m"}  # fmt: skip
    asked = len(server.ranges)
    download(info, tmp_path / "new")  # the archives are gone, but their work is done
    assert len(server.ranges) == asked


def test_a_mirror_serves_sets_whose_address_is_gone(server: Server, tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match="Stanford Cars cannot be downloaded by a program: the official"
    ):
        download("cars", tmp_path)
    with pytest.raises(InputError, match=r"log in at image-net.org"):
        download("imagenet", tmp_path)
    with pytest.raises(InputError, match="cannot be downloaded by a program: any folder"):
        download("folder", tmp_path)
    server.files["cars_test.tgz"] = tar({"cars_test/1.jpg": b"1"})
    with pytest.raises(InputError, match="not the published file"):  # checked all the same
        download("cars", tmp_path, mirror=f"{server.url}/")
    assert not (tmp_path / "cars_test").exists()


def test_some_files_of_a_set_and_a_full_disk(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.files |= {"a.tar": tar({"a.jpg": b"1"}), "b.tar": tar({"b.jpg": b"2"})}
    info = DatasetInfo("x", "a set", downloads=(at(server, "a.tar"), at(server, "b.tar")))
    download(info, tmp_path, only=["b.tar"], keep=True)
    assert sorted(p.name for p in tmp_path.iterdir() if p.name[0] != ".") == ["b.jpg", "b.tar"]
    with pytest.raises(InputError, match=r"unknown file of a set 'c.tar'.*choose one of: a.tar"):
        download(info, tmp_path, only=["c.tar"])
    with pytest.raises(InputError, match="are free at"):
        fetch_file(at(server, bytes=1 << 60), tmp_path)
    with pytest.raises(InputError, match="a file is in the way; give another name"):
        download(info, tmp_path / "b.jpg")  # a traceback was all that was said

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("adte.data.get.shutil.copyfileobj", full)
    with pytest.raises(InputError, match="cannot be unpacked: the disk is full; free some space"):
        download(info, tmp_path)  # nor is it mended by another download


@pytest.mark.parametrize(
    "content",
    [tar({"ok.jpg": b"1", "../evil.jpg": b"2"}), tar({"/tmp/evil.jpg": b"2"}),
     tar({"link.jpg": b""}, tarfile.SYMTYPE), tar({"link.jpg": b""}, tarfile.LNKTYPE),
     zipped({"a/../../evil.jpg": b"2"}), zipped({"..\\evil.jpg": b"2"})],
)  # fmt: skip
def test_archives_cannot_write_elsewhere(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(content)
    with pytest.raises(InputError, match="do not use it"):
        unpack(tmp_path / "a.tar", tmp_path / "in")
    assert list((tmp_path / "in").iterdir()) == []  # all or nothing
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.tar", "in"]


@pytest.mark.parametrize(
    ("link", "facts"),
    [
        *((link, {}) for link in ("val", "val/cat", "val/cat/a.jpg", ".a.tar.done", "a.tar.part")),
        ("deep", {"into": "deep/er"}),
        ("in", {"inner": ("in/b.tar",)}),
    ],
)
def test_a_link_in_the_folder_is_not_followed(
    link: str, facts: dict[str, object], server: Server, tmp_path: Path
) -> None:
    """Neither by members of an archive, nor by the files that a download keeps."""
    server.files["a.tar"] = tar({"ok.jpg": b"1", "val/cat/a.jpg": b"2"}, mode="w")
    info = DatasetInfo("x", "a set", downloads=(at(server, "a.tar", **facts),))
    outside, folder = tmp_path / "outside", tmp_path / "set"
    (folder / link).parent.mkdir(parents=True)
    if "." in link:
        outside.write_bytes(b"mine")
    else:
        outside.mkdir()
    (folder / link).symlink_to(outside)
    with pytest.raises(InputError, match=f"{link}' is a link, which is not followed; take it"):
        download(info, folder)
    assert not (folder / "ok.jpg").exists()  # all or nothing
    assert list(outside.iterdir()) == [] if outside.is_dir() else outside.read_bytes() == b"mine"


@pytest.mark.parametrize("damage", ["checksum", "stream", "torn"])
def test_a_damaged_archive_is_not_unpacked(damage: str, tmp_path: Path) -> None:
    path = tmp_path / ("a.zip" if damage == "stream" else "a.tar.gz")
    path.write_bytes(tar({"a.txt": CONTENT}))
    if damage == "stream":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("a.txt", CONTENT)
    data = bytearray(path.read_bytes())
    data[60 if damage == "stream" else -6] ^= 0xFF
    path.write_bytes(data[:-30] if damage == "torn" else data)
    with pytest.raises(InputError, match=r"cannot be unpacked: .*; fetch it again"):
        unpack(path, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []
