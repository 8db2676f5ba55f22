"""The data sets as cards: counts, layouts, prompts, expected accuracy, how to get them.

Zero-shot figures are top-1 accuracies of OpenAI's CLIP. Those of the paper use the seven ImageNet
templates for the ImageNet family and CoOp's template for each of the ten cross-domain sets; a
reader is right if its own result lies within half a point of them (1.5 for DTD and EuroSAT).
"""

from __future__ import annotations

from adte.core.templates import template_sets
from adte.data.downloads import DOWNLOADS
from adte.data.registry import DatasetInfo

__all__ = ["CARDS"]

PAPER = "Wu et al., ICLR 2026, zero-shot rows"
OPEN_CLIP = "mlfoundations/open_clip docs/openclip_results.csv, OpenAI's templates"
GET = "`adte data get {} FOLDER` downloads it"
COOP = "; put CoOp's {} beside it (linked from KaiyangZhou/CoOp DATASETS.md)"


def _clip(b16: float, l14: float) -> dict[str, float]:
    return {"ViT-B-16": round(b16 / 100, 4), "ViT-L-14": round(l14 / 100, 4)}


def _blurs() -> dict[str, float]:
    table = {
        "defocus_blur": (58.78, 53.82, 43.36, 34.42, 26.12),
        "glass_blur": (56.47, 48.27, 26.75, 20.88, 16.96),
        "motion_blur": (62.51, 56.91, 47.46, 34.37, 26.55),
    }
    return {f"ViT-B-16 {k}/{s}": round(v / 100, 4) for k, vs in table.items()
            for s, v in enumerate(vs, 1)}  # fmt: skip


def _seven_types(*values: float) -> dict[str, float]:
    types = ("brightness", "elastic_transform", "gaussian_blur", "impulse_noise", "motion_blur",
             "shot_noise", "speckle_noise")  # fmt: skip
    return {f"ViT-B-16 {t}": round(v / 100, 4) for t, v in zip(types, values, strict=True)}


def _card(name: str, title: str, images: int, classes: int, how: str, terms: str,
          layouts: tuple[str, ...], zero_shot: dict[str, float], *, column: str | None = None,
          source: str = PAPER) -> DatasetInfo:  # fmt: skip
    return DatasetInfo(
        name=name, title=title, images=images, classes=classes, how=how.replace("{}", name, 1),
        terms=terms, layouts=layouts, templates=template_sets()[name], zero_shot=zero_shot,
        zero_shot_source=source, column=column, downloads=DOWNLOADS[name],
    )  # fmt: skip


_RESEARCH = "research; third-party images"
_ALL = (
    _card("imagenet", "ImageNet-1k validation", 50_000, 1000,
          "log in at image-net.org and download ILSVRC2012_img_val.tar and the devkit t12",
          "non-commercial research",
          ("[imagenet/][images/]val/<wnid>/*.JPEG", "ImageNet/val/<wnid>/",
           "flat ILSVRC2012_val_*.JPEG with ILSVRC2012_devkit_t12/ or LOC_val_solution.csv"),
          _clip(68.7, 75.9), column="ImageNet-1k"),
    _card("imagenet-v2", "ImageNet-V2 (matched frequency)", 10_000, 1000, GET,
          "photographs from Flickr, as ImageNet",
          ("[imagenetv2/]imagenetv2-matched-frequency-format-val/<0…999>/*.jpeg",),
          _clip(62.2, 70.2), column="ImageNet-V"),
    _card("imagenet-a", "ImageNet-A", 7_500, 200, GET, "research; none stated for the images",
          ("[imagenet-adversarial/]imagenet-a/<wnid>/",), _clip(50.6, 70.9), column="ImageNet-A"),
    _card("imagenet-r", "ImageNet-R", 30_000, 200, GET, "research; none stated for the images",
          ("[imagenet-rendition/]imagenet-r/<wnid>/",), _clip(77.7, 87.9), column="ImageNet-R"),
    _card("imagenet-sketch", "ImageNet-Sketch", 50_889, 1000,
          "download ImageNet-Sketch.zip from the drive linked in HaohanWang/ImageNet-Sketch",
          "research; images from the web", ("imagenet-sketch/images/<wnid>/",
          "ImageNet-Sketch/<wnid>/", "sketch/<wnid>/"), _clip(48.3, 59.7), column="ImageNet-K"),
    _card("pets", "Oxford-IIIT Pets", 3_669, 37, GET, "CC BY-SA 4.0",
          ("{oxford_pets,oxford-iiit-pet}/{images,annotations}/",
           "OxfordPets/*.jpg with split_zhou_OxfordPets.json"), _clip(88.9, 93.5), column="Pets."),
    _card("flowers", "Oxford Flowers-102", 2_463, 102,
          GET + COOP.format("split_zhou_OxfordFlowers.json"), "none stated",
          ("{oxford_flowers,flowers-102,flower102}/jpg/ with split_zhou_OxfordFlowers.json",
           "jpg/ with imagelabels.mat and setid.mat (the official test set, 6,149 images)"),
          _clip(70.4, 79.3), column="Flow."),
    _card("aircraft", "FGVC Aircraft (variants)", 3_333, 100, GET, "non-commercial research",
          ("fgvc_aircraft/{images/,variants.txt,images_variant_test.txt}",
           "fgvc-aircraft-2013b/data/"), _clip(24.8, 32.4), column="Airc."),
    _card("dtd", "Describable Textures (DTD)", 1_692, 47,
          GET + COOP.format("split_zhou_DescribableTextures.json"), "research",
          ("{dtd,DTD}/images/<class>/ with split_zhou_DescribableTextures.json",
           "dtd/{images,labels/test1.txt} (the official test set, 1,880 images)"),
          _clip(44.3, 53.0), column="DTD."),
    _card("eurosat", "EuroSAT (RGB)", 8_100, 10, GET + COOP.format("split_zhou_EuroSAT.json"),
          "MIT; Sentinel open data",
          ("eurosat/[2750/|images/]<Class>/ with split_zhou_EuroSAT.json",
           "the same without it (all 27,000 images)"), _clip(47.7, 58.0), column="Euro."),
    _card("cars", "Stanford Cars", 8_041, 196,
          "the official site is gone; take cars_test, cars_test_annos_withlabels.mat and the "
          "devkit from a copy with these checksums", "non-commercial research",
          ("stanford_cars/{cars_test/,cars_test_annos_withlabels.mat,devkit/cars_meta.mat}",
           "StanfordCars/cars_test/ with split_zhou_StanfordCars.json"), _clip(65.2, 76.8),
          column="Cars."),
    _card("food101", "Food-101", 30_300, 101, GET + COOP.format("split_zhou_Food101.json"),
          _RESEARCH, ("{food-101,Food101}/images/<class>/ with split_zhou_Food101.json",
          "food-101/{images,meta/test.txt} (the official test set, 25,250 images)"),
          _clip(86.1, 91.0), column="Food."),
    _card("sun397", "SUN397", 19_850, 397,
          "the official address is dead; take SUN397.tar.gz and Partitions.zip from a copy with "
          "these checksums", "research",
          ("sun397/{SUN397/<letter>/<class>/,ClassName.txt,Testing_01.txt}",
           "SUN397/<letter>/<class>/ with split_zhou_SUN397.json"), _clip(62.5, 67.5),
          column="SUN."),
    _card("caltech101", "Caltech-101", 2_465, 100,
          GET + COOP.format("split_zhou_Caltech101.json"), "CC BY 4.0",
          ("caltech-101/{101_ObjectCategories,images}/<class>/ with split_zhou_Caltech101.json",
           "the same without it (all 8,242 images of CoOp's 100 classes)"), _clip(92.9, 94.8),
          column="Calt."),
    _card("ucf101", "UCF101 middle frames", 3_783, 101,
          "download UCF-101-midframes.zip from the drive linked in KaiyangZhou/CoOp DATASETS.md, "
          "and the split lists from crcv.ucf.edu", "none stated",
          ("ucf101/UCF-101-midframes/<Class_Name>/ with split_zhou_UCF101.json or "
           "ucfTrainTestlist/{classInd,testlist01}.txt",), _clip(66.7, 74.2), column="UCF."),
    _card("imagenet-c", "ImageNet-C", 50_000, 1000, GET, "CC BY 4.0, and as ImageNet",
          ("[<archive>/]<corruption>/<severity>/<wnid>/*.JPEG",), _blurs(), column="ImageNet-C"),
    _card("cifar10", "CIFAR-10 test", 10_000, 10, GET, "none stated",
          ("cifar-10-batches-py/{test_batch,batches.meta}",), _clip(90.77, 95.59),
          source=OPEN_CLIP),
    _card("cifar100", "CIFAR-100 test", 10_000, 100, GET, "none stated",
          ("cifar-100-python/{test,meta}",), _clip(66.95, 75.82), source=OPEN_CLIP),
    _card("cifar10-c", "CIFAR-10-C", 10_000, 10, GET, "CC BY 4.0",
          ("CIFAR-10-C/{<corruption>,labels}.npy",),
          _seven_types(90.94, 84.33, 90.54, 87.94, 87.33, 84.73, 85.01), column="CIFAR-10-C",
          source=f"{PAPER}; severity not stated there, 1 fits"),
    _card("cifar100-c", "CIFAR-100-C", 10_000, 100, GET, "CC BY 4.0",
          ("CIFAR-100-C/{<corruption>,labels}.npy",),
          _seven_types(68.29, 57.83, 68.05, 62.46, 62.17, 57.27, 57.66), column="CIFAR-100-C",
          source=f"{PAPER}; severity not stated there, 1 fits"),
    _card("colored-mnist", "ColoredMNIST as DeYO builds it", 20_000, 2, GET, "as MNIST",
          ("[MNIST/raw/]train-{images-idx3,labels-idx1}-ubyte[.gz]",), {},
          source="no CLIP task; DeYO's ResNet-18 has 78.24 % mean and 67.39 % worst group",
          column="ColoredMNIST"),
    _card("tiny-imagenet", "Tiny-ImageNet validation", 10_000, 200, GET, "as ImageNet",
          ("tiny-imagenet-200/val/{images/,val_annotations.txt}", "val/<wnid>/[images/]*.JPEG"), {},
          source="none published with these names"),
)  # fmt: skip

_OWN = (
    DatasetInfo("folder", "an image folder", layouts=("<class>/**/<image>, [classes.json]",),
                how="any folder with one folder of images a class"),
    DatasetInfo("csv", "a table of paths and labels", layouts=("a CSV file with path and label",),
                how="a CSV file; paths are relative to it"),
    DatasetInfo("webdataset", "WebDataset tars",
                layouts=("*.tar of <key>.jpg with <key>.cls or .json",),
                how="a tar, a folder of tars, or a pattern such as test-{000..009}.tar"),
    DatasetInfo("hf", "a Hugging Face data set on disk", layouts=("a folder of save_to_disk",),
                how="the folder that datasets' save_to_disk wrote"),
)  # fmt: skip

CARDS: dict[str, DatasetInfo] = {card.name: card for card in (*_ALL, *_OWN)}
