"""DeYO with and without adaptive entropy where colour is a false friend.

    python benchmarks/colored_digits.py [--idx FOLDER] [--limit N] [--seeds 3] [--json FILE]

ColoredMNIST as DeYO builds it (`adte.data.colored_mnist`), but not from MNIST: the digits are the
1,797 of scikit-learn's `load_digits`, 8×8 pixels, enlarged to 16×16 and each taken ten times,
shifted by up to 2 pixels, so that there are enough batches. No digit is in two environments. With
`--idx` the images come from a folder of MNIST's own format instead: MNIST, or Debian's package
dataset-fashion-mnist, where the classes 0 to 4 stand against 5 to 9.

A small network with batch norm learns the two training environments, in which colour tells the
noisy label in 85 % of the images and shape in 75 %. In the test environment colour tells the
opposite. Reported are the mean and the minimum of the four (label, colour) groups' accuracies.
Settings are DeYO's for ColoredMNIST: batches of 64, thresholds 1.0·ln 2 and 0.5, rate 1.25e-3.
As in the papers a batch is predicted, with its own statistics, before it is learned from: here it
stands as the views of one sample. `--single` gives the images one at a time, as a service would
see them (`batch=64`): slower, and each image is predicted in the company of the 63 before it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from adte import Sample, create_method
from adte.data.colored_mnist import ColoredMNIST
from adte.evaluate import run
from adte.methods import PriorMethod, deyo, tent  # noqa: F401  # registers them
from adte.methods.norm_tuning import NormTuner

COMMON = {"lr": 1.25e-3}
DEYO = COMMON | {"tau_ent": 1.0, "ent0": 1.0, "tau_plpd": 0.5}
COPIES = 10
BATCH = 64
ADAPTIVE = DEYO | {"entropy": "adaptive"}
ROWS: list[tuple[str, str, dict[str, Any]]] = [
    ("no adaptation", "zero-shot", {}),
    ("batch statistics alone", "tent", COMMON | {"lr": 0.0}),
    ("tent", "tent", COMMON),
    ("tent, adaptive", "tent", COMMON | {"entropy": "adaptive"}),
    ("deyo", "deyo", DEYO),
    ("deyo, adaptive everywhere", "deyo", ADAPTIVE),
    ("deyo, adaptive everywhere, paper's direction", "deyo", ADAPTIVE | {"direction": "paper"}),
    ("deyo, adaptive in the loss", "deyo", ADAPTIVE | {"adaptive_where": "loss"}),
    (
        "deyo, adaptive in the loss, paper's direction",
        "deyo",
        ADAPTIVE | {"adaptive_where": "loss", "direction": "paper"},
    ),
    ("deyo, adaptive literally", "deyo", ADAPTIVE | {"adaptive_where": "literal"}),
]

Outcome = tuple[NDArray[Any], dict[str, Tensor]]  # predicted classes, final state


class Network(nn.Module):
    """Four convolutions with batch norm; red and green in, two classes out."""

    classes = ("zero to four", "five to nine")

    def __init__(self, widths: tuple[int, ...] = (16, 32, 32, 64)) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for i, (a, b) in enumerate(zip((3, *widths[:-1]), widths, strict=True)):
            stride = 2 if i % 2 else 1
            layers += [nn.Conv2d(a, b, 3, stride, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU()]
        self.body, self.head = nn.Sequential(*layers), nn.Linear(widths[-1], 2)

    def logits(self, pixels: Tensor) -> Tensor:
        z: Tensor = self.head(self.body(pixels).mean((2, 3)))
        return z


def digits() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """scikit-learn's digits as uint8 (17970, 16, 16), and which digit each is."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        sys.exit("this study needs scikit-learn for its digits: pip install scikit-learn; or --idx")
    bunch = load_digits()
    small = np.round(bunch.images * (255 / 16)).astype(np.uint8)
    large = small.repeat(2, 1).repeat(2, 2).repeat(COPIES, 0)
    shifts = np.random.RandomState(0).randint(-2, 3, (len(large), 2))
    moved = [np.roll(image, s, (0, 1)) for image, s in zip(large, shifts.tolist(), strict=True)]
    return np.stack(moved), bunch.target.astype(np.int64).repeat(COPIES)


def environment(part: Any, seed: int, idx: str | None) -> tuple[Tensor, Tensor, Tensor]:
    """Pixels (N, 3, H, W) in [−1, 1], labels and groups."""
    given = None if idx else digits()
    data = ColoredMNIST(part=part, seed=seed, digits=given).load(idx)
    images = np.stack([np.asarray(data[i].source) for i in range(len(data))])
    pixels = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 127.5 - 1
    return pixels, torch.as_tensor(data.labels), torch.as_tensor(data.groups)


def train(seed: int, idx: str | None, epochs: int) -> Network:
    """Plain cross-entropy on both training environments."""
    torch.manual_seed(seed)
    parts = [environment(part, seed, idx) for part in ("train1", "train2")]
    x, y = torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])
    net = Network().train()
    optimiser = torch.optim.Adam(net.parameters(), lr=1e-3)
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(64):
            optimiser.zero_grad()
            nn.functional.cross_entropy(net.logits(x[rows]), y[rows]).backward()
            optimiser.step()
    return net.eval()


def one_by_one(name: str, options: dict[str, Any], net: Any, x: Tensor, z: Tensor) -> Outcome:
    """The library's stream: an image is a sample of one view."""
    if name != "zero-shot":
        options = options | {"batch": BATCH}
    method = create_method(name, **options)
    rows = zip(z.split(1), x.split(1), strict=True)
    stream = [(Sample(a, pixels=b, model=net, classes=net.classes), 0) for a, b in rows]
    return run(method, stream).predicted, method.state_dict()


def by_batches(name: str, options: dict[str, Any], net: Any, x: Tensor, z: Tensor) -> Outcome:
    """The papers' loop: the batch is predicted, then learned from."""
    if name == "zero-shot":
        return z.argmax(-1).numpy(), {}
    everyone = {"ratio": 1.0} if name == "tent" else {}
    method = create_method(name, **options, bn_prior=0.0, **everyone)
    assert isinstance(method, NormTuner)
    predicted = []
    for a, b in zip(z.split(BATCH), x.split(BATCH), strict=True):
        sample = Sample(a, pixels=b, model=net, classes=net.classes)
        predicted.append(method.logits(sample).argmax(-1))
        method.learn(sample)  # takes the first image into the prior
        if method.uses_prior:
            for row in a[1:].split(1):
                PriorMethod.learn(method, Sample(row))
    return torch.cat(predicted).numpy(), method.state_dict()


def study(
    idx: str | None, limit: int | None, seeds: int, epochs: int, single: bool
) -> dict[str, Any]:
    """Every row on every seed; a seed decides flips, training and the order of the stream."""
    results: dict[str, list[dict[str, Any]]] = {title: [] for title, _, _ in ROWS}
    for seed in range(seeds):
        start = time.perf_counter()
        net = train(seed, idx, epochs)
        spent = time.perf_counter() - start
        x, y, groups = environment("test", seed, idx)
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))[:limit]
        x, y, groups = x[order], y[order], groups[order]
        with torch.no_grad():
            z = torch.cat([net.logits(part) for part in x.split(256)])
        print(f"seed {seed}: trained in {spent:.1f} s, {len(x)} test images", file=sys.stderr)
        for title, name, options in ROWS:
            begin = time.perf_counter()
            predicted, state = (one_by_one if single else by_batches)(name, options, net, x, z)
            correct = predicted == y.numpy()
            shares = [float(correct[(groups == g).numpy()].mean()) for g in range(4)]
            results[title].append(
                {
                    "seed": seed,
                    "average": statistics.mean(shares),
                    "worst": min(shares),
                    "groups": shares,
                    "accuracy": float(correct.mean()),
                    "predicted": np.bincount(predicted, minlength=2).tolist(),
                    "steps": int(state["steps"]) if "steps" in state else 0,
                    "seconds": (time.perf_counter() - begin) / len(x),
                }
            )
    rows = [
        {"name": title, "method": name, "options": options}
        | {k: statistics.mean(r[k] for r in results[title]) for k in ("average", "worst", "steps")}
        | {"seeds": results[title]}
        for title, name, options in ROWS
    ]
    source = idx and "given images in MNIST's format"
    return {
        "digits": source or "scikit-learn load_digits, not MNIST",
        "protocol": "one image at a time" if single else f"batches of {BATCH}",
        "rows": rows,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--idx", metavar="FOLDER", help="images in MNIST's format instead")
    parser.add_argument("--limit", type=int, help="test images at most")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--single", action="store_true", help="one image at a time")
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    torch.set_num_threads(1)
    result = study(args.idx, args.limit, args.seeds, args.epochs, args.single)
    print(f"digits: {result['digits']}; {result['protocol']}; percent, each seed in brackets")
    print(f"{'':46s} {'average':>27s} {'worst group':>27s} {'steps':>6s}")
    for row in result["rows"]:
        cells = [
            f"{100 * row[k]:5.1f} ({', '.join(f'{100 * s[k]:.1f}' for s in row['seeds'])})"
            for k in ("average", "worst")
        ]
        print(f"{row['name']:46s} {cells[0]:>27s} {cells[1]:>27s} {row['steps']:6.1f}")
    if args.json:
        with open(args.json, "w", encoding="utf-8") as f:
            json.dump(result, f, indent=2)
            f.write("\n")


if __name__ == "__main__":
    main()
