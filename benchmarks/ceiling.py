"""How much a bias per class could give at most: fitted with labels, on other images.

    python benchmarks/ceiling.py replay CACHE [--json FILE]

Two sources with the same classes, as in `default.py`. On each: the views as `adte` weighs them,
less a bias per class. That is nothing; the log-mean of the predictions of all images (two passes,
no labels); the same of the other source; and a bias fitted to the labels of the other source, by
logistic regression of several strengths. No method without labels can be expected to do better than
the last, so its distance to `adte` online is what is left to find.
"""

from __future__ import annotations

import argparse
import json

import numpy as np
import torch
from numpy.typing import NDArray

from adte import create_method
from default import Source, draw, probabilities, sources

Floats = NDArray[np.float64]
STRENGTHS = (0.1, 0.3, 1.0, 3.0)  # of the ridge


def predictions(source: Source, method: str, **options: str) -> Floats:
    """Log-probabilities of all images, by their numbers; online, in one order."""
    rows = draw(source, "full", 1)
    probs = probabilities(source, rows, create_method(method, **options))
    return probs[np.argsort(rows)].double().clamp_min(1e-12).log().numpy()


def fitted(log_p: Floats, labels: NDArray[np.int64], strength: float) -> Floats:
    """The bias that makes the labels most probable, drawn to nought."""
    z, y = torch.from_numpy(log_p), torch.from_numpy(labels)
    bias = torch.zeros(z.shape[1], dtype=z.dtype, requires_grad=True)
    solver = torch.optim.LBFGS([bias], max_iter=200, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        solver.zero_grad()
        value = torch.nn.functional.cross_entropy(z - bias, y, reduction="sum")
        value = value + strength * bias.square().sum()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    solver.step(loss)
    return bias.detach().numpy()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sources", nargs=2, metavar="SOURCE")
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    torch.set_num_threads(1)
    both = [next(sources(where)) for where in args.sources]
    plain = [predictions(s, "average") for s in both]
    found = []
    for mine, other in ((0, 1), (1, 0)):
        source = both[mine]

        def accuracy(z: Floats, source: Source = source) -> float:
            return float((z.argmax(1) == source.labels).mean())

        def marginal(i: int) -> Floats:
            return np.log(np.exp(plain[i]).sum(0) + 1)

        row = {
            "source": source.name,
            "other": both[other].name,
            "nothing": accuracy(plain[mine]),
            "tilt, online": accuracy(predictions(source, "tilt")),
            "mean prediction, two passes": accuracy(plain[mine] - marginal(mine)),
            "mean prediction of the other": accuracy(plain[mine] - marginal(other)),
        } | {
            f"labels of the other, ridge {s}": accuracy(
                plain[mine] - fitted(plain[other], both[other].labels, s)
            )
            for s in STRENGTHS
        }
        for name, value in row.items():
            print(f"{name:34} {value if isinstance(value, str) else f'{100 * value:.1f} %'}")
        found.append(row)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as f:
            json.dump(found, f, indent=2)
            f.write("\n")


if __name__ == "__main__":
    main()
