"""The container's build: whatever extras are asked for, those of the service are there."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from packaging.requirements import Requirement

FILE = Path(__file__).parents[2] / "deploy" / "Dockerfile"


@pytest.mark.skipif(os.name != "posix", reason="needs sh")
@pytest.mark.parametrize("asked", [None, "clip", "hf,timm", "serve"])
def test_an_image_can_serve(asked):
    text = FILE.read_text("utf-8")
    default = re.search(r'^ARG ADTE_EXTRAS="?([\w,]*)"?$', text, re.M)[1]
    wanted = re.search(r'pip install .*("\..*?")', text)[1]
    extras = default if asked is None else asked
    said = subprocess.run(["sh", "-c", f"printf %s {wanted}"], env={"ADTE_EXTRAS": extras},
                          capture_output=True, text=True, check=True).stdout  # fmt: skip
    assert Requirement(f"adte{said[1:]}").extras == {"serve", *filter(None, extras.split(","))}
