"""Real processes for tests, forked from a warm one so that each starts in milliseconds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SERVER = """
import json, os, sys, traceback
import adte.files.claims, adte.files.inputs, adte.files.journal
for line in sys.stdin:
    what, value, log = json.loads(line)
    if what == "wait":
        print(os.waitstatus_to_exitcode(os.waitpid(value, 0)[1]), flush=True)
        continue
    pid = os.fork()
    if pid == 0:
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(out, 1), os.dup2(out, 2)
        code = 0
        try:
            exec(value, {})
        except SystemExit as end:
            code = end.code or 0
        except BaseException:
            traceback.print_exc()
            code = 1
        sys.stdout.flush(), sys.stderr.flush()
        os._exit(code)
    print(pid, flush=True)
"""


class Processes:
    """Starts processes that run Python code, several at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.count = folder, 0
        self.logs: dict[int, Path] = {}
        self.server = subprocess.Popen(
            [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def _ask(self, *request: object) -> int:
        self.server.stdin.write(json.dumps(request) + "\n")
        self.server.stdin.flush()
        return int(self.server.stdout.readline())

    def start(self, code: str) -> int:
        """The id of a process that runs the code."""
        self.count += 1
        log = self.folder / f"{self.count}.txt"
        log.touch()  # it may be killed before it does so itself
        pid = self._ask("start", code, str(log))
        self.logs[pid] = log
        return pid

    def wait(self, pid: int) -> tuple[int, str]:
        """How a process ended, and what it printed."""
        code = self._ask("wait", pid, "")
        return code, self.logs[pid].read_text("utf-8")

    def run(self, code: str) -> tuple[int, str]:
        return self.wait(self.start(code))

    def close(self) -> None:
        self.server.stdin.close()
        self.server.wait()
        self.server.stdout.close()
