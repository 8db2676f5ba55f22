"""Where the files of the data sets lie, with sizes and checksums.

From torchvision's sources, `tensorflow/datasets` checksums and the authors' pages. A file without
an address cannot be fetched by a program: it lies behind a login or a drive, or is gone.
"""

from __future__ import annotations

from adte.data.registry import Download

__all__ = ["DOWNLOADS"]

_HENDRYCKS = "https://people.eecs.berkeley.edu/~hendrycks"
_VGG = "https://www.robots.ox.ac.uk/~vgg/data"
_TORONTO = "https://www.cs.toronto.edu/~kriz"
_ZENODO = "https://zenodo.org/records"
_MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist"
_HUB = "https://huggingface.co/datasets"


def _at(base: str, file: str, size: int | None, checksum: str) -> Download:
    return Download(file, f"{base}/{file}", size, checksum)


def _zenodo(record: int, file: str, size: int, md5: str) -> Download:
    return _at(f"{_ZENODO}/{record}/files", file, size, f"md5:{md5}")


DOWNLOADS: dict[str, tuple[Download, ...]] = {
    "imagenet": (
        Download("ILSVRC2012_img_val.tar", None, 6_744_924_160,
                 "md5:29b22e2961454d5413ddabcf34fc5622", "val"),
        Download("ILSVRC2012_devkit_t12.tar.gz", None, None,
                 "md5:fa75699e90414af021442c21a62c3abf"),
    ),
    "imagenet-v2": (
        _at(f"{_HUB}/vaishaal/ImageNetV2/resolve/main", "imagenetv2-matched-frequency.tar.gz",
            1_264_079_360,
            "sha256:f0c37fdf925916b19ea1323cd9a2208cdb6959ba2c32eef2a7fc393835c9ca7c"),
    ),
    "imagenet-a": (
        _at(_HENDRYCKS, "imagenet-a.tar", 687_552_512, "md5:c3e55429088dc681f30d81f4726b6595"),
    ),
    "imagenet-r": (
        _at(_HENDRYCKS, "imagenet-r.tar", 2_191_079_936, "md5:a61312130a589d0ca1a8fca1f2bd3337"),
    ),
    "imagenet-sketch": (
        Download("ImageNet-Sketch.zip", None, 7_593_573_012,
                 "sha256:4d3ce6b82a7c48aabf14aeac105eb533e75707f152cc858f55bfc022031a72ed"),
    ),
    "caltech101": (
        Download("caltech-101.zip",
                 "https://data.caltech.edu/records/mzrjq-6wc02/files/caltech-101.zip",
                 137_414_764, "md5:3138e1922a9193bfa496528edbbc45d0",
                 inner=("caltech-101/101_ObjectCategories.tar.gz",)),
    ),
    "pets": (
        _at(f"{_VGG}/pets/data", "images.tar.gz", 791_918_971,
            "md5:5c4f3ee8e5d25df40f4fd59a7f44e54c"),
        _at(f"{_VGG}/pets/data", "annotations.tar.gz", 19_173_078,
            "md5:95a8c909bbe2e81eed6a22bccdf3f68f"),
    ),
    "cars": (
        Download("cars_test.tgz", None, 977_350_468,
                 "sha256:bffea656d6f425cba3c91c6d83336e4c5f86c6cffd8975b0f375d3a10da8e243"),
        Download("cars_test_annos_withlabels.mat", None, 185_758,
                 "sha256:790f75be8ea34eeded134cc559332baf23e30e91367e9ddca97d26ed9b895f05"),
        Download("car_devkit.tgz", None, 330_960,
                 "sha256:b97deb463af7d58b6bfaa18b2a4de9829f0f79e8ce663dfa9261bf7810e9accd"),
    ),
    "flowers": (
        _at(f"{_VGG}/flowers/102", "102flowers.tgz", 344_862_509,
            "md5:52808999861908f626f3c1f4e79d11fa"),
        _at(f"{_VGG}/flowers/102", "imagelabels.mat", 502, "md5:e0620be6f572b9609742df49c70aed4d"),
        _at(f"{_VGG}/flowers/102", "setid.mat", 14_989, "md5:a5357ecc9cb78c4bef273ce3793fc85c"),
    ),
    "food101": (
        _at("https://data.vision.ee.ethz.ch/cvl", "food-101.tar.gz", 4_996_278_331,
            "md5:85eeb15f3717b99a5da872d97d918f87"),
    ),
    "aircraft": (
        _at(f"{_VGG}/fgvc-aircraft/archives", "fgvc-aircraft-2013b.tar.gz", None, ""),
    ),
    "sun397": (
        Download("SUN397.tar.gz", None, 39_077_296_924, "md5:8ca2778205c41d23104230ba66911c7a"),
        Download("Partitions.zip", None, 18_293_705,
                 "sha256:e3311ea5f812d4cc6faef194688343d1111f6cd6f70f2c62f393c2b8d6ba1ec9"),
    ),
    "dtd": (
        _at(f"{_VGG}/dtd/download", "dtd-r1.0.1.tar.gz", 625_239_812,
            "md5:fff73e5086ae6bdbea199a49dfb8a4c1"),
    ),
    "eurosat": (
        _at(f"{_HUB}/torchgeo/eurosat/resolve/c877bcd43f099cd0196738f714544e355477f3fd",
            "EuroSAT.zip", 94_280_567, "md5:c8fa014336c82ac7804f0398fcb19387"),
    ),
    "ucf101": (
        Download("UCF-101-midframes.zip"),
        Download("UCF101TrainTestSplits-RecognitionTask.zip", None, 113_943,
                 "sha256:5c0d1a53b8ed364a2ac830a73f405e51bece7d98ce1254fd19ed4a36b224bd27"),
    ),
    "imagenet-c": (
        _zenodo(2235448, "noise.tar", 22_565_673_785, "e80562d7f6c3f8834afb1ecf27252745"),
        _zenodo(2235448, "blur.tar", 7_112_704_951, "2d8e81fdd8e07fef67b9334fa635e45c"),
        _zenodo(2235448, "weather.tar", 12_797_438_995, "33ffea4db4d93fe4a428c40a6ce0c25d"),
        _zenodo(2235448, "digital.tar", 7_757_510_705, "89157860d7b10d5797849337ca2e5c03"),
        _zenodo(2235448, "extra.tar", 15_789_490_144, "d492dfba5fc162d8ec2c3cd8ee672984"),
    ),
    "cifar10": (
        _at(_TORONTO, "cifar-10-python.tar.gz", None, "md5:c58f30108f718f92721af3b95e74349a"),
    ),
    "cifar100": (
        _at(_TORONTO, "cifar-100-python.tar.gz", None, "md5:eb9058c3a382ffc7106e4002c42a8d85"),
    ),
    "cifar10-c": (
        _zenodo(2535967, "CIFAR-10-C.tar", 2_918_471_680, "56bf5dcef84df0e2308c6dcbcbbd8499"),
    ),
    "cifar100-c": (
        _zenodo(3555552, "CIFAR-100-C.tar", 2_918_473_216, "11f0ed0f1191edbf9fa23466ae6021d3"),
    ),
    "colored-mnist": (
        _at(_MNIST, "train-images-idx3-ubyte.gz", 9_912_422,
            "md5:f68b3c2dcbeaaa9fbdd348bbdeb94873"),
        _at(_MNIST, "train-labels-idx1-ubyte.gz", 28_881, "md5:d53e105ee54ea40749a09fcbcd1e9432"),
    ),
    "tiny-imagenet": (
        _at("http://cs231n.stanford.edu", "tiny-imagenet-200.zip", None,
            "md5:90528d7ca1a48142e341f4ef8d21d0de"),
    ),
}  # fmt: skip
