"""Run the commands behind the figures that the docs quote, and keep what they print.

    python benchmarks/record.py --list
    python benchmarks/record.py bench-head replay
    python benchmarks/record.py multilabel --with PHOTOGRAPHS=tiny-imagenet-val
    python benchmarks/record.py bench-cost --as bench-cost-gpu -- --model ViT-B-16 --device cuda

Each NAME becomes benchmarks/results/NAME.json: the JSON of the command, and the command, version,
machine and date that belong to it; of some the rows are in NAME.csv, too. Words behind -- are added
to the command. A word in capitals stands for a path that `--with` gives; it stays in the record in
place of the path.
"""

from __future__ import annotations

import argparse
import csv
import json
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any

from adte.bench.conditions import conditions

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"

# Name → steps; `--json FILE` is added to the last. WORK is a folder that is gone afterwards.
TOWER = "zero-shot,average,se,adte,bn,tent,memo,deyo"
REAL = "caltech101,pets,flowers,eurosat,dtd,imagenette,pacs-photo,pacs-sketch,cifar10"
CLIP = "CALTECH LVIS IMAGENET PETS"  # features of real CLIP, as `default.py` takes them
BESIDE = "--methods zero-shot se 'se + la' tda tilt"
RECORDS: dict[str, tuple[str, ...]] = {
    "bench-rate": ("adte bench rate",),
    "bench-growth": ("adte bench growth",),
    "bench-stream": ("adte bench stream",),
    "bench-prior-20000": ("adte bench prior --classes 20000",),
    "tower": ("python benchmarks/tower.py",),
    "bench-views": ("adte bench views",),
    "bench-head": ("adte bench head",),
    "bench-prior": ("adte bench prior",),
    "bench-encode": ("adte bench encode",),
    "bench-pipeline": ("adte bench pipeline",),
    "bench-cost": ("adte bench cost",),
    "bench-serve": ("python benchmarks/serve.py",),
    "serve-soak": ("python benchmarks/serve.py --soak 10 --views 8",),
    "bench-cost-vit": ("adte bench cost --model ViT-B-16 --weights random --classes 1000",),
    "auto": ("python benchmarks/auto.py replay",),
    "phone": ("python benchmarks/phone.py PHOTOGRAPHS",),
    "replay": ("python benchmarks/replay.py",),
    "corruptions": ("python benchmarks/corruptions.py",),
    "clip-logits": ("python benchmarks/clip_logits.py FEATURES",),
    "clip-logits-50": ("python benchmarks/clip_logits.py FEATURES --classes 50",),
    "streams": (f"python benchmarks/streams.py {CLIP} replay shifts CIFAR --jobs 2 {BESIDE}",),
    "streams-held": (
        f"python benchmarks/streams.py {CLIP} second CIFAR --streams held --seeds 11 12 --jobs 2 "
        f"{BESIDE}",
    ),
    "numbers": (
        f"python benchmarks/streams.py {CLIP} replay shifts CIFAR --numbers --seeds 1 --jobs 2",
    ),
    "calibration": ("python benchmarks/calibrate.py replay",),
    "small": ("python benchmarks/small.py folder:PHOTOGRAPHS --sides 32 48",),
    "multilabel": ("python benchmarks/multilabel.py PHOTOGRAPHS --pairs 200",),
    "demo": ("adte demo --out WORK/demo",),
    "demo-other-photographs": (
        "adte extract --data folder:PHOTOGRAPHS --model tiny-longtail --out WORK/cache",
        "adte demo --cache WORK/cache --out WORK/demo",
    ),
    "compare": ("adte compare --seeds 3 --runs WORK/runs",),
    "compare-tower": (
        f"adte compare --data folder:PHOTOGRAPHS --limit 200 --views 16 --methods {TOWER}",
    ),
    "datasets": (f"python benchmarks/datasets.py run DATASETS --sets {REAL} --limit 300",),
    "paper": ("adte paper all --preset small --out WORK/paper",),
    "study": ("adte study all --preset small --out WORK/study",),
}
TABLES = ("bench-rate", "bench-growth", "bench-stream", "bench-prior-20000", "tower")  # CSV, too
PROGRAMS = {"adte": [sys.executable, "-m", "adte.cli"], "python": [sys.executable]}


def words(step: str, paths: dict[str, str]) -> list[str]:
    """A step as a command that runs here."""
    program, *rest = shlex.split(step)
    out = list(PROGRAMS[program])
    for word in rest:
        for name, path in paths.items():
            word = word.replace(name, path)
        out.append(word)
    return out


def without(value: Any, paths: dict[str, str]) -> Any:
    """JSON in which paths of this machine are called by what they stand for."""
    text = json.dumps(value, ensure_ascii=False)
    for name, path in paths.items():
        text = text.replace(json.dumps(path, ensure_ascii=False)[1:-1], name)
    return json.loads(text)


def commit() -> str | None:
    """The commit of the working tree, with a + where it was changed; None outside of one."""
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty=+", "--exclude=*"],
            cwd=ROOT, capture_output=True, text=True, check=True,
        )  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def record(name: str, steps: tuple[str, ...], given: dict[str, str]) -> dict[str, Any]:
    """Run the steps; the last one's JSON with all that belongs to it."""
    with tempfile.TemporaryDirectory(prefix="adte-") as folder:
        target = Path(folder) / "out.json"
        paths = {**given, "WORK": folder}
        start = time.perf_counter()
        for step in steps:
            last = ["--json", str(target)] if step == steps[-1] else []
            print(f"… {step}", file=sys.stderr)
            subprocess.run([*words(step, paths), *last], cwd=ROOT, check=True)
        seconds = time.perf_counter() - start
        result = without(json.loads(target.read_text("utf-8")), paths)
    return {
        "name": name,
        "command": " && ".join(steps),
        "given": {key: Path(path).name for key, path in given.items()},
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        "version": {"adte": version("adte"), "commit": commit()},
        "machine": conditions(),
        "seconds": round(seconds, 1),
        "result": result,
    }


def table(facts: dict[str, Any], file: Path) -> None:
    """The rows of a result as CSV, under what belongs to them as lines that begin with #."""
    result = facts["result"]
    rows = result.get("rows") or [r for m in result.get("models", {}).values() for r in m["rows"]]
    if not rows:
        return
    machine = {k: v for k, v in {**facts["machine"], **result}.items() if k in facts["machine"]}
    head = {"command": facts["command"], "date": facts["date"], **facts["version"], **machine}
    with file.open("w", encoding="utf-8", newline="") as out:
        out.writelines(f"# {key}: {value}\n" for key, value in head.items())
        columns = dict.fromkeys(key for row in rows for key in row)
        writer = csv.DictWriter(out, list(columns), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def main(arguments: Sequence[str]) -> None:
    more: Sequence[str] = []
    if "--" in arguments:
        at = arguments.index("--")
        arguments, more = arguments[:at], arguments[at + 1 :]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="what to record; see --list")
    parser.add_argument("--list", action="store_true", help="names and their commands")
    parser.add_argument("--with", dest="given", action="append", default=[], metavar="WORD=PATH")
    parser.add_argument("--as", dest="title", metavar="NAME", help="the file's name, if another")
    parser.add_argument("--out", type=Path, default=RESULTS, metavar="FOLDER")
    args = parser.parse_args(arguments)
    if args.list or not args.names:
        for name, steps in RECORDS.items():
            print(f"{name:24s} {' && '.join(steps)}")
        return
    given = {}
    for pair in args.given:
        word, _, path = pair.partition("=")
        if not path or not Path(path).exists():
            parser.error(f"--with {pair}: write it as WORD=PATH with a path that exists")
        given[word] = str(Path(path).resolve())
    if (args.title or more) and len(args.names) > 1:
        parser.error("--as and words behind -- go with one NAME at a time")
    for name in args.names:
        if name not in RECORDS:
            parser.error(f"unknown name {name!r}; there are: {', '.join(RECORDS)}")
        *first, last = RECORDS[name]
        steps = (*first, shlex.join([*shlex.split(last), *more]))
        used = {w: p for w, p in given.items() if any(w in step for step in steps)}
        needed = ("DATASETS", "FEATURES", "PHOTOGRAPHS")
        lacking = {w for w in needed if any(w in s for s in steps)} - set(used)
        if lacking:
            parser.error(f"{name} needs data; give it as --with {lacking.pop()}=PATH")
        facts = record(args.title or name, steps, used)
        args.out.mkdir(parents=True, exist_ok=True)
        file = args.out / f"{facts['name']}.json"
        file.write_text(json.dumps(facts, indent=1, ensure_ascii=False) + "\n", "utf-8")
        print(file)
        if name in TABLES:
            table(facts, file.with_suffix(".csv"))


if __name__ == "__main__":
    main(sys.argv[1:])
