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

Pieces = tuple[str, torch.Tensor]  # an item's text, and its (n, D) rows
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

    def prepare(part: Any) -> Pieces:
        if isinstance(part, np.ndarray):
            out = processor.image_processor(Image.fromarray(part), return_row_col_info=True, return_tensors="pt")
            text = processor.replace_image_token(out, 0)
        else:
            out = processor.video_processor(**clip_arguments(part))
            text = processor.replace_video_token(out, 0)
        return text, model.get_image_features(out["pixel_values"], out["pixel_attention_mask"]).pooler_output[0]

    pieces = [prepare(part) for part in turn if not isinstance(part, str)]
    outputs = {"image": BaseModelOutputWithPooling(pooler_output=[rows for _, rows in pieces])} if pieces else {}
    return _inputs(processor, turn, [text for text, _ in pieces], outputs)


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
    texts = {"image": iter(image_texts), "video": iter(clip_texts)}
    order = ["image" if isinstance(part, np.ndarray) else "video" for part in turn if not isinstance(part, str)]
    return _inputs(processor, turn, [next(texts[kind]) for kind in order], outputs)


def _inputs(processor: Any, turn: Sequence[Any], texts: Sequence[str], outputs: dict[str, Any]) -> dict[str, Any]:
    content = [
        {"type": "text", "text": part} if isinstance(part, str)
        else {"type": "image" if isinstance(part, np.ndarray) else "video"}
        for part in turn
    ]  # fmt: skip
    chat = [{"role": "user", "content": content}]
    text = processor.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    pieces = re.split(f"{processor.image_token}|{processor.video_token}", text)
    whole = pieces[0] + "".join(item + after for item, after in zip(texts, pieces[1:], strict=True))
    return {"input_ids": processor.tokenizer(whole, return_tensors="pt")["input_ids"], "mm_encoder_outputs": outputs}


BY_ITEM: dict[str, Prepare] = {"smolvlm": prepare_smolvlm, "llava_onevision": prepare_llava_onevision}
