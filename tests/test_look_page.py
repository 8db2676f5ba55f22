"""The page of `adte look` in real Chromium: labels are checked, saved, and calibrated with.

Its photograph goes to the folder that ADTE_PHOTOGRAPHS names; that of the guide was made so.
"""

from __future__ import annotations

import csv
import os
from pathlib import Path

import pytest
from PIL import Image

pytest.importorskip("playwright.sync_api", reason="needs playwright, which drives a browser")
pytest.importorskip("axe_playwright_python", reason="needs axe, which looks for faults")

from adte.files.rows import escape_cell
from browsing import SIZES, faults, small
from painting import FRUIT, painted
from predicting import CLASSES, call, pictures, predict, settle

pytestmark = pytest.mark.slow


def test_checked_by_eye_saved_and_calibrated_with(browser, tmp_path, monkeypatch):
    settle(monkeypatch, tmp_path)
    monkeypatch.chdir(tmp_path)
    pictures(Path("photos"), 24)
    predict("photos", "--out", "labels.csv", "-q")
    call("look", "labels.csv", "--check", 22)
    window = browser.new_context(accept_downloads=True).new_page()
    said: list[str] = []
    window.on("pageerror", lambda error: said.append(str(error)))
    window.goto((tmp_path / "labels.html").as_uri())
    assert faults(window) == []
    assert window.inner_text("#score") == "None of 22 checked yet."
    assert window.is_disabled("#save")
    asked = window.locator("#check .card")
    assert all(asked.nth(i).locator("img").get_attribute("src") for i in range(22))
    for i in range(20):
        asked.nth(i).get_by_role("button", name="right").click()
    field, label = asked.nth(20).locator("input"), asked.nth(20).get_attribute("data-label")
    other = next(c for c in ("cat", "dog", "car") if c != label)
    field.fill("zebra")
    field.blur()
    assert window.inner_text("#score").startswith("21 of 22 checked: 20 right, 95 %")
    assert "Not in checked.csv: 1 wrong without a class" in window.inner_text("#score")
    assert field.input_value() == "zebra"
    field.fill(other.upper())
    field.blur()
    assert field.input_value() == other
    assert "Not in checked.csv" not in window.inner_text("#score")
    asked.nth(21).get_by_role("button", name="wrong").click()
    score = window.inner_text("#score")
    assert score.startswith("22 of 22 checked: 20 right, 91 % (95 % interval: 72 % to 97 %)")
    with window.expect_download() as found:
        window.click("#save")
    assert found.value.suggested_filename == "checked.csv"
    found.value.save_as("checked.csv")
    window.reload()
    assert window.inner_text("#score") == score  # nothing that was said is lost
    window.locator("#up-to").fill("0")
    assert window.locator("details .card:visible").count() == 0
    window.click("#clear")
    assert window.inner_text("#score") == "None of 22 checked yet."
    assert said == []
    with open("checked.csv", newline="", encoding="utf-8") as file:
        table = list(csv.DictReader(file))
    assert len(table) == 21
    assert all(Path(row["path"]).is_file() for row in table)
    assert table[-1]["label"] == other
    done = call("calibrate", "csv:checked.csv", "--state", "labels.csv.adte", *CLASSES[2:])
    assert done.exit_code == 0, done.output
    assert "21" in done.output


def test_a_correction_outside_the_list_counts_as_wrong(browser, tmp_path, monkeypatch):
    """It was passed over, and three right ones beside it were 100 %."""
    settle(monkeypatch, tmp_path)
    monkeypatch.chdir(tmp_path)
    pictures(Path("photos"), 4)
    predict("photos", "--out", "labels.csv", "-q")
    call("look", "labels.csv", "--check", 4)
    window = browser.new_page()
    window.goto((tmp_path / "labels.html").as_uri())
    asked = window.locator("#check .card")
    right, wrong = (
        [asked.nth(i).get_by_role("button", name=name) for i in range(4)]
        for name in ("right", "wrong")
    )
    for button in right[:3]:
        button.click()
    field = asked.nth(3).locator("input")
    field.fill("a zebra")
    wrong[3].click()  # which takes nothing back
    assert window.inner_text("#score").startswith("4 of 4 checked: 3 right, 75 %")
    window.reload()
    assert field.input_value() == "a zebra"
    assert window.inner_text("#score").startswith("4 of 4 checked: 3 right, 75 %")
    label = asked.nth(3).get_attribute("data-label")
    field.fill(label.upper())
    field.blur()
    assert window.inner_text("#score").startswith("4 of 4 checked: 4 right, 100 %")
    wrong[3].click()
    assert wrong[3].get_attribute("aria-pressed") == "true"
    assert right[3].get_attribute("aria-pressed") == "false"
    assert window.inner_text("#score").startswith("4 of 4 checked: 3 right, 75 %")
    wrong[3].click()
    assert window.inner_text("#score").startswith("3 of 4 checked: 3 right, 100 %")


@pytest.mark.parametrize(("size", "scheme"), [("desktop", "light"), ("phone", "dark")])
def test_photograph_of_the_page(size, scheme, browser, tmp_path, monkeypatch):
    settle(monkeypatch, tmp_path)
    monkeypatch.chdir(tmp_path)
    Path("photos").mkdir()
    for i in range(16):
        kind = list(FRUIT)[i % 3]
        Path("photos", f"{kind}-{i:02d}.jpg").write_bytes(painted(kind, seed=i))
    names = "lemon, orange, pomegranate, teapot"
    call("predict", "photos", "--classes", names, "--views", 8, "--out", "labels.csv", "-q")
    call("look", "labels.csv", "--check", 12)
    width, height = SIZES[size]
    window = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
    page = window.new_page()
    page.goto((tmp_path / "labels.html").as_uri())
    for i in range(4):
        page.locator("#check .card").nth(i).get_by_role("button", name="right").click()
    page.locator("#check .card").nth(4).get_by_role("button", name="wrong").click()
    head = page.locator("table").first.locator("tr").nth(0).locator("th:visible")
    row = page.locator("table").first.locator("tr").nth(1).locator("th:visible, td:visible")
    edges = [[cell.bounding_box()["x"] for cell in cells.all()] for cells in (head, row)]
    assert edges[0] == edges[1]  # each head stands over its own column
    assert faults(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") == width
    page.evaluate("document.activeElement.blur(); scrollTo(0, 0)")
    page.screenshot(path=tmp_path / "screen.png")
    if size == "desktop" and "ADTE_PHOTOGRAPHS" in os.environ:
        folder = Path(os.environ["ADTE_PHOTOGRAPHS"])
        with Image.open(tmp_path / "screen.png") as screen:
            small(screen.convert("RGB")).save(folder / "look.png", optimize=True)


def test_cells_that_a_spreadsheet_would_run_are_escaped(browser, tmp_path, monkeypatch):
    settle(monkeypatch, tmp_path)
    pictures(Path("photos"), 1)
    predict("photos", "--out", "labels.csv", "-q")
    call("look", "labels.csv")
    window = browser.new_page()
    window.goto((tmp_path / "labels.html").as_uri())
    for text in ("cat", "=1+1", "+a", "-1", "@a", " =a", "'=a", "''a", "it's", "\t=a", "\r", "a,b",
                 '="a"', "\uff1da"):  # fmt: skip
        cell = window.evaluate("text => cell(text)", text)
        assert next(csv.reader([cell])) == [escape_cell(text)]
    window.close()
