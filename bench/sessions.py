"""Engines that run side by side and are asked in turn: servers over HTTP, transformers over a pipe. Owns starting and
asking them; what is asked, and what it means, is for others."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

import httpx

from bench.checkpoint import QUESTION, fresh_clips
from bench.client import Timing, make_body, time_together

TIMEOUT_S = 1800.0
WARM_TOKENS = 4


class Session(Protocol):
    """An engine that is up."""

    @property
    def start_s(self) -> float | None:
        """Seconds its start took; None for one that ran already."""
        ...

    def ask(self, clips: Sequence[Path], max_tokens: int) -> list[Timing]:
        """The same question about each clip, all at once."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSession:
    """A server that speaks the OpenAI protocol and takes `video_url`."""

    url: str
    start_s: float | None

    def ask(self, clips: Sequence[Path], max_tokens: int) -> list[Timing]:
        return asyncio.run(self._ask(clips, max_tokens))

    async def _ask(self, clips: Sequence[Path], max_tokens: int) -> list[Timing]:
        async with httpx.AsyncClient(base_url=self.url, timeout=TIMEOUT_S) as client:
            model = (await client.get("/v1/models")).raise_for_status().json()["data"][0]["id"]
            bodies = [make_body(model, clip=clip, question=QUESTION, max_tokens=max_tokens) for clip in clips]
            return await time_together(client, bodies)


@contextmanager
def start_server(command: Sequence[str], ready: re.Pattern[str], *, timeout_s: float) -> Iterator[tuple[str, float]]:
    """Run a server until the block ends; gives its address and the seconds until its log matched `ready`."""
    started = time.monotonic()
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            while not (match := ready.search(_text(log))):
                if process.poll() is not None or time.monotonic() - started > timeout_s:
                    raise RuntimeError(f"{command[0]} did not start:\n{_text(log)[-4000:]}")
                time.sleep(0.05)
            yield match[1].rstrip("/"), time.monotonic() - started
        finally:
            process.terminate()
            process.wait(60)


def _text(log: Any) -> str:
    log.seek(0)
    text: str = log.read()
    return text


@contextmanager
def serve(command: Sequence[str], ready: re.Pattern[str]) -> Iterator[Session]:
    with start_server(command, ready, timeout_s=TIMEOUT_S) as (url, start_s):
        yield ServerSession(url=url, start_s=start_s)


@contextmanager
def visit(url: str) -> Iterator[Session]:
    yield ServerSession(url=url, start_s=None)


class TransformersSession:
    """`bench.transformers_peer` in a process of its own: a line of JSON in, a line out."""

    def __init__(self, process: subprocess.Popen[str], start_s: float) -> None:
        assert process.stdin is not None and process.stdout is not None
        self._asks: IO[str] = process.stdin
        self._answers: IO[str] = process.stdout
        self.start_s: float | None = start_s

    def ask(self, clips: Sequence[Path], max_tokens: int) -> list[Timing]:
        self._asks.write(json.dumps({"clips": [str(clip) for clip in clips], "max_tokens": max_tokens}) + "\n")
        self._asks.flush()
        return [
            Timing(**{**told, "pieces_s": tuple(told["pieces_s"])}) for told in json.loads(self._answers.readline())
        ]


@contextmanager
def run_transformers(folder: Path) -> Iterator[Session]:
    command = [sys.executable, "-m", "bench.transformers_peer", str(folder)]
    started = time.monotonic()
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        if process.stdout.readline().strip() != "ready":
            raise RuntimeError("transformers did not start")
        yield TransformersSession(process, time.monotonic() - started)
    finally:
        process.terminate()
        process.wait(60)


def ask_fresh(session: Session, seeds: Iterator[int], count: int, max_tokens: int) -> tuple[Timing, ...]:
    """`count` questions at once, each about a clip that was never seen before."""
    with fresh_clips(list(itertools.islice(seeds, count))) as clips:
        return tuple(session.ask(clips, max_tokens))
