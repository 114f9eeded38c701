"""OpenVINO GenAI's continuous batching, asked over a pipe (bench/pipe.py). Run by the Python that has it:

    python -m bench.openvino_peer FOLDER/openvino

bf16 products and a bf16 cache (its default is 8 bits), no prefix cache. A first token is timed from the clip's bytes
on. Owns how that engine is asked; knows neither the load nor who compares.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import openvino
import openvino_genai

from bench.checkpoint import QUESTION
from bench.client import Timing
from bench.pipe import answer_lines, read_frames

PROPERTIES = {"INFERENCE_PRECISION_HINT": "bf16", "KV_CACHE_PRECISION": "bf16"}
STEP_TOKENS = 2048
CACHE_GB = 1


class Engine:
    """Every request is added, its video encoded by that, and then steps are taken until all have ended."""

    def __init__(self, folder: str) -> None:
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = CACHE_GB
        scheduler.max_num_batched_tokens = STEP_TOKENS
        scheduler.enable_prefix_caching = False
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(folder, scheduler, "CPU", PROPERTIES)
        self._ids = itertools.count()
        self._prompt_tokens: int | None = None

    def answer(self, clips: Sequence[Path], max_tokens: int) -> list[Timing]:
        if self._prompt_tokens is None:  # the first question only warms
            self._prompt_tokens = self._count_prompt(clips[0])
        asked = time.perf_counter()
        handles = [
            self._pipeline.add_request(next(self._ids), QUESTION, [], [load(clip)], greedy(max_tokens))
            for clip in clips
        ]
        pieces: list[list[float]] = [[] for _ in clips]
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
            now = time.perf_counter()
            for came, handle in zip(pieces, handles, strict=True):
                if handle.can_read():
                    came += [now] * sum(len(output.generated_ids) for output in handle.read().values())
        return [
            Timing(
                asked_s=asked,
                pieces_s=tuple(came),
                prompt_tokens=self._prompt_tokens,
                completion_tokens=len(came),
            )
            for came in pieces
        ]

    def _count_prompt(self, clip: Path) -> int:
        """What the engine counts itself; requests that are added do not tell."""
        results = self._pipeline.generate([QUESTION], videos=[[load(clip)]], generation_config=[greedy(1)])
        return int(results[0].perf_metrics.get_num_input_tokens())


def load(clip: Path) -> Any:
    return openvino.Tensor(read_frames(clip))


def greedy(max_tokens: int) -> Any:
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens = max_tokens
    config.do_sample = False
    config.ignore_eos = True
    return config


if __name__ == "__main__":
    answer_lines(Engine(sys.argv[1]).answer)
