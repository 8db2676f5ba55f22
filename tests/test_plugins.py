"""Somebody else's package, really installed: its method, model, metric and data set are ours too.

`tests/plugin` is built and installed, offline, into a folder of its own; every test then asks a
fresh Python that has this folder on its path.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from adte.core import registry
from adte.core.registry import Registry

SOURCE = Path(__file__).parent / "plugin"
METHODS = ["example-mean", "example-debias"]
COLOURS = "sky #3399ff\nsky #55aaff\ngrass #33aa33\ngrass #118811\nbrick #aa3322\nbrick #883311\n"


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package installed by pip, as `pip install --target` leaves it."""
    pytest.importorskip("setuptools", "70.1")
    folder = tmp_path_factory.mktemp("plugin")
    source = shutil.copytree(SOURCE, folder / "source")  # building writes beside the sources
    options = "--quiet --no-index --no-deps --no-build-isolation --disable-pip-version-check"
    install = ["install", *options.split(), "--target", str(folder / "site"), str(source)]
    done = subprocess.run([sys.executable, "-m", "pip", *install], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / "site"


def python(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter that sees the package."""
    path = os.pathsep.join([str(site), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    done = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path.strip(os.pathsep)},
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return done


VERBS = """
import json, sys
from click.testing import CliRunner
from adte.cli import main
for line in json.loads(sys.argv[1]):
    done = CliRunner().invoke(main, line, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    print(json.dumps(done.stdout))
"""


def verbs(site: Path, *lines: list[str]) -> list[str]:
    """What each of some command lines prints, one after the other in one fresh interpreter."""
    done = python(site, "-W", "error", "-c", VERBS, json.dumps(lines))
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="session")
def colours(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("data") / "plain.colours"
    path.write_text(COLOURS)
    return f"example:{path}?side=24"


class Point:
    """An entry point that takes its time, and looks something up as it is imported."""

    name, value = "slow", "x"

    def __init__(self, things: Registry[int]) -> None:
        self.things, self.count = things, 0
        self.begun, self.go = threading.Event(), threading.Event()

    def load(self) -> None:
        self.count += 1
        self.begun.set()
        assert "other" not in self.things
        assert self.go.wait(60)
        self.things.add("mine", 1)


def test_another_thread_waits_for_the_plug_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    things = Registry[int]("thing")
    point = Point(things)
    monkeypatch.setattr(registry, "entry_points", lambda group: [point])
    monkeypatch.setattr(registry, "_started", False)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(things.__getitem__, "mine")
        assert point.begun.wait(60)
        second = pool.submit(things.__getitem__, "mine")
        with pytest.raises(TimeoutError):
            second.result(0.1)
        point.go.set()
        assert (first.result(60), second.result(60), point.count) == (1, 1, 1)


@pytest.mark.slow
def test_lists_name_what_it_brings(site: Path) -> None:
    """Behind our own, in one list with them; options are described."""
    lists = (["methods"], ["models", "example"], ["datasets"])
    methods, models, sets = verbs(site, *([*line, "--json"] for line in lists))
    rows = {row["name"]: row for row in json.loads(methods)}
    assert list(rows)[-2:] == METHODS
    assert rows["example-mean"]["stateful"] is False
    assert rows["example-debias"]["stateful"] is True
    assert "strength α of the correction" in str(rows["example-debias"]["options"])
    assert [r["name"] for r in json.loads(models)] == ["example"]
    (row,) = [r for r in json.loads(sets) if r["name"] == "example"]
    assert [o["name"] for o in row["options"]] == ["complete", "side"]


@pytest.mark.slow
def test_eval_and_compare_run_all_of_it(site: Path, colours: str) -> None:
    """Its model and methods on its data, measured by its metric, which has a column."""
    told = ["--model", "example", "--data", colours, "--views", "4"]
    chosen = [*told, "--methods", ",".join(["zero-shot", *METHODS])]
    *evaluated, compared, table = verbs(
        site,
        *(["eval", *told, "--method", method, "--json"] for method in METHODS),
        ["compare", *chosen, "--json"],
        ["compare", *chosen],
    )
    for text in evaluated:
        out = json.loads(text)
        assert 0 <= out["metrics"]["accuracy"] <= 1
        assert -1 <= out["metrics"]["margin"] <= 1
        assert out["protocol"]["model"] == "example"
    rows = {row["method"]: row for row in json.loads(compared)["rows"]}
    assert set(METHODS) < set(rows)
    assert all(isinstance(row["margin"], float) for row in rows.values())
    assert "margin" in table


@pytest.mark.slow
def test_its_methods_and_model_conform(site: Path) -> None:
    """As its own tests would say, with the checks that the library hands out."""
    code = f"""
from adte import load_model
from adte.testing import METHOD_CHECKS, MODEL_CHECKS
assert METHOD_CHECKS and MODEL_CHECKS
for name in {METHODS}:
    for check in METHOD_CHECKS:
        check(name)
for check in MODEL_CHECKS:
    check(load_model("example", dtype="float32"))
"""
    python(site, "-c", code)


def test_pytest_shows_what_a_check_compared() -> None:
    from adte.testing import MODEL_CHECKS, SmallModel

    (facts,) = (check for check in MODEL_CHECKS if check.__name__ == "check_facts")
    model = SmallModel()
    model.logit_scale = -3.0
    with pytest.raises(AssertionError, match=r"0 < -3\.0"):
        facts(model)


@pytest.mark.slow
def test_a_broken_plug_in_only_warns(site: Path, tmp_path: Path) -> None:
    broken = shutil.copytree(site, tmp_path / "site")
    (broken / "adte_example" / "model.py").write_text("import no_such_package_anywhere\n")
    done = python(broken, "-m", "adte", "methods")
    assert "zero-shot" in done.stdout
    assert "example-mean" in done.stdout  # the other modules are not in its way
    said = " ".join(done.stderr.split())
    assert "plug-in 'example-model' (adte_example.model) cannot be loaded and is left out" in said
    assert "no_such_package_anywhere" in said
    assert "Traceback" not in said


@pytest.mark.slow
def test_a_name_that_is_taken_is_refused_to_the_newcomer(site: Path, tmp_path: Path) -> None:
    greedy = shutil.copytree(site, tmp_path / "site")
    path = greedy / "adte_example" / "methods.py"
    path.write_text(path.read_text().replace('"example-mean"', '"zero-shot"'))
    code = "import adte; adte.list_methods(); print(type(adte.create_method('zero-shot')))"
    done = python(greedy, "-c", code)
    assert "adte.methods.zero_shot.ZeroShot" in done.stdout
    assert "the method 'zero-shot' is registered already" in done.stderr
