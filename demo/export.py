"""Write a trained checkpoint in the hub's layout: bf16 safetensors, config, tokenizer, chat template, processor.

    python -m demo.export TRAINED FOLDER

Owns the files of the shipped folder, which transformers and other engines load as it is; knows nothing of training.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from transformers import (
    GenerationConfig,
    PreTrainedTokenizerFast,
    Qwen2VLImageProcessor,
    Qwen3VLForConditionalGeneration,
    Qwen3VLProcessor,
)
from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor

from demo.labels import CELL
from demo.net import MERGE, PATCH, TEMPORAL
from demo.scenes import FPS
from demo.tokens import SPECIAL, Words

MAX_CELLS, MAX_FRAMES, MIN_FRAMES = 20, 64, 4
LEAST_PIXELS = 9 * CELL * CELL
CONTEXT = 8192
TEMPLATE = (
    "{%- for m in messages -%}<|im_start|>{{ m.role }}\n"
    "{% if m.content is string %}{{ m.content }}{% else %}{% for c in m.content %}"
    "{% if c.type == 'video' or 'video' in c or c.type == 'video_url' %}<|video_pad|>"
    "{% elif c.type == 'image' or 'image' in c or c.type == 'image_url' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif 'text' in c %}{{ c.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def export_model(trained: Path, folder: Path) -> None:
    """trained: what `python -m demo.train` wrote."""
    words = Words.of_folder(trained)
    model = Qwen3VLForConditionalGeneration.from_pretrained(trained, dtype=torch.bfloat16)
    model.config.text_config.eos_token_id = words.end
    model.config.text_config.pad_token_id = words.end_of_text
    model.generation_config = GenerationConfig(
        do_sample=False, eos_token_id=[words.end, words.end_of_text], pad_token_id=words.end_of_text, max_new_tokens=64
    )
    model.save_pretrained(folder)
    make_processor(trained).save_pretrained(folder)


def make_processor(trained: Path) -> Qwen3VLProcessor:
    """Frames of at most 20 cells, 2 a second; mean and deviation 0.5."""
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(trained / "tokenizer.json"),
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        model_max_length=CONTEXT,
        chat_template=TEMPLATE,
        additional_special_tokens=[token for token in SPECIAL if token not in ("<|im_end|>", "<|endoftext|>")],
    )
    geometry = {"patch_size": PATCH, "temporal_patch_size": TEMPORAL, "merge_size": MERGE}
    light = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    most_pixels = 25 * CELL * CELL
    video = Qwen3VLVideoProcessor(
        size={"shortest_edge": LEAST_PIXELS, "longest_edge": most_pixels * 768},
        fps=int(FPS),
        min_frames=MIN_FRAMES,
        max_frames=MAX_FRAMES,
        cap_pixels_per_frame=True,
        max_video_tokens=MAX_CELLS,
        **geometry,
        **light,
    )
    image = Qwen2VLImageProcessor(
        size={"shortest_edge": LEAST_PIXELS, "longest_edge": most_pixels}, **geometry, **light
    )
    return Qwen3VLProcessor(image_processor=image, tokenizer=tokenizer, video_processor=video, chat_template=TEMPLATE)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("trained", type=Path, help="what demo.train wrote")
    parser.add_argument("folder", type=Path, help="where to write")
    args = parser.parse_args()
    export_model(args.trained, args.folder)


if __name__ == "__main__":
    main()
