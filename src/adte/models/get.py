"""The weights of open_clip's models, brought to where `load_model` looks for them.

A tag of open_clip names an address, a repository of the Hugging Face hub, or both. A file of an
address, and a copy, goes to ~/.cache/clip, as open_clip does; the hub's own client fills its own
cache. Downloads go on where they stopped, and are checked where a checksum is published: OpenAI's
addresses carry it, those of open_clip's releases its beginning, and the hub names files by it.
"""

from __future__ import annotations

import os
import re
import shutil
import urllib.request
from pathlib import Path

from adte.core.errors import InputError, unknown
from adte.data.get import Progress, checks, fetch_file
from adte.data.registry import Download
from adte.files import make_folder
from adte.models._weights import RANDOM, fetch
from adte.models.openclip import Published, import_open_clip, published, unknown_model
from adte.models.tiny import SHAPES

__all__ = ["check_published", "checkpoint_of", "checksum", "get_model"]


def checkpoint_of(name: str) -> Published:
    """The published weights of a model of open_clip, "architecture/tag"."""
    if ":" in name or name in SHAPES:
        how = "is in the package" if name in SHAPES else "is fetched when it is first loaded"
        raise InputError(f"{name!r} {how}; models get is for names such as 'ViT-B-16/openai'")
    open_clip = import_open_clip()
    arch, _, tag = name.partition("/")
    if arch not in open_clip.list_models():
        raise unknown_model(name, open_clip)
    tags = open_clip.list_pretrained_tags_by_model(arch)
    if not tag and tags:
        raise InputError(
            f"{name!r} names an architecture; choose one of its weights, as in "
            f"'{arch}/{tags[0]}' (there are {', '.join(tags)})"
        )
    if not open_clip.pretrained.is_pretrained_cfg(arch, tag):
        raise unknown(f"tag of {arch!r}", tag, tags)
    wanted = published(open_clip.pretrained.get_pretrained_cfg(arch, tag), open_clip)
    if not wanted.url and not wanted.repo:
        raise InputError(f"open_clip gives no address for {name!r}; choose another tag")
    return wanted


def checksum(url: str) -> str:
    """The checksum that an address carries, as open_clip reads it; empty where it has none."""
    if not url:
        return ""
    parts = url.split("/")
    if re.fullmatch("[0-9a-f]{64}", parts[-2]):  # OpenAI's
        return f"sha256:{parts[-2]}"
    found = re.search(r"-([0-9a-f]{8,64})\.[a-z]+$", parts[-1])
    return f"sha256:{found[1]}" if found and "mlfoundations" in url else ""


def check_published(name: str, weights: str | None = None) -> Path:
    """The file that a model of open_clip is loaded from, if its SHA-256 is the published one."""
    wanted = checkpoint_of(name)
    path, wanted_sum = Path(weights) if weights else wanted.cached, checksum(wanted.url)
    if weights == RANDOM:
        raise InputError(f"{name} has random weights")
    if not wanted_sum or path is None or not path.is_file():
        raise InputError(
            f"{str(path or wanted.folder / wanted.files[0])!r} is not here to be compared with the "
            f"published file of {name}; `adte models get {name}` brings it"
        )
    if not checks(path, Download(path.name, wanted.url, None, wanted_sum)):
        raise InputError(f"the SHA-256 of {str(path)!r} is not the one published for {name}")
    return path


def get_model(
    name: str,
    source: str | None = None,
    to: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Path:
    """Bring the weights of a model to this machine; what is there already is kept.

    Args:
        name: of open_clip, such as "ViT-B-16/openai".
        source: the file itself, a folder that holds it, or the address of such a folder, where the
            published address cannot be reached.
        to: a file to write instead of the cache, for `weights=`.
        progress: called with a file's name, its bytes so far and its bytes in all.
    """
    wanted = checkpoint_of(name)
    if to is None:
        if source is None and not wanted.url:
            return _of_hub(wanted)
        return _bring(wanted, make_folder(wanted.folder), source, progress)
    target = Path(to)
    if target.is_dir() or not target.absolute().parent.is_dir():
        raise InputError(f"cannot write {str(to)!r}; give the name of a file in a folder")
    if target.exists():
        raise InputError(f"{str(to)!r} exists; give another name, or remove it first")
    part = make_folder(target.with_name(f".{target.name}.part"))  # a folder: downloads go on in it
    if source is None and not wanted.url:
        source = str(_of_hub(wanted))
    os.replace(_bring(wanted, part, source, progress), target)
    shutil.rmtree(part, ignore_errors=True)
    return target


def _of_hub(wanted: Published) -> Path:
    """The file in the hub's own cache, downloaded by its client, whose name is its checksum."""
    found = fetch(wanted.repo, wanted.on_hub)
    if found is None:
        raise InputError(
            f"the hub cannot be reached or has no {wanted}; fetch it elsewhere and give it with "
            "--from"
        )
    name = Path(found).resolve().name
    known = f"sha256:{name}" if re.fullmatch("[0-9a-f]{64}", name) else ""
    if not checks(Path(found), Download(name, None, None, known)):
        Path(found).resolve().unlink()
        raise InputError(
            f"{found!r} is not the published file (its sha256 differs); it was removed: run it "
            "again, or fetch the file from elsewhere"
        )
    return Path(found)


def _bring(wanted: Published, folder: Path, source: str | None, progress: Progress | None) -> Path:
    """One file in a folder: from its address, from another, or from this machine."""
    known = checksum(wanted.url)
    if source is None or "://" in source:
        for file in wanted.files:
            try:
                return fetch_file(Download(file, wanted.url, None, known), folder, progress, source)
            except InputError as error:
                problem = error
        raise InputError(f"{problem}, or give a copy with --from") from problem
    path = Path(source).expanduser()
    tried = [path / name for name in wanted.files] if path.is_dir() else [path]
    found = next((p for p in tried if p.is_file()), None)
    if found is None:
        raise InputError(
            f"{source!r} does not hold the weights ({' or '.join(wanted.files)}); give the file, "
            "or a folder or an address with it"
        )
    file = next((f for f in wanted.files if Path(f).suffix == found.suffix), wanted.files[-1])
    as_file = f"file://{urllib.request.pathname2url(str(found.absolute()))}"
    return fetch_file(Download(file, as_file, found.stat().st_size, known), folder, progress)
