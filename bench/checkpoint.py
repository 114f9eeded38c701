"""Make what the benchmarks run on: a checkpoint of random weights, and clips.

    python -m bench.checkpoint FOLDER

writes FOLDER/model, a Qwen2.5-VL of half a billion parameters in hub layout, and FOLDER/moving.mp4 and
FOLDER/static.mp4, clips of 16 frames of 448 x 252 at 2 a second. A question about one makes a prompt of 1182 tokens,
1152 of them video. Random weights are good for speed only. Owns the shapes; knows nothing of engines or clocks.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np

VOCABULARY = 151_936
FRAMES, FPS, SIZE = 16, 2, (252, 448)
QUESTION = "Describe."
MARKS = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>",
    "<|video_pad|>",
)  # fmt: skip
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for c in m.content %}{% if c.type in ('image', 'video') %}<|vision_start|><|{{ c.type }}_pad|><|vision_end|>"
    "{% elif c.type == 'text' %}{{ c.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TEXT: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
    "num_attention_heads": 14, "num_key_value_heads": 2, "max_position_embeddings": 32768, "tie_word_embeddings": True,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0, "mrope_section": [8, 12, 12]},
}  # fmt: skip
VISION: dict[str, Any] = {
    "depth": 12, "hidden_size": 512, "num_heads": 8, "intermediate_size": 1536, "out_hidden_size": 896,
    "window_size": 112, "fullatt_block_indexes": [2, 5, 8, 11], "patch_size": 14, "spatial_merge_size": 2,
    "temporal_patch_size": 2, "tokens_per_second": 2,
}  # fmt: skip


def write_checkpoint(folder: Path, *, text: dict[str, Any] = TEXT, vision: dict[str, Any] = VISION) -> None:
    """Random bfloat16 weights with a tokenizer of the same vocabulary, in hub layout."""
    import torch
    from transformers import (
        Qwen2_5_VLConfig,
        Qwen2_5_VLForConditionalGeneration,
        Qwen2_5_VLProcessor,
        Qwen2VLImageProcessor,
        Qwen2VLVideoProcessor,
    )

    tokenizer = _tokenizer(text["vocab_size"])
    ids = {mark: tokenizer.convert_tokens_to_ids(mark) for mark in MARKS}
    ends = {"eos_token_id": ids["<|im_end|>"], "bos_token_id": ids["<|endoftext|>"]}
    config = Qwen2_5_VLConfig(
        text_config={**text, **ends},
        vision_config=vision,
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    model = Qwen2_5_VLForConditionalGeneration(config).to(torch.bfloat16)
    model.generation_config.eos_token_id = [ids["<|im_end|>"], ids["<|endoftext|>"]]
    model.save_pretrained(folder)
    pixels = {"patch_size": 14, "temporal_patch_size": 2, "merge_size": 2}
    Qwen2_5_VLProcessor(
        image_processor=Qwen2VLImageProcessor(**pixels),
        video_processor=Qwen2VLVideoProcessor(**pixels),
        tokenizer=tokenizer,
        chat_template=TEMPLATE,
    ).save_pretrained(folder)


def _tokenizer(size: int) -> Any:
    """The 256 bytes, words that no text is cut into, and the marks last: `size` tokens, each of which reads as text."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokens = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens += [f"Ġw{number}" for number in range(size - len(tokens) - len(MARKS))]
    inner = Tokenizer(models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens([AddedToken(mark, special=True, normalized=False) for mark in MARKS])
    assert inner.get_vocab_size() == size
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, eos_token="<|im_end|>", pad_token="<|endoftext|>", chat_template=TEMPLATE,
        additional_special_tokens=list(MARKS),
    )  # fmt: skip


def make_frames(kind: str, seed: int) -> np.ndarray:
    """(16, 252, 448, 3) uint8. "moving": the camera pans over a textured wall. "static": it stands still, and a square
    of a fourteenth of the picture walks through."""
    generator = np.random.default_rng(seed)
    height, width = SIZE
    coarse = generator.integers(0, 256, (height // 12 + 1, 2 * width // 16 + 1, 3), dtype=np.uint8)
    wall = coarse.repeat(12, axis=0).repeat(16, axis=1)[:height]
    step = 8 if kind == "moving" else 0
    frames = np.stack([wall[:, step * number : step * number + width] for number in range(FRAMES)])
    if kind == "static":
        side = int((height * width / 14) ** 0.5)
        for number, frame in enumerate(frames):
            left = number * (width - side) // (FRAMES - 1)
            frame[60 : 60 + side, left : left + side] = 255 - wall[:side, :side]
    return frames


def write_clip(path: Path, frames: np.ndarray) -> None:
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=Fraction(FPS), options={"crf": "12", "preset": "fast"})
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = "yuv420p"
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())


@contextmanager
def fresh_clips(seeds: Sequence[int]) -> Iterator[list[Path]]:
    """Moving clips that exist while the block runs."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"moving_{seed}.mp4" for seed in seeds]
        for seed, path in zip(seeds, paths, strict=True):
            write_clip(path, make_frames("moving", seed))
        yield paths


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    for kind in ("moving", "static"):
        write_clip(folder / f"{kind}.mp4", make_frames(kind, 0))
    if not (folder / "model" / "config.json").is_file():
        write_checkpoint(folder / "model")
    print(folder)


if __name__ == "__main__":
    main()
