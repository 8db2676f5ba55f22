"""The cost model: its table is the guide's, and it says what bounds a job."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from adte.cluster.cost import Model, table

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "cluster.md"


def test_the_guide_has_the_table():
    assert table(Model()) in GUIDE.read_text("utf-8")


def test_more_machines_help_until_something_else_bounds_it():
    few, many = replace(Model(), gpus=8), replace(Model(), gpus=400)
    assert few.extract(10**7).bound == "the GPUs"
    assert many.extract(10**7).bound == "the driver's disk"
    assert many.extract(10**7).hours < few.extract(10**7).hours
    assert replace(Model(), gpus=1).label(10**6).bound == "the GPUs"
    assert few.label(10**6).bound == "the owner"


def test_a_small_job_is_all_start():
    assert Model().extract(1).hours * 3600 - Model().start < 1
