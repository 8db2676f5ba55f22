"""Lists that a person writes, one name per line: of files, of classes, of templates."""

from __future__ import annotations

import os
import sys
import warnings
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterable
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
    called = f"the list of files {name!r}"
    data = _read(name, called, "one name per line")
    if b"\0" in data:
        names = data.split(b"\0")
        if (b"\n\0" in data or b"\0\n" in data) and max(map(len, names)) < 3:  # UTF-16 without mark
            raise InputError(f"{called} is not UTF-8 text; save it as UTF-8")
    else:
        names = [line.removesuffix(b"\r") for line in data.split(b"\n")]
    if not any(name.strip() for name in names):
        raise InputError(f"{called} is empty; write one name per line")
    return [os.fsdecode(name) for name in names if name.strip()]


def _read(name: str, called: str, wanted: str) -> bytes:
    """A text without its mark; UTF-16, as PowerShell and Excel write it, as UTF-8."""
    try:
        if name not in STDIN:
            data = Path(name).read_bytes()
        elif sys.stdin is None:
            raise ValueError("standard input is closed")
        else:
            data = sys.stdin.buffer.read()
    except FileNotFoundError as error:
        raise InputError(f"{called} does not exist; give {wanted} in a text file") from error
    except (OSError, ValueError) as error:
        raise InputError(
            f"{called} cannot be read ({why(error)}); give {wanted} in a text file"
        ) from error
    if not data.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
        return data.removeprefix(BOM_UTF8)
    try:
        return data.decode("utf-16").encode()
    except UnicodeError as error:
        raise InputError(f"{called} is broken UTF-16 text; save it as UTF-8") from error


def read_classes(text: str) -> list[str]:
    """Class names: "cat, dog, car", or @FILE with one per line, # before comments; @- is stdin.

    One class alone is noted, since every image gets it: it may be several names, or a file's.

    >>> read_classes("cat, polar bear")
    ['cat', 'polar bear']
    """
    text = text.removeprefix("\ufeff").strip()
    if text.startswith("@"):
        called, mend = f"the file of class names {text[1:]!r}", "write one per line"
        if text.lower().endswith(TABLES):
            raise InputError(
                f"{called} is a table by its suffix; give one name per line in a text file, such "
                "as names.txt"
            )
        names = _lines(text[1:], called, "name")
    else:
        mend = "write commas between them, as in 'cat, dog'"
        names = [name for part in text.split(",") if (name := part.strip())]
        if not names:
            raise InputError(f"{text!r} names no class; {mend}")
        if names == [text] and os.path.exists(text) and not os.path.isdir(text):
            raise InputError(f"--classes {text!r} is a file; did you mean @{text}?")
    if len(names) == 1:
        hint, (name,) = "", names
        if name.lower().endswith((".txt", *TABLES)):
            hint = f"; if it is a file of names, write @{name}"
        elif len(name.replace(",", " ").replace(";", " ").split()) > 1:
            hint = f"; if these are several names, {mend}"
        warnings.warn(f"{name!r} is the only class, so every image gets it{hint}", stacklevel=2)
    return names


def read_templates(texts: Iterable[str]) -> list[str]:
    """Templates as they are given, and those of @FILE, one per line, # before comments.

    >>> read_templates(["a photo of a {}."])
    ['a photo of a {}.']
    """
    out: list[str] = []
    for text in texts:
        if text.startswith("@"):
            out += _lines(text[1:], f"the file of templates {text[1:]!r}", "template")
        else:
            out.append(text)
    return out


def _lines(path: str, called: str, what: str) -> list[str]:
    """The lines of a text file that are neither empty nor comments."""
    try:
        text = _read(path, called, f"one {what} per line").decode()
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:  # or UTF-16 that does not say so
        raise InputError(f"{called} is not UTF-8 text; save it as UTF-8, one {what} per line")
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    written = [text for line in lines if (text := line.strip())]
    kept = [text for text in written if not text.startswith("#")]
    if not kept:
        raise InputError(f"{called} holds no {what}; give one {what} per line in a text file")
    if comments := len(written) - len(kept):
        warnings.warn(
            f"lines of {path!r} that begin with # are comments, and skipped: {comments}",
            stacklevel=3,
        )
    return kept
