"""Errors are told apart by their classes: what is done next never hangs on their words."""

from __future__ import annotations

import ast
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest

import adte
from adte import InputError
from adte.core import errors
from adte.core.errors import AdteError, LockedError, UnreadableFile
from adte.files.locks import Lock
from adte.images.decode import load_image

OURS = {
    name for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, AdteError)
}  # fmt: skip


def choices_by_words(tree: ast.AST) -> Iterator[int]:
    """Lines of conditions on the text of an error of ours, by way of one name or of none."""
    for node in ast.walk(tree):
        names: set[str] = set()
        if isinstance(node, ast.ExceptHandler) and node.name and node.type:
            names |= {node.name} if OURS & {*_words(node.type)} else set()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            args = [*node.args.args, *node.args.kwonlyargs]
            names |= {a.arg for a in args if a.annotation and OURS & {*_words(a.annotation)}}
        if not names:
            continue
        texts = set[str]()
        for inner in ast.walk(node):
            if isinstance(inner, ast.Assign) and _is_text(inner.value, names, texts):
                texts |= {w for target in inner.targets for w in _words(target)}
        for inner in ast.walk(node):
            tests = [inner.test] if isinstance(inner, ast.If | ast.IfExp | ast.While) else []
            tests += [inner.subject] if isinstance(inner, ast.Match) else []
            yield from (inner.lineno for test in tests if _is_text(test, names, texts))


def _words(node: ast.AST) -> Iterator[str]:
    yield from (inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name))


def _is_text(node: ast.AST, names: set[str], texts: set[str]) -> bool:
    """Whether it reads the text of one of the errors, or a name that holds it."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name) and inner.id in texts:
            return True
        is_part = isinstance(inner, ast.Attribute) and inner.attr in ("args", "problem")
        is_text = isinstance(inner, ast.Call) and {*_words(inner.func)} & {"str", "repr"}
        if (is_part or is_text) and names & {*_words(inner)}:
            return True
    return False


def test_no_choice_hangs_on_the_words_of_our_own_errors():
    bad = """
def f(error: InputError):
    if "another" in str(error):
        pass
    try:
        pass
    except (OSError, StateError) as e:
        said, _ = str(e).split(";")
        return 1 if said == "x" else 2
    except ValueError as e:
        return 1 if str(e) else 2
"""
    assert [*choices_by_words(ast.parse(bad))] == [3, 9]
    root = Path(adte.__file__).parent
    found = [
        f"{path.relative_to(root)}:{line}"
        for path in sorted(root.rglob("*.py"))
        for line in choices_by_words(ast.parse(path.read_text("utf-8")))
    ]
    assert not found, "\n".join(found)


def test_a_lock_that_another_has_is_an_error_of_its_own(tmp_path):
    path = tmp_path / "labels; by another process.csv"  # words that a name may have, too
    with Lock(path):
        with pytest.raises(LockedError) as caught:
            Lock(path, 0).acquire()
        assert caught.value.problem.startswith(f"{str(path)!r} is used by another process (")
        assert caught.value.problem.endswith(")")
    with Lock(path) as lock, pytest.raises(InputError) as other:
        lock.acquire()
    assert not isinstance(other.value, LockedError)


def test_a_file_that_cannot_be_read_names_itself_and_bytes_do_not(tmp_path):
    (tmp_path / "a.png").write_bytes(b"no image")
    for source, kind in ((tmp_path / "a.png", UnreadableFile), (b"no image", InputError)):
        with pytest.raises(InputError) as caught:
            load_image(source)
        assert type(caught.value) is kind
    clf = adte.Classifier(classes=["cat", "dog"], model="tiny", views=2)
    with pytest.raises(InputError, match=r"^cannot read '.*a\.png'"):
        clf.predict([str(tmp_path / "a.png")])
    with pytest.raises(InputError, match=r"^image 0: cannot read these 8 bytes"):
        clf.predict([b"no image"])


@pytest.mark.parametrize("name", sorted(OURS - {"MissingExtra"}))
def test_errors_go_to_another_process_and_know_their_problem(name):
    error = pickle.loads(pickle.dumps(getattr(errors, name)("a; b is wrong; mend it")))
    assert type(error).__name__ == name
    assert (str(error), error.problem) == ("a; b is wrong; mend it", "a; b is wrong")
