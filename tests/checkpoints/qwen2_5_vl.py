"""Tiny random Qwen2.5-VL and Qwen2-VL checkpoints in hub layout. Windows are 2 x 2 cells, so that test pictures have
several, whole and cut; the tower has layers of both kinds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.checkpoints.base import CHATML, QWEN_MARKS, byte_tokenizer, save, scale_weights

PATCHES: dict[str, Any] = {"patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2}


def build_qwen2_5_vl(folder: Path) -> None:
    save(folder, *make_qwen2_5_vl())


def build_qwen2_vl(folder: Path) -> None:
    save(folder, *make_qwen2_vl())


def make_qwen2_5_vl(*, seed: int = 0, tie: bool = True) -> tuple[Any, Any]:
    """(model, processor)."""
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration, Qwen2_5_VLProcessor

    processor = Qwen2_5_VLProcessor(**_processor_parts())
    config = Qwen2_5_VLConfig(
        vision_config={
            "depth": 4, "hidden_size": 48, "intermediate_size": 64, "num_heads": 3, "out_hidden_size": 64,
            "window_size": 56, "fullatt_block_indexes": [1, 3], "tokens_per_second": 2, **PATCHES,
        },
        **_shared_config(processor.tokenizer, tie),
    )  # fmt: skip
    return _scaled(Qwen2_5_VLForConditionalGeneration(config), processor.tokenizer, seed), processor


def make_qwen2_vl(*, seed: int = 0, tie: bool = True) -> tuple[Any, Any]:
    """(model, processor)."""
    from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration, Qwen2VLProcessor

    processor = Qwen2VLProcessor(**_processor_parts())
    config = Qwen2VLConfig(
        vision_config={"depth": 2, "embed_dim": 48, "hidden_size": 64, "mlp_ratio": 2, "num_heads": 3, **PATCHES},
        **_shared_config(processor.tokenizer, tie),
    )
    return _scaled(Qwen2VLForConditionalGeneration(config), processor.tokenizer, seed), processor


def _shared_config(tokenizer: Any, tie: bool) -> dict[str, Any]:
    ids = {mark: tokenizer.convert_tokens_to_ids(mark) for mark in QWEN_MARKS}
    return {
        "text_config": {
            "vocab_size": 288, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
            "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 4096,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]},
            "tie_word_embeddings": tie, "eos_token_id": ids["<|im_end|>"], "bos_token_id": ids["<|endoftext|>"],
        },
        "image_token_id": ids["<|image_pad|>"], "video_token_id": ids["<|video_pad|>"],
        "vision_start_token_id": ids["<|vision_start|>"], "vision_end_token_id": ids["<|vision_end|>"],
        "tie_word_embeddings": tie,
    }  # fmt: skip


def _scaled(model: Any, tokenizer: Any, seed: int) -> Any:
    scale_weights(model.float(), seed=seed, head_gain=2.0)
    model.generation_config.eos_token_id = tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"])
    return model


def _processor_parts() -> dict[str, Any]:
    from transformers import Qwen2VLImageProcessor
    from transformers.models.qwen2_vl.video_processing_qwen2_vl import Qwen2VLVideoProcessor

    template = CHATML.replace("VIDEO", "<|vision_start|><|video_pad|><|vision_end|>")
    template = template.replace("IMAGE", "<|vision_start|><|image_pad|><|vision_end|>")
    pixels: dict[str, Any] = {"patch_size": 14, "temporal_patch_size": 2, "merge_size": 2}
    return {
        "image_processor": Qwen2VLImageProcessor(size={"shortest_edge": 56 * 56, "longest_edge": 168 * 168}, **pixels),
        "video_processor": Qwen2VLVideoProcessor(
            size={"shortest_edge": 56 * 56, "longest_edge": 112 * 140}, fps=2, min_frames=4, max_frames=32,
            cap_pixels_per_frame=True, max_video_tokens=80, **pixels,
        ),
        "tokenizer": byte_tokenizer(QWEN_MARKS, eos="<|im_end|>", pad="<|endoftext|>", chat_template=template),
        "chat_template": template,
    }  # fmt: skip
