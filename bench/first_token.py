"""Time a running server from outside: first token, time per further token, tokens a second.

    python bench/first_token.py [URL] [--clip FILE] [--requests N] [--concurrency N] [--max-tokens N]

Owns the clock and the table; knows nothing of the engine. The first request is shown apart from the rest, because the
rest may find the clip in a cache.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import httpx

CLIP = Path(__file__).parents[1] / "sample_videos" / "mover.mp4"


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """One streamed answer, in seconds from the moment it was asked."""

    first_token_s: float
    last_token_s: float
    prompt_tokens: int
    completion_tokens: int

    @property
    def per_token_s(self) -> float:
        return (self.last_token_s - self.first_token_s) / max(1, self.completion_tokens - 1)


async def time_answer(client: httpx.AsyncClient, body: dict[str, Any]) -> Timing:
    """Stream one answer; the first token is the first event that carries text."""
    started = time.perf_counter()
    first = last = None
    usage: dict[str, int] = {}
    async with client.stream("POST", "/v1/chat/completions", json=body) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            event = json.loads(line.removeprefix("data: "))
            usage = event.get("usage") or usage
            if any(choice["delta"].get("content") for choice in event["choices"]):
                last = time.perf_counter() - started
                first = last if first is None else first
    if first is None or last is None:
        raise RuntimeError("the server answered without any text")
    return Timing(
        first_token_s=first,
        last_token_s=last,
        prompt_tokens=usage["prompt_tokens"],
        completion_tokens=usage["completion_tokens"],
    )


async def time_many(
    client: httpx.AsyncClient, body: dict[str, Any], *, requests: int, concurrency: int
) -> list[Timing]:
    gate = asyncio.Semaphore(concurrency)

    async def one() -> Timing:
        async with gate:
            return await time_answer(client, body)

    return await asyncio.gather(*(one() for _ in range(requests)))


def make_body(model: str, *, clip: Path, max_tokens: int) -> dict[str, Any]:
    url = f"data:video/{clip.suffix[1:]};base64," + base64.b64encode(clip.read_bytes()).decode()
    content = [{"type": "video_url", "video_url": {"url": url}}, {"type": "text", "text": "Describe the video."}]
    return {
        "model": model,
        "messages": [{"role": "user", "content": content}],
        "temperature": 0,
        "max_tokens": max_tokens,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


async def run(options: argparse.Namespace) -> dict[str, Any]:
    load_before = os.getloadavg()[0]
    async with httpx.AsyncClient(base_url=options.url, timeout=600) as client:
        models = (await client.get("/v1/models")).raise_for_status().json()
        model = models["data"][0]["id"]
        body = make_body(model, clip=options.clip, max_tokens=options.max_tokens)
        first = await time_answer(client, body)
        started = time.perf_counter()
        rest = await time_many(client, body, requests=options.requests, concurrency=options.concurrency)
        wall_s = time.perf_counter() - started
    return {
        "model": model,
        "clip": options.clip.name,
        "prompt_tokens": first.prompt_tokens,
        "concurrency": options.concurrency,
        "load_before": load_before,
        "first_request_ttft_s": first.first_token_s,
        "ttft_s": median(t.first_token_s for t in rest),
        "tpot_s": median(t.per_token_s for t in rest),
        "tokens_per_s": sum(t.completion_tokens for t in rest) / wall_s,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("url", nargs="?", default="http://127.0.0.1:8000")
    parser.add_argument("--clip", type=Path, default=CLIP)
    parser.add_argument("--requests", type=int, default=8)
    parser.add_argument("--concurrency", type=int, default=1)
    parser.add_argument("--max-tokens", type=int, default=32)
    results = asyncio.run(run(parser.parse_args()))
    for name, value in results.items():
        print(f"{name:22} {value:.4f}" if isinstance(value, float) else f"{name:22} {value}")
    print(json.dumps(results))


if __name__ == "__main__":
    main()
