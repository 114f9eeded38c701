"""transformers' own `generate`, asked over a pipe (bench/pipe.py); the clips of one question are one static batch.

    python -m bench.transformers_peer FOLDER

A first token is timed from the clip's bytes on, as a server's is: decoding and the processor are inside.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForImageTextToText, AutoProcessor, StoppingCriteria
from transformers.video_utils import VideoMetadata

from bench.checkpoint import FPS, QUESTION
from bench.client import Timing
from bench.pipe import answer_lines, read_frames


class Clock(StoppingCriteria):
    """Notes when each token has been drawn; stops nothing."""

    def __init__(self) -> None:
        self.times_s: list[float] = []

    def __call__(self, input_ids: torch.Tensor, _scores: Any, **_: Any) -> torch.Tensor:
        self.times_s.append(time.perf_counter())
        return torch.zeros(len(input_ids), dtype=torch.bool)


def prepare(processor: Any, clips: Sequence[Path]) -> dict[str, Any]:
    content = [{"type": "video"}, {"type": "text", "text": QUESTION}]
    text = processor.apply_chat_template(
        [{"role": "user", "content": content}], add_generation_prompt=True, tokenize=False
    )
    videos = [torch.from_numpy(read_frames(clip)).permute(0, 3, 1, 2) for clip in clips]
    metadata = [
        VideoMetadata(total_num_frames=len(video), fps=FPS, frames_indices=list(range(len(video)))) for video in videos
    ]
    return dict(
        processor(
            text=[text] * len(clips), videos=videos, video_metadata=metadata, do_sample_frames=False, padding=True,
            return_tensors="pt",
        )
    )  # fmt: skip


@torch.inference_mode()
def answer(model: Any, processor: Any, clips: Sequence[Path], max_tokens: int) -> list[Timing]:
    asked, clock = time.perf_counter(), Clock()
    inputs = prepare(processor, clips)
    model.generate(
        **inputs, max_new_tokens=max_tokens, min_new_tokens=max_tokens, do_sample=False, stopping_criteria=[clock]
    )
    timing = Timing(
        asked_s=asked,
        pieces_s=tuple(clock.times_s),
        prompt_tokens=inputs["input_ids"].shape[1],
        completion_tokens=len(clock.times_s),
    )
    return [timing] * len(clips)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder / "model"
    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.bfloat16).eval()
    processor = AutoProcessor.from_pretrained(folder)
    answer_lines(partial(answer, model, processor))


if __name__ == "__main__":
    main()
