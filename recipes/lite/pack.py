"""Choose the logit scale of `lite`, and write the file that ships.

    python recipes/lite/pack.py --data packed --run runs/lite --out src/adte/assets

The scale is the one with the least negative log-likelihood on held-back images, each among the
names of its set, the sets counting alike.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1] / "tiny"))
from templates import EVALUATION

from adte import load_model
from adte.evaluate.running.metrics import ece
from adte.models.lite import Readout, published


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="pack_images.py's folder")
    parser.add_argument("--run", type=Path, required=True, help="train.py's folder")
    parser.add_argument("--out", type=Path, required=True, help="the package's assets")
    args = parser.parse_args()
    state = load_file(args.run / "readout.safetensors")
    state = {k: v.bfloat16().half() for k, v in state.items()}  # 8 bits, which a wheel packs well
    readout = Readout()
    readout.load_state_dict({k: v.float() for k, v in state.items()})
    tower, weights = load_model("tiny", device="cpu"), published()
    held = load_file(args.run / "held.safetensors")
    facts = json.loads((args.data / "sets.json").read_text())
    sets = json.loads((args.run / "train.json").read_text())["sets"]
    h = held["features"].float()
    z = readout(h, h @ weights["classes.weight"].T + weights["classes.bias"])
    cosines: dict[str, tuple[Tensor, Tensor]] = {}
    for number, key in enumerate(sets):
        mine, names = held["set"] == number, facts[key]["names"]
        if not names or int(mine.sum()) < 20:
            continue
        labels = held["label"][mine]
        if key.startswith(("image", "tiny")):  # among the classes that the set has
            present, labels = labels.unique(return_inverse=True)
            names = [names[k] for k in present.tolist()]
        text = tower.encode_text([EVALUATION.format(n) for n in names])
        cosines[key] = z[mine] @ text.T, labels
    scales = torch.linspace(5, 80, 301)
    parts = [torch.stack([F.cross_entropy(s * c, y) for s in scales]) for c, y in cosines.values()]
    scale = float(scales[torch.stack(parts).mean(0).argmin()])
    for key, (cosine, truth) in cosines.items():
        p = (scale * cosine).softmax(1)
        right = p.argmax(1).eq(truth).float()
        print(f"{key}: {len(truth)} held back, {100 * right.mean():.1f} % right, "
              f"calibration error {100 * ece(p.max(1).values, right):.1f} %")  # fmt: skip
    print(f"logit scale {scale:.2f}")
    out = {f"readout.{k}": v for k, v in state.items()} | {"logit_scale": torch.tensor(scale)}
    save_file(out, args.out / "lite.safetensors")
    print(f"{(args.out / 'lite.safetensors').stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
