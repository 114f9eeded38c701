"""Tiny random checkpoints of families that have no adapter of their own and that the generic one serves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.checkpoints.base import byte_tokenizer, save, scale_weights

MARKS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<image>", "<imgpad>")
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{% for c in m['content'] %}"
    "{% if c['type'] == 'image' %}IMAGE{% elif c['type'] == 'text' %}{{ c['text'] }}{% endif %}{% endfor %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TEXT: dict[str, Any] = {
    "vocab_size": 288, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 4096,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}  # fmt: skip
CLIP_TOWER: dict[str, Any] = {
    "model_type": "clip_vision_model", "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 3,
    "num_attention_heads": 3, "image_size": 48, "patch_size": 8, "projection_dim": 32,
}  # fmt: skip


def _tokenizer(image: str) -> tuple[Any, dict[str, int]]:
    tokenizer = byte_tokenizer(
        MARKS, eos="<|im_end|>", pad="<|endoftext|>", chat_template=TEMPLATE.replace("IMAGE", image)
    )
    return tokenizer, {mark: tokenizer.convert_tokens_to_ids(mark) for mark in MARKS}


def _finish(model: Any, ids: dict[str, int], seed: int = 0) -> Any:
    scale_weights(model.float(), seed=seed, head_gain=2.0)
    model.generation_config.eos_token_id = ids["<|im_end|>"]
    return model.eval()


def _llava_parts(text_type: str) -> tuple[Any, dict[str, int], dict[str, Any]]:
    from transformers import CLIPImageProcessor, LlavaProcessor

    tokenizer, ids = _tokenizer("<image>")
    processor = LlavaProcessor(
        image_processor=CLIPImageProcessor(size={"shortest_edge": 48}, crop_size={"height": 48, "width": 48}),
        tokenizer=tokenizer, patch_size=8, vision_feature_select_strategy="default", num_additional_image_tokens=1,
        chat_template=tokenizer.chat_template,
    )  # fmt: skip
    config = {
        "text_config": {"model_type": text_type, **TEXT, "eos_token_id": ids["<|im_end|>"]},
        "vision_config": CLIP_TOWER, "image_token_index": ids["<image>"], "tie_word_embeddings": False,
    }  # fmt: skip
    return processor, ids, config


def build_llava(folder: Path) -> None:
    from transformers import LlavaConfig, LlavaForConditionalGeneration

    processor, ids, config = _llava_parts("llama")
    save(folder, _finish(LlavaForConditionalGeneration(LlavaConfig(**config)), ids), processor)


def build_vipllava(folder: Path) -> None:
    """Features of several layers; a Mistral that sees few rows."""
    from transformers import VipLlavaConfig, VipLlavaForConditionalGeneration

    processor, ids, config = _llava_parts("mistral")
    config["text_config"] |= {"sliding_window": 40, "layer_types": ["sliding_attention"] * 3}
    config["vision_feature_layers"] = [-1, -2, 1]
    save(folder, _finish(VipLlavaForConditionalGeneration(VipLlavaConfig(**config)), ids), processor)


def build_got_ocr2(folder: Path) -> None:
    """A tower of windows and convolutions; the processor always writes 256 tokens, so as many cells there are."""
    from transformers import GotOcr2Config, GotOcr2ForConditionalGeneration, GotOcr2ImageProcessor, GotOcr2Processor

    tokenizer, ids = _tokenizer("<imgpad>")
    config = GotOcr2Config(
        text_config={"model_type": "qwen2", **TEXT, "eos_token_id": ids["<|im_end|>"]},
        vision_config={
            "hidden_size": 32, "output_channels": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
            "image_size": 256, "patch_size": 4, "mlp_dim": 48, "window_size": 4, "global_attn_indexes": [],
        },
        image_token_index=ids["<imgpad>"], tie_word_embeddings=False,
    )  # fmt: skip
    processor = GotOcr2Processor(
        image_processor=GotOcr2ImageProcessor(size={"height": 256, "width": 256}), tokenizer=tokenizer,
        chat_template=tokenizer.chat_template,
    )  # fmt: skip
    save(folder, _finish(GotOcr2ForConditionalGeneration(config), ids), processor)


STRANGERS: dict[str, Callable[[Path], None]] = {
    "got_ocr2": build_got_ocr2, "llava": build_llava, "vipllava": build_vipllava,
}  # fmt: skip
