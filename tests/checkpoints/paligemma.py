"""Tiny random PaliGemma and PaliGemma 2 checkpoints in hub layout: no chat template, as released ones have none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.checkpoints.base import byte_tokenizer, save
from tests.checkpoints.gemma3 import scale_gemma

MARKS = ("<pad>", "<eos>", "<bos>", "<image>")
SIDE = 32
VOCABULARY = 1440  # the processor adds tokens for places and outlines


def build_paligemma(folder: Path) -> None:
    save(folder, *make_paligemma())


def make_paligemma(*, seed: int = 0, text: dict[str, Any] | None = None) -> tuple[Any, Any]:
    """(model, processor). A picture is 16 cells. text: what a text config has instead of, or beside, the usual."""
    from transformers import (
        PaliGemmaConfig,
        PaliGemmaForConditionalGeneration,
        PaliGemmaProcessor,
        SiglipImageProcessor,
    )

    tokenizer = byte_tokenizer(MARKS, eos="<eos>", pad="<pad>", bos_token="<bos>", chat_template=None)
    images = SiglipImageProcessor(size={"height": SIDE, "width": SIDE})
    images.image_seq_length = (SIDE // 8) ** 2
    processor = PaliGemmaProcessor(image_processor=images, tokenizer=tokenizer)
    ids = {mark: tokenizer.convert_tokens_to_ids(mark) for mark in MARKS}
    config = PaliGemmaConfig(
        text_config={
            "model_type": "gemma", "vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 96,
            "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 16,
            "max_position_embeddings": 4096, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
            "pad_token_id": ids["<pad>"], "eos_token_id": ids["<eos>"], "bos_token_id": ids["<bos>"], **(text or {}),
        },
        vision_config={
            "model_type": "siglip_vision_model", "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 3,
            "num_attention_heads": 3, "image_size": SIDE, "patch_size": 8, "vision_use_head": False,
        },
        image_token_index=ids["<image>"], projection_dim=64, hidden_size=64, vocab_size=VOCABULARY,
    )  # fmt: skip
    model = PaliGemmaForConditionalGeneration(config).float()
    scale_gemma(model, seed=seed)
    model.generation_config.eos_token_id = ids["<eos>"]
    return model.eval(), processor
