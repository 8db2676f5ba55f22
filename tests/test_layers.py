"""The house has floors: a room imports from floors below its own, never from above."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import adte

ROOT = Path(adte.__file__).parent

# From the ground up: a room may import itself and the rooms of lower floors.
FLOORS = (
    ("_start", "_version"),
    ("core",),
    ("images",),
    ("files",),
    ("data",),
    ("models",),
    ("methods", "pipeline"),
    ("classifier",),
    ("label", "evaluate", "bench"),
    ("testing",),
    ("paper",),
    ("serve",),
    ("cluster",),
    ("cli",),
)
FLOOR = {room: i for i, floor in enumerate(FLOORS) for room in floor}


def room(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


def imports(path: Path) -> set[str]:
    """The modules of ours that a file imports, those for type checking alone left out."""
    found: set[str] = set()
    tree = ast.parse(path.read_text("utf-8"))
    skipped = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            found |= {a.name for a in node.names if a.name.split(".")[0] == "adte"}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "adte":
            if node.module == "adte":
                found |= {f"adte.{a.name}" for a in node.names}
            else:
                found.add(str(node.module))
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path} imports by dots, which this does not follow"
    return found


def test_every_room_has_a_floor():
    rooms = {p.relative_to(ROOT).parts[0].removesuffix(".py") for p in ROOT.rglob("*.py")}
    assert rooms - {"__init__", "__main__"} == set(FLOOR)


def test_arrows_point_down():
    up = []
    for path in sorted(ROOT.rglob("*.py")):
        where = path.relative_to(ROOT)
        mine = where.parts[0].removesuffix(".py")
        if mine in ("__init__", "__main__"):
            continue
        for module in imports(path):
            theirs = room(module)  # the roof, for a name of the whole package's own
            if theirs != mine and FLOOR.get(theirs, 99) >= FLOOR[mine]:
                up.append(f"{where} imports {module}")
    assert not up, "\n".join(up)


def test_models_views_prompts_and_data_know_nothing_of_methods():
    for path in sorted(ROOT.rglob("*.py")):
        mine = path.relative_to(ROOT).parts[0].removesuffix(".py")
        if mine in ("models", "data", "images"):
            assert not {m for m in imports(path) if room(m) in ("methods", "pipeline")}


def test_rooms_that_documents_name_are_there_once_they_are_asked_for():
    code = (
        "import adte, sys; assert {*adte.__all__, 'evaluate'} <= {*dir(adte)};"
        "assert 'adte.evaluate' not in sys.modules;"
        "assert {*adte.__all__} == {*adte._HOME, 'functional'}; from adte import *;"
        "adte.evaluate.from_arrays, adte.data.load_dataset, adte.testing.METHOD_CHECKS;"
        "adte.models.accelerate, adte.images.Views;"
        "assert not (hasattr(adte, 'nothing') or hasattr(adte, '_nothing'))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_tuples_with_names_have_no_other_base():
    """Python 3.10 refuses such a class, and with it the whole package."""
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"), feature_version=(3, 10))):
            if isinstance(node, ast.ClassDef) and len(node.bases) > 1:
                bases = [ast.unparse(base) for base in node.bases]
                assert "NamedTuple" not in bases, f"{path}: {node.name}"
