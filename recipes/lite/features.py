"""What the image tower sees of training images, kept: the tower never changes.

    python recipes/lite/features.py --data packed tiny-imagenet caltech101 pets …

`features-SET.safetensors`: the rows of `images.npz` that were drawn, the features
of whole crops (N, K, 1280), the first of them the base view, and of the same images reduced to 24
to 96 pixels before (N, R, 1280). A set that is there is passed over.
"""

from __future__ import annotations

import argparse
import io
import json
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor

from adte.models.lite import SIZE, ImageTower, published

SIDES = (24, 32, 32, 48, 64, 96)  # of reduced images; CIFAR's size twice as often
MOST = {"tiny-imagenet": 4000, "caltech101": 1000}
ELSE = 800


def crop(x: Tensor, box: Tensor, size: int, mirror: Tensor) -> Tensor:
    """Crops (N, 3, size, size) in −1…1 of images (N, 3, S, S) in 0…255; boxes lie in −1…1."""
    theta = box.new_zeros(len(x), 2, 3)
    theta[:, 0, 0], theta[:, 1, 1] = box[:, 2] * mirror, box[:, 3]
    theta[:, :, 2] = box[:, :2]
    grid = F.affine_grid(theta, [len(x), 3, size, size], align_corners=False)
    x = F.grid_sample(x, grid, mode="bicubic", padding_mode="reflection", align_corners=False)
    return (x.clamp(0, 255) - 127) / 128


def boxes(count: int, smallest: float, rng: torch.Generator) -> Tensor:
    """Centres and half sides (N, 4) of random crops."""
    area = torch.rand(count, generator=rng) * (1 - smallest) + smallest
    aspect = (torch.rand(count, generator=rng) * 0.56 - 0.28).exp()
    w, h = ((area * aspect).sqrt().clamp(max=1), (area / aspect).sqrt().clamp(max=1))
    x, y = torch.rand(2, count, generator=rng) * 2 - 1
    return torch.stack([x * (1 - w), y * (1 - h), w, h], -1)


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sets", nargs="+", help="sets of pack_images.py")
    parser.add_argument("--data", type=Path, required=True, help="pack_images.py's folder")
    parser.add_argument("--most", type=int, help="images of each set, at most")
    parser.add_argument("--whole", type=int, default=2, help="crops of each image")
    parser.add_argument("--reduced", type=int, default=2, help="and by way of a few pixels")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    state = published()
    tower = ImageTower()
    tower.load_state_dict({k[12:]: v for k, v in state.items() if k.startswith("image_tower.")})
    tower.to(args.device, memory_format=torch.channels_last).eval()
    rows = dict(np.load(args.data / "images.npz"))
    facts = json.loads((args.data / "sets.json").read_text())
    blob = np.memmap(args.data / "images.bin", mode="r")
    base, size = torch.tensor([0, 0, 0.875, 0.875]), SIZE
    for name in args.sets:
        out = args.data / f"features-{name}.safetensors"
        if out.exists():
            continue
        began = time.time()
        number = list(facts).index(name)
        mine = np.flatnonzero((rows["set"] == number) & rows["keep"])
        most = args.most or MOST.get(name, ELSE)
        mine = np.sort(np.random.default_rng(args.seed).permutation(mine)[:most])
        rng = torch.Generator().manual_seed(args.seed)
        parts: dict[str, list[Tensor]] = {"whole": [], "reduced": []}
        for chunk in np.array_split(mine, -(-len(mine) // args.batch)):
            pieces = (
                blob[o : o + n].tobytes()
                for o, n in zip(rows["offset"][chunk], rows["size"][chunk], strict=True)
            )
            x = np.stack([np.asarray(Image.open(io.BytesIO(p)).convert("RGB")) for p in pieces])
            x = torch.from_numpy(x).to(args.device).permute(0, 3, 1, 2).float()
            for kind, count in (("whole", args.whole), ("reduced", args.reduced)):
                seen = []
                for k in range(count):
                    pixels = x
                    if kind == "reduced":
                        sides = [s for s in SIDES if s < x.shape[-1]]
                        side = sides[int(torch.randint(len(sides), (), generator=rng))]
                        small = F.interpolate(x, size=side, mode="bicubic", antialias=True)
                        pixels = F.interpolate(small, size=x.shape[-1], mode="bicubic").clamp(
                            0, 255
                        )
                    box = boxes(len(x), 0.2, rng) if k else base.expand(len(x), 4)
                    mirror = 1 - 2.0 * torch.randint(2, (len(x),), generator=rng) * (k > 0)
                    pixels = crop(pixels, box.to(args.device), size, mirror.to(args.device))
                    seen.append(tower(pixels).half().cpu())
                parts[kind].append(torch.stack(seen, 1))
        found = {k: torch.cat(v) for k, v in parts.items() if v}
        save_file(found | {"rows": torch.from_numpy(mine)}, out)
        print(f"{name}: {len(mine)} images, {time.time() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
