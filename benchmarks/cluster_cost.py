"""What a large job takes: a model of time, price and bytes from figures of one machine.

    python benchmarks/cluster_cost.py            # the table of the guide
    python benchmarks/cluster_cost.py --rate 300 --gpus 16 --price 2.5

Time is images / (GPUs · rate · efficiency), or what the driver takes, if that is more:

    extraction   features of V·D·2 bytes an image go through the driver's network and disk
    labelling    the owner learns and decides image by image, `owner` seconds each

The rate is the only figure of a GPU; the rest are of a processor, or assumed, as said beside each.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, fields
from typing import NamedTuple

from adte.core.options import option

__all__ = ["SETS", "Cost", "Model", "table"]

SETS = {
    "ImageNet, validation": 50_000,
    "ImageNet, training": 1_281_167,
    "10 M": 10_000_000,
    "1 B": 1_000_000_000,
}


class Cost(NamedTuple):
    """Of one job: hours by the clock, hours of GPUs, price, bytes; and what bounds it."""

    hours: float
    gpu_hours: float
    price: float
    read: float
    written: float
    bound: str


@dataclass(frozen=True, kw_only=True)
class Model:
    """Measured figures and assumptions."""

    rate: float = option(195.0, "images per second of a GPU: ViT-B/16, 64 views, one H200")
    gpus: int = option(8, "GPUs")
    efficiency: float = option(0.9, "share of that rate that is left on a cluster; assumed")
    price: float = option(4.0, "of a GPU's hour, in any currency; assumed")
    image: float = option(110e3, "bytes of an image as it lies there; ImageNet's mean")
    features: float = option(65536.0, "bytes of an image's features: 64 views of 512, float16")
    driver: float = option(500e6, "bytes per second that the driver takes and writes; assumed")
    owner: float = option(0.003, "seconds of the owner for an image, 1,000 classes; measured")
    decode: float = option(0.0026, "seconds of a core to open an image; measured")
    start: float = option(120.0, "seconds for machines and models to come up; assumed")

    def extract(self, images: int) -> Cost:
        """A cache of features."""
        return self._cost(images, self.features / self.driver, self.features, "the driver's disk")

    def label(self, images: int) -> Cost:
        """Labels, online, by one owner."""
        return self._cost(images, self.owner, 200.0, "the owner")

    def _cost(self, images: int, serial: float, written: float, who: str) -> Cost:
        parallel = 1 / (self.gpus * self.rate * self.efficiency)
        hours = (self.start + images * max(parallel, serial)) / 3600
        gpu = hours * self.gpus
        bound = who if serial > parallel else "the GPUs"
        return Cost(hours, gpu, gpu * self.price, images * self.image, images * written, bound)

    @property
    def cores(self) -> float:
        """Cores a GPU that only open pictures."""
        return self.rate * self.decode


def table(model: Model) -> str:
    """The costs of all sets, as Markdown."""
    lines = [
        f"| images | work | hours on {model.gpus} GPUs | GPU hours | price | read | written "
        "| bounded by |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, images in SETS.items():
        for work in ("extract", "label"):
            c: Cost = getattr(model, work)(images)
            cells = (
                name, work, f"{c.hours:,.2f}", f"{c.gpu_hours:,.1f}", f"{c.price:,.0f}",
                _size(c.read), _size(c.written), c.bound,
            )  # fmt: skip
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _size(count: float) -> str:
    """
    >>> _size(3.28e9), _size(65e12)
    ('3.3 GB', '65 TB')
    """
    for unit, one in (("TB", 1e12), ("GB", 1e9)):
        if count >= one:
            return (
                f"{count / one:.2g} {unit}" if count < 100 * one else f"{count / one:,.0f} {unit}"
            )
    return f"{count / 1e6:.0f} MB"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for f in fields(Model):
        kind = int if f.name == "gpus" else float
        parser.add_argument(
            f"--{f.name}", type=kind, default=f.default, help=f"{f.metadata['help']} (%(default)s)"
        )
    print(table(Model(**vars(parser.parse_args()))))


if __name__ == "__main__":
    main()
