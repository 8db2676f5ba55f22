"""The page of `adte look` in real Chromium: labels are checked, saved, and calibrated with."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

pytest.importorskip("playwright.sync_api", reason="needs playwright, which drives a browser")
pytest.importorskip("axe_playwright_python", reason="needs axe, which looks for faults")

from browsing import faults
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
        asked.nth(i).get_by_role("button").click()
    field, label = asked.nth(20).locator("input"), asked.nth(20).get_attribute("data-label")
    other = next(c for c in ("cat", "dog", "car") if c != label)
    field.fill("zebra")
    field.blur()
    assert window.inner_text("#score").startswith("20 of 22 checked: 20 right, 100 %")
    field.fill(other)
    field.blur()
    asked.nth(21).locator("input").fill("none of them")
    asked.nth(21).locator("input").blur()
    score = window.inner_text("#score")
    assert score.startswith("22 of 22 checked: 20 right, 91 % (72 % to 97 %)")
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
