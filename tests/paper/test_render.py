"""Findings that stay beside their page, so that a page loses nothing."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from adte.cli import main
from adte.paper import Finding, Plot, Row, find_study
from adte.paper.render import findings_page, grids, keep_findings, kept_findings

FINDING = Finding(
    "tiny, few images",
    ("a", "b"),
    [Row("ADTE", (0.5, (0.4, 0.3, 0.5)), like="ADTE"), Row("SE", (None, (0.1, 0.2)), aside=True)],
    units=("percent", "plain"),
    like={"a": "IN"},
    plot=Plot("x", "accuracy", (1.0, 2.0)),
    notes=("By hand.",),
    ranked=False,
    seconds=1.5,
)


def test_a_finding_comes_back_as_it_was(tmp_path):
    study = find_study("entropies")
    keep_findings(tmp_path, [(study, FINDING)], "Model X.")
    there = kept_findings(tmp_path, ours=False)
    assert there.done == [(study, FINDING)]
    assert there.done[0][1].seconds == 1.5
    assert (there.lead, there.damaged) == ("Model X.", [])
    assert kept_findings(tmp_path, ours=True).done == []


def test_studies_of_other_settings_stay_on_the_page(tmp_path):
    """Each beside the published of its own model; in the paper's order, whenever they were run."""
    one, two = find_study("entropies"), find_study("ood")
    keep_findings(tmp_path, [(one, replace(FINDING, block="ViT-B/16"))], "Model X.")
    keep_findings(tmp_path, [(two, FINDING)], "In small.")
    there = kept_findings(tmp_path, ours=False)
    assert [s.name for s, _ in there.done] == ["ood", "entropies"]
    page = findings_page("All", there.lead, there.done, plots=False)
    assert "In small. Model X." in page
    difference = [len(grids(s, f)) for s, f in there.done]
    assert difference == [2, 3]
    assert page.count("Ours less published</summary>") == 1


def test_a_damaged_finding_is_named_and_left_out(tmp_path):
    studies = [(find_study(n), FINDING) for n in ("entropies", "ood", "intervals")]
    keep_findings(tmp_path, studies)
    odd = tmp_path / "findings" / "ood.json"
    row = {"name": "ADTE", "cells": ["much"]}
    facts = json.loads(odd.read_text("utf-8"))
    facts["finding"]["rows"][0] = row
    odd.write_text(json.dumps(facts), "utf-8")
    path = tmp_path / "findings" / "intervals.json"
    facts = json.loads(path.read_text("utf-8"))
    path.write_text(json.dumps({**facts, "adte": "0.0.1"}), "utf-8")
    there = kept_findings(tmp_path, ours=False)
    assert [s.name for s, _ in there.done] == ["entropies", "intervals"]
    assert there.done[1][1].setting == "tiny, few images, adte 0.0.1"
    (sentence,) = there.damaged
    assert "ood.json' cannot be read (finding.rows[0].cells[0] is 'much', not a" in sentence
    assert "run `adte paper ood` again" in sentence


@pytest.mark.parametrize("order", [("two-classes", "successors"), ("successors", "two-classes")])
def test_one_study_more_keeps_those_that_the_page_had(order, tmp_path):
    for name in order:
        args = ["paper", name, "--preset", "tiny", "--jobs", "1", "--out", str(tmp_path)]
        result = CliRunner().invoke(main, args)
        assert result.exit_code == 0, result.output
    page = (tmp_path / "index.html").read_text("utf-8")
    assert page.count("<section") == 2
    assert page.index('id="successors"') < page.index('id="two-classes"')
    assert page.count("The studies of the paper in small") == 1


@pytest.mark.parametrize(("verb", "name"), [("paper", "two-classes"), ("study", "few-names")])
def test_pages_and_findings_of_others_stay(verb, name, tmp_path, monkeypatch):
    ran = []

    def conducted(wanted, settings, jobs):
        ran.extend(wanted)
        return [(s, FINDING) for s in wanted]

    monkeypatch.setattr("adte.cli._studies.conduct", conducted)
    monkeypatch.chdir(tmp_path)
    folder = Path(f"adte-{verb}")
    page, finding = folder / "index.html", folder / "findings" / f"{name}.json"
    finding.parent.mkdir(parents=True)

    def run(*more):
        return CliRunner().invoke(main, [verb, name, "--preset", "tiny", *more])

    for mine in (page, finding):
        mine.write_text("my homepage\n")
        refused = run()
        assert refused.exit_code == 2
        assert f"--out {str(mine)!r} exists and is not an output of adte" in refused.output
        assert mine.read_text() == "my homepage\n"
        assert not ran
        mine.unlink()
    page.write_text("my homepage\n")
    assert run("--force").exit_code == 0
    assert run().exit_code == 0  # ours by now
    finding.write_text("{")  # damaged, beside a page of ours
    assert run().exit_code == 0
    page.unlink()
    assert run().exit_code == 0  # findings that were left without a page
    assert name in page.read_text("utf-8")


def test_a_table_in_markdown_is_the_same_by_whatever_suffix(tmp_path):
    texts = []
    for name in ("a.md", "b.MD", "c.markdown"):
        args = ["paper", "two-classes", "--preset", "tiny", "--out", str(tmp_path / "page")]
        result = CliRunner().invoke(main, [*args, "--table", str(tmp_path / name)])
        assert result.exit_code == 0, result.output
        texts.append((tmp_path / name).read_text("utf-8"))
    assert len(set(texts)) == 1
