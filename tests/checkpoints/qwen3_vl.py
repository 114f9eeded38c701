"""A tiny random Qwen3-VL in hub layout."""

from __future__ import annotations

from pathlib import Path

from tests.checkpoints.base import CHATML, QWEN_MARKS, byte_tokenizer, save, scale_weights


def build_qwen3_vl(folder: Path, *, seed: int = 0, tie: bool = True) -> None:
    from transformers import Qwen2VLImageProcessor, Qwen3VLConfig, Qwen3VLForConditionalGeneration, Qwen3VLProcessor
    from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor

    template = CHATML.replace("VIDEO", "<|video_pad|>").replace("IMAGE", "<|vision_start|><|image_pad|><|vision_end|>")
    tokenizer = byte_tokenizer(QWEN_MARKS, eos="<|im_end|>", pad="<|endoftext|>", chat_template=template)
    ids = {mark: tokenizer.convert_tokens_to_ids(mark) for mark in QWEN_MARKS}
    config = Qwen3VLConfig(
        text_config={
            "vocab_size": 288, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 4096,
            "rope_parameters": {
                "rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 2, 2], "mrope_interleaved": True,
            },
            "tie_word_embeddings": tie, "eos_token_id": ids["<|im_end|>"],
        },
        vision_config={
            "depth": 3, "hidden_size": 48, "intermediate_size": 64, "num_heads": 3, "patch_size": 16,
            "spatial_merge_size": 2, "temporal_patch_size": 2, "out_hidden_size": 64, "num_position_embeddings": 36,
            "deepstack_visual_indexes": [0, 1],
        },
        image_token_id=ids["<|image_pad|>"], video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"], vision_end_token_id=ids["<|vision_end|>"],
        tie_word_embeddings=tie,
    )  # fmt: skip
    model = Qwen3VLForConditionalGeneration(config).float()
    scale_weights(model, seed=seed, head_gain=2.0)
    model.generation_config.eos_token_id = [ids["<|im_end|>"], ids["<|endoftext|>"]]
    pixels = {
        "patch_size": 16,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "image_mean": [0.5] * 3,
        "image_std": [0.4] * 3,
    }
    processor = Qwen3VLProcessor(
        image_processor=Qwen2VLImageProcessor(size={"shortest_edge": 64 * 64, "longest_edge": 192 * 192}, **pixels),
        video_processor=Qwen3VLVideoProcessor(
            size={"shortest_edge": 64 * 64, "longest_edge": 64 * 96 * 96}, fps=2, min_frames=2, max_frames=32,
            cap_pixels_per_frame=True, max_video_tokens=16, **pixels,
        ),
        tokenizer=tokenizer,
        chat_template=template,
    )  # fmt: skip
    save(folder, model, processor)
