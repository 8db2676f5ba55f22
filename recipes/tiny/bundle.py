"""Write the replay bundle: features of 64 views of held-out validation photographs.

    python recipes/tiny/bundle.py --data tiny-imagenet-200 --out src/adte/assets/replay

`bundle-ids.txt` names the photographs, six a class, all from Tiny-ImageNet's validation set, which
no training has seen. The bundle holds features only, no image. An interrupted run goes on.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file

from adte import Views, load_model
from adte.data import Dataset, load_dataset, make_stream
from adte.evaluate.features.cache import extract
from adte.evaluate.features.live import Live
from adte.files.console import progress
from adte.models import Model
from adte.models.prompts import Prompts, class_weights
from adte.models.tiny import tiny_classes

IDS = Path(__file__).with_name("bundle-ids.txt")


def photographs(folder: str, wanted: set[str]) -> Dataset:
    """The validation photographs of these file names."""
    data = load_dataset(f"tiny-imagenet:{folder}")
    chosen = np.array([i for i in range(len(data)) if Path(data.ids[i]).name in wanted])
    assert len(chosen) == len(wanted), f"{len(chosen)} of {len(wanted)} photographs found"
    return replace(
        data,
        sources=[data.sources[int(i)] for i in chosen],
        labels=data.labels[chosen],
        ids=[Path(data.ids[int(i)]).name for i in chosen],
        split="validation photographs of bundle-ids.txt",
    )


def model_with(image: str | None) -> Model:
    """`tiny-longtail`, or another seed's image tower in it."""
    model: Model = load_model("tiny-longtail", device="cpu")
    if image:
        tower = load_file(image)
        model.logit_scale = float(tower.pop("logit_scale"))
        model.image_tower.load_state_dict(
            {k.removeprefix("image_tower."): v.float() for k, v in tower.items()}
        )
    return model


def write(live: Live, out: str, shard: int) -> None:
    """Extract with a progress bar; the recipe notes how often the model saw each class."""
    counts = {str(c["wnid"]): float(str(c["count"])) for c in tiny_classes()}
    frequency = tuple(counts[w] for w in live.recipe.class_ids)
    with progress("encoding", len(live)) as bar:
        extract(live, out, frequency=frequency, shard=shard,
                tick=partial(bar.advance, bar.task_ids[0]))  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True, help="the unpacked tiny-imagenet-200 folder")
    parser.add_argument("--out", default="src/adte/assets/replay")
    parser.add_argument("--ids", default=str(IDS))
    parser.add_argument("--image", help="another seed's image tower, from train_image.py")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    args = parser.parse_args()
    torch.set_num_threads(args.threads)

    part = photographs(args.data, set(Path(args.ids).read_text("utf-8").split()))
    model, prompts = model_with(args.image), Prompts.of("single")
    live = Live(
        model=model,
        class_weights=class_weights(model, part.classes, prompts),
        stream=make_stream(part, order="shuffled", seed=0),
        views=Views(count=64),
        prompts=prompts.describe(),
    )
    write(live, args.out, shard=400)


if __name__ == "__main__":
    main()
