"""Oracle inputs for families whose clips are frames of one square size: each item through transformers' own processor
and the untouched model's own encoder, joined in prompt order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
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
