"""The wheel is whole and does not grow; it works where it is installed."""

from __future__ import annotations

import ast
import importlib.util
import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

import adte
from predicting import picture

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
MOST = 45e6  # bytes
SOURCES = [p for folder in ("src", "tests", "benchmarks", "docs", "recipes")
           for p in sorted((ROOT / folder).rglob("*.py"))]  # fmt: skip


def call(*command: object, **extra: object) -> str:
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=600,
                          **extra)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    pytest.importorskip("hatchling", reason="needs hatchling, in the extra test, to build offline")
    folder = tmp_path_factory.mktemp("wheel")
    call(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation",
         "--no-index", "--disable-pip-version-check", "-w", folder, ROOT)  # fmt: skip
    (found,) = folder.glob("*.whl")
    return found


@pytest.mark.slow
def test_the_wheel_is_whole_and_small(wheel):
    assert wheel.name == f"adte-{adte.__version__}-py3-none-any.whl"
    assert wheel.stat().st_size <= MOST
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert "adte/py.typed" in names
    ours = {n for n in names if not n.startswith(f"adte-{adte.__version__}.dist-info/")}
    assert all(n.startswith("adte/") for n in ours)
    assert not [n for n in ours if "plugin/" in n or "test_" in n or "conftest" in n]
    stray = [n for n in ours if n.endswith((".pyc", ".png", ".html"))]
    pages = {"adte/serve/page/", "adte/label/page/", "adte/evaluate/report/templates/"}
    assert all(n.endswith(".html") and n.rpartition("/")[0] + "/" in pages for n in stray), stray
    packaged = {
        p.relative_to(ROOT / "src").as_posix()
        for kind in ("*.py", "*.js", "*.css", "*.html", "*.toml", "*.safetensors")
        for p in (ROOT / "src/adte").rglob(kind)
    }
    assert packaged <= ours
    assert {n for n in ours if n.endswith(".safetensors")}


@pytest.mark.slow
def test_the_sdist_holds_what_its_own_tests_read(tmp_path):
    """deploy/ and mkdocs.yml were not in it: the site was not built, and six tests failed."""
    pytest.importorskip("hatchling", reason="needs hatchling, in the extra test, to build offline")
    call(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", tmp_path, cwd=ROOT)
    (found,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(found) as archive:
        held = {name.split("/")[1] for name in archive.getnames()}
    assert {"deploy", "mkdocs.yml", "Makefile", "CONTRIBUTING.md", "docs", "tests"} <= held


@pytest.mark.slow
def test_the_wheel_works_in_a_venv_of_its_own(wheel, tmp_path):
    """Its dependencies are those of the interpreter that runs the tests; the package is not."""
    place = tmp_path / "venv"
    venv.create(place, with_pip=False)
    scripts = place / ("Scripts" if os.name == "nt" else "bin")
    python = scripts / "python"
    packages = Path(
        call(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    )
    call(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps",
         "--no-compile", "--no-index", "--disable-pip-version-check", wheel)  # fmt: skip
    theirs = Path(pytest.__file__).parents[1]  # the folder of installed packages
    # As a plain folder on the path: its .pth files, which lead to this checkout, are not read.
    (packages / "dependencies.pth").write_text(f"{theirs}\n")
    picture(tmp_path / "photo.png")
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    here = {"cwd": tmp_path, "env": env}
    code = "import importlib.util as u; print(u.find_spec('adte').origin)"  # without its imports
    assert Path(call(python, "-c", code, **here).strip()).is_relative_to(packages)
    out = call(scripts / "adte", "predict", "photo.png", "--classes", "cat, dog", "--views", "4",
               "--no-bars", "--out", "labels.csv", **here)  # fmt: skip
    assert out.startswith("photo.png")
    assert "%" in out
    assert call(scripts / "adte", "look", "labels.csv", **here) == "labels.html\n"


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_sources_keep_to_the_grammar_of_python_3_10(path):
    ast.parse(path.read_text("utf-8"), str(path), feature_version=(3, 10))


def test_what_the_project_says_of_python_agrees():
    said = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    assert said["project"]["requires-python"] == ">=3.10"
    assert said["tool"]["ruff"]["target-version"] == "py310"
    for minor in range(10, 14):
        assert f"Programming Language :: Python :: 3.{minor}" in said["project"]["classifiers"]
    assert "Typing :: Typed" in said["project"]["classifiers"]
    assert (ROOT / "src/adte/py.typed").is_file()


@pytest.mark.slow
@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the oldest have wheels for 3.11")
def test_the_oldest_dependencies_that_the_ranges_allow(tmp_path):
    """All but torch, whose oldest builds weigh gigabytes; the newest are what the tests run on."""
    said = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["dependencies"]
    ranges = dict(d.split(">=") for d in said if ">=" in d and ";" not in d)
    oldest = [f"{name}=={low}" for name, low in ranges.items() if name != "torch"]
    assert len(oldest) == 8, oldest
    asked = (*oldest, "commonmark", "pygments")  # the last two are rich's own
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile", "--target",
         str(tmp_path / "old"), "--disable-pip-version-check", *asked],
        capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    if done.returncode:
        pytest.skip(f"the package index cannot be reached: {done.stderr.splitlines()[-1:]}")
    image = picture(tmp_path / "a.png")
    path = os.pathsep.join([str(tmp_path / "old"), str(ROOT / "src")])
    env = {**os.environ, "PYTHONPATH": path}
    code = "import numpy, PIL, click; print(numpy.__version__, PIL.__version__, click.__version__)"
    versions = call(sys.executable, "-c", code, env=env).split()
    assert [v.split(".")[0] for v in versions] == ["1", "10", "8"]
    said = ["predict", str(image), "--classes", "cat, dog", "--views", "4", "--out",
            str(tmp_path / "o.csv")]  # fmt: skip
    code = f"""
from adte.cli import main
main({said}, standalone_mode=False)
main(["methods", "adte"])
"""
    assert "adjust" in call(sys.executable, "-c", code, env=env)
    rows = (tmp_path / "o.csv").read_text("utf-8").splitlines()
    assert len(rows) == 2


@pytest.mark.parametrize("folder", ["benchmarks", "recipes"])
def test_scripts_import_what_is_there(folder):
    """Two scripts of the recipe asked for a function where it had been."""
    asked = {
        (node.module, name.name)
        for path in SOURCES
        if (ROOT / folder) in path.parents
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "adte"
        for name in node.names
    }
    assert asked
    for module, name in sorted(asked):
        found = hasattr(importlib.import_module(module), name)
        assert found or importlib.util.find_spec(f"{module}.{name}"), f"{module}.{name}"
