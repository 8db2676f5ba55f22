"""Broken, strange and hostile pictures: a clear 4xx or an answer, and the server goes on."""

from __future__ import annotations

import http.client
import io
import json
import random
import struct
import sys
import threading
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile

import adte
from adte.core.machine import resident
from adte.images.decode import decoding_bytes
from adte.pipeline import Pipeline
from adte.serve.client import ServiceError
from adte.serve.limits import Limits, Refused
from adte.serve.pictures import Memory
from serving import (
    PATIENCE,
    classifier,
    figure,
    form,
    free_port,
    jpeg,
    made,
    running,
    small,
    wait_ready,
)  # fmt: skip

GOOD = {200}
REFUSED = {413, 415, 422}


def saved(image: Image.Image, kind: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def photo(mode: str = "RGB", size: tuple[int, int] = (40, 30)) -> Image.Image:
    levels = np.random.default_rng(3).integers(0, 255, (size[1], size[0], 3), dtype=np.uint8)
    return Image.fromarray(levels).convert(mode)


def png(width: int, height: int, depth: int = 8, colour: int = 2, data: bytes = b"") -> bytes:
    """A PNG that declares whatever it is told to."""

    def chunk(name: bytes, body: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(name + body))
        return struct.pack(">I", len(body)) + name + body + check

    head = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    body = zlib.compress(data)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def scanned(times: int) -> bytes:
    """A progressive JPEG whose last scan comes again: few bytes, and all pixels each time."""
    data = saved(photo("L"), "JPEG", progressive=True)
    last = data.rindex(b"\xff\xda")
    return data[:last] + data[last:-2] * times + data[-2:]


def strange() -> dict[str, bytes]:
    """Unusual and whole: these are answered."""
    deep = Image.fromarray(np.arange(1200, dtype=np.uint16).reshape(30, 40) * 50)
    frames = [photo("P"), photo("P").rotate(90)]
    turned = Image.Exif()
    turned[0x0112] = 6
    return {
        "one pixel": saved(Image.new("RGB", (1, 1), "red"), "PNG"),
        "one row": saved(Image.new("RGB", (3000, 1), "red"), "PNG"),
        "one column": saved(Image.new("L", (1, 3000)), "PNG"),
        "cmyk": saved(photo("CMYK"), "JPEG"),
        "grey": saved(photo("L"), "JPEG"),
        "bits": saved(photo("1"), "PNG"),
        "palette": saved(photo("P"), "PNG"),
        "alpha": saved(photo("RGBA"), "PNG"),
        "grey and alpha": saved(photo("LA"), "PNG"),
        "16 bits": saved(deep, "PNG"),
        "turned": saved(photo(), "JPEG", exif=turned),
        "progressive": saved(photo(), "JPEG", progressive=True),
        "fifty scans": scanned(50),
        "animated gif": saved(frames[0], "GIF", save_all=True, append_images=frames[1:]),
        "animated webp": saved(photo(), "WEBP", save_all=True, append_images=[photo()]),
        "animated png": saved(photo(), "PNG", save_all=True, append_images=[photo()]),
        "bmp": saved(photo(), "BMP"),
        "webp": saved(photo(), "WEBP"),
        "more behind the end": saved(photo(), "JPEG") + b"PK\x03\x04" + b"x" * 500,
        "film behind the end": saved(photo(), "JPEG") + b"\xff\xda\x00\x02" * 500,
        "page behind the end": saved(photo(), "GIF") + b"<script>alert(1)</script>",
    }


def hostile() -> dict[str, bytes]:
    """Broken or forbidden: these are refused."""
    whole = {k: saved(photo(size=(64, 48)), k) for k in ("JPEG", "PNG", "GIF", "BMP", "WEBP")}
    out = {
        "empty": b"",
        "zeros": bytes(500),
        "text": b"not an image at all, only words",
        "html": b"<!doctype html><script>alert(1)</script>",
        "svg": b'<svg xmlns="http://www.w3.org/2000/svg"><image href="file:///etc/passwd"/></svg>',
        "pdf": b"%PDF-1.7\n" + bytes(100),
        "zip": b"PK\x03\x04" + bytes(100),
        "postscript": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n",
        "elf": b"\x7fELF" + bytes(200),
        "tiff": saved(photo(), "TIFF"),
        "ico": saved(photo(), "ICO"),
        "ppm": saved(photo(), "PPM"),
        "tga": saved(photo(), "TGA"),
        "pcx": saved(photo(), "PCX"),
        "declares 30,000 × 30,000": png(30_000, 30_000),
        "declares 7,000 × 7,000": png(7_000, 7_000),
        "declares 2³¹": png(2**31 - 1, 2**31 - 1),
        "declares nothing": png(0, 0),
        "declares no height": png(5, 0),
        "odd depth": png(8, 8, depth=3),
        "odd colour": png(8, 8, colour=9),
        "gif of 65,535 × 65,535": b"GIF89a" + struct.pack("<HH", 65535, 65535) + bytes(20),
        "bmp of 40,000 × 40,000": b"BM" + struct.pack("<IIIIiiHHIIIIII", 54, 0, 54, 40, 40_000,
                                                     40_000, 1, 24, 0, 0, 0, 0, 0, 0),
        "two hundred scans": scanned(200),
        "heic": b"\x00\x00\x00\x18ftypheic" + bytes(100),
    }  # fmt: skip
    for kind, data in whole.items():
        for share in (0.02, 0.1, 0.3, 0.5, 0.7, 0.9):
            out[f"{kind} cut at {share:.0%}"] = data[: int(share * len(data))]
        out[f"{kind} behind rubbish"] = b"rubbish" + data
    return out


def spoiled(count: int) -> dict[str, bytes]:
    """Whole files with some bytes changed at random: anything but an error of the server."""
    draw, out = random.Random(7), {}
    kinds = ("JPEG", "PNG", "GIF", "BMP", "WEBP")
    whole = [saved(photo(size=(64, 48)), kind) for kind in kinds]
    for i in range(count):
        data = bytearray(whole[i % len(kinds)])
        for _ in range(draw.choice((1, 3, 20, 100))):
            data[draw.randrange(len(data))] = draw.randrange(256)
        out[f"{kinds[i % len(kinds)]} spoiled {i}"] = bytes(data)
    return out


@pytest.fixture(scope="module")
def stream(tmp_path_factory):
    with running(tmp_path_factory.mktemp("pictures") / "s", model=small()) as (client, service):
        yield made(client, "pictures"), service


def answer(stream, data: bytes) -> tuple[int, str]:
    try:
        stream.predict(data)
    except ServiceError as error:
        return error.status, str(error)
    return 200, ""


def test_strange_pictures_are_answered_as_a_classifier_does(stream):
    stream, _ = stream
    stream.reset()
    clf = classifier()
    for name, data in strange().items():
        found = stream.predict(data, probs=True).probs
        assert found == clf.predict(data).probs.tolist(), name


def test_hostile_pictures_are_refused(stream):
    stream, _ = stream
    before = stream.facts()["seen"]
    answered = 0
    for name, data in hostile().items():
        status, said = answer(stream, data)
        assert status in REFUSED or "cut at" in name, (name, status, said)
        assert status in REFUSED | GOOD, (name, status, said)
        answered += status == 200
        assert "Traceback" not in said
        assert "/" not in said.replace("image/", ""), said  # no path of this machine
    assert stream.facts()["seen"] == before + answered


def test_two_hundred_broken_pictures_and_no_growth(stream):
    stream, service = stream
    every = {**hostile(), **spoiled(200)}
    assert len(every) >= 250
    before = figure(service, "errors_total")
    codes = [answer(stream, data)[0] for data in every.values()]
    assert set(codes) <= GOOD | REFUSED
    assert codes.count(200) < len(codes) / 2
    assert figure(service, "errors_total") == before
    assert service.gate.images == service.gate.bytes == 0
    assert service.engine._places._value >= 2 * service.engine.group  # no place was lost
    assert stream.predict(jpeg(1)).label


def test_only_named_formats(tmp_path):
    with running(tmp_path, limits=adte.serve.limits.Limits(formats="png, tiff")) as (client, _):
        stream = made(client)
        assert answer(stream, saved(photo(), "TIFF"))[0] == 200
        assert answer(stream, saved(photo(), "PNG"))[0] == 200
        assert answer(stream, saved(photo(), "JPEG"))[0] == 415
    with pytest.raises(adte.InputError, match="unknown image format 'eps'"):
        adte.serve.limits.Limits(formats="eps")


@pytest.mark.parametrize("where", ["_open", "load"])
def test_a_machine_without_memory_is_no_fault_of_the_picture(tmp_path, monkeypatch, where):
    def full(*_, **__):
        raise MemoryError

    with running(tmp_path) as (client, service):
        stream = made(client)
        with monkeypatch.context() as patch:
            patch.setattr(JpegImageFile, where, full)
            for count in (1, 2):
                with pytest.raises(ServiceError) as error:
                    stream.predict_many([jpeg(1)] * count)
                assert (error.value.status, error.value.code) == (503, "memory")
                assert str(error.value).startswith("there is no memory for the image")
        assert stream.predict(jpeg(1)).seen == 1
        assert service.engine.alive


def test_a_refusal_of_the_tower_is_told_as_it_is(tmp_path, monkeypatch):
    """As one that is elsewhere says that it is gone, with the seconds to wait."""

    def gone(*_):
        raise Refused(503, "tower", "the tower is gone; try again", 7)

    with running(tmp_path) as (client, _):
        stream, path = made(client), "/v1/streams/shop/predict"
        monkeypatch.setattr(Pipeline, "prepare", gone)
        for kind, body in (("image/jpeg", jpeg(1)), form(jpeg(1), jpeg(2))):
            line = http.client.HTTPConnection(client.url.removeprefix("http://"), timeout=PATIENCE)
            line.request("POST", path, body, {"Content-Type": kind})
            answer = line.getresponse()
            assert (answer.status, answer.headers["retry-after"]) == (503, "7")
            assert json.loads(answer.read())["error"]["message"] == "the tower is gone; try again"
            line.close()
        assert stream.facts()["seen"] == 0


def large(kind: str, mode: str = "RGBA") -> bytes:
    """Few bytes, and nearly as many pixels as are allowed."""
    return saved(
        Image.new(mode, (6300, 6300)), kind, **({"lossless": True} if kind == "WEBP" else {})
    )


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads the process's peak memory from /proc")
@pytest.mark.parametrize(("kind", "mode"), [("PNG", "L"), ("PNG", "P"), ("WEBP", "RGBA")])
def test_large_pictures_at_once_stay_below_the_memory_that_is_stated(forge, tmp_path, kind, mode):
    """Each alone may have most of it, and the others wait; a small one costs little."""
    data, port = large(kind, mode), free_port()
    assert len(data) < 200_000
    pid = forge.start(tmp_path / "s", port, options={"workers": 4})
    wait_ready(port)

    def ask(photo: bytes) -> int:
        with closing(adte.Client(f"http://127.0.0.1:{port}")) as client:
            return client.stream("shop").predict(photo).seen

    with closing(adte.Client(f"http://127.0.0.1:{port}")) as client:
        made(client)
    ask(jpeg(1))
    before = resident(pid)
    with ThreadPoolExecutor(4) as pool:
        answers = sorted(pool.map(ask, [data] * 4))
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    peak = next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))
    forge.end(pid)
    assert answers == [2, 3, 4, 5]
    assert peak - before < Limits().decode_bytes
    assert peak - before > 100 << 20  # it was the pictures that were measured


def test_what_decoding_takes_is_counted_by_format():
    full, eighth = (lambda h, w: 1), (lambda h, w: 8)
    for mode, kind, fraction, each in (
        ("RGB", "PNG", full, 32),
        ("RGB", "WEBP", eighth, 32),
        ("RGB", "JPEG", full, 24),
        ("RGB", "JPEG", eighth, 8.25),
    ):
        image = Image.open(io.BytesIO(saved(Image.new(mode, (4000, 3000)), kind)))
        assert decoding_bytes(image, fraction) == each * 12_000_000
    turned = Image.Exif()
    turned[0x0112] = 6  # which an odd size keeps from being reduced
    image = Image.open(io.BytesIO(saved(Image.new("L", (4001, 3000)), "JPEG", exif=turned)))
    assert decoding_bytes(image, eighth) == 24 * 4001 * 3000


def test_who_finds_too_little_memory_waits():
    memory, order = Memory(100), []

    def work(name: str, size: int) -> None:
        with memory.taken(size):
            order.append(name)

    with memory.taken(70):
        small = threading.Thread(target=work, args=("small", 30))
        large = threading.Thread(target=work, args=("more than all", 1000))
        large.start()
        small.start()
        small.join(PATIENCE)
        assert order == ["small"]
    large.join(PATIENCE)
    assert order == ["small", "more than all"]
