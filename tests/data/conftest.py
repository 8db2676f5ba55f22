"""Miniatures: trees of tiny images in the shape of the real sets."""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

Plant = Callable[[Path, Iterable[str]], Path]


@pytest.fixture(scope="session")
def jpeg() -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.full((6, 8, 3), (200, 30, 30), np.uint8)).save(file, "JPEG")
    return file.getvalue()


@pytest.fixture(scope="session")
def plant(jpeg: bytes, tmp_path_factory: pytest.TempPathFactory) -> Plant:
    """Put a small image at each of the relative paths below a folder; other suffixes get text."""
    seed = tmp_path_factory.mktemp("seed") / "seed.jpg"
    seed.write_bytes(jpeg)

    def put(root: Path, paths: Iterable[str]) -> Path:
        made: set[Path] = set()
        for name in paths:
            path = root / name
            if path.parent not in made:
                path.parent.mkdir(parents=True, exist_ok=True)
                made.add(path.parent)
            if path.suffix.lower() in (".jpg", ".jpeg", ".png"):
                os.link(seed, path)
            else:
                path.write_text("not an image")
        return root

    return put


@pytest.fixture
def write() -> Callable[[Path, object], Path]:
    """Write text, or anything else as JSON, making folders on the way."""

    def put(path: Path, content: object) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    return put


@pytest.fixture(scope="session")
def pack() -> Callable[..., Path]:
    """Write a tar of these members, making folders on the way."""

    def put(path: Path, members: dict[str, bytes], mode: str = "w") -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(path, mode) as tar:
            for name, content in members.items():
                info = tarfile.TarInfo(name)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
        return path

    return put
