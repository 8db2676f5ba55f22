"""Compute once what does not change while an image tower trains.

    python recipes/tiny/targets.py pixels texts teachers --data packed --out targets

- `pixels`: every packed image decoded, squares of 64 and of 96 (`pixels-64.npy`, `pixels-96.npy`);
- `texts`: embeddings of every class name and every noun of WordNet above ImageNet's, in all
  templates (`texts.pt`);
- `teachers`: the mean of two ImageNet classifiers' probabilities, softened, for a few fixed crops
  of every image (`teachers.npy`). Training shows the same crops, mirrored and recoloured.

Needs torchvision and pillow; a GPU for the teachers.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import load_file
from templates import EVALUATION, TEMPLATES
from torch import Tensor, nn

from adte.models._torchvision import import_torchvision
from adte.models.tiny import TextTower, Tokenizer

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SHOWN = TEMPLATES[::2]  # half of the captions are enough
assert SHOWN[0] == EVALUATION
LEMMAS = 3  # of a noun of WordNet


def index(data: Path) -> dict[str, np.ndarray]:
    """The columns of `images.npz`, with the place of every image among those of its side."""
    rows = dict(np.load(data / "images.npz"))
    place = np.zeros(len(rows["side"]), np.int64)
    for side in (64, 96):
        mine = rows["side"] == side
        place[mine] = np.arange(mine.sum())
    return rows | {"place": place}


def decode(data: Path, out: Path, workers: int) -> None:
    rows = index(data)
    for side in (64, 96):
        chosen = np.flatnonzero(rows["side"] == side)
        shape = len(chosen), side, side, 3
        np.lib.format.open_memmap(out / f"pixels-{side}.npy", "w+", np.uint8, shape).flush()
        parts = np.array_split(chosen, 4 * workers)
        with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
            list(pool.map(_decode, *zip(*[(data, out, side, part) for part in parts], strict=True)))


def _decode(data: Path, out: Path, side: int, chosen: np.ndarray) -> None:
    rows, keys = index(data), list(json.loads((data / "sets.json").read_text()))
    pixels = np.load(out / f"pixels-{side}.npy", mmap_mode="r+")
    files = {}
    for i in chosen.tolist():
        key = keys[int(rows["set"][i])]
        file = files.setdefault(key, np.memmap(data / f"{key}.webp", mode="r"))
        start = int(rows["offset"][i])
        with Image.open(io.BytesIO(file[start : start + int(rows["size"][i])].tobytes())) as image:
            pixels[rows["place"][i]] = np.asarray(image.convert("RGB"))
    pixels.flush()


def boxes(images: int, crops: int, smallest: float, seed: int = 0) -> Tensor:
    """Centres and half sides (N, K, 4) of random crops, in −1…1; the first shows nearly all."""
    rng = torch.Generator().manual_seed(seed)

    def uniform(low: float, high: float) -> Tensor:
        return torch.rand(images, crops, generator=rng) * (high - low) + low

    area = uniform(smallest, 1)
    area[:, 0] = 0.7 + 0.3 * area[:, 0]
    aspect = uniform(math.log(3 / 4), math.log(4 / 3)).exp()
    w, h = ((area * aspect).sqrt().clamp(max=1), (area / aspect).sqrt().clamp(max=1))
    return torch.stack([uniform(-1, 1) * (1 - w), uniform(-1, 1) * (1 - h), w, h], -1)


def render(x: Tensor, box: Tensor, size: int, mirror: Tensor | None = None) -> Tensor:
    """Crops (N, 3, size, size) in 0…1 of uint8 images (N, S, S, 3)."""
    theta = box.new_zeros(len(x), 2, 3)
    theta[:, 0, 0] = box[:, 2] if mirror is None else box[:, 2] * mirror
    theta[:, 1, 1] = box[:, 3]
    theta[:, :, 2] = box[:, :2]
    grid = F.affine_grid(theta, [len(x), 3, size, size], align_corners=False)
    x = x.permute(0, 3, 1, 2).float().div_(255)
    return F.grid_sample(x, grid, padding_mode="reflection", align_corners=False)


class Teachers(nn.Module):
    """The mean of two ImageNet classifiers' softened probabilities."""

    def __init__(self, data: Path, temperature: float) -> None:
        super().__init__()
        import_torchvision()  # one that was built for another torch imports all the same
        from torchvision.models import mobilenet_v2, resnet18

        self.temperature = temperature
        self.nets = nn.ModuleList([mobilenet_v2(), resnet18()])
        for net, file in zip(self.nets, ("mobilenet", "resnet"), strict=True):
            net.load_state_dict(load_file(data / f"{file}.safetensors"))
        self.register_buffer("mean", torch.tensor(MEAN).view(3, 1, 1))
        self.register_buffer("std", torch.tensor(STD).view(3, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = ((x - self.mean) / self.std).contiguous(memory_format=torch.channels_last)
        return sum((n(x).float() / self.temperature).softmax(-1) for n in self.nets) / 2


@torch.inference_mode()
def teach(args: argparse.Namespace) -> None:
    device = args.device
    rows = index(args.data)
    teachers = Teachers(args.data, args.temperature).eval()
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    teachers.to(device, dtype=dtype, memory_format=torch.channels_last)
    torch.backends.cudnn.benchmark = True
    images = len(rows["side"])
    where = boxes(images, args.crops, args.smallest).to(device)
    torch.save(where.cpu(), args.out / "boxes.pt")
    out = torch.empty(images, args.crops, 1000, dtype=torch.float16, device=device)
    for side in (64, 96):
        pixels = torch.from_numpy(np.load(args.out / f"pixels-{side}.npy")).to(device)
        chosen = torch.from_numpy(np.flatnonzero(rows["side"] == side)).to(device)
        for k in range(args.crops):
            for at, i in zip(
                torch.arange(len(chosen), device=device).split(args.batch),
                chosen.split(args.batch), strict=True,
            ):  # fmt: skip
                x = render(pixels[at], where[i, k], args.size)
                out[i, k] = teachers(x.to(dtype)).half()
    np.save(args.out / "teachers.npy", out.cpu().numpy())


@torch.inference_mode()
def texts(args: argparse.Namespace) -> None:
    vocab = args.vocab.read_text("utf-8").splitlines()
    tower = TextTower(len(vocab))
    tower.load_state_dict({k: v.float() for k, v in load_file(args.text).items()})
    tower.to(args.device).eval()
    classes = json.loads((args.data / "classes.json").read_text())
    sets = json.loads((args.data / "sets.json").read_text())
    lemmas = [(row * LEMMAS)[:LEMMAS] for row in classes["lemmas"]]  # repeated where there are few
    lemmas += [[name] * LEMMAS for name in classes["names"]]
    groups = {key: facts["names"] for key, facts in sets.items()}
    groups["nouns"] = [lemma for row in lemmas for lemma in row]
    names = [n for group in groups.values() for n in group]
    tokenizer, rows = Tokenizer(vocab), []
    for template in SHOWN:
        ids, lengths = tokenizer([template.format(n) for n in names])
        parts = zip(ids.split(2048), lengths.split(2048), strict=True)
        rows.append(torch.cat([tower(i.to(args.device), n.to(args.device)) for i, n in parts]))
    z = torch.stack(rows).float().cpu()  # (templates, names, D)
    split = dict(zip(groups, z.split([len(g) for g in groups.values()], 1), strict=True))
    split["nouns"] = split["nouns"].unflatten(1, (-1, LEMMAS))
    torch.save({k: v.clone() for k, v in split.items()}, args.out / "texts.pt")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="+", choices=["pixels", "texts", "teachers"])
    parser.add_argument("--data", type=Path, required=True, help="the packed folder")
    parser.add_argument("--text", type=Path, help="train_text.py's weights")
    parser.add_argument("--vocab", type=Path, help="the text tower's word pieces")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--crops", type=int, default=5, help="fixed crops per image")
    parser.add_argument("--smallest", type=float, default=0.2, help="smallest crop, of the area")
    parser.add_argument("--size", type=int, default=160, help="pixels that the teachers see")
    parser.add_argument("--temperature", type=float, default=1.5)
    parser.add_argument("--batch", type=int, default=2048)
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for what in args.what:
        began = time.time()
        if what == "pixels":
            decode(args.data, args.out, args.workers)
        elif what == "texts":
            texts(args)
        else:
            teach(args)
        print(f"{what}: {time.time() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
