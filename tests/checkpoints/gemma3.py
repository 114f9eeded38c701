"""A tiny random Gemma 3 in hub layout: sliding layers round a global one, with a window that holds a picture's cells
and little more, so that prompts outgrow it at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tests.checkpoints.base import byte_tokenizer, save, scale_weights

NAMED = {"boi_token": "<start_of_image>", "image_token": "<image_soft_token>", "eoi_token": "<end_of_image>"}
MARKS = ("<pad>", "<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>", *NAMED.values())
TEMPLATE = (
    "{{ '<bos>' }}{% for m in messages %}{% set role = 'model' if m['role'] == 'assistant' else m['role'] %}"
    "<start_of_turn>{{ role }}\n{% if m['content'] is string %}{{ m['content'] | trim }}{% else %}"
    "{% for c in m['content'] %}{% if c['type'] == 'image' %}<start_of_image>{% elif c['type'] == 'text' %}"
    "{{ c['text'] | trim }}{% endif %}{% endfor %}{% endif %}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
SIDE = 48
LAYERS = ["sliding_attention", "full_attention", "sliding_attention"]


def build_gemma3(folder: Path) -> None:
    save(folder, *make_gemma3())


def make_gemma3(*, seed: int = 0, window: int = 14, layer_types: list[str] | None = None) -> tuple[Any, Any]:
    """(model, processor). A picture is 9 cells of 2 x 2 patches."""
    from transformers import Gemma3Config, Gemma3ForConditionalGeneration, Gemma3ImageProcessor, Gemma3Processor

    tokenizer = byte_tokenizer(
        MARKS, eos="<eos>", pad="<pad>", bos_token="<bos>", chat_template=TEMPLATE, extra_special_tokens=NAMED
    )
    ids = {mark: tokenizer.convert_tokens_to_ids(mark) for mark in MARKS}
    config = Gemma3Config(
        text_config={
            "vocab_size": 288, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": len(LAYERS),
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "query_pre_attn_scalar": 24,
            "max_position_embeddings": 4096, "sliding_window": window, "layer_types": layer_types or LAYERS,
            "pad_token_id": ids["<pad>"], "eos_token_id": ids["<eos>"], "bos_token_id": ids["<bos>"],
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 100000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0},
            },
        },
        vision_config={
            "model_type": "siglip_vision_model", "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 3,
            "num_attention_heads": 3, "image_size": SIDE, "patch_size": 8, "vision_use_head": False,
        },
        mm_tokens_per_image=9, boi_token_index=ids["<start_of_image>"], eoi_token_index=ids["<end_of_image>"],
        image_token_index=ids["<image_soft_token>"],
    )  # fmt: skip
    model = Gemma3ForConditionalGeneration(config).float()
    scale_gemma(model, seed=seed)
    model.generation_config.eos_token_id = [ids["<eos>"], ids["<end_of_turn>"]]
    processor = Gemma3Processor(
        image_processor=Gemma3ImageProcessor(size={"height": SIDE, "width": SIDE}),
        tokenizer=tokenizer, chat_template=TEMPLATE, image_seq_length=9,
    )  # fmt: skip
    return model.eval(), processor


def scale_gemma(model: torch.nn.Module, *, seed: int) -> None:
    """Gemma's norms add 1 to their weights, and its embeddings, which are its head too, are scaled up when read."""
    scale_weights(model, seed=seed, head_gain=2.0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("norm.weight") and "vision_tower" not in name:
                parameter.sub_(1.0)
            if "embed_tokens" in name:
                parameter.mul_(0.2)
