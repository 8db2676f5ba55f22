"""Checkpoints that try to write a file when they are loaded."""

from __future__ import annotations

import io
import os
import pickle
import struct
import tarfile
import warnings
import zipfile
from pathlib import Path

import torch
from torch import nn


class Scripted(nn.Module):
    """Its archive makes a file at `mark` when `torch.jit.load` restores it."""

    def __init__(self, mark: str) -> None:
        super().__init__()
        self.mark = mark
        self.weight = nn.Parameter(torch.ones(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight

    @torch.jit.export
    def __getstate__(self):  # type: ignore[no-untyped-def]
        return (self.mark, self.weight, self.training)

    @torch.jit.export
    def __setstate__(self, state: tuple[str, torch.Tensor, bool]) -> None:
        self.mark, self.weight, self.training = state[0], state[1], state[2]
        self.weight = torch.from_file(self.mark, True, 4)


class Reduced:
    """Its pickle makes a folder at `mark`."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self):  # type: ignore[no-untyped-def]
        return os.mkdir, (str(self.mark),)


def script(module: nn.Module, path: Path) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch discourages TorchScript
        torch.jit.script(module).save(str(path))
    return path


def zip_of(path: Path, members: dict[str, bytes], kind: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", kind) as file:
        for name, data in members.items():
            file.writestr(f"model/{name}", data)
    return path


def hostile(folder: Path, mark: Path) -> list[Path]:
    """One checkpoint of each form that could be taken for one."""
    evil = Reduced(mark)
    made = [script(Scripted(str(mark)), folder / "script.pt")]
    torch.save({"weight": torch.ones(2), "evil": evil}, folder / "zip.pt")
    torch.save({"evil": evil}, folder / "legacy.pt", _use_new_zipfile_serialization=False)
    made += [folder / "zip.pt", folder / "legacy.pt"]
    made.append(folder / "plain.pt")
    made[-1].write_bytes(pickle.dumps(evil))
    made.append(folder / "tar.pt")
    with tarfile.open(made[-1], "w") as tar:
        for name in ("sys_info", "pickle", "storages", "tensors"):
            data = pickle.dumps(evil)
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    made.append(zip_of(folder / "stack.pt", {"data.pkl": b"cos\nmkdir\n(V" + str(mark).encode()
                       + b"\ntR."}))  # fmt: skip
    script_with_reduce = {"data.pkl": pickle.dumps(evil, 2), "constants.pkl": b")."}
    made.append(zip_of(folder / "both.pt", script_with_reduce))
    return made


def tensor_pickle(
    count: object = 6, offset: object = 0, size: object = (2, 3), stride: object = (3, 1),
    key: str = "0", kind: str = "FloatStorage", make: str = "_rebuild_tensor_v2",
) -> bytes:  # fmt: skip
    """The pickle of one tensor, with these numbers in it."""

    def value(x: object) -> bytes:
        return pickle.dumps(x, 2)[2:-1].replace(b"q\x00", b"")

    def text(x: str) -> bytes:
        return b"X" + struct.pack("<I", len(x)) + x.encode()

    storage = b"(" + text("storage") + f"ctorch\n{kind}\n".encode() + text(key) + text("cpu")
    return (
        b"\x80\x02}" + text("weight") + f"ctorch._utils\n{make}\n(".encode()
        + storage + value(count) + b"tQ" + value(offset) + value(size) + value(stride)
        + b"\x89}tRs."
    )  # fmt: skip
