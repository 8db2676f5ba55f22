"""Calibrate an image tower and write the file that ships: float16 safetensors.

    python recipes/tiny/pack.py tiny --data packed --text runs/text/text.safetensors \\
        --image runs/tiny-0/image.safetensors --out src/adte/assets
    python recipes/tiny/pack.py tiny-longtail --data packed --image runs/lt-0/image.safetensors \\
        --out src/adte/assets

`tiny.safetensors` holds both towers; `tiny-longtail.safetensors` the image tower alone, since the
text tower is the same. The logit scale of `tiny` is the one with the least negative log-likelihood
on held-back images, each among the names of its set, the sets counting alike. `tiny-longtail` keeps
the scale that it learned, as CLIP does: it is there to be studied as it is.
"""

from __future__ import annotations

import argparse
import io
import json
import shutil
from pathlib import Path

import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from targets import index
from torch import Tensor

from adte.evaluate.running.metrics import ece
from adte.images import base_view
from adte.models.tiny import SHAPES, ImageTower, TextTower, Tiny
from evaluate import TEMPLATE


@torch.inference_mode()
def held_back(model: Tiny, data: Path, only: str | None) -> dict[str, tuple[Tensor, Tensor]]:
    """Cosines (N, names) and labels (N,) of each set's held-back images."""
    rows = index(data)
    sets = json.loads((data / "sets.json").read_text())
    tower = model.image_tower.fold()
    found = {}
    for number, (key, facts) in enumerate(sets.items()):
        mine = ((rows["set"] == number) & rows["held"] & rows["keep"]).nonzero()[0]
        if not facts["names"] or not len(mine) or (only and key != only):
            continue
        blob = (data / f"{key}.webp").read_bytes()
        views = []
        for i in mine:
            start = int(rows["offset"][i])
            with Image.open(io.BytesIO(blob[start : start + int(rows["size"][i])])) as image:
                views.append(base_view(image.convert("RGB"), model.preprocess))
        z = torch.cat([tower(x) for x in torch.stack(views).split(256)])
        text = model.encode_text([TEMPLATE.format(n) for n in facts["names"]])
        found[key] = z @ text.T, torch.from_numpy(rows["label"][mine]).long()
    return found


def best_scale(sets: dict[str, tuple[Tensor, Tensor]]) -> float:
    """The scale of least mean negative log-likelihood, by a fine search."""
    scales = torch.linspace(5, 80, 301)

    def loss(s: Tensor) -> float:
        parts = [torch.nn.functional.cross_entropy(s * c, y) for c, y in sets.values()]
        return float(torch.stack(parts).mean())

    return float(min(scales, key=loss))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", choices=list(SHAPES))
    parser.add_argument("--data", type=Path, required=True, help="the packed folder")
    parser.add_argument("--text", type=Path, required=True, help="train_text.py's weights")
    parser.add_argument("--image", type=Path, required=True, help="train_image.py's weights")
    parser.add_argument("--out", type=Path, required=True, help="the package's assets")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)

    image, text = load_file(args.image), load_file(args.text)
    learned = float(image.pop("logit_scale"))
    vocab = (args.data / "vocab.txt").read_text("utf-8").splitlines()
    model = Tiny(vocab, args.model)
    model.image_tower = ImageTower(**SHAPES[args.model])
    model.image_tower.load_state_dict(image)
    model.text_tower = TextTower(len(vocab))
    model.text_tower.load_state_dict({k: v.float() for k, v in text.items()})
    model.eval()
    sets = held_back(model, args.data, None if args.model == "tiny" else "tiny-imagenet")
    scale = best_scale(sets) if args.model == "tiny" else learned
    for key, (cosines, labels) in sets.items():
        p = (scale * cosines).softmax(1)
        right = p.argmax(1).eq(labels).float()
        print(f"{key}: {len(labels)} held back, {100 * right.mean():.1f} % right, "
              f"calibration error {100 * ece(p.max(1).values, right):.1f} %")  # fmt: skip
    print(f"logit scale {scale:.2f}; training's own was {learned:.2f}")

    state = {"logit_scale": torch.tensor(scale)}
    towers = {"image_tower": image} | ({"text_tower": text} if args.model == "tiny" else {})
    for prefix, tower in towers.items():
        for name, value in tower.items():
            half = value.half() if value.is_floating_point() else value
            if not torch.isfinite(half).all():
                raise SystemExit(f"{prefix}.{name} does not fit into float16")
            state[f"{prefix}.{name}"] = half
    save_file(state, args.out / f"{args.model}.safetensors")
    if args.model == "tiny":
        shutil.copyfile(args.data / "vocab.txt", args.out / "tiny-vocab.txt")
    else:
        shutil.copyfile(args.data / "tiny-classes.json", args.out / "tiny-classes.json")
    size = (args.out / f"{args.model}.safetensors").stat().st_size
    print(f"{len(state)} tensors, {size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
