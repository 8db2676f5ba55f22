"""Write the two small bundles beside the replay bundle: shifted photographs, and a second seed.

    python recipes/tiny/shifts.py --data tiny-imagenet-200 --image-2 seed-2/image.safetensors

- `assets/shifts`: 120 of the bundle's photographs, three of each of 40 classes (every fifth by
  training frequency), clean and under 15 corruptions, 16 views each, in a label space of those 40.
- `assets/second`: the same clean photographs through the image tower of another training seed.

Features only, no image. `adte paper` uses them for the studies of shifts and of other backbones.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import numpy as np
import torch
from bundle import IDS, model_with, photographs, write

from adte import Views
from adte.data import Dataset, corrupted, make_stream
from adte.evaluate.features.live import Live
from adte.models.prompts import Prompts, class_weights
from adte.models.tiny import tiny_classes

BLURS = ("defocus_blur", "glass_blur", "motion_blur")
OTHERS = ("brightness", "elastic_transform", "gaussian_blur", "impulse_noise", "shot_noise",
          "speckle_noise")  # fmt: skip


def some_classes(data: Dataset) -> Dataset:
    """Three photographs of every fifth class by training frequency; only those classes."""
    order = sorted(tiny_classes(), key=lambda c: -int(str(c["count"])))
    kept = sorted(str(c["wnid"]) for c in order[::5])
    old = [data.class_ids.index(w) for w in kept]
    chosen = np.concatenate([np.flatnonzero(data.labels == i)[:3] for i in old])
    return replace(
        data,
        classes=[data.classes[i] for i in old],
        class_ids=kept,
        sources=[data.sources[int(i)] for i in chosen],
        labels=np.repeat(np.arange(len(kept)), 3),
        ids=[data.ids[int(i)] for i in chosen],
        domains=["clean"] * len(chosen),
        split="three photographs of each of 40 classes of the replay bundle",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True, help="the unpacked tiny-imagenet-200 folder")
    parser.add_argument("--image-2", help="a second seed's image tower, from train_image.py")
    parser.add_argument("--out", default="src/adte/assets")
    args = parser.parse_args()
    torch.set_num_threads(1)
    clean = some_classes(photographs(args.data, set(IDS.read_text("utf-8").split())))
    shifts = [corrupted(clean, kind, level) for kind in BLURS for level in (1, 3, 5)]
    shifts += [corrupted(clean, kind, 3) for kind in OTHERS]
    prompts = Prompts.of("single")
    for name, sets, image in (
        ("shifts", [clean, *shifts], None),
        ("second", [clean], args.image_2),
    ):
        if name == "second" and image is None:
            continue
        model = model_with(image)
        live = Live(
            model=model,
            class_weights=class_weights(model, clean.classes, prompts),
            stream=make_stream(sets, order="shuffled", seed=0),
            views=Views(count=16),
            prompts=prompts.describe(),
        )
        write(live, f"{args.out}/{name}", shard=480)


if __name__ == "__main__":
    main()
