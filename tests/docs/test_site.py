"""The site builds, its links lead somewhere, its help is that of the verbs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import adte
from adte.cli import main

ROOT = Path(__file__).resolve().parents[2]


def text_of(page: Path) -> str:
    return unescape(re.sub(r"<[^>]+>", "", page.read_text("utf-8")))


def lines(command: click.Command, *before: str) -> Iterator[tuple[str, ...]]:
    """The words that lead to a command and to all below it."""
    yield before
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            if not (below := command.get_command(context, name)).hidden:
                yield from lines(below, *before, name)


@pytest.mark.slow
def test_every_page_is_built(site):
    pages = {p.relative_to(ROOT / "docs").with_suffix("") for p in (ROOT / "docs").rglob("*.md")}
    for page in pages - {Path("index")}:
        assert (site / page / "index.html").is_file(), page
    assert len(pages) >= 25


@pytest.mark.slow
def test_no_page_asks_another_host(site):
    asking = re.compile(r'<(?:script|img|iframe|link rel="stylesheet")[^>]*(?:src|href)="https?:')
    for page in site.rglob("*.html"):
        assert not asking.search(page.read_text("utf-8")), page


@pytest.mark.slow
def test_the_command_line_page_has_the_help_of_every_verb(site):
    page = text_of(site / "cli" / "index.html")
    found = list(lines(main))
    assert len(found) > 20
    for line in found:
        done = CliRunner().invoke(main, [*line, "--help"], prog_name="adte", terminal_width=80)
        assert done.exit_code == 0
        assert done.stdout.rstrip() in page, line


@pytest.mark.slow
def test_every_public_name_has_its_place_in_the_api(site):
    pages = "".join(p.read_text("utf-8") for p in (site / "api").rglob("index.html"))
    places = {"functional": "adte.core.functional"}
    lacking = [n for n in adte.__all__ if f'id="{places.get(n, f"adte.{n}")}"' not in pages]
    assert not lacking


@pytest.mark.slow
def test_the_examples_of_docstrings_are_shown_as_code(site):
    page = (site / "api" / "evaluate" / "index.html").read_text("utf-8")
    assert '<span class="gp">&gt;&gt;&gt; </span>' in page
    assert "doctest:" not in "".join(p.read_text("utf-8") for p in (site / "api").rglob("*.html"))


def test_readme_leads_to_files_that_exist():
    links = re.findall(r"\]\(([^)#:]+)\)", (ROOT / "README.md").read_text("utf-8"))
    assert len(links) > 5
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_words_bench_means_speed():
    assert not (ROOT / "docs" / "bench.md").exists()
    assert "bench" not in (ROOT / "docs" / "caches.md").read_text("utf-8").splitlines()[0].lower()
