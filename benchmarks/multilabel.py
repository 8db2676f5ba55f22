"""Several labels per image: methods on real collages of two photographs.

    python benchmarks/multilabel.py FOLDER [--pairs 200] [--model tiny] [--json FILE]

FOLDER has one folder of photographs per class. Photographs of different classes are drawn two by
two, none twice, and set side by side; every method sees the views of the collage and scores all
classes. Reported is the mean average precision over classes, by probability and by the scores of
ML-TTA, how often the two most probable classes are the two labels, and how often the first is one
of them.
"""

from __future__ import annotations

import argparse
import json

import torch

from adte import load_model
from adte.data import load_dataset
from adte.images import Views
from adte.models.prompts import Prompts, class_weights
from adte.paper.multilabel import COLUMNS, METHODS, collages, compare


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder")
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--views", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0, help="of the pairs and the views")
    parser.add_argument("--methods", help=f"names with ; between them, of: {'; '.join(METHODS)}")
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    torch.set_num_threads(1)
    data, model = load_dataset(f"folder:{args.folder}"), load_model(args.model)
    weights = class_weights(model, data.classes, Prompts.of(data.templates))
    views = Views(count=args.views, seed=args.seed)
    pairs = list(collages(data, model, weights, args.pairs, views, args.seed))
    names = [n.strip() for n in args.methods.split(";")] if args.methods else list(METHODS)
    rows, gaps = compare(pairs, names)
    setting = (
        f"{len(pairs)} collages of {data.name}, {len(data.classes)} classes, {args.views} views, "
        f"model {args.model}"
    )
    print(f"{setting}; percent\n{'':26s}" + "".join(f"{c:>14s}" for c in COLUMNS))
    for row in rows:
        print(f"{row.name:26s}" + "".join(f"{100 * c:14.1f}" for c in row.cells))
    print(f"mAP over {names[0]}, 95 % over resampled images, points: {'; '.join(gaps)}")
    if args.json:
        facts = {
            "setting": setting,
            "rows": [{"name": r.name, **dict(zip(COLUMNS, r.cells, strict=True))} for r in rows],
            "gaps": gaps,
        }
        with open(args.json, "w", encoding="utf-8") as f:
            json.dump(facts, f, indent=2, ensure_ascii=False)
            f.write("\n")


if __name__ == "__main__":
    main()
