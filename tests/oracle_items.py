"""Oracle inputs put together item by item in prompt order, for families whose processors cannot take a whole turn:
SmolVLM writes images and clips under one key and pads clips to the longest, LLaVA-OneVision cannot stack clips of two
lengths.

Each item still goes through transformers' own processor, its own text and the untouched model's own encoder; the
decoder is handed what they gave (`mm_encoder_outputs`)."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers.modeling_outputs import BaseModelOutputWithPooling
from transformers.video_utils import VideoMetadata

from tests.oracle_squares import prepare_gemma3, prepare_internvl, prepare_paligemma

Prepare = Callable[[Any, Any, Sequence[Any]], dict[str, Any]]


def clip_arguments(clip: Any) -> dict[str, Any]:
    """What a video processor takes of one Clip, sampling included."""
    count, height, width, _ = clip.frames.shape
    metadata = VideoMetadata(
        total_num_frames=count, fps=clip.fps, frames_indices=list(range(count)), height=height, width=width,
        duration=count / clip.fps,
    )  # fmt: skip
    return {
        "videos": [torch.from_numpy(clip.frames).permute(0, 3, 1, 2)], "video_metadata": [metadata],
        "do_sample_frames": True, "return_metadata": True, "return_tensors": "pt",
    }  # fmt: skip


def prepare_smolvlm(model: Any, processor: Any, turn: Sequence[Any]) -> dict[str, Any]:
    """All rows stand under "image": a clip is images to the model."""
    texts: dict[str, list[str]] = {"image": [], "video": []}
    rows = []
    for part in turn:
        if isinstance(part, str):
            continue
        if isinstance(part, np.ndarray):
            out = processor.image_processor(Image.fromarray(part), return_row_col_info=True, return_tensors="pt")
            texts["image"].append(processor.replace_image_token(out, 0))
        else:
            out = processor.video_processor(**clip_arguments(part))
            texts["video"].append(processor.replace_video_token(out, 0))
        rows += model.get_image_features(out["pixel_values"], out["pixel_attention_mask"]).pooler_output
    return written_turn(
        processor, turn, texts, {"image": BaseModelOutputWithPooling(pooler_output=rows)} if rows else {}
    )


def prepare_llava_onevision(model: Any, processor: Any, turn: Sequence[Any]) -> dict[str, Any]:
    """Images go together, for their number decides how they are cut; clips one by one."""
    images = [Image.fromarray(part) for part in turn if isinstance(part, np.ndarray)]
    outputs: dict[str, Any] = {}
    image_texts: list[str] = []
    if images:
        out = processor.image_processor([images], return_tensors="pt")
        image_texts = [processor.replace_image_token(out, index) for index in range(len(images))]
        outputs["image"] = model.get_image_features(**out)
    clip_texts, clip_rows = [], []
    for part in turn:
        if isinstance(part, (str, np.ndarray)):
            continue
        # The sampler refuses a clip with fewer frames than it was asked for; all of them is what is meant.
        most = min(processor.video_processor.num_frames, len(part.frames))
        out = processor.video_processor(**clip_arguments(part), num_frames=most)
        clip_texts.append(processor.replace_video_token(out, 0))
        clip_rows.append(model.get_video_features(out["pixel_values_videos"]).pooler_output)
    if clip_rows:
        outputs["video"] = BaseModelOutputWithPooling(pooler_output=torch.cat(clip_rows, dim=1))
    return written_turn(processor, turn, {"image": image_texts, "video": clip_texts}, outputs)


def written_turn(
    processor: Any, turn: Sequence[Any], texts: dict[str, list[str]], outputs: dict[str, Any]
) -> dict[str, Any]:
    """Render the turn, and write each kind's texts over its placeholders in order."""

    def entry(part: Any) -> dict[str, str]:
        if isinstance(part, str):
            return {"type": "text", "text": part}
        return {"type": "image" if isinstance(part, np.ndarray) else "video"}

    chat = [{"role": "user", "content": [entry(part) for part in turn]}]
    text = processor.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    waiting = {getattr(processor, f"{kind}_token"): iter(of_kind) for kind, of_kind in texts.items()}
    text = re.sub("|".join(waiting), lambda match: next(waiting[match.group()]), text)
    assert not any(list(rest) for rest in waiting.values())
    return {"input_ids": processor.tokenizer(text, return_tensors="pt")["input_ids"], "mm_encoder_outputs": outputs}


BY_ITEM: dict[str, Prepare] = {
    "gemma3": prepare_gemma3,
    "internvl": prepare_internvl,
    "llava_onevision": prepare_llava_onevision,
    "paligemma": prepare_paligemma,
    "smolvlm": prepare_smolvlm,
}
