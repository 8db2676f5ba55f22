"""Small versions of the architectures, and tokenizers made on the spot, to test the loaders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from adte.core.errors import MissingExtra
from adte.models._torchvision import import_late


def needs(module: str, extra: str) -> Any:
    """An optional module, with torchvision mended first; the test file is skipped without it."""
    try:
        return import_late(module, module, extra, "this test")
    except MissingExtra as error:
        pytest.skip(str(error), allow_module_level=True)


TEXT = {"context_length": 77, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 2}
SIGLIP_TEXT = {
    **TEXT,
    "context_length": 16,
    "vocab_size": 300,
    "hf_tokenizer_name": "nobody/has-this",
    "tokenizer_kwargs": {"clean": "canonicalize"},
    "no_causal_mask": True,
    "proj_bias": True,
    "pool_type": "last",
}


def _timm(name: str, size: int, pool: str, proj: str | None) -> dict[str, Any]:
    return {
        "timm_model_name": name,
        "timm_model_pretrained": False,
        "timm_pool": pool,
        "timm_proj": proj,
        "image_size": size,
    }


_VIT = {"image_size": 64, "layers": 2, "width": 64, "head_width": 32}
_SIGLIP = _timm("vit_tiny_patch16_224", 224, "map", "none")

# Each keeps what is special of its family: the tower's kind, pooling, projection, masks and bias.
OPEN_CLIP: dict[str, dict[str, Any]] = {
    "ViT-B-16": {"embed_dim": 32, "vision_cfg": {**_VIT, "patch_size": 16}, "text_cfg": TEXT},
    "ViT-L-14": {
        "embed_dim": 48,
        "vision_cfg": {**_VIT, "image_size": 56, "patch_size": 14},
        "text_cfg": {**TEXT, "layers": 3},
    },
    "RN50": {
        "embed_dim": 64,
        "vision_cfg": {"image_size": 64, "layers": [1, 1, 1, 1], "width": 16, "patch_size": None},
        "text_cfg": TEXT,
    },
    "EVA02": {
        "embed_dim": 32,
        "custom_text": True,
        "vision_cfg": _timm("eva02_tiny_patch14_224", 224, "token", None),
        "text_cfg": TEXT,
    },
    "SigLIP": {
        "embed_dim": 192,
        "init_logit_bias": -10,
        "custom_text": True,
        "vision_cfg": _SIGLIP,
        "text_cfg": SIGLIP_TEXT,
    },
    "SigLIP2": {
        "embed_dim": 192,
        "init_logit_bias": -10,
        "custom_text": True,
        "vision_cfg": _SIGLIP,
        "text_cfg": {**SIGLIP_TEXT, "act_kwargs": {"approximate": "tanh"}},
    },
    "MobileCLIP2": {
        "embed_dim": 32,
        "custom_text": True,
        "vision_cfg": _timm("fastvit_mci0", 64, "avg", None),
        "text_cfg": {**TEXT, "no_causal_mask": True},
    },
    "ConvNeXt": {
        "embed_dim": 32,
        "vision_cfg": _timm("convnext_atto", 64, "", "linear"),
        "text_cfg": TEXT,
    },
    "CoCa": {
        "embed_dim": 32,
        "custom_text": True,
        "vision_cfg": {**_VIT, "patch_size": 16, "attentional_pool": True, "output_tokens": True},
        "text_cfg": {**TEXT, "context_length": 76, "embed_cls": True, "output_tokens": True},
        "multimodal_cfg": {"width": 32, "context_length": 76, "layers": 1, "heads": 2},
    },
}


def add_small_models(open_clip: Any, folder: Path) -> None:
    """Make them known to open_clip under "small-…"."""
    for name, config in OPEN_CLIP.items():
        (folder / f"small-{name}.json").write_text(json.dumps(config))
    open_clip.add_model_config(folder)


def make_tokenizer(folder: Path, vocabulary: int = 300, clip: bool = False) -> Path:
    """A tokenizer's folder: one token a byte, with the special tokens of SigLIP or of CLIP."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    pieces = sorted(pre_tokenizers.ByteLevel.alphabet())
    first = ["<pad>", "</s>", "<unk>"]
    vocab = {p: i for i, p in enumerate([*first, *pieces])}
    start, end = "<s>", "<eot>"
    if clip:  # CLIP's end token has the highest id
        vocab |= {start: vocabulary - 2, end: vocabulary - 1}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.ByteLevel(add_prefix_space=False),
            pre_tokenizers.Split("", "isolated"),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    single = f"{start} $A {end}" if clip else "$A </s>"
    marks = (start, end) if clip else ("</s>",)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=single, special_tokens=[(m, vocab[m]) for m in marks]
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="<unk>",
        eos_token=marks[-1],
        pad_token=marks[-1],
        model_max_length=16,
    )
    fast.save_pretrained(folder)
    return folder
