"""A tiny random SmolVLM2 in hub layout. Its pictures are 50 x 50 pixels of patches of 8, so that, as in released
checkpoints, the far edges lie under no patch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.checkpoints.base import byte_tokenizer, save, scale_weights

TILES = tuple(f"<row_{row}_col_{column}>" for row in range(1, 4) for column in range(1, 4))
MARKS = (
    "<|im_start|>", "<|im_end|>", "<end_of_utterance>", "<fake_token_around_image>", "<image>", "<global-img>", *TILES,
)  # fmt: skip
TEMPLATE = (
    "<|im_start|>{% for m in messages %}{{ m['role'] | capitalize }}{% if m['content'][0]['type'] == 'image' %}:"
    "{% else %}: {% endif %}{% for c in m['content'] %}{% if c['type'] == 'text' %}{{ c['text'] }}"
    "{% elif c['type'] == 'image' %}<image>{% endif %}{% endfor %}<end_of_utterance>\n{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}"
)


def build_smolvlm(folder: Path) -> None:
    save(folder, *make_smolvlm())


def make_smolvlm(
    *, seed: int = 0, split: bool = True, fps: float = 1, max_frames: int = 10, tie: bool = False
) -> tuple[Any, Any]:
    """(model, processor)."""
    from transformers import SmolVLMConfig, SmolVLMForConditionalGeneration, SmolVLMImageProcessor, SmolVLMProcessor
    from transformers.models.smolvlm.video_processing_smolvlm import SmolVLMVideoProcessor

    tokenizer = byte_tokenizer(MARKS, eos="<end_of_utterance>", pad="<|im_end|>", chat_template=TEMPLATE)
    ids = {mark: tokenizer.convert_tokens_to_ids(mark) for mark in MARKS}
    config = SmolVLMConfig(
        text_config={
            "model_type": "llama", "vocab_size": 288, "hidden_size": 64, "intermediate_size": 96,
            "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
            "max_position_embeddings": 4096, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
            "eos_token_id": ids["<end_of_utterance>"], "pad_token_id": ids["<|im_end|>"], "bos_token_id": None,
        },
        vision_config={
            "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 3,
            "image_size": 50, "patch_size": 8,
        },
        scale_factor=2, image_token_id=ids["<image>"], pad_token_id=ids["<|im_end|>"], tie_word_embeddings=tie,
    )  # fmt: skip
    model = SmolVLMForConditionalGeneration(config).float()
    scale_weights(model, seed=seed, head_gain=2.0)
    model.generation_config.eos_token_id = ids["<end_of_utterance>"]
    processor = SmolVLMProcessor(
        image_processor=SmolVLMImageProcessor(
            size={"longest_edge": 100}, max_image_size={"longest_edge": 50}, do_image_splitting=split
        ),
        video_processor=SmolVLMVideoProcessor(
            size={"longest_edge": 70}, max_image_size={"longest_edge": 50},
            video_sampling={"fps": fps, "max_frames": max_frames, "video_size": {"longest_edge": 70}},
        ),
        tokenizer=tokenizer,
        image_seq_len=9,
        chat_template=TEMPLATE,
    )  # fmt: skip
    return model.eval(), processor
