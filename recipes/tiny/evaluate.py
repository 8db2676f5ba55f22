"""Print the figures of tiny's card.

    python recipes/tiny/evaluate.py --val tiny-imagenet-val --cifar cifar10-test --json figures.json

`--val` is an ImageFolder of Tiny-ImageNet's validation photographs by wnid, `--cifar` one of
CIFAR-10's test images by name. Without a folder its part is left out. `--image` takes another
seed's image tower from train_image.py.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from adte.models.tiny import Tiny, load_tiny, tiny_classes
from adte.views import base_view

TEMPLATE = "a photo of a {}."
UNSEEN = [
    "aeroplane", "sailing ship", "kitten", "puppy", "spider", "fruit", "castle", "musician",
    "train", "snow-covered hill",
]  # fmt: skip


def read_folder(folder: Path, model: Tiny) -> tuple[list[str], Tensor, Tensor]:
    """Class names, base views (N, 3, 64, 64) and labels (N,) of an ImageFolder."""
    names = sorted(p.name for p in folder.iterdir() if p.is_dir())
    pairs = [(p, k) for k, n in enumerate(names) for p in sorted((folder / n).iterdir())]
    views = torch.stack([base_view(path, model.preprocess) for path, _ in pairs])
    return names, views, torch.tensor([k for _, k in pairs])


def features(model: Tiny, views: Tensor) -> Tensor:
    return torch.cat([model.encode_image(x) for x in views.split(256)])


def zero_shot(model: Tiny, z: Tensor, labels: Tensor, texts: list[str]) -> Tensor:
    """Whether each image's nearest text is its own (N,)."""
    return (z @ model.encode_text(texts).T).argmax(1).eq(labels).float()


def thirds(counts: Tensor) -> Tensor:
    """0 for the head, 1 for the middle and 2 for the tail third of the classes."""
    third = torch.empty(len(counts), dtype=torch.long)
    order = counts.argsort(descending=True, stable=True)
    third[order] = torch.arange(len(counts)) * 3 // len(counts)
    return third


class Transformer(nn.Module):
    """A vision transformer of ViT-B/16's shape with random weights, to be timed beside tiny."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 768, 16, 16)
        layer = nn.TransformerEncoderLayer(
            768, 12, 3072, activation="gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, 12, enable_nested_tensor=False)
        self.project = nn.Linear(768, 512)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)  # (N, 196, 768)
        x = torch.cat([x.mean(1, keepdim=True), x], 1)
        return self.project(self.layers(x)[:, 0])


def seconds(net: nn.Module, x: Tensor, repeats: int) -> float:
    """Shortest time of a forward pass after one that warms up; other programs only add."""
    net(x)
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        net(x)
        times.append(time.perf_counter() - begin)
    return min(times)


def speed(model: Tiny, threads: int) -> dict[str, float]:
    """Time of 64 views, as shipped, with batch norm folded, and of ViT-B/16."""
    torch.set_num_threads(threads)
    x = torch.randn(64, 3, 64, 64)
    plain, folded = (seconds(t.image_tower, x, 15) for t in (model, model.fold()))
    # eight views are enough to time the transformer: its time grows in proportion
    vit = 8 * seconds(Transformer().eval(), torch.randn(8, 3, 224, 224), 3)
    return {"tiny": plain, "tiny_folded": folded, "vit_b_16": vit, "ratio": vit / folded}


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--val", type=Path, help="Tiny-ImageNet's validation photographs")
    parser.add_argument("--cifar", type=Path, help="CIFAR-10's test images")
    parser.add_argument("--image", type=Path, help="another image tower")
    parser.add_argument("--threads", type=int, default=2, help="for the timing")
    parser.add_argument("--no-speed", action="store_true", help="leave the timing out")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    args = parser.parse_args()
    model = load_tiny()
    if args.image:
        state = load_file(args.image)
        model.logit_scale = float(state.pop("logit_scale"))
        model.image_tower.load_state_dict(state)
    classes = tiny_classes()
    figures: dict[str, object] = {"logit_scale": round(model.logit_scale, 3)}

    if args.val:
        names, views, labels = read_folder(args.val, model)
        index = {str(row["wnid"]): k for k, row in enumerate(classes)}
        labels = torch.tensor([index[n] for n in names])[labels]
        z = features(model, views)
        right = zero_shot(model, z, labels, [TEMPLATE.format(row["name"]) for row in classes])
        third = thirds(torch.tensor([int(str(row["count"])) for row in classes]))[labels]
        figures["images"] = len(labels)
        figures["zero_shot"] = {"all": right.mean().item()} | {
            n: right[third == k].mean().item() for k, n in enumerate(("head", "middle", "tail"))
        }
        best = (model.encode_text([TEMPLATE.format(n) for n in UNSEEN]) @ z.T).topk(5).indices
        figures["nearest"] = {
            n: [str(classes[int(labels[i])]["name"]) for i in row]
            for n, row in zip(UNSEEN, best, strict=True)
        }
    if args.cifar:
        names, views, labels = read_folder(args.cifar, model)
        z = features(model, views)
        figures["cifar10"] = {
            "images": len(labels),
            "plain": zero_shot(model, z, labels, names).mean().item(),
            "template": zero_shot(
                model, z, labels, [TEMPLATE.format(n) for n in names]).mean().item(),
        }  # fmt: skip
    if not args.no_speed:
        figures["seconds_for_64_views"] = speed(model, args.threads)

    text = json.dumps(figures, indent=1)
    print(text)
    if args.json:
        args.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
