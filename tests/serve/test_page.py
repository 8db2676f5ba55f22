"""The page of the service in real Chromium: a photo in, a label and its reasons out.

The photographs of the page go to the folder that ADTE_PHOTOGRAPHS names, else to a temporary one;
those of the guide were made so, with docs/images.
"""

from __future__ import annotations

import base64
import csv
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("fastapi", reason="needs the extra serve")
pytest.importorskip("playwright.sync_api", reason="needs playwright, which drives a browser")
pytest.importorskip("axe_playwright_python", reason="needs axe, which looks for faults")

import adte
from adte.core.page import COLOURS
from adte.serve.access import Access
from browsing import SIZES, faults, small
from painting import FRUIT, painted
from serving import PATIENCE, free_port, running, wait_ready

pytestmark = pytest.mark.slow
CLASSES = ["lemon", "orange", "pomegranate", "banana", "goldfish", "teapot"]
OTHERS = CLASSES[::-1]  # a test that teaches the page's own stream shares its names with no other
HAND_OVER = """([files, how]) => {
  const data = new DataTransfer();
  for (const [name, type, text] of files)
    data.items.add(new File([Uint8Array.from(atob(text), c => c.charCodeAt(0))], name, { type }));
  const rest = { bubbles: true, cancelable: true };
  if (how === "paste")
    return document.dispatchEvent(new ClipboardEvent("paste", { ...rest, clipboardData: data }));
  const drop = document.querySelector("#drop");
  for (const kind of ["dragenter", "dragover", "drop"])
    drop.dispatchEvent(new DragEvent(kind, { ...rest, dataTransfer: data }));
}"""


class Server:
    """`adte serve` as a process that can be killed and started again."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.client = adte.Client(self.url)
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "adte", "serve", "--port", str(self.port)]
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        with (self.folder / "log").open("a") as log:
            self.process = subprocess.Popen(
                [*command, "--state", str(self.folder / "state")], stderr=log, env=env
            )
        wait_ready(self.port)

    def end(self, how: int) -> None:
        self.process.send_signal(how)
        self.process.wait(PATIENCE)


@pytest.fixture(scope="module")
def server(browser, tmp_path_factory) -> Iterator[Server]:
    found = Server(tmp_path_factory.mktemp("page"))
    yield found
    found.client.close()
    found.end(signal.SIGTERM)


@contextmanager
def opened(browser, url: str, size: str = "desktop", scheme: str = "light") -> Iterator[Any]:
    """The page in a window of its own; whatever its console says against it is an error."""
    width, height = SIZES[size]
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme,
                                  has_touch=size == "phone", reduced_motion="reduce")  # fmt: skip
    context.set_default_timeout(1000 * PATIENCE)
    page, said = context.new_page(), []
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("console", lambda line: said.append(line.text) if line.type == "error" else None)
    page.goto(url)
    page.wait_for_selector("#method option", state="attached")
    yield page
    lost = ("net::ERR_CONNECTION_REFUSED", "net::ERR_EMPTY_RESPONSE", "the server responded with")
    assert [text for text in said if not any(known in text for known in lost)] == []
    context.close()


def give(page, *photos: bytes, how: str = "drop", kind: str = "image/jpeg") -> None:
    """Drop or paste photos, and wait for the answer to the last."""
    before = page.evaluate("document.querySelector('#label')?.setAttribute('id', 'old')")
    assert before is None
    files = [[f"{i}.jpg", kind, base64.b64encode(p).decode()] for i, p in enumerate(photos)]
    page.evaluate(HAND_OVER, [files, how])


def answered(page) -> str:
    page.wait_for_selector("#label")
    page.wait_for_selector("#answer[aria-busy=false]")
    page.wait_for_selector("#fact-stream")
    return page.inner_text("#label")


def stream_of(page) -> str:
    return re.search(r"#stream=([a-z0-9_-]+)", page.url)[1]


def test_a_photo_is_dropped_read_explained_and_asked_of_another_method(server, browser):
    with opened(browser, server.url) as page:
        assert faults(page) == []
        page.fill("#classes", ", ".join(OTHERS))
        give(page, painted("orange", "lemon"))
        label = answered(page)
        stream = server.client.stream(stream_of(page))
        [row] = stream.history()
        assert label == row["label"]
        assert page.inner_text(".bars tr.first th") == label
        assert f"{100 * row['confidence']:.0f} %" in page.inner_text(".sure")
        assert page.locator("#grid [role=option]").count() == 64
        widths = page.locator("#grid img").evaluate_all("images => images.map(x => x.naturalWidth)")
        assert widths == [80] * 64  # they were decoded and are shown
        assert label in page.inner_text("#said")  # for those who listen
        assert stream.state()["seen"] == 1
        assert page.inner_text("#fact-photos") == "1"
        assert faults(page) == []

        page.select_option("#method", "se")  # asks again, without teaching
        page.wait_for_selector("#kept:has-text('6 of 64 views count')")
        assert page.locator("#grid .kept").count() == 6
        assert "counts 17 %" in page.locator("#grid .kept").first.get_attribute("aria-label")
        other = stream_of(page)
        assert other != stream.id
        assert server.client.stream(other).state()["seen"] == 0
        assert {"zero-shot", "se"} <= set(page.locator(".differ thead th").all_inner_texts())

        page.select_option("#method", "tilt")  # and back to the stream that was there
        page.wait_for_url(f"**/#stream={stream.id}")
        page.click("button:text-is('Ask')")  # the same photo is not learned twice
        page.wait_for_selector(".sure:has-text('Learned once, as photo 1')")
        assert page.inner_text("#label") == label  # the same answer, not another one
        assert f"{100 * row['confidence']:.0f} %" in page.inner_text(".sure")
        assert stream.state()["seen"] == 1


def test_paste_choose_and_several(server, browser):
    with opened(browser, server.url) as page:
        page.fill("#classes", "lemon\norange\nteapot")
        give(page, painted("lemon"), how="paste")
        answered(page)
        assert page.locator("#camera").get_attribute("capture") == "environment"
        id = stream_of(page)
    with opened(browser, f"{server.url}/#stream={id}") as page:
        page.wait_for_selector("#fact-photos:text-is('1')")  # the state is that of the server
        assert page.input_value("#classes") == "lemon, orange, teapot"
        file = {"name": "a.jpg", "mimeType": "image/jpeg", "buffer": painted("orange")}
        page.set_input_files("#file", [file, {**file, "buffer": painted("orange", seed=1)}])
        page.wait_for_selector("#fact-photos:text-is('3')")
        assert server.client.stream(id).state()["seen"] == 3


def test_the_same_photo_of_four_page_loads_is_learned_once(server, browser):
    for load in range(4):
        with opened(browser, server.url) as page:
            page.fill("#classes", "lemon, olive, teapot")
            give(page, painted("lemon", seed=5))
            answered(page)
            said = page.inner_text(".sure")
            assert ("Learned once, as photo 1" if load else "Learned, as photo 1") in said
            stream = server.client.stream(stream_of(page))
            assert stream.state()["seen"] == 1
    with opened(browser, f"{server.url}/#stream={stream.id}") as page:
        page.wait_for_selector("#fact-photos:text-is('1')")
        page.click("button:text-is('Forget what it learned')")
        page.click("dialog button:text-is('Forget it')")
        page.wait_for_selector("#fact-photos:text-is('0')")
        give(page, painted("lemon", seed=5))  # of which nothing is known any more
        page.wait_for_selector("#fact-photos:text-is('1')")
        assert "Learned, as photo 1" in page.inner_text(".sure")


@pytest.mark.parametrize("size", SIZES)
def test_all_answers_are_listed_and_saved(server, browser, tmp_path, size):
    kinds = ("lemon", "orange", "pomegranate")
    with opened(browser, server.url, size) as page:
        page.fill("#classes", f'=1+1, "a, b", {size}')
        names = ("=cmd.jpg", "two, three.jpg", "b.jpg")
        files = [{"name": name, "mimeType": "image/jpeg", "buffer": painted(kind, seed=9)}
                 for name, kind in zip(names, kinds, strict=True)]  # fmt: skip
        page.set_input_files("#file", files)
        page.wait_for_selector("#answers-body tr:nth-child(3)")
        page.wait_for_selector("#fact-photos:text-is('3')")
        assert page.locator("#answers-body .photo").all_inner_texts() == list(names)
        sizes = page.locator("#answers-body img").evaluate_all("x => x.map(i => i.naturalWidth)")
        assert sizes == [80] * 3
        assert faults(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") == SIZES[size][0]
        if "ADTE_PHOTOGRAPHS" in os.environ:
            page.screenshot(path=Path(os.environ["ADTE_PHOTOGRAPHS"]) / f"answers-{size}.png",
                            full_page=True)  # fmt: skip
        labels = page.locator("#answers-body td:nth-child(2)").all_inner_texts()
        page.click("#answers-body tr:nth-child(1) button")  # its views are shown again
        assert page.inner_text("#label") == labels[0]
        assert page.locator("#answers-body tr").count() == 3
        with page.expect_download() as download:
            page.click("#save-answers")
        download.value.save_as(tmp_path / "answers.csv")
        with (tmp_path / "answers.csv").open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        assert [row["photo"] for row in rows] == ["'=cmd.jpg", *names[1:]]
        assert [row["label"] for row in rows] == [
            f"'{label}" if label[0] in "=+-@" else label for label in labels
        ]
        stream = server.client.stream(stream_of(page))
        found = [row["confidence"] for row in stream.history()]
        assert [float(row["confidence"]) for row in rows] == pytest.approx(found)


def test_what_is_missing_or_wrong_is_said(server, browser):
    with opened(browser, server.url) as page:
        give(page, painted("lemon"))
        assert "names of the classes" in page.inner_text("[role=alert]")
        assert page.evaluate("document.activeElement.id") == "classes"
        give(page, b"hello", kind="text/plain")
        assert "no picture" in page.inner_text("[role=alert]")
        page.fill("#classes", "<b>lemon</b>, orange")
        give(page, b"not a jpeg at all")
        page.wait_for_selector("[role=alert] :text('known format')")
        assert "no answer to this photo" in page.inner_text("#answer")
        assert faults(page) == []
        give(page, painted("lemon"))
        assert answered(page) in ("<b>lemon</b>", "orange")  # text, never markup
        assert page.locator("[role=alert] p").count() == 0
        assert page.locator(".bars b, .time b, .by-class b").count() == 0


def test_by_keyboard_alone(server, browser):
    with opened(browser, server.url) as page:
        page.keyboard.press("Tab")
        assert page.inner_text(":focus") == "Skip to the answer"
        page.keyboard.press("Tab")
        page.keyboard.type("lemon, orange")
        for wanted in ("method", "file", "learn"):
            page.keyboard.press("Tab")
            assert page.evaluate("document.activeElement.id") == wanted
        page.set_input_files("#file", {"name": "a.jpg", "mimeType": "image/jpeg",
                                       "buffer": painted("lemon", "orange")})  # fmt: skip
        answered(page)
        page.focus("#grid")
        page.keyboard.press("Home")
        first = page.inner_text(".detail")
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowDown")
        assert page.get_attribute("#grid", "aria-activedescendant") == "view-9"
        assert page.get_attribute("#view-9", "aria-label") == page.inner_text(".detail") != first
        ring = "getComputedStyle(document.querySelector('#grid')).outlineStyle"
        assert page.evaluate(ring) != "none"  # the focus is seen
        page.select_option("#order", "entropy")
        shown = [float(x.strip("≠ ")) for x in page.locator("#grid small").all_inner_texts()]
        assert shown == sorted(shown)


def test_the_stream_lives_and_survives_a_kill(server, browser):
    stream = server.client.create(CLASSES, id="table")
    with opened(browser, f"{server.url}/#stream=table") as page:
        page.wait_for_selector("#fact-stream:text-is('table')")
        assert "No photo has been learned" in page.inner_text("#stream-body")
        for kind in ("lemon", "orange", "pomegranate"):
            stream.predict(painted(kind), label=kind)
        stream.predict(painted("lemon", seed=1), label="teapot")
        page.wait_for_selector("#fact-photos:text-is('4')")  # by itself, while others teach
        state = stream.state()
        assert page.inner_text("#fact-accuracy") == f"{100 * state['accuracy']:.0f} % of 4"
        assert page.inner_text("#fact-drift") == f"{state['drift']:.3f}"
        assert page.locator(".ticks path").count() == 4
        assert page.locator(".ticks .wrong").count() >= 1
        assert page.locator(".line").count() == 2  # drift and accuracy
        assert page.locator(".by-class tbody tr").count() == len(CLASSES)

        server.end(signal.SIGKILL)
        page.wait_for_selector("#server.away")
        assert "does not answer" in page.inner_text("#server")
        page.set_input_files("#file", {"name": "a.jpg", "mimeType": "image/jpeg",
                                       "buffer": painted("orange", seed=2)})  # fmt: skip
        page.wait_for_selector("[role=alert] :text('Start it again')")
        server.start()
        page.wait_for_selector("#server:not(.away)")
        assert page.inner_text("#fact-photos") == "4"
        page.click("button:text-is('Ask')")
        answered(page)
        page.wait_for_selector("#fact-photos:text-is('5')")
        page.reload()
        page.wait_for_selector("#fact-photos:text-is('5')")

        page.click("button:text-is('Stop learning')")
        page.wait_for_selector("#fact-photos:text-is('5, frozen')")
        assert stream.facts()["frozen"]
        page.click("button:text-is('Forget what it learned')")
        page.click("dialog button:text-is('Keep it')")
        assert stream.state()["seen"] == 5
        page.click("button:text-is('Forget what it learned')")
        assert faults(page) == []
        page.click("dialog button:text-is('Forget it')")
        page.wait_for_selector("#fact-photos:text-is('0, frozen')")
        with page.expect_download() as download:
            page.click("button:text-is('Save its state')")
        assert download.value.suggested_filename == "table.adte"


def test_tokens_are_asked_for_and_told_once(browser, tmp_path):
    admin = "a token of some length"
    with running(tmp_path / "state", access=Access(admin, True)) as (client, _):
        with opened(browser, client.url) as page:
            page.fill("#token", "wrong")
            page.press("#token", "Tab")
            page.wait_for_selector("[role=alert] :text('does not know')")
            assert faults(page) == []
            page.fill("#token", admin)
            page.press("#token", "Enter")
            page.wait_for_selector("[role=alert]:empty", state="attached")
            page.fill("#classes", "cat, dog")
            give(page, painted("lemon"), b"no photo")
            page.wait_for_selector("[role=alert] :text('known format')")
            token = page.inner_text("[role=alert] code")  # an error does not take it away
        with opened(browser, client.url) as page:
            page.fill("#token", token)  # which opens this stream, and no list
            page.press("#token", "Tab")
            page.fill("#stream-id", "cat-dog-tilt")
            page.press("#stream-id", "Enter")
            page.wait_for_selector("#fact-photos:text-is('1')")
            assert faults(page) == []
            path = "/v1/streams/cat-dog-tilt/token"
            token = client.call("POST", path, b"", token=admin)["token"]
            page.wait_for_selector("#stream-body:has-text('may have been replaced')")
            page.fill("#token", token)
            page.press("#token", "Enter")
            page.wait_for_selector("#fact-photos:text-is('1')")


def test_names_with_commas_and_twins_stay_whole(server, browser):
    names = ["tabby, tabby cat", "shark; man-eater", "crane", "crane", "great " * 12 + "heron"]
    server.client.create(names, id="odd", views=4)
    with opened(browser, f"{server.url}/#stream=odd", "phone") as page:
        page.wait_for_selector("#fact-stream")
        give(page, painted("lemon"))
        assert answered(page) in names
        assert stream_of(page) == "odd"  # no other stream was made
        names = "[...document.querySelectorAll('tbody th')]"
        assert not page.evaluate(f"{names}.some(x => x.scrollWidth > x.clientWidth)")  # none is cut
        twins = server.client.create(["crane", "crane"], id="twins", views=8, method="mta")
        for i in range(8):
            twins.predict(painted("lemon", seed=i), label="crane")
        assert {row["index"] for row in twins.history()} == {0, 1}
        page.goto(f"{server.url}/#stream=twins")
        page.wait_for_selector("#fact-accuracy:text-is('100 % of 8')")
        assert page.locator(".ticks .wrong").count() == 0
        page.fill("#classes", "tabby, crane")
        page.wait_for_selector("#which:has-text('new stream')")


def test_streams_that_others_make_and_delete(server, browser):
    with opened(browser, server.url) as page:
        settings = {"method": page.input_value("#method"), "views": 64}
        theirs = server.client.create(["plum", "fig"], id="plum-fig-tilt", **settings)
        page.fill("#classes", "plum, fig")
        give(page, painted("lemon"))
        answered(page)
        assert stream_of(page) == theirs.id  # no second one of the same kind
        other = server.client.create(["plum"], id="other", **settings)
        page.goto(f"{server.url}/#stream={other.id}")
        page.wait_for_selector("#fact-stream:text-is('other')")
        theirs.delete()
        page.fill("#classes", "plum, fig")
        page.click("button:text-is('Ask')")
        page.wait_for_selector("[role=alert] :text('no such stream')")
        page.wait_for_selector("#which:has-text('new stream')")
        page.click("button:text-is('Ask')")
        page.wait_for_selector("#fact-stream:text-is('plum-fig-tilt')")


def test_streams_of_another_seed_or_with_descriptions_are_not_the_pages_own(server, browser):
    said = {"quince": ["a yellow fruit"], "medlar": ["a brown fruit"]}
    with opened(browser, server.url) as page:
        settings = {"method": page.input_value("#method"), "views": 64}
        server.client.create(list(said), id="seeded", seed=7, **settings)
        server.client.create(list(said), id="described", descriptions=said, **settings)
        page.reload()  # so that it knows them
        page.fill("#classes", "quince, medlar")
        page.wait_for_selector("#which:has-text('new stream')")
        give(page, painted("lemon"))
        answered(page)
        assert stream_of(page) not in ("seeded", "described")


def test_one_view_has_a_full_bar(server, browser):
    server.client.create(["lemon", "orange"], id="single", views=1)
    with opened(browser, f"{server.url}/#stream=single") as page:
        page.wait_for_selector("#fact-stream")
        give(page, painted("lemon"))
        answered(page)
        assert "full at 100 %" in page.inner_text("#grid-hint")


def test_a_true_class_waits_for_a_photo_that_is_learned(server, browser):
    with opened(browser, server.url) as page:
        page.fill("#classes", "olive, lemon")
        give(page, painted("orange"))
        answered(page)
        stream = server.client.stream(stream_of(page))
        page.click("summary")
        page.select_option("#truth", "lemon")
        page.select_option("#method", "se")  # asks again, without teaching
        page.wait_for_selector("#kept:has-text('6 of 64 views count')")
        page.select_option("#method", "tilt")
        page.wait_for_url(f"**/#stream={stream.id}")
        assert page.input_value("#truth") == "lemon"
        give(page, painted("lemon"))
        page.wait_for_selector("#fact-photos:text-is('2')")
        assert [row["truth"] for row in stream.history()] == [None, 1]
        assert page.input_value("#truth") == ""


def test_a_stream_that_was_left_is_not_opened_again_by_its_change(server, browser):
    one, two = (server.client.create(["kiwi", name], id=name) for name in ("one", "two"))
    with opened(browser, f"{server.url}/#stream=one") as page:
        page.wait_for_selector("#fact-stream:text-is('one')")
        held = []
        page.route("**/freeze", lambda route: held.append(route))
        page.click("button:text-is('Stop learning')")
        page.select_option("#which-stream", "two")
        page.wait_for_selector("#fact-stream:text-is('two')")
        with page.expect_response("**/freeze"):
            held[0].continue_()
        page.wait_for_timeout(300)
        assert stream_of(page) == "two"
        assert (one.facts()["frozen"], two.facts()["frozen"]) == (True, False)


def test_cells_of_a_spreadsheet_are_no_photo(server, browser):
    with opened(browser, server.url) as page:
        page.evaluate("""() => {
          const data = new DataTransfer();
          data.setData("text/plain", "lemon\\norange");
          data.items.add(new File(["cells"], "image.png", { type: "image/png" }));
          document.querySelector("#classes").dispatchEvent(
            new ClipboardEvent("paste", { bubbles: true, clipboardData: data }));
        }""")
        assert page.inner_text("[role=alert]") == ""
        assert page.is_hidden("#preview")


def test_photos_that_were_not_asked_about_are_told(server, browser):
    with opened(browser, server.url) as page:
        page.fill("#classes", "lemon, orange")
        give(page, b"no photo", painted("lemon"), painted("orange"))
        page.wait_for_selector("[role=alert] :text('Not asked about: 2 photos')")


def test_colours_are_those_of_the_reports():
    style = resources.files("adte.serve").joinpath("page/page.css").read_text("utf-8")
    light, dark = style.split("@media (prefers-color-scheme: dark)", 1)
    for name, pair in COLOURS.items():
        for part, colour in zip((light, dark), pair, strict=True):
            assert re.search(rf"--{name}: (#[0-9a-f]{{6}})", part)[1] == colour, name


def screens(page, folder: Path) -> Image.Image:
    """What a phone shows, one screen beside the other."""
    width, height = SIZES["phone"]
    parts = ("header", "#answer", "#why", "#stream")
    whole = Image.new("RGB", (len(parts) * (width + 24) - 24, height), "#8a94a0")
    for i, part in enumerate(parts):
        page.locator(part).first.evaluate("x => scrollTo(0, x.offsetTop - 20)")
        page.screenshot(path=folder / "screen.png")
        with Image.open(folder / "screen.png") as screen:
            whole.paste(screen, (i * (width + 24), 0))
    return whole


def test_photographs_of_the_page(server, browser, tmp_path):
    folder = Path(os.environ.get("ADTE_PHOTOGRAPHS", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)
    stream = server.client.create(CLASSES, id="fruit")
    for i in range(12) if "ADTE_PHOTOGRAPHS" in os.environ else (0, 4, 9):
        kind = list(FRUIT)[(i + i // 4) % 3]
        stream.predict(painted(kind, seed=i), label="orange" if i == 9 else kind)
    every = product(SIZES, ("light", "dark"))
    two = (("desktop", "light"), ("phone", "dark"))  # each size and each scheme once
    for size, scheme in every if "ADTE_PHOTOGRAPHS" in os.environ else two:
        with opened(browser, f"{server.url}/#stream=fruit", size, scheme) as page:
            page.wait_for_selector("#fact-photos")
            give(page, painted("orange", "lemon", seed=3))
            answered(page)
            assert faults(page) == []
            assert page.evaluate("document.documentElement.scrollWidth") == SIZES[size][0]
            page.evaluate("document.activeElement.blur()")
            if size == "phone":
                image = screens(page, tmp_path)
            else:
                page.screenshot(path=tmp_path / "whole.png", full_page=True)
                with Image.open(tmp_path / "whole.png") as whole:
                    image = whole.convert("RGB")
        file = folder / f"serve-{size}-{scheme}.png"
        small(image).save(file, optimize=True)
        assert file.stat().st_size < 300_000
        grey = np.asarray(image.convert("L"), np.float32)
        assert (grey.mean() < 90) == (scheme == "dark")
        assert (grey.std(axis=1) > 2).mean() > 0.5  # most rows show something
