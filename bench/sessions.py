"""Engines that run side by side and are asked in turn over HTTP (those without a server: bench/pipe.py). Owns starting
and asking them; what is asked, and what it means, is for others."""

from __future__ import annotations

import asyncio
import itertools
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

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


def ask_fresh(session: Session, seeds: Iterator[int], count: int, max_tokens: int) -> tuple[Timing, ...]:
    """`count` questions at once, each about a clip that was never seen before."""
    with fresh_clips(list(itertools.islice(seeds, count))) as clips:
        return tuple(session.ask(clips, max_tokens))
