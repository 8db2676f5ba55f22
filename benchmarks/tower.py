"""The image tower's forwards side by side: the library's own, `fast`, and `fast` in other ways.

    python benchmarks/tower.py --json benchmarks/results/tower.json            # CUDA, bfloat16
    python benchmarks/tower.py --device cpu --views 16 --models ViT-B-16       # CPU

Random weights; noise for pixels. Every forward is checked against the library's first (cosine of
the worst view), then all take turns. The limit is the rate of matrix products measured in this run
over the operations of the library's forward. On a CPU the library runs in float32.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F

from adte.bench import timing
from adte.bench.rate import matrix_rate, tower_flops
from adte.bench.timing import conditions
from adte.models import accelerate, load_model
from adte.models.fast import _forward, with_runtime

CUDA = ("fast", "flash", "cudnn", "graph")
CPU = ("fast", "bfloat16", "bfloat16+fast")


def forward(model, name, pixels):
    """A function from pixels to features, for one of the names above."""
    if name == "own":
        return model.encode_image
    if name.startswith("bfloat16"):
        small = load_model(ARCH[0], weights="random", device="cpu", dtype="bfloat16",
                           runtime="torch")  # fmt: skip
        small.load_state_dict(model.state_dict())
        encode = with_runtime(small, name.partition("+")[2] or "torch").encode_image
        return lambda x: encode(x.bfloat16())
    fast = accelerate(model)
    if name in ("flash", "cudnn"):
        from torch.nn.attention import SDPBackend, sdpa_kernel

        backend = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}[name]

        def run(x):
            with sdpa_kernel(backend):
                return fast.encode_image(x)

        return run
    return graphed(fast, pixels) if name == "graph" else fast.encode_image


def graphed(fast, pixels):
    """The fast forward as one CUDA graph."""
    packed, held = fast.runner._pack(), pixels.clone()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            _forward(packed, held)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = _forward(packed, held)

    def run(x):
        held.copy_(x)
        graph.replay()
        return F.normalize(out.float(), dim=-1)

    return run


ARCH = [""]


@torch.no_grad()
def measure(arch, args, device, dtype):
    ARCH[0] = arch
    torch.manual_seed(0)
    model = load_model(arch, weights="random", device=device, dtype=dtype, runtime="torch")
    side = model.preprocess.size
    pixels = torch.randn(args.views, 3, side, side, device=device).to(dtype)
    rate, flops = matrix_rate(device, dtype), tower_flops(model)
    want = model.encode_image(pixels)
    calls, cosines, first, left = {}, {}, {}, {}
    wanted = args.forwards.split(",") if args.forwards else CUDA if device.type == "cuda" else CPU
    for name in ("own", *wanted):
        start = time.monotonic()
        try:
            call = forward(model, name, pixels)
            out = call(pixels)
            timing.finish(device)
        except Exception as error:  # one forward that fails must not cost the others
            left[name] = f"{type(error).__name__}: {str(error).strip().splitlines()[0][:160]}"
            continue
        first[name] = time.monotonic() - start
        cosines[name] = float(F.cosine_similarity(want.float(), out.float()).min())
        calls[name] = lambda call=call: call(pixels)
        print(f"… {arch} {name}: ready after {first[name]:.1f} s", file=sys.stderr, flush=True)
    taken = timing.medians(calls, args.repeats, device)
    seconds = 64 * flops / rate
    rows = [
        {
            "model": arch, "forward": name, "images_per_s": args.views / 64 / s,
            "views_per_s": args.views / s, "over_own": taken["own"] / s, "cosine": cosines[name],
            "of_limit": args.views / 64 / s * seconds, "first_call_s": first[name],
        }
        for name, s in taken.items()
    ]  # fmt: skip
    return {"rows": rows, "left_out": left, "limit_images_per_s": 1 / seconds, "matrix_rate": rate,
            "flops_per_view": flops}  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="ViT-B-16,ViT-L-14,ViT-B-16-quickgelu")
    parser.add_argument("--views", type=int, default=1024, help="a pass; an image is 64 of them")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--forwards", default="", help="names, comma-separated; all by default")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    device = torch.device(args.device)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = True
    start, result = time.monotonic(), {"models": {}, **conditions(device, dtype)}
    models = args.models.split(",")
    for arch in models:
        found = measure(arch, args, device, dtype)
        result["models"][arch] = found
        print(f"\n{arch}, {args.views} views a pass, {str(dtype).removeprefix('torch.')}; the "
              f"limit is {found['limit_images_per_s']:.1f} images/s of 64 views "
              f"({found['matrix_rate'] / 1e12:.3g} TFLOP/s, {found['flops_per_view'] / 1e9:.1f} "
              "GFLOP a view)")  # fmt: skip
        print(
            f"{'forward':36}{'images/s':>10}{'× own':>8}{'of limit':>10}{'cosine':>10}{'1st s':>8}"
        )
        for r in found["rows"]:
            print(f"{r['forward']:36}{r['images_per_s']:10.2f}{r['over_own']:8.2f}"
                  f"{r['of_limit']:10.1%}{r['cosine']:10.5f}{r['first_call_s']:8.1f}")  # fmt: skip
        for name, why in found["left_out"].items():
            print(f"{name:36}left out: {why}")
        if device.type == "cuda":
            torch.cuda.empty_cache()
    print(f"\n{time.monotonic() - start:.0f} s in all")
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
