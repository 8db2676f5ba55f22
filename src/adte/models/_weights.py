"""Weights from a file or a hub: read safely, looked for on disk first, checked before use."""

from __future__ import annotations

import os
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from hashlib import blake2b
from pathlib import Path
from tarfile import is_tarfile
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from adte.core.errors import InputError
from adte.models._archive import MoreThanTensors, read_archive
from adte.models._torchvision import import_late

__all__ = [
    "fetch", "fingerprint", "hub_reachable", "import_hub", "load_checked", "local_first",
    "not_here", "read_checkpoint",
]  # fmt: skip

T = TypeVar("T")

RANDOM = "random"
SAMPLED = 1024  # values of a tensor that its fingerprint sees, up to twice as many
_PATIENCE = 3.0  # seconds to wait for a hub before it counts as out of reach


def read_checkpoint(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """The tensors of a safetensors file, of a PyTorch checkpoint or of a TorchScript archive.

    No file runs code: zips, such as TorchScript archives and hence OpenAI's own CLIP files, are
    read by `read_archive`, and what torch wrote before it wrote zips with `weights_only`.
    """
    file = Path(path)
    if not file.is_file():
        raise InputError(f"the checkpoint {str(path)!r} does not exist; check the path")
    try:
        if file.suffix == ".safetensors":
            from safetensors.torch import load_file

            state: Any = load_file(file)
        elif _is_zip(file):
            state = read_archive(file)
        elif is_tarfile(file):  # of which torch before 2.6 runs code
            raise ValueError("it is a tar")
        else:
            state = torch.load(file, map_location="cpu", weights_only=True)
    except InputError:
        raise
    except MoreThanTensors as error:
        raise InputError(
            f"{str(path)!r} holds more than tensors ({error}), such as a whole model, which could "
            "run code; save its tensors alone: torch.save(model.state_dict(), FILE)"
        ) from error
    except Exception as error:  # the formats raise half a dozen kinds
        reason = str(error).split("\n")[0]
        raise InputError(
            f"{str(path)!r} is not a checkpoint or is damaged ({reason}); download it again"
        ) from error
    for key in ("state_dict", "model", "model_state_dict"):
        if isinstance(state, Mapping) and isinstance(state.get(key), Mapping):
            state = state[key]
    if not isinstance(state, Mapping) or not state:
        raise InputError(f"{str(path)!r} holds no named tensors; give a checkpoint of a model")
    tensors = {str(k): v for k, v in state.items() if isinstance(v, Tensor)}
    for prefix in ("module.", "_orig_mod.", "module."):  # data-parallel and torch.compile's, nested
        if all(k.startswith(prefix) for k in tensors):
            tensors = {k.removeprefix(prefix): v for k, v in tensors.items()}
    return tensors


def _is_zip(path: Path) -> bool:
    """As torch looks at it."""
    with path.open("rb") as file:
        return file.read(4) == b"PK\3\4"


def load_checked(module: nn.Module, state: Mapping[str, Tensor], source: str) -> None:
    """Load tensors into a module; the first that does not fit is named with both shapes."""
    ours = {k: tuple(v.shape) for k, v in module.state_dict().items()}
    theirs = {k: tuple(v.shape) for k, v in state.items()}
    wrong = next((k for k in ours if k in theirs and ours[k] != theirs[k]), None)
    wrong = wrong or next((k for k in ours if k not in theirs), None)
    wrong = wrong or next((k for k in theirs if k not in ours), None)
    if wrong is not None:
        there, here = (
            f"has shape {shapes[wrong]}" if wrong in shapes else "is absent"
            for shapes in (theirs, ours)
        )
        raise InputError(
            f"{source} is a checkpoint of another architecture: tensor {wrong!r} {there} in the "
            f"file and {here} in the model; name the architecture it was made with"
        )
    module.load_state_dict(dict(state))


def hub_reachable(url: str | None = None) -> bool:
    """Whether the hub, or the host of `url`, answers within a few seconds."""
    hub = import_hub()
    if hub.constants.HF_HUB_OFFLINE:
        return False
    request = urllib.request.Request(url or hub.constants.ENDPOINT, method="HEAD")
    try:
        with urllib.request.urlopen(request, timeout=_PATIENCE):  # nosec B310  # nothing is read
            return True
    except urllib.error.HTTPError:
        return True  # it answered
    except (OSError, ValueError):
        return False


def import_hub() -> Any:
    """The package huggingface_hub, or the sentence that says how to install it."""
    return import_late("huggingface_hub", "huggingface_hub", "hf", "loading weights from a hub")


def fetch(repo: str, names: Iterable[str]) -> str | None:
    """The first of the named files of a hub repository, from the local cache if it is there.

    None when it is not cached and the hub is out of reach or does not have it.
    """
    hub, names = import_hub(), list(names)
    for name in names:
        if isinstance(path := hub.try_to_load_from_cache(repo, name), str):
            return path
    if not hub_reachable():
        return None
    for name in names:
        try:
            return str(hub.hf_hub_download(repo, name))
        except hub.errors.EntryNotFoundError:
            continue
        except (OSError, hub.errors.HfHubHTTPError):
            return None
    return None


def local_first(load: Callable[..., T], where: str, file: str) -> T:
    """Load from a folder or the hub's cache; ask the hub only where that fails and it answers.

    By transformers' own code, never by code that comes with a model.
    """
    for local in (True, False):
        if not local and not hub_reachable():
            break
        try:
            return load(where, local_files_only=local, trust_remote_code=False)
        except InputError:
            raise
        except (OSError, ValueError) as error:
            reason = str(error).splitlines()[0]
            if Path(where).is_dir():
                raise InputError(
                    f"the folder {where!r} lacks a readable {file} ({reason}); copy the whole "
                    "model into it"
                ) from error
            if not local:
                raise InputError(
                    f"the hub has no model {where!r} that can be loaded ({reason}); check the id"
                ) from error
    raise InputError(
        f"the model {where!r} is not on this machine and the hub cannot be reached; download "
        "that repository elsewhere, put its files into a folder and load 'hf:THAT_FOLDER'"
    )


def not_here(name: str, wanted: object, more: str = "") -> InputError:
    """The error for weights that neither a cache nor a hub has."""
    return InputError(
        f"the weights of {name} are not on this machine and cannot be downloaded; get {wanted} "
        f"elsewhere and pass weights=FILE (--weights FILE on the command line){more}"
    )


def fingerprint(module: nn.Module) -> str:
    """Tells two sets of weights apart: a digest of names, shapes and about 1024 values per tensor.

    Values are rounded to bfloat16, so that copies of a model in float32, float64 and bfloat16, and
    on any device, agree.
    """
    digest = blake2b(digest_size=8)
    for name, tensor in sorted(module.state_dict().items()):
        if not isinstance(tensor, torch.Tensor):  # how a module is quantised
            digest.update(f"{name}={tensor!r};".encode())
            continue
        digest.update(f"{name}:{tuple(tensor.shape)};".encode())
        if tensor.is_meta:
            continue
        flat = tensor.detach().flatten()
        some = flat[:: max(1, flat.numel() // SAMPLED) | 1].cpu()  # an odd step meets every column
        if some.is_floating_point():
            # NaN has many forms, and a cast may take one for another.
            some = some.float().nan_to_num(0.0, float("inf"), -float("inf"))
            some = some.to(torch.bfloat16).view(torch.int16)
        digest.update(some.to(torch.int64).numpy().tobytes())
    return digest.hexdigest()
