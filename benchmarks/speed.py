"""Parts of the work, timed: ours beside the usual way, on one thread.

    python benchmarks/speed.py views                  # 64 views of a photo, beside Pillow
    python benchmarks/speed.py head                   # entropy, selection and mean, beside Shannon
    python benchmarks/speed.py prior --classes 20000  # one more image for the class prior
    python benchmarks/speed.py stream --images 2000   # time and memory over a long stream

Candidates take turns, so that other load hurts all alike; figures are medians. The JSON (`--json`)
is {"rows": [{"name", "seconds", "ratio", …}], "ratio", "meaning"} with the conditions it holds
under.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import normalize

from adte import create_method
from adte.bench import timing
from adte.bench.rate import photo, usual
from adte.core import functional as F
from adte.core.batch import Context, Sample
from adte.core.machine import resident, threads
from adte.core.state import fresh
from adte.images import Preprocess, Views
from adte.images.decode import load_image
from adte.methods import bank
from adte.methods.prior import PriorOptions, fixed_point, rule_of

Facts = dict[str, Any]


def result(rows: list[Facts], ratio: float, meaning: str, **facts: Any) -> Facts:
    return {"rows": rows, "ratio": ratio, "meaning": meaning, **facts}


def beside(
    candidates: dict[str, Callable[[], object]], repeats: int, faster: bool = False
) -> tuple[list[Facts], dict[str, float]]:
    """Rows of candidates on one thread, with their ratio to the first; or how much faster."""
    with threads(1):
        taken = timing.medians(candidates, repeats)
    base = next(iter(taken.values()))
    ratios = {n: base / s if faster else s / base for n, s in taken.items()}
    return [{"name": n, "seconds": s, "ratio": ratios[n]} for n, s in taken.items()], ratios


def views(image: Any = None, repeats: int = 15) -> Facts:
    """64 views of a photo, beside Pillow view by view; both make the same crops."""
    pixels = photo() if image is None else load_image(image)
    draw, preprocess = Views(enlarge=0.0), Preprocess()  # as the usual way crops small images
    height, width = pixels.shape[:2]
    crops, pillow = draw.boxes(height, width, preprocess, key=0), Image.fromarray(pixels)

    def theirs() -> Tensor:
        return usual(pillow, crops, preprocess)

    def ours() -> Tensor:
        return draw(pixels, preprocess, key=0)

    error = (theirs() - ours()).abs() * torch.tensor(preprocess.std).view(3, 1, 1) * 255
    calls = {"usual way (Pillow, view by view)": theirs, "adte.Views": ours}
    rows, ratios = beside(calls, repeats, faster=True)
    return result(
        rows, ratios["adte.Views"], "times faster than the usual way",
        **timing.conditions(threads=1), max_level_error=float(error.max()), views=draw.count,
        image=[height, width], repeats=repeats,
    )  # fmt: skip


def head(views: int = 64, classes: int = 1000, repeats: int = 301) -> Facts:
    """Entropy, selection and mean of one image's logits: adaptive Tsallis beside Shannon."""
    g = torch.Generator().manual_seed(0)
    logits = 5 * torch.randn(views, classes, generator=g)
    log_prior = torch.log_softmax(torch.randn(classes, generator=g), -1)

    def of(entropy: Callable[[Tensor], Tensor]) -> Callable[[], Tensor]:
        def call() -> Tensor:
            log_p = F.log_probs(logits)
            kept = F.rank_views(entropy(log_p))[: F.keep_count(views)]
            return F.mean_probs(F.take_views(log_p, kept))

        return call

    def adaptive(log_p: Tensor, *form: Any) -> Tensor:
        return F.adaptive_tsallis(log_p, F.q_from_prior(log_prior), *form)

    ours = "ADTE head (q from the prior included)"
    rows, ratios = beside({
        "Shannon head": of(F.shannon),
        ours: of(adaptive),
        "ADTE head, vanishing form": of(lambda log_p: adaptive(log_p, "vanishing")),
    }, repeats)  # fmt: skip
    facts = {"views": views, "classes": classes, "repeats": repeats}
    where = timing.conditions(threads=1)
    return result(rows, ratios[ours], "ADTE head over Shannon head", **where, **facts)


MOST = 4 << 30  # bytes of a bank
REBUILT, UPDATED = "new item, rebuilt matrix, solved", "new item, one column, solved"
DEFAULT = "new image, the default (tilt): read and taken in"


def prior(classes: int = 1000, size: int = 10, repeats: int = 31) -> Facts:
    """The cost of one more image for the class prior: of `tilt`, and of the fixed point.

    `tilt` keeps sums per class: an image is read and taken in in time linear in the classes. The
    fixed point's bank is updated by one column and solved from uniform, beside a matrix that is
    rebuilt first. Its bank grows with the classes squared; where it would take more than a few GB
    it is left out.
    """
    g = torch.Generator().manual_seed(0)
    bias = torch.linspace(0, 3, classes)[torch.randperm(classes, generator=g)]

    def item() -> Tensor:
        """A prediction with a confusable neighbourhood, as real ones have."""
        z = torch.randn(classes, generator=g) + bias
        z[torch.randint(classes, (5,), generator=g)] += 6
        return torch.log_softmax(z, -1)

    method, image = create_method("tilt"), Sample(item()[None])
    for _ in range(50):
        method.learn(Sample(item()[None]))
    needed = (4 * size + 8) * classes**2
    fits = needed <= MOST
    calls = _fixed_point(classes, size, item) if fits else {}
    rows, ratios = beside({**calls, DEFAULT: lambda: method.step(image)}, repeats, faster=True)
    facts = {"classes": classes, "size": size, "bank_bytes": needed}
    if fits:
        ratio, meaning = ratios[UPDATED], "the fixed point, times faster than rebuilding"
    else:
        ratio = 1e3 * rows[0]["seconds"]
        meaning = f"ms; the bank would take {needed / 2**30:.0f} GB: left out"
    where = timing.conditions(dtype=torch.float64, threads=1)
    return result(rows, ratio, meaning, **where, **facts)


def _fixed_point(
    classes: int, size: int, item: Callable[[], Tensor]
) -> dict[str, Callable[[], object]]:
    options = PriorOptions(
        estimator="fixed-point", smoothing=0, smoothing_total=0, clip=0, bank="fifo", size=size
    )
    rule = rule_of(options)
    state = fresh("the class prior", rule.entries(), {"L": classes})
    for n in range(classes * size):
        p = item().exp()
        bank.insert(state, "", int(p.argmax()), -float(n), {"items": p})
    state["seen"] += classes * size
    rule.refresh(state)
    even = torch.full((classes,), 1 / classes, dtype=torch.float64)
    filled = bank.filled(state)
    items = [state["items"][c, filled[c]] for c in range(classes)]

    def updated() -> Tensor:
        rule.observe(state, item().double())
        return rule.log_prior(state).exp()

    def rebuilt() -> Tensor:
        matrix = torch.stack([x.double().mean(0) if len(x) else even for x in items], dim=1)
        return fixed_point(matrix, even, options.norm, options.eps, options.max_iter)[0]

    return {REBUILT: rebuilt, UPDATED: updated}


def stream(
    images: int = 1_000_000, classes: int = 10, views: int = 4, batch: int = 64, dim: int = 16
) -> Facts:
    """A long simulated stream through `tilt`: are memory and the time of an image flat?

    Features are drawn as the stream goes. A row is a decade: the time of an image over the batches
    of its last tenth, the memory of the process at its end, and the size of the state.
    """
    timing.check_counts(images=images, batch=batch, views=views)
    rule, g = create_method("tilt"), torch.Generator().manual_seed(0)
    weights = normalize(torch.randn(classes, dim, generator=g), dim=-1)
    context, rows, done = Context(weights, 20.0), list[Facts](), 0
    for mark in [*(10**k for k in range(3, 10) if 10**k < images), images]:
        late, times = done + 9 * (mark - done) // 10, list[float]()
        while done < mark:
            n = min(batch, mark - done)
            labels = torch.randint(classes, (n, 1), generator=g)
            noise = torch.randn(n, views, dim, generator=g)
            features = normalize(weights[labels] + noise * dim**-0.5, dim=-1)
            start = time.perf_counter()
            rule.step(context.batch(features))
            if done >= late or done + n >= mark:
                times.append((time.perf_counter() - start) / n)
            done += n
        rows.append({
            "name": f"{done:,} images", "images": done, "seconds": statistics.median(times),
            "resident_bytes": resident(),
            "state_bytes": sum(v.nbytes for v in rule.state_dict().values()),
        })  # fmt: skip
    for row in rows:
        row["ratio"] = row["seconds"] / rows[0]["seconds"]
        row["grown_bytes"] = row["resident_bytes"] - rows[0]["resident_bytes"]
    facts = {"method": "tilt", "classes": classes, "views": views, "batch": batch}
    meaning = f"time of an image after {done:,} over that after {rows[0]['images']:,}"
    return result(rows, rows[-1]["ratio"], meaning, **timing.conditions(), **facts)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["views", "head", "prior", "stream"])
    for name in ("images", "classes", "views", "batch", "repeats"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--image", help="photo to use; by default one of 500×375 is made up")
    parser.add_argument("--json", type=Path, metavar="FILE")
    asked = {k: v for k, v in vars(parser.parse_args()).items() if v is not None}
    call, file = globals()[asked.pop("what")], asked.pop("json", None)
    found = call(**asked)
    for row in found["rows"]:
        print(f"{row['name']:50}{row['seconds']:12.4g} s{row['ratio']:10.3f}")
    print(f"{found['meaning']}: {found['ratio']:.3f}")
    if file:
        file.write_text(json.dumps(found), "utf-8")


if __name__ == "__main__":
    main()
