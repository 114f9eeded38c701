"""A tiny random LLaVA-OneVision in hub layout. As in released checkpoints, the far edges of its 44 x 44 pixels lie
under no patch, the 5 x 5 patches do not halve evenly, and the template writes images first, then clips, then text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.checkpoints.base import byte_tokenizer, save, scale_weights

MARKS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<image>", "<video>")
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }} {% for kind in ['image', 'video'] %}"
    "{% for c in m['content'] if c['type'] == kind %}<{{ kind }}>{% endfor %}{% endfor %}"
    "{% for c in m['content'] if c['type'] == 'text' %}\n{{ c['text'] }}{% endfor %}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SIDE = 44
CANVASES = [[SIDE * rows, SIDE * columns] for rows in range(1, 4) for columns in range(1, 4)]


def build_llava_onevision(folder: Path) -> None:
    save(folder, *make_llava_onevision())


def make_llava_onevision(
    *, seed: int = 0, num_frames: int | None = 5, feature_layer: int | list[int] = -1, tie: bool = True
) -> tuple[Any, Any]:
    """(model, processor)."""
    from transformers import (
        LlavaOnevisionConfig,
        LlavaOnevisionForConditionalGeneration,
        LlavaOnevisionImageProcessor,
        LlavaOnevisionProcessor,
        LlavaOnevisionVideoProcessor,
    )

    tokenizer = byte_tokenizer(MARKS, eos="<|im_end|>", pad="<|endoftext|>", chat_template=TEMPLATE)
    ids = {mark: tokenizer.convert_tokens_to_ids(mark) for mark in MARKS}
    config = LlavaOnevisionConfig(
        text_config={
            "model_type": "qwen2", "vocab_size": 288, "hidden_size": 64, "intermediate_size": 96,
            "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
            "max_position_embeddings": 4096, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
            "eos_token_id": ids["<|im_end|>"], "tie_word_embeddings": tie,
        },
        vision_config={
            "model_type": "siglip_vision_model", "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 3,
            "num_attention_heads": 3, "image_size": SIDE, "patch_size": 8, "vision_use_head": False,
        },
        image_token_index=ids["<image>"], video_token_index=ids["<video>"], vision_feature_layer=feature_layer,
        image_grid_pinpoints=CANVASES, vision_aspect_ratio="anyres_max_4",
        tie_word_embeddings=tie,
    )  # fmt: skip
    model = LlavaOnevisionForConditionalGeneration(config).float()
    scale_weights(model, seed=seed, head_gain=2.0)
    model.generation_config.eos_token_id = [ids["<|im_end|>"], ids["<|endoftext|>"]]
    size = {"height": SIDE, "width": SIDE}
    processor = LlavaOnevisionProcessor(
        image_processor=LlavaOnevisionImageProcessor(size=size, image_grid_pinpoints=CANVASES),
        video_processor=LlavaOnevisionVideoProcessor(size=size, num_frames=num_frames),
        tokenizer=tokenizer,
        num_image_tokens=25,
        vision_feature_select_strategy="full",
        vision_aspect_ratio="anyres_max_4",
        chat_template=TEMPLATE,
    )
    return model.eval(), processor
