"""Peers that are libraries and have no server: a process of their own that is asked over a pipe, a line of JSON in
({"clips": [paths], "max_tokens": N}), a line of JSON out (a Timing for each clip). Owns the lines, for both ends; knows
no engine, and imports nothing that a peer's own Python may lack but PyAV and httpx."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import IO

import av
import numpy as np

from bench.client import Timing

READY = "ready"
Answer = Callable[[Sequence[Path], int], list[Timing]]


def read_frames(clip: Path) -> np.ndarray:
    """(N, H, W, 3) uint8, every picture of the clip."""
    with av.open(str(clip)) as container:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])


def answer_lines(answer: Answer) -> None:
    """The peer's end: say that it is ready, then answer until the pipe closes. What the engine itself prints goes to
    the errors."""
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        print(READY, file=answers, flush=True)
        for line in sys.stdin:
            wanted = json.loads(line)
            timings = answer([Path(clip) for clip in wanted["clips"]], wanted["max_tokens"])
            print(json.dumps([asdict(timing) for timing in timings]), file=answers, flush=True)


class PipeSession:
    """Our end."""

    def __init__(self, process: subprocess.Popen[str], start_s: float) -> None:
        assert process.stdin is not None and process.stdout is not None
        self._asks: IO[str] = process.stdin
        self._answers: IO[str] = process.stdout
        self.start_s: float | None = start_s

    def ask(self, clips: Sequence[Path], max_tokens: int) -> list[Timing]:
        self._asks.write(json.dumps({"clips": [str(clip) for clip in clips], "max_tokens": max_tokens}) + "\n")
        self._asks.flush()
        line = self._answers.readline()
        if not line:
            raise RuntimeError("the peer ended instead of answering")
        return [Timing(**{**told, "pieces_s": tuple(told["pieces_s"])}) for told in json.loads(line)]


@contextmanager
def run_peer(python: str, module: str, *arguments: str) -> Iterator[PipeSession]:
    """`python -m module arguments` until the block ends, in this repository."""
    started = time.monotonic()
    process = subprocess.Popen(
        [python, "-m", module, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[1],
    )
    try:
        assert process.stdout is not None
        if process.stdout.readline().strip() != READY:
            raise RuntimeError(f"{module} did not start")
        yield PipeSession(process, time.monotonic() - started)
    finally:
        process.terminate()
        process.wait(60)
