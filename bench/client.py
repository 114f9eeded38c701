"""One client for every server that speaks the OpenAI protocol: streams answers and notes when each token came. Owns the
clock; knows no engine."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import httpx


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """One streamed answer: when each piece of text came, in seconds of one clock, and what `usage` counted."""

    asked_s: float
    pieces_s: tuple[float, ...]
    prompt_tokens: int
    completion_tokens: int

    @property
    def first_token_s(self) -> float:
        return self.pieces_s[0] - self.asked_s

    @property
    def per_token_s(self) -> float:
        """Mean over the tokens after the first."""
        return (self.pieces_s[-1] - self.pieces_s[0]) / max(1, self.completion_tokens - 1)


async def time_answer(client: httpx.AsyncClient, body: dict[str, Any]) -> Timing:
    """Stream one answer; the first token is the first event that carries text."""
    asked = time.perf_counter()
    pieces: list[float] = []
    usage: dict[str, int] = {}
    async with client.stream("POST", "/v1/chat/completions", json=body) as response:
        if response.is_error:
            raise RuntimeError(f"{response.status_code}: {(await response.aread()).decode()}")
        async for line in response.aiter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            event = json.loads(line.removeprefix("data: "))
            usage = event.get("usage") or usage
            if any(choice["delta"].get("content") for choice in event["choices"]):
                pieces.append(time.perf_counter())
    if not pieces:
        raise RuntimeError("the server answered without any text")
    return Timing(
        asked_s=asked,
        pieces_s=tuple(pieces),
        prompt_tokens=usage["prompt_tokens"],
        completion_tokens=usage["completion_tokens"],
    )


async def time_together(client: httpx.AsyncClient, bodies: Sequence[dict[str, Any]]) -> list[Timing]:
    """All at once."""
    return await asyncio.gather(*(time_answer(client, body) for body in bodies))


def joint_step_s(timings: Sequence[Timing]) -> float | None:
    """The median time between tokens of one answer while all of them are being decoded; None when that never is."""
    start = max(timing.pieces_s[0] for timing in timings)
    stop = min(timing.pieces_s[-1] for timing in timings)
    gaps = [
        after - before
        for timing in timings
        for before, after in zip(timing.pieces_s, timing.pieces_s[1:], strict=False)
        if start <= before and after <= stop
    ]
    return median(gaps) if gaps else None


def make_body(model: str, *, clip: Path, question: str, max_tokens: int) -> dict[str, Any]:
    url = f"data:video/{clip.suffix[1:]};base64," + base64.b64encode(clip.read_bytes()).decode()
    content = [{"type": "video_url", "video_url": {"url": url}}, {"type": "text", "text": question}]
    return {
        "model": model,
        "messages": [{"role": "user", "content": content}],
        "temperature": 0,
        "max_tokens": max_tokens,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
