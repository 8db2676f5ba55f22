"""Train the image tower against the frozen text tower.

    python recipes/tiny/train_image.py --data packed --text runs/text/text.safetensors --out runs/0

Three terms, all softmaxes over text embeddings in a random template:

- the labels of the long-tailed images, over the 200 class names (this makes the bias; nothing
  rebalances it), with the logit scale that ships;
- the teachers' probabilities of the same crop, over the 1,000 ImageNet names;
- the same probabilities passed up to the names' ancestors in WordNet ("dog", "bird", "vehicle").

Held-out accuracy comes from training images that were not used. No validation image is read.

Needs torchvision and pillow.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import load_file, save_file
from templates import EVALUATION, TEMPLATES
from torch import Tensor, nn

from adte.models.tiny import MEAN, SIZE, STD, ImageTower, TextTower, Tokenizer


def read_images(data: Path) -> tuple[Tensor, Tensor, Tensor]:
    """Pixels (N, 3, 64, 64) uint8, labels (N,), held-out flags (N,)."""
    index = np.load(data / "images.npz")
    blob = (data / "images.bin").read_bytes()
    offsets = index["offsets"].tolist()

    def decode(i: int) -> np.ndarray:
        with Image.open(io.BytesIO(blob[offsets[i] : offsets[i + 1]])) as image:
            return np.asarray(image.convert("RGB"))

    with ThreadPoolExecutor(8) as pool:
        pixels = np.stack(list(pool.map(decode, range(len(offsets) - 1), chunksize=256)))
    labels = torch.from_numpy(index["labels"].astype(np.int64))
    return torch.from_numpy(pixels).permute(0, 3, 1, 2), labels, torch.from_numpy(index["held"])


def embed_names(tower: TextTower, tokenizer: Tokenizer, names: list[str], device: str) -> Tensor:
    """Text embeddings (templates, names, D)."""
    rows = []
    with torch.inference_mode():
        for template in TEMPLATES:
            ids, lengths = tokenizer([template.format(name) for name in names])
            rows.append(tower(ids.to(device), lengths.to(device)).float())
    return torch.stack(rows).clone()


def random_crops(x: Tensor, smallest: float) -> Tensor:
    """Resized crops of `smallest` to all of the area, flips, and a little colour. `x` in 0..1."""
    n, device = len(x), x.device

    def uniform(low: float, high: float) -> Tensor:
        return torch.empty(n, device=device).uniform_(low, high)

    area, aspect = uniform(smallest, 1), uniform(math.log(3 / 4), math.log(4 / 3)).exp()
    w = (area * aspect).sqrt().clamp(max=1)
    h = (area / aspect).sqrt().clamp(max=1)
    theta = torch.zeros(n, 2, 3, device=device)
    theta[:, 0, 0] = w * uniform(-1, 1).sign()
    theta[:, 1, 1] = h
    theta[:, 0, 2] = uniform(-1, 1) * (1 - w)
    theta[:, 1, 2] = uniform(-1, 1) * (1 - h)
    grid = F.affine_grid(theta, [n, 3, SIZE, SIZE], align_corners=False)
    x = F.grid_sample(x, grid, padding_mode="reflection", align_corners=False)
    at = lambda v: v[:, None, None, None]  # noqa: E731
    x = x * at(uniform(0.75, 1.25))  # brightness
    mean = x.mean((1, 2, 3), keepdim=True)
    x = mean + (x - mean) * at(uniform(0.75, 1.25))  # contrast
    grey = x.mean(1, keepdim=True)
    return (grey + (x - grey) * at(uniform(0.6, 1.4))).clamp(0, 1)  # saturation


class Teachers(nn.Module):
    """Softened probabilities of two ImageNet classifiers, in turn, on enlarged pixels."""

    def __init__(self, data: Path, size: int, temperature: float, dtype: torch.dtype) -> None:
        super().__init__()
        from torchvision.models import mobilenet_v2, resnet18

        self.size, self.temperature, self.dtype, self.turn = size, temperature, dtype, 0
        self.nets = nn.ModuleList([mobilenet_v2(), resnet18()])
        for net, file in zip(self.nets, ("mobilenet", "resnet"), strict=True):
            net.load_state_dict(load_file(data / f"{file}.safetensors"))
        self.to(dtype=dtype, memory_format=torch.channels_last).eval().requires_grad_(False)

    @torch.inference_mode()
    def forward(self, x: Tensor) -> Tensor:
        x = F.interpolate(x, size=(self.size, self.size), mode="bicubic").to(self.dtype)
        x = x.contiguous(memory_format=torch.channels_last)
        self.turn = 1 - self.turn  # both in every batch would cost twice as much
        return (self.nets[self.turn](x).float() / self.temperature).softmax(-1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="prepare.py's folder")
    parser.add_argument("--text", type=Path, required=True, help="train_text.py's weights")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=250)
    parser.add_argument("--seconds", type=float, help="run for this long instead; set-up included")
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--weight-decay", type=float, default=0.05)
    parser.add_argument("--label", type=float, default=1.0, help="weight of the labels")
    parser.add_argument("--teach", type=float, default=1.0, help="weight of the teachers")
    parser.add_argument("--above", type=float, default=0.5, help="weight of the ancestors")
    parser.add_argument("--smoothing", type=float, default=0.05, help="of the labels")
    parser.add_argument("--mixup", type=float, default=0.2, help="Beta's parameter; 0 turns it off")
    parser.add_argument("--smallest", type=float, default=0.15, help="smallest crop, of the area")
    parser.add_argument("--teacher-size", type=int, default=160)
    parser.add_argument("--teacher-temperature", type=float, default=1.5)
    parser.add_argument("--average", type=float, default=0.999, help="decay of the mean weights")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(args.seed)
    device, began = args.device, time.time()
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = True
    rng = np.random.default_rng(args.seed)

    pixels, labels, held = read_images(args.data)
    pixels, labels = pixels.to(device), labels.to(device)
    train, test = (torch.from_numpy(np.flatnonzero(f)).to(device) for f in (~held, held))
    rows = json.loads((args.data / "tiny-classes.json").read_text())
    counts = torch.tensor([row["count"] for row in rows])
    third = torch.empty(len(rows), dtype=torch.long)  # 0 head, 1 middle, 2 tail
    third[counts.argsort(descending=True)] = torch.arange(len(rows)) * 3 // len(rows)
    third = third.to(device)

    classes = json.loads((args.data / "classes.json").read_text())
    ours = torch.tensor([classes["wnids"].index(row["wnid"]) for row in rows], device=device)
    up = torch.zeros(len(classes["names"]), len(classes["ancestors"]), device=device)
    for leaf, nodes in enumerate(classes["above"]):
        up[leaf, nodes] = 1 / max(len(nodes), 1)
    vocab = (args.data / "vocab.txt").read_text().splitlines()
    text = TextTower(len(vocab))
    text.load_state_dict(load_file(args.text))
    text.to(device).eval()
    tokenizer = Tokenizer(vocab)
    leaves = embed_names(text, tokenizer, classes["names"], device)  # (T, 1000, D)
    parents = embed_names(text, tokenizer, classes["ancestors"], device)  # (T, A, D)
    plain = leaves[TEMPLATES.index(EVALUATION)][ours]  # (200, D)

    mean = torch.tensor(MEAN, device=device).view(1, 3, 1, 1)
    std = torch.tensor(STD, device=device).view(1, 3, 1, 1)
    dtype = torch.bfloat16 if device != "cpu" else torch.float32
    teachers = Teachers(args.data, args.teacher_size, args.teacher_temperature, dtype)
    teachers.to(device)

    tower = ImageTower().to(device, memory_format=torch.channels_last)
    for module in tower.modules():
        if hasattr(module, "norm2"):
            nn.init.zeros_(module.norm2.weight)
    scales = nn.Parameter(torch.full((3,), 20.0, device=device).log())
    named = [*tower.named_parameters()]
    optimizer = torch.optim.AdamW(
        [
            {"params": [p for _, p in named if p.ndim > 1], "weight_decay": args.weight_decay},
            {"params": [p for _, p in named if p.ndim < 2] + [scales], "weight_decay": 0.0},
        ],
        fused=device != "cpu",
    )
    steps = len(train) // args.batch
    mean_tower = ImageTower().to(device, memory_format=torch.channels_last).eval()
    mean_tower.load_state_dict(tower.state_dict())
    now, slow = (
        [v for v in t.state_dict().values() if v.is_floating_point()] for t in (tower, mean_tower)
    )
    shares = torch.tensor([args.label, args.teach, args.above], device=device)

    @torch.inference_mode()
    def evaluate(net: ImageTower) -> dict[str, float]:
        z = torch.cat([net(((pixels[i].float() / 255) - mean) / std) for i in test.split(1024)])
        right = (z @ plain.T).argmax(1).eq(labels[test]).float()
        group = third[labels[test]]
        row = {"all": right.mean().item()}
        for k, name in enumerate(("head", "middle", "tail")):
            row[name] = right[group == k].mean().item()
        return {k: round(v, 4) for k, v in row.items()}

    def progress() -> float:
        """From 0 to 1 over the run."""
        if args.seconds:
            return (time.time() - start) / (args.seconds - (start - began))
        return step / (steps * args.epochs)

    curve, step, epoch, start = [], 0, 0, time.time()
    while progress() < 1:
        epoch += 1
        tower.train()
        sums = torch.zeros(3, device=device)
        for i in train[torch.randperm(len(train), device=device)][: steps * args.batch].split(
            args.batch
        ):
            t = min(progress(), 1)  # warm up for a tenth, then half a cosine
            share = t / 0.1 + 0.01 if t < 0.1 else 0.5 + 0.5 * math.cos(math.pi * (t - 0.1) / 0.9)
            for group in optimizer.param_groups:
                group["lr"] = args.lr * min(share, 1)
            x = random_crops(pixels[i].float() / 255, args.smallest)
            y = F.one_hot(labels[i], len(rows)).float()
            if args.mixup and rng.random() < 0.5:
                share = rng.beta(args.mixup, args.mixup)
                x, y = share * x + (1 - share) * x.flip(0), share * y + (1 - share) * y.flip(0)
            x = (x - mean) / std
            p = teachers(x).clone()
            pick = rng.integers(len(TEMPLATES), size=2)
            with torch.autocast(device, torch.bfloat16, enabled=device != "cpu"):
                z = tower(x)
            z, s = z.float(), scales.exp()
            y = y * (1 - args.smoothing) + args.smoothing / len(rows)
            leaf = z @ leaves[pick[0]].T
            losses = torch.stack([
                -(y * F.log_softmax(s[0] * leaf[:, ours], -1)).sum(1).mean(),
                F.kl_div(F.log_softmax(s[1] * leaf, -1), p, reduction="batchmean"),
                F.kl_div(F.log_softmax(s[2] * z @ parents[pick[1]].T, -1), p @ up,
                         reduction="batchmean"),
            ])  # fmt: skip
            loss = losses @ shares
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(tower.parameters(), 2.0)
            optimizer.step()
            step += 1
            with torch.no_grad():
                sums += losses.detach()
                blend = max(1 - args.average, 1 / (step + 1))
                torch._foreach_lerp_(slow, now, blend)
        if progress() >= min((len(curve) + 1) / 20, 1):
            label, teach, above = (sums / steps).tolist()
            curve.append({
                "epoch": epoch, "label": round(label, 4), "teach": round(teach, 4),
                "above": round(above, 4), "scale": round(scales[0].exp().item(), 2),
                **evaluate(mean_tower), "seconds": round(time.time() - began),
            })  # fmt: skip
            print(args.out.name, json.dumps(curve[-1]), flush=True)
            state = {k: v.contiguous().cpu() for k, v in mean_tower.state_dict().items()}
            state["logit_scale"] = scales[0].exp().detach().cpu()
            save_file(state, args.out / "image.safetensors")
            facts = {
                "args": {k: v for k, v in vars(args).items() if k not in {"data", "text", "out"}},
                "epochs": epoch, "images": len(train), "held_out": len(test),
                "scales": scales.exp().tolist(),
                "device": torch.cuda.get_device_name() if device != "cpu" else "cpu",
                "seconds": round(time.time() - began), "curve": curve,
            }  # fmt: skip
            (args.out / "image.json").write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
