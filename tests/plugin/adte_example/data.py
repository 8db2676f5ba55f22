"""A data set reader: a text file with a label and a colour on every line."""

from dataclasses import dataclass

import numpy as np

from adte.core.options import option
from adte.data import Dataset, DatasetInfo, register_dataset
from adte.data.registry import Location, Reader


@register_dataset(
    DatasetInfo("example", "Plain colours", how="write one yourself", layouts=("FILE.colours",))
)
@dataclass(frozen=True, kw_only=True)
class Colours(Reader):
    """Lines such as "sky #3399ff"; every image is of one colour."""

    generic = True

    side: int = option(16, "pixels of an image's side")

    def find(self, root):
        return Location(root, "colours") if root.suffix == ".colours" else None

    def read(self, root, location):
        lines = [line.split() for line in root.read_text().splitlines()]
        names = sorted({name for name, _ in lines})
        return Dataset(
            name="example",
            classes=tuple(names),
            class_ids=tuple(names),
            sources=[self.image(colour) for _, colour in lines],
            labels=np.array([names.index(name) for name, _ in lines]),
            ids=[f"line {i}" for i in range(len(lines))],
            split=location.layout,
            root=root,
        )

    def image(self, colour):
        rgb = np.frombuffer(bytes.fromhex(colour.removeprefix("#")), np.uint8)
        return np.broadcast_to(rgb, (self.side, self.side, 3)).copy()
