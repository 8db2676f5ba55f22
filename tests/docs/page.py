"""Runs the blocks of a page, which stand as JSON in a file, in the current folder and in order.

All Python of a page runs in this one process, with warnings as errors; a shell block runs in bash
and ends at the first command that fails. A block with a title is a file, and is written.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path


def run(path: str) -> None:
    names: dict[str, object] = {"__name__": "__main__"}
    blocks = json.loads(Path(path).read_text("utf-8"))
    if "import open_clip" in str(blocks):  # it needs torchvision, which may be of another build
        from adte.models._torchvision import import_torchvision

        import_torchvision()
    for block in blocks:
        place = f"{block['page']}, line {block['line']}"
        print(f"--- {place}", flush=True)
        if block["title"]:
            Path(block["title"]).write_text(block["text"], "utf-8")
        elif block["tag"] == "bash":
            done = subprocess.run(["bash", "-euo", "pipefail", "-c", block["text"]])
            if done.returncode:
                sys.exit(f"{place}: exit code {done.returncode}")
        else:
            exec(compile("\n" * block["line"] + block["text"], block["page"], "exec"), names)


if __name__ == "__main__":
    run(sys.argv[1])
