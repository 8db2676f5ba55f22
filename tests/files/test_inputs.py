"""Inputs: every image once, in a fixed order; what cannot be read is named."""

from __future__ import annotations

import gzip
import io
import os
import re
import shutil
import struct
import sys
import tarfile
import tempfile
import threading
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from adte import InputError
from adte.files.inputs import expand, is_archive
from adte.images.decode import load_image

posix = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs a POSIX system")


def png(grey: int) -> bytes:
    data = io.BytesIO()
    Image.fromarray(np.full((4, 5, 3), grey, np.uint8)).save(data, "png")
    return data.getvalue()


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("photos/sub").mkdir(parents=True)
    for i, name in enumerate(["b.png", "a.png", "sub/c.PNG"]):
        Path("photos", name).write_bytes(png(i))
    Path("photos/README.txt").write_text("not an image")
    return tmp_path


def items(inputs: list[str], **options: int) -> list[tuple[str, object]]:
    return [
        (name, str(source) if isinstance(source, InputError) else source)
        for name, source in expand(inputs, **options)
    ]


# --------------------------------------------------------------------------- files and folders


def test_files_and_folders_in_order(here):
    got = items(["photos/sub/c.PNG", "photos", "photos/README.txt", "./photos/a.png"])
    assert [n for n, _ in got] == [
        "photos/sub/c.PNG", "photos/a.png", "photos/b.png", "photos/sub/c.PNG",
        "photos/README.txt", "./photos/a.png",
    ]  # fmt: skip
    assert all(isinstance(source, Path) for _, source in got)


def test_an_empty_path_is_an_error_and_not_this_folder(here):
    for inputs in ([""], ["photos", ""]):
        with pytest.raises(InputError, match="an empty path was given"):
            expand(inputs)
    with pytest.raises(InputError, match="no image was given"):
        expand([])


def test_what_is_not_there_is_named_and_the_rest_goes_on(here):
    Path("empty").mkdir()
    got = items(["none.jpg", "photos/a.png", "empty", "none/", "a\0b"])
    assert [n for n, _ in got] == ["none.jpg", "photos/a.png", "empty", "none/", "a\0b"]
    assert got[0][1] == "cannot open 'none.jpg' (No such file or directory); check the path"
    assert isinstance(got[1][1], Path)
    assert "holds no image" in str(got[2][1])
    assert "cannot open 'none/'" in str(got[3][1])
    assert "embedded null" in str(got[4][1])


def test_archives_in_a_folder_are_said(here):
    Path("shards").mkdir()
    for name in ("b.TAR", "c.tar.gz", "d.csv.gz", "e.parquet"):
        Path("shards", name).write_bytes(b"")
    kinds = ".tar 1, .tar.gz 1"
    mend = f"name them, as in {os.path.join('shards', '*.tar')}"
    ((name, said),) = items(["shards"])
    assert name == "shards"
    assert said == f"the folder 'shards' holds archives and no image (.parquet 1, {kinds}); {mend}"
    shutil.copy("photos/a.png", "shards")
    noted = re.escape(f"archives in 'shards' are skipped ({kinds}); {mend}")
    with pytest.warns(UserWarning, match=noted):
        assert [n for n, _ in items(["shards"])] == [os.path.join("shards", "a.png")]


@posix
def test_folders_that_cannot_be_listed_are_named(here):
    with tempfile.TemporaryDirectory() as place:
        root = Path(place, "photos")
        for name in ("a/1.png", "a-1.png", "closed/2.png", "deep/closed/3.png", "deep/4.png",
                     "half/5.png", "half/in/6.png", "z.png"):  # fmt: skip
            Path(root, name).parent.mkdir(parents=True, exist_ok=True)
            Path(root, name).write_bytes(png(0))
        (root / "docs").mkdir()
        (root / "deep" / "up").symlink_to("..")
        closed = [root / "closed", root / "deep" / "closed", root / "half"]
        os.chmod(place, 0o755)
        for folder in closed:
            folder.chmod(0)
        (root / "half").chmod(0o744)  # its names may be read, and nothing else
        is_root = os.geteuid() == 0
        if is_root:
            os.seteuid(65534)
        try:
            got = items([str(root)])
        finally:
            if is_root:
                os.seteuid(0)
            for folder in closed:
                folder.chmod(0o755)
    wanted = ["a-1.png", "a/1.png", "closed", "deep/4.png", "deep/closed",
              "half/5.png", "half/in", "z.png"]  # fmt: skip
    assert [n for n, _ in got] == [str(root / n) for n in wanted]
    for i in (2, 4, 6):
        assert "cannot list the folder" in str(got[i][1])
    assert all(isinstance(got[i][1], Path) for i in (0, 1, 3, 5, 7))


@pytest.mark.skipif(not os.path.exists("/dev/zero"), reason="needs /dev/zero")
def test_devices_are_no_images(here):
    assert items(["/dev/zero"]) == [
        ("/dev/zero", "'/dev/zero' is a device, not an image; give a file or a folder")
    ]


def test_photographs_that_cannot_be_read_are_counted(here):
    for name in ("1.NEF", "2.nef", "sub/3.cr2", "README", "notes.txt", ".hidden"):
        Path("photos", name).write_bytes(b"raw")
    Path("photos/scan").write_bytes(png(9))
    with pytest.warns(UserWarning, match=r"files in 'photos' .*\(\.nef 2, no suffix 1, \.cr2 1\)"):
        assert len(items(["photos"])) == 3


@pytest.mark.skipif(os.name == "nt", reason="needs a POSIX system")
def test_a_folder_may_be_thousands_deep(here):
    top = os.getcwd()
    try:
        for name in ["deep", *["d"] * 1200]:
            os.mkdir(name)
            os.chdir(name)
        Path("x.png").write_bytes(b"an image")
    finally:
        os.chdir(top)
    ((name, source),) = expand(["deep"])
    assert name == f"deep/{'d/' * 1200}x.png"
    assert source.read_bytes() == b"an image"
    os.rename("deep", "r")  # from its end, as the tests' own tidying up is a recursion
    while os.path.isdir("r/d"):
        os.rename("r/d", "s")
        shutil.rmtree("r")
        os.rename("s", "r")


# --------------------------------------------------------------------------- standard input, pipes


@pytest.fixture
def send(monkeypatch):
    """Puts a real pipe with some bytes, or a file, in the place of standard input."""
    opened = []

    def put(data: bytes | Path) -> None:
        if isinstance(data, Path):
            opened.append(data.open())
        else:
            end, start = os.pipe()
            os.write(start, data)
            os.close(start)
            opened.append(os.fdopen(end))
        monkeypatch.setattr(sys, "stdin", opened[-1])

    yield put
    for file in opened:
        file.close()


def test_standard_input_is_one_image(here, send):
    data = png(3)
    for name in ("-", "/dev/stdin"):
        send(data)
        assert items([name]) == [(name, data)]
    send(Path("photos/a.png"))
    assert items(["/dev/stdin", "photos/b.png"])[0] == ("/dev/stdin", png(1))
    send(b"")
    assert items(["-"]) == [("-", "standard input is empty; send an image to it")]
    send(b"x" * 1001)
    assert items(["-"], limit=1000) == [
        ("-", "standard input holds more than 1,000 bytes; give smaller images")
    ]
    for twice in (["-", "-"], ["-", "/dev/stdin"]):
        with pytest.raises(InputError, match="standard input was named twice"):
            expand(twice)


@posix
def test_a_terminal_sends_no_image(here, monkeypatch):
    import pty

    ours, theirs = pty.openpty()
    with os.fdopen(theirs) as terminal:
        monkeypatch.setattr(sys, "stdin", terminal)
        assert items(["-"])[0][1] == (
            "standard input is a terminal; send an image to it, as in < photo.jpg"
        )
    os.close(ours)


@posix
def test_a_pipe_is_one_image(here):
    os.mkfifo("pipe")
    data = png(4)
    for content, wanted in ((data, data), (b"", "'pipe' is empty; send an image to it")):
        writer = threading.Thread(target=Path("pipe").write_bytes, args=(content,))
        writer.start()
        assert items(["pipe"]) == [("pipe", wanted)]
        writer.join()


def test_standard_input_may_be_closed(monkeypatch):
    monkeypatch.setattr("sys.stdin", None)
    ((_, error),) = expand(["-"])
    assert "standard input is closed" in str(error)


# --------------------------------------------------------------------------- archives

MEMBERS = {
    "b.png": png(1), "sub/a.PNG": png(2), "../../escape.png": png(3), "/abs.png": png(4),
    "README.txt": b"no image", ".hidden.png": png(5), "__MACOSX/._b.png": b"x",
    ".git/c.png": png(6), "void.png": b"",
}  # fmt: skip
FOUND = ["b.png", "sub/a.PNG", "escape.png", "/abs.png", "void.png"]


def pack(path: Path, members: dict[str, bytes]) -> Path:
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as z:
            for name, data in members.items():
                z.writestr(name, data)
        return path
    mode = {".gz": "w:gz", ".tgz": "w:gz", ".bz2": "w:bz2", ".xz": "w:xz"}.get(path.suffix, "w")
    with tarfile.open(path, mode) as t:
        folder = tarfile.TarInfo("sub.png")
        folder.type = tarfile.DIRTYPE
        t.addfile(folder)
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            t.addfile(info, io.BytesIO(data))
    return path


ARCHIVES = ["a.zip", "a.tar", "a.tar.gz", "a.tgz", "a.tar.bz2", "a.tar.xz", "A.ZIP"]


@pytest.mark.parametrize("name", ARCHIVES)
def test_archives(name, here):
    pack(here / name.lower(), MEMBERS).rename(here / name)
    before = sorted(p for p in here.parent.rglob("*"))
    got = items([name, "photos/a.png"])
    assert [n for n, _ in got] == [*(f"{name}/{m}" for m in FOUND), "photos/a.png"]
    for (_, source), member in zip(got[:4], MEMBERS_GREY, strict=True):
        assert source == MEMBERS[member]
        assert load_image(source)[0, 0, 0] == MEMBERS_GREY[member]
    assert got[4][1] == f"'void.png' in {name!r} is empty; pack it again"
    assert sorted(p for p in here.parent.rglob("*")) == before  # nothing is unpacked


MEMBERS_GREY = {"b.png": 1, "sub/a.PNG": 2, "../../escape.png": 3, "/abs.png": 4}


@pytest.mark.parametrize("name", ["a.zip", "a.tar.gz"])
def test_archives_without_images_or_with_large_ones(name, here):
    pack(here / name, {"README.txt": b"x"})
    assert items([name]) == [
        (name, f"the archive {name!r} holds no image; check what was packed")
    ]  # fmt: skip
    pack(here / name, {"big.png": b"\0" * 5000, "b.png": png(1)})
    got = items([name], limit=4999)
    assert got[0] == (
        f"{name}/big.png",
        f"'big.png' in {name!r} has 5,000 bytes, 4,999 bytes are the limit; make it smaller",
    )
    assert got[1] == (f"{name}/b.png", png(1))


def test_a_member_that_is_larger_than_it_says(here):
    pack(here / "a.zip", {"big.png": b"\0" * 50_000})
    data = bytearray(Path("a.zip").read_bytes())
    for signature, offset in ((b"PK\1\2", 24), (b"PK\3\4", 22)):
        at = data.index(signature)
        data[at + offset : at + offset + 4] = struct.pack("<I", 10)
    Path("a.zip").write_bytes(data)
    ((name, source),) = items(["a.zip"], limit=100)
    assert name == "a.zip/big.png"
    assert "cannot be read" in str(source) or "are the limit" in str(source)


@pytest.mark.parametrize("name", ["a.tar", "a.tar.gz"])
def test_a_member_of_absurd_size_is_not_read(name, here):
    info = tarfile.TarInfo("big.png")
    info.size = 1 << 50
    data = info.tobuf() + bytes(1024)
    Path(name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    got = items([name])
    assert "has 1,125,899,906,842,624 bytes, 1 GiB are the limit" in str(got[0][1])
    assert "cannot be read after 1 images" in str(got[1][1])


def test_links_in_archives_are_named(here):
    with tarfile.open("a.tar", "w") as t:
        info = tarfile.TarInfo("b.png")
        info.size = len(png(1))
        t.addfile(info, io.BytesIO(png(1)))
        for name, kind in (("s.png", tarfile.SYMTYPE), ("h.png", tarfile.LNKTYPE)):
            link = tarfile.TarInfo(name)
            link.type, link.linkname = kind, "/etc/passwd"
            t.addfile(link)
    got = items(["a.tar"])
    assert [n for n, _ in got] == ["a.tar/b.png", "a.tar/s.png", "a.tar/h.png"]
    assert got[1][1] == "'s.png' in 'a.tar' is a link or a device; pack the image itself"
    assert str(got[2][1]) == (
        "'h.png' in 'a.tar' is a hard link to '/etc/passwd'; pack the image itself, as tar "
        "--hard-dereference does"
    )


@pytest.mark.parametrize("name", ["a.zip", "a.tar"])
def test_names_that_lead_out_or_have_backslashes_are_left_out_by_nobody(name, here):
    members = ["..\\..\\x.png", "photos\\y.png", "C:\\z.png", "\\\\host\\share\\u.png", "/abs.png",
               "../up.png", "..\\.git\\hidden.png", "..\\notes.txt"]  # fmt: skip
    with zipfile.ZipFile("a.zip", "w") as z, tarfile.open("a.tar", "w") as t:
        for i, member in enumerate(members):
            info = zipfile.ZipInfo("x")
            info.filename = member  # as other programs write it
            z.writestr(info, png(i))
            entry = tarfile.TarInfo(member)
            entry.size = len(png(i))
            t.addfile(entry, io.BytesIO(png(i)))
    before = sorted(here.parent.rglob("*"))
    assert items([name]) == [
        (f"{name}/x.png", png(0)), (f"{name}/photos/y.png", png(1)), (f"{name}/C:/z.png", png(2)),
        (f"{name}///host/share/u.png", png(3)), (f"{name}//abs.png", png(4)),
        (f"{name}/up.png", png(5)),
    ]  # fmt: skip
    assert sorted(here.parent.rglob("*")) == before


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("name", ["a.zip", "a.tar"])
def test_members_of_one_name_are_all_there(name, here):
    with zipfile.ZipFile("a.zip", "w") as z, tarfile.open("a.tar", "w") as t:
        for i in range(3):
            z.writestr("x.png", png(i))
            entry = tarfile.TarInfo("x.png")
            entry.size = len(png(i))
            t.addfile(entry, io.BytesIO(png(i)))
    assert items([name]) == [(f"{name}/x.png", png(i)) for i in range(3)]


def test_a_folder_in_a_zip_holds_no_bytes(here):
    with zipfile.ZipFile("a.zip", "w") as z:
        for member, data in (("a.png/", b""), ("b.png\\", b""), ("c.png/", png(1))):
            info = zipfile.ZipInfo("x")
            info.filename = member
            z.writestr(info, data)
    assert items(["a.zip"]) == [("a.zip/c.png/", png(1))]


def test_encrypted_members_are_named(here):
    pack(here / "a.zip", {"b.png": png(1)})
    data = bytearray(Path("a.zip").read_bytes())
    for signature, offset in ((b"PK\1\2", 8), (b"PK\3\4", 6)):
        data[data.index(signature) + offset] |= 1
    Path("a.zip").write_bytes(data)
    ((name, source),) = items(["a.zip"])
    assert name == "a.zip/b.png"
    assert source == (
        "'b.png' in 'a.zip' is encrypted; unpack it with its password and give the images"
    )


def test_a_link_in_a_zip_is_told_as_in_a_tar(here):
    link = zipfile.ZipInfo("s.png")
    link.create_system, link.external_attr = 3, 0o120777 << 16
    with zipfile.ZipFile("a.zip", "w") as z:
        z.writestr(link, "b.png")
    assert items(["a.zip"]) == [
        ("a.zip/s.png", "'s.png' in 'a.zip' is a link; pack the image itself")
    ]


def headers(path: Path) -> list[int]:
    """Where the members of a tar begin."""
    with tarfile.open(path) as t:
        return [info.offset for info in t]


@pytest.fixture(params=["as it is", "without frombuf"])
def library(request, monkeypatch):
    """`tarfile` as this Python has it, and as security releases of 2025 and later do: the class
    method that reads a header is no longer asked for what it overrides."""
    if request.param == "as it is":
        return
    plain = tarfile.TarInfo.frombuf.__func__

    def fromtarfile(cls, archive):
        made = plain(cls, archive.fileobj.read(512), archive.encoding, archive.errors)
        made.offset = archive.fileobj.tell() - 512
        return made._proc_member(archive)

    monkeypatch.setattr(tarfile.TarInfo, "fromtarfile", classmethod(fromtarfile))


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("damage", ["cut", "bad", "hole", "joined"])
@pytest.mark.parametrize("name", ["a.tar", "a.tar.gz"])
def test_a_tar_that_is_damaged_at_a_header_does_not_end_there_in_silence(name, damage, here):
    whole = pack(here / "a.tar", {f"{i}.png": png(i) for i in range(5)}).read_bytes()
    at = headers(here / "a.tar")[4]
    told, damaged = {
        "cut": ("truncated header", whole[: at + 100]),
        "bad": ("bad checksum", whole[:at] + b"x" + whole[at + 1 :]),
        "hole": ("it goes on after an end mark", whole[:at] + bytes(512) + whole[at + 512 :]),
        "joined": ("it goes on after an end mark", whole + whole),
    }[damage]
    Path(name).write_bytes(gzip.compress(damaged) if name.endswith("gz") else damaged)
    *images, (last, error) = items([name])
    count = 5 if damage == "joined" else 3
    assert [n for n, _ in images] == [f"{name}/{i}.png" for i in range(count)]
    assert last == name
    assert f"after {count} images ({told}); make it again" in str(error)


def test_a_tar_that_may_have_been_cut_between_members_is_said(here):
    whole = pack(here / "a.tar", {f"{i}.png": png(i) for i in range(5)}).read_bytes()
    (here / "a.tar").write_bytes(whole[: headers(here / "a.tar")[4]])
    with pytest.warns(UserWarning, match=r"'a.tar' has no end mark; if it was cut off"):
        assert len(items(["a.tar"])) == 3


@pytest.mark.parametrize("name", ["a.zip", "a.tar", "a.tar.gz", "a.tar.xz"])
def test_broken_archives_are_one_sentence(name, here):
    whole = pack(here / name, {f"{i}.png": png(i) for i in range(50)}).read_bytes()
    for content in (b"", b"hello", whole[: len(whole) // 2]):
        Path(name).write_bytes(content)
        got = items([name])
        assert got[-1][0] == name
        lacks = "cannot be read" if content else "is empty, as what was not copied"
        assert str(got[-1][1]).startswith(f"the archive {name!r} {lacks}")
        assert "\n" not in str(got[-1][1])


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(
    name=st.sampled_from(["f.zip", "f.tar", "f.tar.gz"]),
    changes=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=6),
)
def test_no_damage_to_an_archive_is_a_traceback(name, changes, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / name
    data = bytearray(
        pack(path, {"a.png": png(1), "b/c.png": png(2), "d.png": b"d" * 300}).read_bytes()
    )
    for at, value in changes:
        data[at % len(data)] = value
    path.write_bytes(data)
    got = list(expand([path]))
    assert got
    assert all(isinstance(source, bytes | InputError) for _, source in got)


@pytest.mark.parametrize("name", ["photos.7z", "photos.RAR", "photos.tar.zst"])
def test_archives_that_are_not_read_are_called_so(name, here):
    Path(name).write_bytes(b"packed")
    assert items([name])[0][1].endswith("is an archive of a kind that is not read; make it a .zip")


def test_suffixes_of_archives():
    assert all(is_archive(n) for n in ARCHIVES)
    assert not any(is_archive(n) for n in ("zip", "a.jpg", "a.gz", "tar", "a.zip.jpg"))
