"""Oracle inputs for families whose clips are frames of one square size: each item through transformers' own processor
and the untouched model's own encoder, joined in prompt order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers.masking_utils import create_causal_mask, create_sliding_window_causal_mask
from transformers.modeling_outputs import BaseModelOutputWithPooling


def _outputs(rows: list[torch.Tensor]) -> dict[str, Any]:
    """rows: (pictures, P, D) each, in prompt order."""
    return {"image": BaseModelOutputWithPooling(pooler_output=torch.cat(rows))} if rows else {}


def prepare_internvl(model: Any, processor: Any, turn: Sequence[Any]) -> dict[str, Any]:
    from tests.oracle_items import clip_arguments, written_turn

    texts: dict[str, list[str]] = {"image": [], "video": []}
    rows = []
    for part in turn:
        if isinstance(part, np.ndarray):
            out = processor.image_processor(Image.fromarray(part), crop_to_patches=True, return_tensors="pt")
            texts["image"].append(processor.replace_image_token(out, 0))
            rows.append(model.get_image_features(out["pixel_values"]).pooler_output)
        elif not isinstance(part, str):
            # The sampler refuses a clip with fewer frames than it was asked for; all of them is what is meant.
            most = min(processor.video_processor.num_frames, len(part.frames))
            out = processor.video_processor(**clip_arguments(part), num_frames=most)
            texts["video"].append(processor.replace_video_token(out, 0))
            rows.append(model.get_image_features(out["pixel_values_videos"][0]).pooler_output)
    return written_turn(processor, turn, texts, _outputs(rows))


def _frames(clip: Any, *, most: int, fps: float | None) -> list[tuple[float, Image.Image]]:
    """Times and pictures as a family without a rule of its own is shown a clip: spread from the first to the last."""
    total = len(clip.frames)
    wanted = most if fps is None else int(total / clip.fps * fps)
    count = max(1, min(wanted, most, total))
    indices = np.linspace(0, total - 1, count).round().astype(int)
    return [(index / clip.fps, Image.fromarray(clip.frames[index])) for index in indices]


def prepare_gemma3(model: Any, processor: Any, turn: Sequence[Any]) -> dict[str, Any]:
    """A clip is text and images to the template and to the processor."""
    content: list[dict[str, str]] = []
    pictures: list[Image.Image] = []
    for part in turn:
        if isinstance(part, str):
            content.append({"type": "text", "text": part})
            continue
        if isinstance(part, np.ndarray):
            frames, words = [Image.fromarray(part)], [""]
        else:
            stamped = _frames(part, most=32, fps=1.0)
            frames = [picture for _, picture in stamped]
            words = [f"Frame at {int(time) // 60:02d}:{int(time) % 60:02d}:" for time, _ in stamped]
        for word, picture in zip(words, frames, strict=True):
            content += [{"type": "text", "text": word}] * bool(word) + [{"type": "image"}]
            pictures.append(picture)
    text = processor.apply_chat_template(
        [{"role": "user", "content": content}], add_generation_prompt=True, tokenize=False
    )
    inputs = dict(processor(text=[text], images=[pictures] if pictures else None, return_tensors="pt"))
    types = inputs["input_ids"] == model.config.image_token_id
    return {**inputs, "token_type_ids": types.long(), "next_token_type": 0}


def prepare_paligemma(model: Any, processor: Any, turn: Sequence[Any]) -> dict[str, Any]:
    """All images and frames are images; the text is what it is, and the processor adds what it adds."""
    text, pictures = "", []
    for part in turn:
        if isinstance(part, str):
            text += part
            continue
        shown = [Image.fromarray(part)] if isinstance(part, np.ndarray) else []
        shown = shown or [picture for _, picture in _frames(part, most=16, fps=None)]
        text += "<image>" * len(shown)
        pictures += shown
    if not pictures:  # the processor takes no text alone
        ids = processor.tokenizer(f"<bos>{text}\n", return_tensors="pt")["input_ids"]
        return {"input_ids": ids, "token_type_ids": torch.zeros_like(ids), "next_token_type": 1}
    out = processor(text=[text], images=[pictures])  # as lists: asked for tensors, it warns on its own way
    inputs = {
        "input_ids": torch.tensor(out["input_ids"]),
        "pixel_values": torch.stack([torch.as_tensor(pixels) for pixels in out["pixel_values"]]),
    }
    return {**inputs, "token_type_ids": torch.zeros_like(inputs["input_ids"]), "next_token_type": 1}


def prefix_masks(config: Any, inputs: dict[str, Any], types: torch.Tensor) -> Any:
    """The masks that transformers makes for rows (1, L) of these types, as if they were all there ever were."""
    arguments = {
        "config": config.get_text_config(), "cache": None,
        **{name: inputs[name] for name in ("inputs_embeds", "attention_mask", "position_ids")},
    }  # fmt: skip
    if config.model_type == "gemma3":
        from transformers.models.gemma3 import modeling_gemma3 as gemma3

        blocks = gemma3.get_block_sequence_ids_for_mask(types)
        return gemma3.create_masks_for_vision_model(**arguments, block_sequence_ids=blocks)
    arguments["block_sequence_ids"] = torch.where(types == 0, 0, -1)
    full = create_causal_mask(**arguments)
    if getattr(arguments["config"], "sliding_window", None) is None:
        return full
    return {"full_attention": full, "sliding_attention": create_sliding_window_causal_mask(**arguments)}
