"""Join both towers into the file that ships: float16 safetensors.

    python recipes/tiny/pack.py --data packed --text runs/text/text.safetensors \\
        --image runs/0/image.safetensors --out src/adte/assets
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="prepare.py's folder")
    parser.add_argument("--text", type=Path, required=True, help="train_text.py's weights")
    parser.add_argument("--image", type=Path, required=True, help="train_image.py's weights")
    parser.add_argument("--out", type=Path, required=True, help="the package's assets")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)

    image = load_file(args.image)
    state = {"logit_scale": image.pop("logit_scale").float()}
    for prefix, tower in (("image_tower", image), ("text_tower", load_file(args.text))):
        for name, value in tower.items():
            half = value.half() if value.is_floating_point() else value
            if not torch.isfinite(half).all():
                raise SystemExit(f"{prefix}.{name} does not fit into float16")
            state[f"{prefix}.{name}"] = half
    save_file(state, args.out / "tiny.safetensors")
    shutil.copyfile(args.data / "vocab.txt", args.out / "tiny-vocab.txt")
    shutil.copyfile(args.data / "tiny-classes.json", args.out / "tiny-classes.json")
    size = (args.out / "tiny.safetensors").stat().st_size
    print(f"{len(state)} tensors, {size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
