"""ColoredMNIST: three environments, two flips, four groups."""

from __future__ import annotations

import gzip
import pickle
from pathlib import Path

import numpy as np
import pytest

from adte.core.errors import InputError
from adte.data import load_dataset, looks_like
from adte.data.colored_mnist import ColoredMNIST

N = 9000


def digits() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 10, N).astype(np.uint8)
    images = np.zeros((N, 4, 4), np.uint8)
    images[:, 1, 1] = labels + 1  # the digit can be read back
    return images, labels


def write_idx(path: Path, array: np.ndarray, compress: bool) -> None:
    raw = bytes((0, 0, 8, array.ndim)) + np.array(array.shape, ">i4").tobytes() + array.tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(raw) if compress else raw)


def test_the_test_environment_by_hand() -> None:
    images, labels = digits()
    data = ColoredMNIST(seed=3).build(images, labels)
    state = np.random.RandomState(3)
    expected = []
    for i, digit in enumerate(labels):  # the authors' order of draws: label flip, colour flip
        y = int(digit >= 5)
        noisy = 1 - y if state.uniform() < 0.25 else y
        flip = 0.2 if i < N // 3 else 0.1 if i < 2 * N // 3 else 0.9
        red = (noisy == 0) != (state.uniform() < flip)
        expected.append((y, noisy, red))
    third = N // 3
    assert len(data) == third
    assert data.labels.tolist() == [y for y, _, _ in expected[2 * third :]]  # clean labels
    assert data.groups is not None
    assert data.groups.tolist() == [2 * y + red for y, _, red in expected[2 * third :]]
    for k in range(0, third, 500):
        image, (_, _, red) = data[k].source, expected[2 * third + k]
        assert image.shape == (4, 4, 3)
        assert image[1, 1].tolist() == ([int(labels[2 * third + k]) + 1, 0, 0] if red
                                        else [0, int(labels[2 * third + k]) + 1, 0])  # fmt: skip
    train = ColoredMNIST(seed=3, part="train2").build(images, labels)
    assert train.labels.tolist() == [noisy for _, noisy, _ in expected[third : 2 * third]]
    assert train[0].id == f"train/{third:05d}"


@pytest.mark.parametrize("compress", [False, True])
def test_from_mnist_files(compress: bool, tmp_path: Path) -> None:
    images, labels = digits()
    end = ".gz" if compress else ""
    write_idx(tmp_path / f"MNIST/raw/train-images-idx3-ubyte{end}", images, compress)
    write_idx(tmp_path / f"MNIST/raw/train-labels-idx1-ubyte{end}", labels, compress)
    data = load_dataset(f"colored-mnist:{tmp_path}", complete=False)
    given = ColoredMNIST().build(images, labels)
    assert data.labels.tolist() == given.labels.tolist()
    np.testing.assert_array_equal(data[7].source, given[7].source)
    assert pickle.loads(pickle.dumps(data))[7].group == data[7].group
    with pytest.raises(InputError, match="3000 images instead of 20000"):
        load_dataset(f"colored-mnist:{tmp_path}")
    assert looks_like(tmp_path) == "colored-mnist"
    (tmp_path / f"MNIST/raw/train-labels-idx1-ubyte{end}").write_bytes(b"broken")
    with pytest.raises(InputError, match=r"cannot read|is not an IDX file"):
        load_dataset(f"colored-mnist:{tmp_path}", complete=False)


def test_bad_digits() -> None:
    with pytest.raises(InputError, match="give uint8 images"):
        ColoredMNIST().build(np.zeros((3, 8, 8)), np.zeros(3))
