"""What the real copies of the data sets taught: parts of a set, and images that are not JPEGs.

`benchmarks/datasets.py` lays such copies out; here it does so from small Git clones.
"""

from __future__ import annotations

import io
import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from PIL import Image

from adte.core.errors import InputError
from adte.data import check_dataset, load_dataset
from adte.images.decode import load_image

Write = Callable[[Path, object], Path]


@pytest.fixture(scope="module")
def script(script_of: Callable[[str], ModuleType]) -> ModuleType:
    return script_of("datasets")


def encode(image: Image.Image, form: str) -> bytes:
    file = io.BytesIO()
    image.save(file, form)
    return file.getvalue()


def clone(folder: Path, name: str, files: dict[str, bytes]) -> Path:
    """A Git repository that holds these files."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    at = folder / name.replace("/", "+") / "repo"
    for path, content in files.items():
        (at / path).parent.mkdir(parents=True, exist_ok=True)
        (at / path).write_bytes(content)
    for words in (
        ("init", "-q"),
        ("add", "."),
        ("-c", "user.name=t", "-c", "user.email=t@example.org", "commit", "-qm", "all"),
    ):
        subprocess.run(["git", "-C", str(at), *words], check=True)
    return at


# ---------------------------------------------------------------- parts of a set


def test_a_part_is_read_under_the_real_split(tmp_path: Path, plant: Callable, write: Write) -> None:
    rows = [("River/River_1.jpg", 1, "River"), ("Forest/Forest_7.jpg", 0, "Forest"),
            ("SeaLake/SeaLake_3.jpg", 2, "Sea or Lake")]  # fmt: skip
    write(tmp_path / "split_zhou_EuroSAT.json", {"train": [], "val": [], "test": rows})
    # The first image is not there, and the folder is not the first that is looked into.
    plant(tmp_path, [f"images/{path}" for path, _, _ in rows[1:]])
    with pytest.raises(InputError, match=r"names 'River/River_1.jpg', .*1 of 3 are missing"):
        load_dataset(f"eurosat:{tmp_path}")
    part = load_dataset(f"eurosat:{tmp_path}?complete=false")
    assert [(e.id, e.label) for e in part] == [(p, y) for p, y, _ in rows[1:]]
    assert part.classes == ("Forest", "River", "Sea or Lake")  # a class without images stays
    assert all(Path(e.source).is_file() for e in part)
    assert part.split.endswith("less 1 of 3 images that are not there: River/River_1.jpg, …")
    found = {f.what: f for f in check_dataset("eurosat", str(tmp_path))}
    assert "River/River_1.jpg" in found["layout"].detail
    assert found["images"].status == found["empty classes"].status == "wrong"
    for path in (tmp_path / "images").rglob("*.jpg"):
        path.unlink()
    with pytest.raises(InputError, match="has no images"):
        load_dataset(f"eurosat:{tmp_path}?complete=false")


# ---------------------------------------------------------------- odd files


def test_pets_hold_gifs_and_pngs_that_are_called_jpg(tmp_path: Path, write: Write) -> None:
    """Abyssinian_34, Abyssinian_5 and Egyptian_Mau_177 of the release are no JPEGs."""
    noise = np.random.default_rng(0).integers(0, 255, (9, 12, 3), np.uint8)
    image = Image.fromarray(noise)
    clear = Image.fromarray(np.dstack([noise, np.full((9, 12), 128, np.uint8)]))
    palette = image.quantize(16)
    palette.info["transparency"] = 3
    files = {"Abyssinian_34": encode(image.quantize(16), "GIF"),
             "Abyssinian_5": encode(clear, "PNG"),
             "Egyptian_Mau_177": encode(palette, "GIF"),
             "Egyptian_Mau_129": encode(image.convert("L"), "JPEG")}  # fmt: skip
    (tmp_path / "images").mkdir()
    for name, content in files.items():
        (tmp_path / "images" / f"{name}.jpg").write_bytes(content)
    lines = [f"{name} {1 + name.startswith('Egyptian')} 1 1" for name in files]
    write(tmp_path / "annotations/test.txt", "\n".join(lines) + "\n")
    data = load_dataset(f"pets:{tmp_path}?complete=false")
    assert data.classes == ("abyssinian", "egyptian_mau")
    shapes = [load_image(example.source).shape for example in data]
    assert shapes == [(9, 12, 3)] * 4


# ---------------------------------------------------------------- laying copies out


def test_copies_are_laid_out_as_the_readers_expect(
    script: ModuleType, tmp_path: Path, jpeg: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    clones, out = tmp_path / "clones", tmp_path / "out"
    rows = [[f"{c}/{c}_{i}.jpg", y, c] for y, c in enumerate(("Forest", "River")) for i in (1, 2)]
    split = json.dumps({"train": rows[:1], "val": [], "test": rows[1:]}).encode()
    lists = "classification/datasets/other_lists/split_zhou_eurosat.json"
    copy = next(c for c in script.SETS if c.name == "eurosat")
    clone(clones, script.COOP, {lists: split})
    images = {f"test_images/{p.split('/')[0]}_{p.split('/')[1]}": jpeg + p.encode()
              for p, _, _ in rows}  # fmt: skip
    at = clone(clones, copy.rules[0].repository, {**images, "test_images/notes.txt": b"none"})
    known = script.unpack(copy, clones, out)
    assert (known["images"], known["lost"]) == (4, 0)
    assert len(known["sources"][script.COOP]) == 40
    data = load_dataset(known["data"].replace(":", f":{out}/"))
    assert [[e.id, e.label, data.classes[e.label]] for e in data] == rows[1:]
    assert (out / "eurosat/2750/River/River_2.jpg").read_bytes() == jpeg + b"River/River_2.jpg"
    script.check(known, out, 4)
    assert "3 images, 8100 expected" in capsys.readouterr().out

    few = script.unpack(copy, clones, tmp_path / "few", limit=2)
    assert few["images"] == 2
    limited = load_dataset(few["data"].replace(":", f":{tmp_path}/few/"))
    assert set(limited.ids) < {path for path, _, _ in rows[1:]}  # of the test part alone
    assert len(limited) == 2

    one = script.Clone(clones, copy.rules[0].repository).files["test_images/River_River_1.jpg"]
    (at / ".git/objects" / one[:2] / one[2:]).unlink()  # as in a partial clone
    lossy = script.unpack(copy, clones, tmp_path / "lossy")
    assert (lossy["images"], lossy["lost"]) == (3, 1)
    with pytest.raises(SystemExit, match=r"cyizhuo/CUB-200-2011-dataset is not in"):
        script.unpack(next(c for c in script.SETS if c.name == "cub"), clones, out)


def test_folders_get_the_names_of_their_classes(
    script: ModuleType, tmp_path: Path, jpeg: bytes
) -> None:
    for name, folder, title in (
        ("cub", "001.Black_footed_Albatross", "Black footed Albatross"),
        ("cars", "Ram C_V Cargo Van Minivan 2012", "2012 Ram C/V Cargo Van Minivan"),
    ):
        copy = next(c for c in script.SETS if c.name == name)
        clone(tmp_path, copy.rules[0].repository, {f"test/{folder}/1.jpg": jpeg, "README.md": b""})
        known = script.unpack(copy, tmp_path, tmp_path)
        data = load_dataset(known["data"].replace(":", f":{tmp_path}/"))
        assert (data.classes, data.class_ids) == ((title,), (folder,))
