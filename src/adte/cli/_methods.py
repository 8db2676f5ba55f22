"""The names of methods and of their options, without torch, so that a wrong one is said at once.

They are a list beside this file, which a test compares with the methods. After a change there,
write it anew: python -c "from adte.cli import _methods; _methods.write()"
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from importlib import resources
from importlib.metadata import entry_points
from pathlib import Path

from adte.core.errors import unknown
from adte.core.options import full_name
from adte.core.registry import GROUP

__all__ = ["check_names", "listed", "write"]

FILE = "methods.json"


def check_names(method: str, options: Iterable[str]) -> None:
    """Refuse a method that is not there, or options that it has not.

    Methods of plug-ins are looked up later; so are all, where they are imported already.
    """
    if "adte.methods" in sys.modules:
        return
    groups = json.loads(resources.files("adte.cli").joinpath(FILE).read_text("utf-8"))
    known = {name: group["options"] for group in groups for name in group["names"]}
    if method in known:
        for name in options:
            full_name(known[method], name, "option")
    elif not entry_points(group=GROUP):
        raise unknown("method", method, known)


def listed() -> str:
    """What the list has to hold: methods that share a class have one row."""
    from adte.core.options import options
    from adte.methods import list_methods, method_info

    names: dict[type, list[str]] = {}
    for name in list_methods():
        cls = method_info(name).cls
        if cls.__module__.startswith("adte."):
            names.setdefault(cls, []).append(name)
    rows = [{"names": n, "options": [o.name for o in options(cls)]} for cls, n in names.items()]
    return "[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n"


def write() -> None:
    Path(__file__).with_name(FILE).write_text(listed(), "utf-8")
