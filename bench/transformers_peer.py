"""transformers' own `generate` in a process of its own: prints "ready", then answers each line of JSON
({"clips": [paths], "max_tokens": N}: one static batch) with a line of JSON, a Timing for each clip.

    python -m bench.transformers_peer FOLDER

A first token is timed from the clip's bytes on, as a server's is: decoding and the processor are inside.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import av
import numpy as np
import torch
from transformers import AutoModelForImageTextToText, AutoProcessor, StoppingCriteria
from transformers.video_utils import VideoMetadata

from bench.checkpoint import FPS, QUESTION
from bench.client import Timing


class Clock(StoppingCriteria):
    """Notes when each token has been drawn; stops nothing."""

    def __init__(self) -> None:
        self.times_s: list[float] = []

    def __call__(self, input_ids: torch.Tensor, _scores: Any, **_: Any) -> torch.Tensor:
        self.times_s.append(time.perf_counter())
        return torch.zeros(len(input_ids), dtype=torch.bool)


def read_frames(clip: Path) -> np.ndarray:
    with av.open(str(clip)) as container:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])


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
def answer(model: Any, processor: Any, clips: Sequence[Path], max_tokens: int) -> tuple[float, list[float], int]:
    """(when asked, when each token came, tokens in one prompt)."""
    asked, clock = time.perf_counter(), Clock()
    inputs = prepare(processor, clips)
    model.generate(
        **inputs, max_new_tokens=max_tokens, min_new_tokens=max_tokens, do_sample=False, stopping_criteria=[clock]
    )
    return asked, clock.times_s, inputs["input_ids"].shape[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder / "model"
    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.bfloat16).eval()
    processor = AutoProcessor.from_pretrained(folder)
    print("ready", flush=True)
    for line in sys.stdin:
        wanted = json.loads(line)
        clips = [Path(clip) for clip in wanted["clips"]]
        asked, times, prompt_tokens = answer(model, processor, clips, wanted["max_tokens"])
        timing = Timing(
            asked_s=asked,
            pieces_s=tuple(times),
            prompt_tokens=prompt_tokens,
            completion_tokens=len(times),
        )
        print(json.dumps([asdict(timing)] * len(clips)), flush=True)


if __name__ == "__main__":
    main()
