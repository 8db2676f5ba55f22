"""Lists that a person writes, one name per line: of files, of classes, of templates."""

from __future__ import annotations

import os
import sys
import warnings
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Callable, Iterable
from pathlib import Path

from adte.core.errors import InputError
from adte.files.devices import StrPath
from adte.files.inputs import STDIN, why

__all__ = ["read_classes", "read_list", "read_templates"]

TABLES = (".csv", ".tsv", ".json", ".jsonl", ".xlsx")


def read_list(path: StrPath) -> list[str]:
    """Names of files from a file, "-" for standard input: one per line, or with zero bytes between.

    Blank lines are passed over. Nothing else is: a name may begin with # or with a blank.
    """
    name = os.fspath(path)
    try:
        data = _bytes_of(name)
    except (OSError, ValueError) as error:
        raise InputError(
            f"cannot read the list of files {name!r} ({why(error)}); check it"
        ) from error
    data = _utf8(data, f"the list of files {name!r}")
    if b"\0" in data:
        lines = data.split(b"\0")
        broken = b"\n\0" in data or b"\0\n" in data
        if broken and max(map(len, lines)) < 3:  # UTF-16 that does not say so
            raise InputError(f"the list of files {name!r} is not UTF-8 text; save it as UTF-8")
    else:
        lines = [line.removesuffix(b"\r") for line in data.split(b"\n")]
    names = [os.fsdecode(line) for line in lines if line.strip()]
    if not names:
        raise InputError(f"the list of files {name!r} is empty; write one name per line")
    return names


def _bytes_of(name: str) -> bytes:
    if name not in STDIN:
        return Path(name).read_bytes()
    if sys.stdin is None:
        raise ValueError("standard input is closed")
    return sys.stdin.buffer.read()


def _utf8(data: bytes, said: str) -> bytes:
    """Text without its mark; UTF-16, as PowerShell and Excel write it, as UTF-8."""
    if not data.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
        return data.removeprefix(BOM_UTF8)
    try:
        return data.decode("utf-16").encode()
    except UnicodeError as error:
        raise InputError(f"{said} is broken UTF-16 text; save it as UTF-8") from error


# What no name of a class has in every line of a file: it is a table by another suffix.
_TABLE: dict[str, Callable[[str], bool]] = {
    "a tab": lambda name: "\t" in name,
    "a semicolon": lambda name: ";" in name,
    "a comma at its end": lambda name: name.endswith(","),
    "quotes around it": lambda name: len(name) > 1 and name[0] == name[-1] == '"',
}


def read_classes(text: str) -> list[str]:
    """Class names: "cat, dog, car", or @FILE with one per line, # before comments; @- is stdin.

    One class alone is noted, since every image gets it: it may be several names, or a file's.

    >>> read_classes("cat, polar bear")
    ['cat', 'polar bear']
    """
    text = text.removeprefix("\ufeff").strip()
    if text.startswith("@"):
        names, mend = _names_in(text[1:]), "write one per line"
    else:
        names, mend = _names_of(text), "write commas between them, as in 'cat, dog'"
    if len(names) == 1:
        _note_alone(names[0], mend)
    return names


def _note_alone(name: str, mend: str) -> None:
    hint = ""
    if name.lower().endswith((".txt", *TABLES)):
        hint = f"; if it is a file of names, write @{name}"
    elif len(name.replace(",", " ").replace(";", " ").split()) > 1:
        hint = f"; if these are several names, {mend}"
    warnings.warn(f"{name!r} is the only class, so every image gets it{hint}", stacklevel=3)


def _names_of(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if not any(names):
        raise InputError(
            f"{text!r} names no class; write names with commas between them, as in 'cat, dog'"
        )
    if len(names) == 1 and os.path.exists(text) and not os.path.isdir(text):
        raise InputError(f"--classes {text!r} is a file; did you mean @{text}?")
    return [name for name in names if name]


def read_templates(texts: Iterable[str]) -> list[str]:
    """Templates as they are given, and those of @FILE, one per line, # before comments.

    >>> read_templates(["a photo of a {}."])
    ['a photo of a {}.']
    """
    out: list[str] = []
    for text in texts:
        if text.startswith("@"):
            out += _lines_in(text[1:], f"the file of templates {text[1:]!r}", "template")
        else:
            out.append(text)
    return out


def _names_in(path: str) -> list[str]:
    mend = "give one name per line in a text file"
    said = f"the file of class names {path!r}"
    if path.lower().endswith(TABLES):
        raise InputError(f"{said} is a table by its suffix; {mend}, such as names.txt")
    names = _lines_in(path, said, "name")
    for what, holds in _TABLE.items():
        if len(names) > 1 and all(map(holds, names)):
            warnings.warn(
                f"every line of {path!r} has {what}, which is taken for part of the name, as in "
                f"{names[0]!r}; if it is a table, {mend}",
                stacklevel=3,
            )
            break
    return names


def _lines_in(path: str, said: str, what: str) -> list[str]:
    """The lines of a text file that are neither empty nor comments; `said` is how it is called."""
    mend = f"give one {what} per line in a text file"
    try:
        data = _bytes_of(path)
    except (OSError, ValueError) as error:
        missing = isinstance(error, FileNotFoundError)
        lacks = "does not exist" if missing else f"cannot be read ({why(error)})"
        raise InputError(f"{said} {lacks}; {mend}") from error
    try:
        text = _utf8(data, said).decode()
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:  # or UTF-16 that does not say so
        raise InputError(f"{said} is not UTF-8 text; save it as UTF-8, one {what} per line")
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    written = [text for line in lines if (text := line.strip())]
    kept = [text for text in written if not text.startswith("#")]
    if not kept:
        raise InputError(f"{said} holds no {what}; {mend}")
    if passed := len(written) - len(kept):
        said = f"lines of {path!r} that begin with # are comments, and skipped: {passed}"
        warnings.warn(said, stacklevel=4)
    return kept
