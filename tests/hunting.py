"""The place where the hunt for tracebacks happens: files of every bad kind, made once."""

from __future__ import annotations

import io
import json
import os
import shutil
import struct
import tarfile
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file

from adte import Classifier
from adte.files.states import KEY, load_state
from predicting import picture


def place(folder: Path) -> Path:
    """Fill a folder with images, lists, archives and states, good and bad."""
    good = picture(folder / "photo.png").read_bytes()
    _images(folder, good)
    _paths(folder, good)
    _lists(folder)
    _archives(folder, good)
    _states(folder)
    (folder / "notes.csv").write_text("my,own,notes\n1,2,3\n")
    (folder / "notes.json").write_text('{"my": "notes"}\n')
    (folder / "notes.jsonl").write_text('{"my": "notes"}\n')
    return folder


def _images(folder: Path, good: bytes) -> None:
    image = Image.open(io.BytesIO(good))
    jpeg = io.BytesIO()
    image.save(jpeg, "JPEG")
    bad = {
        "zero.jpg": b"",
        "text.jpg": b"hello",
        "cut.jpg": jpeg.getvalue()[: len(jpeg.getvalue()) // 2],
        "cut.png": good[: len(good) // 2],
        "head.png": good[:20],
        "magic.gif": b"GIF89a",
        "drawing.png": b"<svg xmlns='http://www.w3.org/2000/svg'/>",
        "bad.webp": b"RIFF\x10\x00\x00\x00WEBPVP8 ",
        "bad.tif": b"II*\x00\xff\xff\xff\xff",
        "bad.heic": b"\x00\x00\x00\x18ftypheic",
        "huge.png": _huge(100_000),
        "wide.png": _huge(2**31 - 1),
    }
    for name, data in bad.items():
        (folder / name).write_bytes(data)
    (folder / "plain").write_bytes(good)  # an image without a suffix
    image.convert("CMYK").save(folder / "cmyk.jpg")
    image.resize((1, 1)).save(folder / "dot.png")
    image.convert("P").save(folder / "palette.gif", save_all=True, append_images=[image])
    Image.fromarray(np.arange(6400, dtype=np.uint16).reshape(80, 80)).save(folder / "deep.png")


def _huge(side: int) -> bytes:
    """A PNG that says it is as large as this, and holds nothing."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + check

    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    data = chunk(b"IDAT", zlib.compress(b"\0" * 10))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + data + chunk(b"IEND", b"")


def _paths(folder: Path, good: bytes) -> None:
    (folder / "empty").mkdir()
    (folder / "hidden").mkdir()
    (folder / "hidden" / ".photo.png").write_bytes(good)
    (folder / "folder.jpg").mkdir()
    (folder / "some").mkdir()
    (folder / "some" / "a.png").write_bytes(good)
    (folder / "some" / "b.jpg").write_bytes(b"hello")
    (folder / "some" / "notes.csv").write_text("my own")
    os.symlink("nowhere", folder / "dangling.jpg")
    os.symlink("loop.jpg", folder / "loop.jpg")
    os.symlink("photo.png", folder / "link.json")


def _lists(folder: Path) -> None:
    texts = {
        "names.txt": b"cat\ndog\n",
        "bom.txt": b"\xef\xbb\xbfcat\r\ndog\r\n",
        "utf16.txt": "cat\ndog\n".encode("utf-16-le"),
        "none.txt": b"",
        "blank.txt": b"\n \n# nothing\n",
        "missing.lst": b"nowhere-1.jpg\nnowhere-2.jpg\n",
        "photo.lst": b"\xef\xbb\xbfphoto.png\r\n",
    }
    for name, data in texts.items():
        (folder / name).write_bytes(data)


def _archives(folder: Path, good: bytes) -> None:
    (folder / "bad.zip").write_bytes(b"PK\x03\x04 no archive")
    (folder / "bad.tar").write_bytes(b"no archive")
    (folder / "bad.tar.gz").write_bytes(b"\x1f\x8b no archive")
    with zipfile.ZipFile(folder / "none.zip", "w"):
        pass
    with zipfile.ZipFile(folder / "texts.zip", "w") as archive:
        archive.writestr("readme.txt", "hello")
    with zipfile.ZipFile(folder / "climbing.zip", "w") as archive:
        archive.writestr("../../climbed.png", good)
    with tarfile.open(folder / "links.tar", "w") as archive:
        link = tarfile.TarInfo("link.png")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/hostname"
        archive.addfile(link)
    with tarfile.open(folder / "cut.tar", "w") as archive:
        info = tarfile.TarInfo("photo.png")
        info.size = len(good)
        archive.addfile(info, io.BytesIO(good))
    whole = (folder / "cut.tar").read_bytes()
    (folder / "cut.tar").write_bytes(whole[: 512 + len(good) // 2])


# --------------------------------------------------------------------------- states

# What becomes of the header of a good state: a new value by its path; None removes it.
HEADERS: dict[str, tuple[tuple[str, ...], Any]] = {
    "no version": (("version",), None),
    "version 2": (("version",), 2),
    "no model": (("model",), None),
    "model []": (("model",), []),
    "other model": (("model",), "tinyy"),
    "fingerprint 3": (("fingerprint",), 3),
    "other weights": (("fingerprint",), "0123456789abcdef"),
    "classes text": (("classes",), "cat"),
    "classes []": (("classes",), []),
    "classes [1]": (("classes",), [1, 2, 3]),
    "classes null": (("classes",), [None]),
    "one class more": (("classes",), ["cat", "dog", "car", "bus"]),
    "no prompts": (("prompts",), None),
    "prompts 1": (("prompts",), 1),
    "prompts []": (("prompts", "templates"), []),
    "prompts no {}": (("prompts", "templates"), ["a photo"]),
    "prompts more": (("prompts", "more"), 1),
    "prompts use": (("prompts", "use"), "neither"),
    "method 5": (("method",), 5),
    "method unknown": (("method",), "adt"),
    "method se": (("method",), "se"),
    "no options": (("options",), None),
    "options list": (("options",), ["smoothing"]),
    "options deep": (("options", "smoothing"), {"a": 1}),
    "options unknown": (("options", "bas"), 1),
    "options text": (("options", "smoothing"), "much"),
    "options nan": (("options", "smoothing"), float("nan")),
    "options inf": (("options", "likeness"), float("inf")),
    "no views": (("views",), None),
    "views 64": (("views",), 64),
    "count 10^12": (("views", "count"), 10**12),
    "count 10^30": (("views", "count"), 10**30),
    "count 0": (("views", "count"), 0),
    "count -1": (("views", "count"), -1),
    "count text": (("views", "count"), "many"),
    "count 2.5": (("views", "count"), 2.5),
    "count true": (("views", "count"), True),
    "scale text": (("views", "scale"), "big"),
    "scale [1]": (("views", "scale"), [1]),
    "scale wrong": (("views", "scale"), [2.0, 1.0]),
    "filter": (("views", "interpolation"), "nearest"),
    "views more": (("views", "more"), 1),
    "no seen": (("seen",), None),
    "seen -1": (("seen",), -1),
    "seen text": (("seen",), "all"),
    "seen 10^40": (("seen",), 10**40),
    "frozen 1": (("frozen",), 1),
    "no format": (("format",), None),
    "format 99": (("format",), 99),
    "format 0": (("format",), 0),
    "format text": (("format",), "new"),
    "outputs list": (("outputs",), [1]),
    "outputs rows": (("outputs",), {"o.csv": {"rows": "all"}}),
}


def _states(folder: Path) -> None:
    clf = Classifier("tiny", ["cat", "dog", "car"], views=2)
    clf.predict(folder / "photo.png")
    good = clf.save(folder / "good.adte")
    tensors, facts = load_state(good)
    (folder / "states").mkdir()

    def write(name: str, header: str, changed: dict[str, torch.Tensor] = tensors) -> None:
        save_file(changed, folder / "states" / f"{name}.adte", {KEY: header})

    for name, (path, value) in HEADERS.items():
        copy: Any = json.loads(json.dumps(facts))
        inner = copy
        for key in path[:-1]:
            inner = inner[key]
        if value is None:
            del inner[path[-1]]
        else:
            inner[path[-1]] = value
        write(name, json.dumps(copy))
    header = json.dumps(facts)
    write("no json", header[:-2])
    write("a list", f"[{header}]")
    write("deep", '{"a":' * 100_000 + "1" + "}" * 100_000)
    key = "probs"
    x = tensors[key]
    write("no tensor", header, {k: v for k, v in tensors.items() if k != key})
    write("more tensors", header, {**tensors, "strange": x.clone()})
    write("other shape", header, {**tensors, key: torch.zeros(7)})
    write("other dtype", header, {**tensors, key: x.to(torch.int8)})
    if x.is_floating_point():
        write("nan", header, {**tensors, key: torch.full_like(x, float("nan"))})
    save_file(tensors, folder / "states" / "of others.adte")
    whole = good.read_bytes()
    (folder / "states" / "cut.adte").write_bytes(whole[: len(whole) // 2])
    (folder / "states" / "text.adte").write_text("hello")
    shutil.copy(folder / "photo.png", folder / "states" / "photo.adte")
