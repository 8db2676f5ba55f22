"""The weights of open_clip's models, brought to where `load_model` looks for them.

A tag of open_clip names an address, a repository of the Hugging Face hub, or both. An address is
kept in ~/.cache/clip, as open_clip does; a file of a repository in the hub's own cache. Downloads
go on where they stopped, and are checked where a checksum is published: OpenAI's addresses carry
it, those of open_clip's releases its beginning, and the hub tells it.
"""

from __future__ import annotations

import os
import re
import shutil
import urllib.error
import urllib.request
from dataclasses import dataclass
from hashlib import sha1
from pathlib import Path
from typing import Any

from adte.core.errors import InputError, unknown
from adte.data.get import Progress, checks, fetch_file
from adte.data.registry import Download
from adte.files import make_folder, write_whole
from adte.models._weights import RANDOM, import_hub
from adte.models.openclip import CACHE, import_open_clip, published, unknown_model
from adte.models.tiny import SHAPES

__all__ = ["Wanted", "check_published", "checkpoint_of", "get_model"]


@dataclass(frozen=True)
class Wanted:
    """Where the weights of a model lie.

    Attributes:
        files: names, the first that is there is taken.
        url: of the only file, or empty: then `repo` is a repository of the hub.
        checksum: as in "sha256:…", or its beginning; empty where none is known.
    """

    name: str
    files: tuple[str, ...]
    url: str = ""
    repo: str = ""
    checksum: str = ""


def checkpoint_of(name: str) -> Wanted:
    """What has to be fetched for a model of open_clip, "architecture/tag"."""
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
    facts = open_clip.pretrained.get_pretrained_cfg(arch, tag)
    url, repo, files = published(facts, open_clip)
    if url:
        return Wanted(name, (Path(url).name,), url, checksum=_checksum(url))
    if not repo:
        raise InputError(f"open_clip gives no address for {name!r}; choose another tag")
    return Wanted(name, files, repo=repo)


def _checksum(url: str) -> str:
    """The checksum that an address carries, as open_clip reads it."""
    parts = url.split("/")
    if re.fullmatch("[0-9a-f]{64}", parts[-2]):  # OpenAI's
        return f"sha256:{parts[-2]}"
    found = re.search(r"-([0-9a-f]{8,64})\.[a-z]+$", parts[-1])
    return f"sha256:{found[1]}" if found and "mlfoundations" in url else ""


def check_published(name: str, weights: str | None = None) -> Path:
    """The file that a model of open_clip is loaded from, if its SHA-256 is the published one."""
    wanted = checkpoint_of(name)
    path = Path(weights) if weights else Path(CACHE).expanduser() / wanted.files[0]
    if weights == RANDOM:
        raise InputError(f"{name} has random weights")
    if not wanted.checksum or not path.is_file():
        raise InputError(
            f"{str(path)!r} is not here to be compared with the published file of {name}; "
            f"`adte models get {name}` brings it"
        )
    if not checks(path, Download(path.name, wanted.url, None, wanted.checksum)):
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
    if to is not None:
        return _to_file(wanted, source, Path(to), progress)
    if not wanted.repo:
        folder = make_folder(Path(CACHE).expanduser())
        return _bring(wanted, wanted.files[0], wanted.checksum, folder, source, progress)
    return _to_hub(wanted, source, progress)


def _to_file(wanted: Wanted, source: str | None, to: Path, progress: Progress | None) -> Path:
    if to.is_dir() or not to.absolute().parent.is_dir():
        raise InputError(f"cannot write {str(to)!r}; give the name of a file in a folder")
    if to.exists():
        raise InputError(f"{str(to)!r} exists; give another name, or remove it first")
    file, checksum = wanted.files[0], wanted.checksum
    if wanted.repo and (source is None or "://" in source):
        file, checksum, _ = _on_hub(wanted, source)
    elif wanted.repo:
        file = _local(wanted, str(source)).name
    part = make_folder(to.with_name(f".{to.name}.part"))  # a folder, so that it can be gone on from
    found = _bring(wanted, file, checksum, part, source, progress)
    os.replace(found, to)
    shutil.rmtree(part, ignore_errors=True)
    return to


def _bring(
    wanted: Wanted,
    file: str,
    checksum: str,
    folder: Path,
    source: str | None,
    progress: Progress | None,
) -> Path:
    """One file in a folder: from its address, from another, or from this machine."""
    if source is None or "://" in source:
        url = wanted.url or f"{_endpoint()}/{wanted.repo}/resolve/main/{file}"
        try:
            return fetch_file(Download(file, url, None, checksum), folder, progress, source)
        except InputError as error:
            raise InputError(f"{error}, or give a copy with --from") from error
    found = _local(wanted, source)
    as_file = f"file://{urllib.request.pathname2url(str(found.absolute()))}"
    return fetch_file(Download(file, as_file, found.stat().st_size, checksum), folder, progress)


def _local(wanted: Wanted, source: str) -> Path:
    """A copy on this machine: the file itself, or one of the names in a folder."""
    path = Path(source).expanduser()
    tried = [path / name for name in wanted.files] if path.is_dir() else [path]
    found = next((p for p in tried if p.is_file()), None)
    if found is None:
        raise InputError(
            f"{source!r} does not hold the weights of {wanted.name} "
            f"({' or '.join(wanted.files)}); give the file, or a folder or an address with it"
        )
    return found


# --------------------------------------------------------------------------- the hub


def _endpoint() -> str:
    return str(import_hub().constants.ENDPOINT).rstrip("/")


class _Stay(urllib.request.HTTPRedirectHandler):
    """The hub tells of a file in the answer that leads elsewhere."""

    def redirect_request(self, *args: Any, **more: Any) -> None:
        return None


def _on_hub(wanted: Wanted, mirror: str | None) -> tuple[str, str, str]:
    """The first file that is there, its checksum and its revision, where the hub tells them."""
    base = mirror or f"{_endpoint()}/{wanted.repo}/resolve/main"
    opener = urllib.request.build_opener(_Stay)
    for file in wanted.files:
        request = urllib.request.Request(f"{base.rstrip('/')}/{file}", method="HEAD")
        try:
            with opener.open(request, timeout=60) as answer:
                headers = answer.headers
        except urllib.error.HTTPError as error:
            error.close()
            if error.code >= 400:
                continue
            headers = error.headers
        except (OSError, ValueError) as error:
            raise InputError(
                f"{base} cannot be reached ({error}); fetch {' or '.join(wanted.files)} "
                "elsewhere and give it with --from"
            ) from error
        etag = (headers.get("X-Linked-Etag") or "").strip('W/"')
        checksum = f"sha256:{etag}" if re.fullmatch("[0-9a-f]{64}", etag) else ""
        return file, checksum, headers.get("X-Repo-Commit") or ""
    raise InputError(f"{base} has neither {' nor '.join(wanted.files)}; give another address")


def _to_hub(wanted: Wanted, source: str | None, progress: Progress | None) -> Path:
    """Into the hub's cache: blobs/NAME, and a link to it in snapshots/REVISION."""
    hub = import_hub()
    for file in wanted.files:
        there = hub.try_to_load_from_cache(wanted.repo, file)
        if isinstance(there, str):
            return Path(there)
    checksum = revision = ""
    if source is None or "://" in source:
        file, checksum, revision = _on_hub(wanted, source)
    else:
        kind = _local(wanted, source).suffix
        file = next((f for f in wanted.files if Path(f).suffix == kind), wanted.files[-1])
    folder = Path(hub.constants.HF_HUB_CACHE) / f"models--{wanted.repo.replace('/', '--')}"
    refs, blobs = folder / "refs" / "main", make_folder(folder / "blobs")
    found = _bring(wanted, file, checksum, blobs, source, progress)
    if refs.is_file():
        revision = refs.read_text().strip()
    else:
        revision = revision or sha1(found.name.encode(), usedforsecurity=False).hexdigest()
    link = make_folder(folder / "snapshots" / revision) / file
    part = link.with_name(f".{file}.{os.getpid()}.part")
    part.unlink(missing_ok=True)
    try:
        os.symlink(os.path.relpath(found, link.parent), part)
    except OSError:  # a system without links
        shutil.copyfile(found, part)
    os.replace(part, link)  # over a link to what is gone, too
    make_folder(refs.parent)
    write_whole(refs, revision)
    return link
