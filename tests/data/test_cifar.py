"""CIFAR: python batches and the corrupted arrays."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from adte.core.errors import InputError
from adte.data import load_dataset, looks_like
from adte.data.cards import row

CIFAR10_NAMES, CIFAR100_NAMES = (row(name)["names"] for name in ("cifar10", "cifar100"))
RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (4, 32, 32, 3), dtype=np.uint8)


def batch(path: Path, data: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(data, protocol=2))


def cifar(root: Path, hundred: bool = False) -> Path:
    flat = PIXELS.transpose(0, 3, 1, 2).reshape(4, -1)  # channel after channel, as stored
    if hundred:
        batch(
            root / "test",
            {"data": flat, "fine_labels": [99, 0, 1, 53], "coarse_labels": [1, 2, 3, 4]},
        )
        batch(root / "meta", {"fine_label_names": list(CIFAR100_NAMES)})
    else:
        batch(root / "test_batch", {"data": flat, "labels": [3, 9, 0, 1]})
        batch(root / "batches.meta", {"label_names": list(CIFAR10_NAMES)})
    return root


def test_cifar10_reads_the_test_batch(tmp_path: Path) -> None:
    cifar(tmp_path / "cifar-10-batches-py")
    data = load_dataset(f"cifar10:{tmp_path}", complete=False)
    assert [data.classes[e.label] for e in data] == ["cat", "truck", "airplane", "automobile"]
    np.testing.assert_array_equal(data[2].source, PIXELS[2])
    assert data[2].id == "test/00002"
    with pytest.raises(InputError, match=r"no image for 6 of 10 .* put \?complete=false behind"):
        load_dataset(f"cifar10:{tmp_path}")
    assert len(pickle.loads(pickle.dumps(data))) == 4


def test_cifar100_takes_the_fine_labels(tmp_path: Path) -> None:
    data = load_dataset(f"cifar100:{cifar(tmp_path, hundred=True)}", complete=False)
    assert data.labels.tolist() == [99, 0, 1, 53]
    assert [data.classes[i] for i in (0, 1, 53, 99)] == ["apple", "aquarium_fish", "orange", "worm"]
    assert list(CIFAR100_NAMES) == sorted(set(CIFAR100_NAMES))
    assert len(CIFAR100_NAMES) == 100
    with pytest.raises(InputError, match="looks like cifar100"):
        load_dataset(f"cifar10:{tmp_path}")


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, ("adte-was-here",)


def test_a_batch_cannot_run_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cifar(tmp_path)
    batch(tmp_path / "test_batch", Evil())
    with pytest.raises(InputError, match="is not a batch of CIFAR"):
        load_dataset(f"cifar10:{tmp_path}", complete=False)
    assert not (tmp_path / "adte-was-here").exists()


def test_cifar_with_other_names_is_refused(tmp_path: Path) -> None:
    cifar(tmp_path)
    batch(tmp_path / "batches.meta", {"label_names": sorted(CIFAR10_NAMES, reverse=True)})
    with pytest.raises(InputError, match="in their order"):
        load_dataset(f"cifar10:{tmp_path}", complete=False)


def arrays(root: Path, labels: list[int], *types: str) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    n = len(labels)
    for t, name in enumerate(types):
        array = np.zeros((5 * n, 32, 32, 3), np.uint8)
        for s in range(5):
            for i in range(n):
                array[s * n + i] = 100 * t + 10 * (s + 1) + i  # tells type, severity and image
        np.save(root / f"{name}.npy", array)
    np.save(root / "labels.npy", np.tile(labels, 5))
    return root


def test_severity_s_is_the_sth_fifth(tmp_path: Path) -> None:
    arrays(tmp_path / "CIFAR-10-C", [3, 8, 9], "fog", "gaussian_blur")
    data = load_dataset(f"cifar10-c:{tmp_path}", corruption="gaussian_blur, fog", severity="2,5",
                        complete=False)  # fmt: skip
    assert data.labels.tolist() == [3, 8, 9] * 4
    assert [e.domain for e in data][::3] == ["gaussian_blur/2", "gaussian_blur/5", "fog/2", "fog/5"]
    assert [int(e.source[0, 0, 0]) for e in data] == [
        120, 121, 122, 150, 151, 152, 20, 21, 22, 50, 51, 52]  # fmt: skip
    assert data[4].id == "test/00001"
    again = pickle.loads(pickle.dumps(data))  # the memory maps stay behind
    assert int(again[11].source[0, 0, 0]) == 52
    assert len(pickle.dumps(data)) < 4000
    with pytest.raises(
        InputError, match=r"has no gaussian_noise.npy.*\?corruption=fog,gaussian_blur"
    ):
        load_dataset(f"cifar10-c:{tmp_path}", complete=False)


def test_ten_and_hundred_are_told_apart(tmp_path: Path) -> None:
    arrays(tmp_path / "ten", [3, 9], "fog")
    arrays(tmp_path / "hundred", [3, 99], "fog")
    assert looks_like(tmp_path / "ten") == "cifar10-c"
    assert looks_like(tmp_path / "hundred") == "cifar100-c"
    with pytest.raises(InputError, match="looks like cifar100-c"):
        load_dataset(f"cifar10-c:{tmp_path / 'hundred'}", corruption="fog")
    data = load_dataset(f"cifar100-c:{tmp_path / 'hundred'}", corruption="fog", complete=False)
    assert [data.classes[e.label] for e in data] == ["bear", "worm"]


def test_broken_arrays_are_named(tmp_path: Path) -> None:
    root = arrays(tmp_path, [3, 9], "fog")
    np.save(root / "fog.npy", np.zeros((9, 32, 32, 3), np.uint8))
    with pytest.raises(InputError, match=r"fog.npy' holds uint8 \(9, 32, 32, 3\) instead of"):
        load_dataset(f"cifar10-c:{root}", corruption="fog", complete=False)
    np.save(root / "labels.npy", np.arange(10))
    with pytest.raises(InputError, match="not the test labels five times over"):
        load_dataset(f"cifar10-c:{root}", corruption="fog", complete=False)
