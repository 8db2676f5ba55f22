"""The tensors of a zip that `torch.save` or TorchScript wrote. Nothing of it is run.

Its pickle may name tensors, storages and plain containers. A module of a TorchScript archive is a
class of the archive's own, which may restore itself by code that lies beside it. Here it holds its
attributes, and of the code one line is read as text: which of them are its tensors.

Every size is checked before anything of that size is made.
"""

from __future__ import annotations

import pickle
import re
import sys
from collections import Counter, OrderedDict
from collections.abc import Iterator
from io import BytesIO
from math import prod
from pathlib import Path
from typing import Any, ClassVar, NamedTuple
from zipfile import ZipFile

import torch
from torch import Tensor

from adte.core.errors import InputError

__all__ = ["MoreThanTensors", "read_archive"]

ROOM = 1 << 26  # bytes that any archive may hold, besides four times its own size
MODULES = 100_000  # modules of one model
_DTYPES = {
    "BoolStorage": torch.bool, "ByteStorage": torch.uint8, "CharStorage": torch.int8,
    "ShortStorage": torch.int16, "IntStorage": torch.int32, "LongStorage": torch.int64,
    "HalfStorage": torch.float16, "BFloat16Storage": torch.bfloat16,
    "FloatStorage": torch.float32, "DoubleStorage": torch.float64,
    "ComplexFloatStorage": torch.complex64, "ComplexDoubleStorage": torch.complex128,
    "UntypedStorage": torch.uint8,
}  # fmt: skip
_PLAIN = {  # harmless, and not looked at
    "__builtin__.set", "__builtin__.complex", "__builtin__.bytearray", "_codecs.encode",
    "builtins.set", "builtins.complex", "builtins.bytearray", "torch.Size", "torch.device",
    "torch.Tensor", "torch.nn.parameter.Parameter",
}  # fmt: skip
_CLASS = re.compile(
    r"^class (\w+)\(Module\):\n  __parameters__ = \[(.*)\]\n(?:  __buffers__ = \[(.*)\]\n)?", re.M
)


class MoreThanTensors(Exception):
    """A pickle that names what could run."""


class Plain:
    """In the place of a value that is not looked at."""

    def __init__(self, *args: Any) -> None:
        pass


class Module:
    """In the place of a module: what its pickle puts into it, and the name of its class."""

    kind = ""
    state: Any = None


class Storage(NamedTuple):
    """Bytes (N), and the type of the numbers in them."""

    data: Tensor
    dtype: torch.dtype


def read_archive(path: Path) -> Any:
    """The object that `torch.save` wrote, or the tensors of a TorchScript archive's module."""
    with ZipFile(path) as file:
        archive = _Archive(file, path.stat().st_size)
        state = _Unpickler(archive).load()
        if not isinstance(state, Module):
            return state
        if not all(archive.is_plain(module) for _, module in _modules(state)):
            raise InputError(
                f"{str(path)!r} holds a module that restores itself by code of its own, which is "
                "not run; save its tensors alone: torch.save(model.state_dict(), FILE)"
            )
        return {
            prefix + name: module.state[name]
            for prefix, module in _modules(state)
            for name in archive.names(module)
            if module.state[name] is not None
        }


class _Archive:
    """The members of the zip, as far as they may be read."""

    def __init__(self, file: ZipFile, size: int) -> None:
        self.file = file
        self.left = self.limit = ROOM + 4 * size
        roots = [n.removesuffix("data.pkl") for n in file.namelist() if n.count("/") == 1
                 and n.endswith("/data.pkl")]  # fmt: skip
        if len(roots) != 1:
            raise ValueError("it has no data.pkl of its own")
        self.root = roots[0]
        self._storages: dict[str, Tensor] = {}
        self._code: dict[str, dict[str, tuple[str, ...]]] = {}
        if f"{self.root}byteorder" in file.namelist():
            order = self.text("byteorder")
            if order != sys.byteorder:
                raise ValueError(f"its byte order is {order[:20]!r}")

    def read(self, name: str) -> Tensor:
        """The bytes of a member, which count against what all may have."""
        try:
            info = self.file.getinfo(self.root + name)
        except KeyError:
            raise ValueError(f"it lacks {name[:80]!r}") from None
        if info.file_size > self.left:
            raise ValueError(f"{name[:80]!r} is larger than such a file can hold")
        self.left -= info.file_size
        data = torch.empty(info.file_size, dtype=torch.uint8)
        view, done = data.numpy().data, 0
        with self.file.open(info) as member:
            while got := member.readinto(view[done:]):  # type: ignore[attr-defined]
                done += got
        if done != len(data):
            raise ValueError(f"{name[:80]!r} is cut off")
        return data

    def text(self, name: str) -> str:
        return self.read(name).numpy().tobytes().decode()

    def storage(self, key: str, dtype: torch.dtype, count: int) -> Storage:
        if key not in self._storages:
            self._storages[key] = self.read(f"data/{key}")
        data, size = self._storages[key], count * dtype.itemsize
        if not 0 <= size <= len(data):
            raise ValueError(f"'data/{key}' has {len(data):,} bytes, not {size:,}")
        return Storage(data[:size], dtype)

    def tensor(self, data: Storage, offset: int, size: Any, stride: Any) -> Tensor:
        numbers = data.data[: len(data.data) // data.dtype.itemsize * data.dtype.itemsize]
        numbers = numbers.view(data.dtype)
        shape = (offset, *size, *stride)
        if len(size) != len(stride) or not all(type(n) is int and n >= 0 for n in shape):
            raise ValueError(f"a tensor has the shape {shape}"[:200])
        last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
        count = prod(size)
        if count > self.limit or (count and last >= len(numbers)):
            raise ValueError(f"a tensor of shape {tuple(size)} reaches beyond its data"[:200])
        return numbers.as_strided(size, stride, offset)

    def names(self, module: Module) -> tuple[str, ...]:
        """The attributes that are a module's parameters and buffers, from its class's text."""
        file, _, name = module.kind.rpartition(".")
        if file not in self._code:
            text = self.text(f"code/{file.replace('.', '/')}.py")
            self._code[file] = {
                c: tuple(re.findall('"([^"]*)"', f"{parameters} {buffers}"))
                for c, parameters, buffers in _CLASS.findall(text)
            }
        return self._code[file].get(name, ())

    def is_plain(self, module: Module) -> bool:
        """Whether the pickle holds a module's attributes by name."""
        return isinstance(module.state, dict) and all(
            isinstance(module.state.get(name, 0), Tensor | None) for name in self.names(module)
        )


def _modules(module: Module, prefix: str = "") -> Iterator[tuple[str, Module]]:
    """A module and those in it, each before its own, with the beginnings of their names."""
    stack, count = [(prefix, module)], 0
    while stack:
        if (count := count + 1) > MODULES:
            raise ValueError(f"it has more than {MODULES:,} modules")
        prefix, module = stack.pop()
        yield prefix, module
        if isinstance(module.state, dict):
            inner = [(f"{prefix}{k}.", v) for k, v in module.state.items() if isinstance(v, Module)]
            stack += reversed(inner)


class _Unpickler(pickle._Unpickler):
    """Makes tensors, modules and plain containers, and calls nothing else.

    Written in Python, it holds what a pickle numbers in a dict, where the one in C makes a list
    as long as the largest number.
    """

    stack: list[Any]
    dispatch: ClassVar[dict[int, Any]] = dict(pickle._Unpickler.dispatch)

    def __init__(self, archive: _Archive) -> None:
        super().__init__(BytesIO(archive.read("data.pkl").numpy().data), encoding="utf-8")
        self.archive = archive

    def find_class(self, module: str, name: str) -> Any:
        full = f"{module}.{name}"
        if module.startswith("__torch__"):
            return type("Module", (Module,), {"kind": full})
        if module in ("torch", "torch.storage") and name in _DTYPES:
            return _DTYPES[name]
        if module == "torch" and isinstance(dtype := getattr(torch, name, None), torch.dtype):
            return dtype
        if full in ("torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_tensor_v3"):
            return self._tensor
        if full.startswith(("torch._utils._rebuild_parameter", "torch.jit._pickle.")):
            return _first  # what else is written beside a parameter, or the type of a list
        if full == "torch._tensor._rebuild_from_type_v2":
            return _with_attributes
        if module == "collections" and name in ("OrderedDict", "Counter"):
            return {"OrderedDict": OrderedDict, "Counter": Counter}[name]
        if full in _PLAIN:
            return Plain
        raise MoreThanTensors(full)

    def persistent_load(self, pid: Any) -> Storage:
        kind, dtype, key, _, count = pid
        if kind != "storage" or type(count) is not int or not isinstance(dtype, torch.dtype):
            raise ValueError("it holds storages of an unknown kind")
        return self.archive.storage(str(key), dtype, count)

    def _tensor(
        self, data: Storage, offset: int, size: Any, stride: Any, grad: Any, hooks: Any, *more: Any
    ) -> Tensor:
        if more and isinstance(more[0], torch.dtype):  # a newer type, in a storage without one
            data, more = data._replace(dtype=more[0]), more[1:]
        if any(more):
            raise ValueError("a tensor is a conjugate, or of another unknown kind")
        return self.archive.tensor(data, offset, size, stride)

    def load_build(self) -> None:
        state = self.stack.pop()
        one = self.stack[-1]
        if isinstance(one, Module):
            one.state = state
        elif not isinstance(one, OrderedDict):  # whose versions of modules are not needed
            raise ValueError("it sets attributes of what has none")

    dispatch[pickle.BUILD[0]] = load_build


def _first(value: Any, *_: Any) -> Any:
    return value


def _with_attributes(make: Any, kind: Any, values: Any, state: Any) -> Any:
    return make(*values)
