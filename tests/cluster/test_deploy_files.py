"""The files of deploy/ray are what `ray up` accepts, by Ray's own check."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("ray")
yaml = pytest.importorskip("yaml")
pytest.importorskip("jsonschema")

FILES = sorted((Path(__file__).parents[2] / "deploy" / "ray").glob("*.yaml"))


def test_there_are_some():
    assert {f.stem for f in FILES} == {"aws", "small"}


@pytest.mark.parametrize("path", FILES, ids=lambda f: f.stem)
def test_ray_up_accepts_it(path):
    from ray.autoscaler._private.util import prepare_config, validate_config

    given = yaml.safe_load(path.read_text("utf-8"))
    validate_config(prepare_config(given))
    with pytest.raises(Exception, match="clusterr_name"):
        validate_config(prepare_config({**given, "clusterr_name": "misspelt"}))
