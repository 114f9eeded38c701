"""A tiny random InternVL 3 in transformers' layout: pictures of 6 x 6 patches, shuffled to 3 x 3 cells."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.checkpoints.base import byte_tokenizer, save, scale_weights

NAMED = {
    "start_image_token": "<img>", "end_image_token": "</img>", "context_image_token": "<IMG_CONTEXT>",
    "video_token": "<video>",
}  # fmt: skip
MARKS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", *NAMED.values())
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{% for c in m['content'] %}"
    "{% if c['type'] == 'image' %}<IMG_CONTEXT>\n{% elif c['type'] == 'video' %}<video>\n"
    "{% elif c['type'] == 'text' %}{{ c['text'] }}{% endif %}{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SIDE = 48


def build_internvl(folder: Path) -> None:
    save(folder, *make_internvl())


def make_internvl(*, seed: int = 0, qk_norm: bool = False, text: str = "qwen2") -> tuple[Any, Any]:
    """(model, processor). qk_norm: as the larger towers are."""
    from transformers import (
        GotOcr2ImageProcessor,
        InternVLConfig,
        InternVLForConditionalGeneration,
        InternVLProcessor,
        InternVLVideoProcessor,
    )

    tokenizer = byte_tokenizer(
        MARKS, eos="<|im_end|>", pad="<|endoftext|>", chat_template=TEMPLATE, extra_special_tokens=NAMED
    )
    ids = {mark: tokenizer.convert_tokens_to_ids(mark) for mark in MARKS}
    config = InternVLConfig(
        text_config={
            "model_type": text, "vocab_size": 288, "hidden_size": 64, "intermediate_size": 96,
            "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
            "max_position_embeddings": 4096, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
            "eos_token_id": ids["<|im_end|>"], "tie_word_embeddings": False,
        },
        vision_config={
            "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 3,
            "image_size": [SIDE, SIDE], "patch_size": [8, 8], "use_qk_norm": qk_norm,
            "norm_type": "rms_norm" if qk_norm else "layer_norm",
        },
        image_token_id=ids["<IMG_CONTEXT>"], image_seq_length=9, tie_word_embeddings=False,
    )  # fmt: skip
    model = InternVLForConditionalGeneration(config).float()
    scale_weights(model, seed=seed, head_gain=2.0)
    model.generation_config.eos_token_id = ids["<|im_end|>"]
    size = {"height": SIDE, "width": SIDE}
    processor = InternVLProcessor(
        image_processor=GotOcr2ImageProcessor(size=size, crop_to_patches=True, min_patches=1, max_patches=3),
        video_processor=InternVLVideoProcessor(size=size, num_frames=5),
        tokenizer=tokenizer, image_seq_length=9, chat_template=TEMPLATE,
    )  # fmt: skip
    return model.eval(), processor
