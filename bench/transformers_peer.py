"""transformers' own `generate` on the load, in a process of its own: prints one JSON line of Figures.

    python -m bench.transformers_peer FOLDER [--repeats N] [--max-tokens N]

A first token is timed from the clip's bytes on, as a server's is: decoding and the processor are inside.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import av
import numpy as np
import torch
from transformers import AutoModelForImageTextToText, AutoProcessor, StoppingCriteria
from transformers.video_utils import VideoMetadata

from bench.checkpoint import FPS, QUESTION, fresh_clips
from bench.serve import TOGETHER, Figures


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


def measure(folder: Path, *, repeats: int, max_tokens: int) -> Figures:
    started = time.perf_counter()
    model = AutoModelForImageTextToText.from_pretrained(folder / "model", dtype=torch.bfloat16).eval()
    processor = AutoProcessor.from_pretrained(folder / "model")
    start_s = time.perf_counter() - started
    seeds, alone, together = itertools.count(), [], []
    with fresh_clips([next(seeds)]) as clips:
        answer(model, processor, clips, 4)
    for count, results in ((1, alone), (TOGETHER, together)):
        for number in range(repeats):
            with fresh_clips(list(itertools.islice(seeds, count))) as clips:
                results.append(answer(model, processor, clips, max_tokens))
            print(f"transformers: {count} at once, {number + 1} of {repeats}", file=sys.stderr, flush=True)
    return Figures(
        engine="transformers",
        prompt_tokens=alone[0][2],
        first_token_s=median(times[0] - asked for asked, times, _ in alone),
        per_token_s=median((times[-1] - times[0]) / (max_tokens - 1) for _, times, _ in alone),
        together_tokens_per_s=median(TOGETHER * max_tokens / (times[-1] - asked) for asked, times, _ in together),
        together_per_token_s=median((times[-1] - times[0]) / (max_tokens - 1) for _, times, _ in together),
        start_s=start_s,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=64)
    options = parser.parse_args()
    figures = measure(options.folder, repeats=options.repeats, max_tokens=options.max_tokens)
    print(json.dumps(asdict(figures)))


if __name__ == "__main__":
    main()
