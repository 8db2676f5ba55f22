"""Shows the doctests of docstrings as code on the pages of the API."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

EXAMPLE = re.compile(r"^>>> .*?(?=\n\s*\n|\Z)", re.M | re.S)  # up to an empty line or the end


def fenced(text: str) -> str:
    """A docstring whose examples stand between fences."""
    shown = re.sub(r"\s*# doctest:.*", "", text) if ">>>" in text else text
    return EXAMPLE.sub(lambda found: f"```pycon\n{found[0].rstrip()}\n```", shown)


class Examples(Extension):
    def on_object(self, *, obj: Object, **rest: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)
