"""Lists that a person writes: every name as it is meant, and what is no list is named."""

from __future__ import annotations

import io
import os
from types import SimpleNamespace

import pytest

from adte import InputError
from adte.files.lists import read_classes, read_list, read_templates


@pytest.mark.parametrize(
    ("data", "names"),
    [
        (b"a.jpg\nb c.jpg\n", ["a.jpg", "b c.jpg"]),
        (b"\xef\xbb\xbfa.jpg\r\n\r\nb.jpg", ["a.jpg", "b.jpg"]),
        (b"a\nb.jpg\0c.jpg\0", ["a\nb.jpg", "c.jpg"]),
        (b"1\0b\0", ["1", "b"]),
        (b"caf\xe9.jpg\n# no comment\n", [os.fsdecode(b"caf\xe9.jpg"), "# no comment"]),
    ],
)
def test_lists_of_files(data, names, tmp_path):
    (tmp_path / "list").write_bytes(data)
    assert read_list(tmp_path / "list") == names


@pytest.mark.parametrize("kind", ["utf-16-le", "utf-16-be"])
def test_utf_16_is_read_if_it_says_so(kind, tmp_path):
    """Its zero bytes passed for those between names, and a slash among them for the whole disk."""
    text = "photos/a.jpg\r\nbig cat/größe.jpg\r\n"
    (tmp_path / "list").write_bytes(f"\ufeff{text}".encode(kind))
    assert read_list(tmp_path / "list") == ["photos/a.jpg", "big cat/größe.jpg"]
    assert read_classes(f"@{tmp_path / 'list'}") == ["photos/a.jpg", "big cat/größe.jpg"]
    (tmp_path / "list").write_bytes(text.encode(kind))
    with pytest.raises(InputError, match="not UTF-8 text; save it as UTF-8"):
        read_list(tmp_path / "list")


@pytest.mark.skipif(not os.path.isdir("/dev/fd"), reason="needs /dev/fd")
def test_class_names_come_from_standard_input_and_pipes(monkeypatch):
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(b"cat\npolar bear\n")))
    assert read_classes("@-") == ["cat", "polar bear"]
    there, here = os.pipe()
    try:
        with pytest.raises(InputError, match=f"is a file; did you mean @/dev/fd/{there}"):
            read_classes(f"/dev/fd/{there}")
    finally:
        os.close(there)
        os.close(here)


def test_lists_that_cannot_be_read(tmp_path):
    (tmp_path / "list").write_bytes(b"\n \n")
    with pytest.raises(InputError, match="is empty; write one name per line"):
        read_list(tmp_path / "list")
    for name in ("none", "."):
        with pytest.raises(InputError, match=r"list of files .* (cannot be read|does not exist)"):
            read_list(tmp_path / name)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("cat, dog,polar bear", ["cat", "dog", "polar bear"]),
        (" cat ,, dog, ", ["cat", "dog"]),
        ("\ufeffcat,dog", ["cat", "dog"]),
    ],
)
def test_class_names_in_a_line(text, names):
    assert read_classes(text) == names


@pytest.mark.parametrize(
    ("text", "name", "note"),
    [
        ("cat", "cat", r"'cat' is the only class, so every image gets it$"),
        ("cat,", "cat", r"every image gets it$"),
        ("cat dog car", "cat dog car", "if these are several names, write commas between them"),
        ("cat; dog", "cat; dog", "several names, write commas"),
        ("cat;dog", "cat;dog", "several names, write commas"),
        ("names.txt", "names.txt", "if it is a file of names, write @names.txt"),
        ("@one", "cat, dog, car", "several names, write one per line"),
    ],
)
def test_one_class_alone_is_noted(text, name, note, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one").write_text("cat, dog, car\n")
    with pytest.warns(UserWarning, match=note):
        assert read_classes(text) == [name]


def test_a_file_without_its_mark_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "names.txt").write_text("cat\ndog\n")
    with pytest.raises(InputError, match=r"'names.txt' is a file; did you mean @names.txt\?"):
        read_classes("names.txt")
    (tmp_path / "names.csv").write_text("name,count\ncat,3\n")
    with pytest.raises(InputError, match=r"names.csv' is a table by its suffix; give one name per"):
        read_classes("@names.csv")


def test_comments_among_class_names_are_counted(tmp_path):
    (tmp_path / "names").write_text("# animals\ncat\n  # more\n\ndog\n")
    with pytest.warns(UserWarning, match=r"begin with # are comments, and skipped: 2"):
        assert read_classes(f"@{tmp_path / 'names'}") == ["cat", "dog"]


@pytest.mark.parametrize(
    "data",
    [
        b"cat\ndog\npolar bear, white\n",
        "\ufeffcat\r\ndog\r\n\r\npolar bear, white".encode(),
        b"\n\n cat \rdog\n  \npolar bear, white\n",
    ],
)
def test_a_mark_at_the_beginning_is_no_part_of_a_class(data, tmp_path):
    (tmp_path / "names.txt").write_bytes(data)
    assert read_classes(f"@{tmp_path / 'names.txt'}") == ["cat", "dog", "polar bear, white"]


def test_class_names_that_cannot_be_read(tmp_path):
    for text in ("", "  ", ",", " , ,", "\ufeff"):
        with pytest.raises(InputError, match="names no class"):
            read_classes(text)
    for data, sentence in (
        ("größe".encode("latin-1"), "is not UTF-8 text; save it as UTF-8"),
        ("cat\ndog".encode("utf-16-le"), "is not UTF-8 text"),
        ("cat\n".encode("utf-16")[:-1], "is broken UTF-16 text"),
        (b"", "holds no name"),
        (b"\xef\xbb\xbf\n# none\n", "holds no name"),
    ):
        (tmp_path / "names").write_bytes(data)
        with pytest.raises(InputError, match=sentence):
            read_classes(f"@{tmp_path / 'names'}")
    with pytest.raises(InputError, match="'none' does not exist; give one name per line"):
        read_classes("@none")
    for text in ("@", f"@{tmp_path}"):
        with pytest.raises(InputError, match="cannot be read"):
            read_classes(text)


def test_templates_of_a_file(tmp_path):
    path = tmp_path / "templates.txt"
    path.write_bytes("\ufeffa photo of a {}.\r\n\r\n# a comment\r\nart of the {}.".encode())
    with pytest.warns(UserWarning, match="begin with # are comments, and skipped: 1"):
        found = read_templates(["a bad photo of a {}.", f"@{path}"])
    assert found == ["a bad photo of a {}.", "a photo of a {}.", "art of the {}."]
    path.write_text("\n")
    with pytest.raises(InputError, match="holds no template; give one template per line"):
        read_templates([f"@{path}"])
    with pytest.raises(InputError, match="file of templates 'gone' does not exist"):
        read_templates(["@gone"])


def test_a_list_from_standard_input(monkeypatch):
    sent = SimpleNamespace(buffer=io.BytesIO(b"a.png\r\n\n b.png\n#c.png"))
    monkeypatch.setattr("sys.stdin", sent)
    assert read_list("-") == ["a.png", " b.png", "#c.png"]
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(InputError, match="standard input is closed"):
        read_list("-")
