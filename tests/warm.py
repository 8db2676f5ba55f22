"""`adte` as a process of its own, forked from one that has the package imported but nothing loaded.

So a command costs what it does, and not the seconds that Python takes to import torch. The server
forks a child for each request; the child has the caller's files, folder and environment.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

# Stands for `adte` on the path: hands everything over and ends as the child ended. A server that is
# put into the background is to be killed by its own id, so that one is a Python of its own.
COMMAND = """#!{python} -IS
import json, os, socket, sys
if sys.argv[1:2] == ["serve"]:
    os.execv({adte!r}, ["adte", *sys.argv[1:]])
with socket.socket(socket.AF_UNIX) as server:
    server.connect({place!r})
    asked = ["", sys.argv[1:], os.getcwd(), dict(os.environ)]
    socket.send_fds(server, [b"!"], [0, 1, 2])
    server.sendall(json.dumps(asked).encode())
    server.shutdown(socket.SHUT_WR)
    ended = server.recv(16)
sys.exit(int(ended) if ended else "adte: the process was killed")
"""


class Warm:
    """Starts processes that run `adte`, or a script with warnings as errors."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="warm-"))
        self.place = str(self.folder / "s")
        self.server = subprocess.Popen(
            [sys.executable, __file__, self.place],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self.server.stdout.readline() == b"ready\n"

    def command(self, folder: Path) -> None:
        """Put an `adte` into a folder, for a shell to find."""
        python = Path(sys.executable)
        adte = str(python.with_name("adte"))
        text = COMMAND.format(python=python, adte=adte, place=self.place)
        (folder / "adte").write_text(text, "utf-8")
        (folder / "adte").chmod(0o755)

    def run(
        self, script: Path | str, args: Sequence[str], cwd: Path, env: Mapping[str, str]
    ) -> tuple[int, str]:
        """How a script ended ("": `adte` itself), and all that it printed."""
        with tempfile.TemporaryFile() as screen, open(os.devnull, "rb") as nothing:
            with socket.socket(socket.AF_UNIX) as server:
                server.connect(self.place)
                fds = [nothing.fileno(), screen.fileno(), screen.fileno()]
                socket.send_fds(server, [b"!"], fds)
                server.sendall(json.dumps([str(script), list(args), str(cwd), dict(env)]).encode())
                server.shutdown(socket.SHUT_WR)
                ended = server.recv(16)
            screen.seek(0)
            return int(ended) if ended else -1, screen.read().decode("utf-8", "replace")

    def close(self) -> None:
        """End the server and whatever it started."""
        os.killpg(self.server.pid, signal.SIGKILL)
        self.server.wait()
        self.server.stdin.close()
        self.server.stdout.close()
        for path in self.folder.iterdir():
            path.unlink()
        self.folder.rmdir()


def become(caller: socket.socket) -> int:
    """Be the process that the caller asked for."""
    _, fds, _, _ = socket.recv_fds(caller, 1, 3)
    asked = b"".join(iter(lambda: caller.recv(1 << 16), b""))
    script, args, cwd, env = json.loads(asked)
    for to, fd in enumerate(fds):
        os.dup2(fd, to)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    sys.path[:0] = filter(None, env.get("PYTHONPATH", "").split(os.pathsep))
    importlib.invalidate_caches()  # of folders that were not there when the server began
    sys.argv = [script or "adte", *args]
    try:
        if script:
            warnings.simplefilter("error")
            runpy.run_path(script, run_name="__main__")
        else:
            sys.modules["adte.cli"].main(prog_name="adte")
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def serve(place: str) -> None:
    import torch

    import adte.classifier
    import adte.cli
    import adte.evaluate.running.tasks
    import adte.evaluate.source
    import adte.models.tiny  # noqa: F401
    from adte.cli._verbs import MODULES

    for module in {*MODULES.values()}:
        importlib.import_module(f"adte.cli.{module}")
    torch.set_num_threads(1)
    sys.path.remove(str(Path(__file__).parent))
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(place)
        door.listen()
        print("ready", flush=True)
        while sys.stdin not in select.select([door, sys.stdin], [], [])[0]:
            caller, _ = door.accept()
            if os.fork() == 0:
                door.close()
                code = become(caller)
                sys.stdout.flush()
                sys.stderr.flush()
                caller.sendall(str(code).encode())
                os._exit(code)
            caller.close()
            while gone():
                pass


def gone() -> bool:
    """Whether a child has ended; it is not waited for."""
    try:
        return os.waitpid(-1, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return False


if __name__ == "__main__":
    serve(sys.argv[1])
