"""`adte models get`: weights from a server on this machine, resumed, checked, where they belong."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from adte.cli import main
from adte.core.errors import InputError
from adte.models.get import checkpoint_of, checksum, get_model
from adte.models.openclip import _fetch, import_open_clip
from fileserver import CONTENT, Server, serving

SHA = hashlib.sha256(CONTENT).hexdigest()
COMMIT = "0123456789abcdef0123456789abcdef01234567"
REPO = "laion/CLIP-ViT-B-32-laion2B-s34B-b79K"
ON_HUB = "ViT-B-32/laion2b_s34b_b79k"


@pytest.fixture
def server() -> Iterator[Server]:
    with serving({}) as server:
        server.etag, server.commit = SHA, COMMIT
        yield server


@pytest.fixture(autouse=True)
def caches(monkeypatch, tmp_path, server) -> Path:
    """Caches of its own, and a hub of its own."""
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "ENDPOINT", server.url)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def published(monkeypatch, server) -> str:
    """A tag of ViT-B-16 whose address carries the checksum, as OpenAI's do."""
    tags = import_open_clip().pretrained._PRETRAINED["ViT-B-16"]
    monkeypatch.setitem(tags, "ours", {"url": f"{server.url}/{SHA}/ViT-B-16-ours.pt"})
    server.files[f"{SHA}/ViT-B-16-ours.pt"] = CONTENT
    return "ViT-B-16/ours"


def where_loaded(name: str) -> str:
    """What `load_model` reads for a name."""
    open_clip = import_open_clip()
    arch, _, tag = name.partition("/")
    return _fetch(name, open_clip.pretrained.get_pretrained_cfg(arch, tag), open_clip)


def test_what_open_clip_publishes():
    openai = checkpoint_of("ViT-B-16/openai")
    assert openai.url.startswith("https://openaipublic.azureedge.net/")
    assert checksum(openai.url) == f"sha256:{openai.url.split('/')[-2]}"
    assert checksum(checkpoint_of("ViT-B-16/laion400m_e32").url) == "sha256:55e67d44"
    hub = checkpoint_of(ON_HUB)
    assert (hub.repo, hub.url) == (REPO, "")
    assert hub.files == ("open_clip_model.safetensors", "open_clip_pytorch_model.bin")


def test_an_address_into_the_cache_of_open_clip(published, server, caches):
    seen: list[int] = []
    path = get_model(published, progress=lambda file, done, total: seen.append(done))
    assert path == caches / ".cache" / "clip" / "ViT-B-16-ours.pt"
    assert path.read_bytes() == CONTENT
    assert seen[-1] == len(CONTENT)
    assert where_loaded(published) == str(path)
    get_model(published)  # it is there already
    assert len(server.ranges) == 1


def test_an_interrupted_download_goes_on(published, server, caches):
    server.cut = 1 << 20
    with pytest.raises(InputError, match=r"run it again to go on, or give a copy with --from"):
        get_model(published)
    assert not (caches / ".cache" / "clip" / "ViT-B-16-ours.pt").exists()
    server.cut = None
    assert get_model(published).read_bytes() == CONTENT
    assert server.ranges == [None, f"bytes={1 << 20}-"]


def test_a_wrong_file_is_refused(published, server, caches):
    server.files[f"{SHA}/ViT-B-16-ours.pt"] = CONTENT[:-1] + b"x"
    with pytest.raises(InputError, match="is not the published file"):
        get_model(published)
    assert not list((caches / ".cache" / "clip").iterdir())


@pytest.mark.parametrize("kind", ["file", "folder", "address"])
def test_an_offline_copy(kind, published, server, caches):
    folder = caches / "copies"
    folder.mkdir()
    (folder / "ViT-B-16-ours.pt").write_bytes(CONTENT)
    server.files = {"mirror/ViT-B-16-ours.pt": CONTENT}
    source = {"file": str(folder / "ViT-B-16-ours.pt"), "folder": str(folder),
              "address": f"{server.url}/mirror"}[kind]  # fmt: skip
    path = get_model(published, source)
    assert path.read_bytes() == CONTENT
    assert where_loaded(published) == str(path)
    assert (folder / "ViT-B-16-ours.pt").read_bytes() == CONTENT


def test_to_a_file(published, caches):
    path = get_model(published, to="mine.pt")
    assert path.read_bytes() == CONTENT
    assert [p.name for p in caches.iterdir()] == ["mine.pt"]
    with pytest.raises(InputError, match=r"'mine.pt' exists"):
        get_model(published, to="mine.pt")


def test_a_repository_of_the_hub(server, caches, monkeypatch):
    """By the hub's own client, into the hub's own cache; checked by the name it keeps it under."""
    import huggingface_hub.constants as constants

    server.files[f"{REPO}/resolve/main/open_clip_pytorch_model.bin"] = CONTENT
    with pytest.raises(InputError, match=r"the hub cannot be reached or has no open_clip_model"):
        get_model(ON_HUB)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    place = server.url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", place)
    path = get_model(ON_HUB)
    assert path.read_bytes() == CONTENT
    assert where_loaded(ON_HUB) == str(path)
    server.files.clear()
    assert get_model(ON_HUB) == path
    assert get_model(ON_HUB, to="mine.bin").read_bytes() == CONTENT
    path.resolve().write_bytes(CONTENT[:-1] + b"x")
    with pytest.raises(InputError, match=r"is not the published file .*it was removed: run it"):
        get_model(ON_HUB)


@pytest.mark.parametrize("to", [None, "mine.bin"])
@pytest.mark.parametrize("kind", ["folder", "address"])
def test_a_copy_of_a_hub_file(kind, to, server, caches):
    (caches / "open_clip_pytorch_model.bin").write_bytes(CONTENT)
    server.files = {"mirror/open_clip_pytorch_model.bin": CONTENT}
    source = str(caches) if kind == "folder" else f"{server.url}/mirror"
    path = get_model(ON_HUB, source, to)
    assert path.read_bytes() == CONTENT
    if to is None:
        assert where_loaded(ON_HUB) == str(path)


def test_the_command(published, caches):
    result = CliRunner().invoke(main, ["models", "get", published])
    assert result.exit_code == 0, result.output
    assert f"--model {published}" in result.output
    assert str(caches / ".cache" / "clip" / "ViT-B-16-ours.pt") in result.output
    listed = CliRunner().invoke(main, ["models", "ViT-B-16/op*"])
    assert listed.output == "ViT-B-16/openai\n"
    both = [CliRunner().invoke(main, ["models", *args]).output for args in ((), ("list",))]
    assert both[0] == both[1] != ""
    assert "those that open_clip publishes" in " ".join(
        CliRunner().invoke(main, ["models", "get", "--help"]).output.split()
    )
