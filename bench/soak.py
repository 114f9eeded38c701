"""Load a server at three times what it can do, for ten minutes, and look at what is left of it.

    python -m bench.soak [MODEL] [--seconds 600] [--times 3]        starts `evs serve MODEL`; `demo` unless told

First what the server can do is measured, with as many callers as it answers at once. Then requests arrive at random
times at `times` that rate: text, pictures and clips, seen before or not, long and short answers, whole and streamed,
damaged files, callers who hang up. It holds when nothing fails but with 429 (and the damaged files, with 4xx); when the
last minute gives at least 95 % of the tokens of the second one; when memory is flat; and when all pages come back. Runs
shorter than ten minutes use tenths instead of minutes. Prints a table and one JSON line; ends with 1 if it does not
hold. Owns the load and the judgement; knows no engine from inside.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import io
import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from PIL import Image

from bench.checkpoint import fresh_clips
from bench.machine import PAGE_BYTES, describe_machine, read_processes, tree_of
from bench.serve import READY
from bench.sessions import start_server

CHAT = "/v1/chat/completions"
AT_ONCE, WAITING = 4, 8  # answers at once and requests that may wait
PROBE_S = 10.0
HANG_UPS, DAMAGED, UNSEEN = 0.05, 0.05, 0.5  # shares of requests
MEMORY_SLACK, MEMORY_SLACK_BYTES = 1.05, 32 << 20
THROUGHPUT = 0.95
YARDSTICK_BYTES = 64 << 20
METHODS: tuple[dict[str, Any], ...] = (
    {"method": "none"},
    {"method": "gate"},
    {"method": "evs", "rate": 0.5},
    {"method": "random", "rate": 0.7},
)


@dataclass(slots=True, kw_only=True)
class Tally:
    """What came back. tokens: (second since the start, tokens) of each answer. memory: (second, bytes). host: (second,
    processor seconds that the same work took)."""

    statuses: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    tokens: list[tuple[float, int]] = field(default_factory=list)
    memory: list[tuple[float, int]] = field(default_factory=list)
    host: list[tuple[float, float]] = field(default_factory=list)

    def tokens_between(self, start_s: float, stop_s: float) -> int:
        return sum(count for second, count in self.tokens if start_s <= second < stop_s)

    def memory_between(self, start_s: float, stop_s: float) -> float:
        """The mean; 0 when none was measured."""
        return _mean(self.memory, start_s, stop_s)

    def host_between(self, start_s: float, stop_s: float) -> float:
        return _mean(self.host, start_s, stop_s)


def _mean(samples: Sequence[tuple[float, float]], start_s: float, stop_s: float) -> float:
    found = [value for second, value in samples if start_s <= second < stop_s]
    return sum(found) / max(1, len(found))


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """window_s: of what is compared, the second one from the start and the last. memory_bytes, tokens, host_ms: of each
    window; the last is the processor time of the same work again and again, by which one sees the host slow down."""

    seconds: float
    capacity_rps: float
    statuses: dict[str, int]
    failures: tuple[str, ...]
    window_s: float
    second_tokens: int
    last_tokens: int
    second_memory_bytes: int
    last_memory_bytes: int
    memory_bytes: tuple[int, ...]
    tokens: tuple[int, ...]
    host_ms: tuple[float, ...]
    pages_missing: int
    left_running: int

    @property
    def holds(self) -> bool:
        return (
            not self.failures
            and self.last_tokens >= THROUGHPUT * self.second_tokens > 0
            and self.last_memory_bytes <= MEMORY_SLACK * self.second_memory_bytes + MEMORY_SLACK_BYTES
            and self.pages_missing == self.left_running == 0
        )


class Load:
    """Draws requests; the same seed draws the same ones, but for the bytes that make a clip a new one.

    hang_ups: the share of callers who do not wait for their answer.
    """

    def __init__(self, clips: list[bytes], seed: int, *, hang_ups: float = HANG_UPS) -> None:
        self._clips = clips
        self.hang_ups = hang_ups
        self.random = random.Random(seed)

    def draw(self) -> tuple[dict[str, Any], bool]:
        """A body, and whether its file is damaged."""
        rng, damaged = self.random, False
        content: list[dict[str, Any]] = [{"type": "text", "text": "tell me more " * rng.randrange(1, 9)}]
        kind = rng.choice(("text", "picture", "clip", "clip"))
        if kind == "picture":
            shade = tuple(rng.randrange(256) for _ in range(3))
            file = io.BytesIO()
            Image.new("RGB", (rng.randrange(32, 320), rng.randrange(32, 320)), shade).save(file, "PNG")
            content.append({"type": "image_url", "image_url": {"url": _data_url("image/png", file.getvalue())}})
        elif kind == "clip":
            damaged = rng.random() < DAMAGED * 2
            clip = rng.choice(self._clips)
            if damaged:
                clip = clip[: rng.randrange(200, len(clip) // 2)]
            elif rng.random() < UNSEEN:
                clip += b"\0\0\0\x18free" + os.urandom(16)
            content.append({"type": "video_url", "video_url": {"url": _data_url("video/mp4", clip)}})
        rng.shuffle(content)
        body = {"messages": [{"role": "user", "content": content}], "evs": rng.choice(METHODS), "temperature": 0.7}
        body |= {"seed": rng.randrange(1 << 30), "max_tokens": rng.choice((1, 8, 16, 40)), "ignore_eos": True}
        return body | {"stream": rng.random() < 0.5, "stream_options": None}, damaged


async def send(client: httpx.AsyncClient, load: Load, tally: Tally, started: float) -> None:
    """One request to its end, or until its caller hangs up."""
    body, damaged = load.draw()
    patience_s = load.random.uniform(0.05, 3.0) if load.random.random() < load.hang_ups else 600.0
    if body["stream"]:
        body["stream_options"] = {"include_usage": True}
    try:
        async with asyncio.timeout(patience_s):
            reply = await client.post(CHAT, json=body)
    except TimeoutError:
        tally.statuses["hung up"] += 1
        if patience_s == 600.0:
            tally.failures.append("no end within ten minutes")
        return
    except httpx.HTTPError as error:
        tally.failures.append(f"{type(error).__name__}: {error}")
        return
    tally.statuses[str(reply.status_code)] += 1
    if reply.status_code == 200 and '"error"' not in reply.text:
        tally.tokens.append((time.monotonic() - started, body["max_tokens"]))
    elif reply.status_code != 429 and not (damaged and reply.status_code in (400, 415, 422)):
        tally.failures.append(f"{reply.status_code}: {reply.text[:200]}")


async def measure_capacity(client: httpx.AsyncClient, load: Load, tally: Tally) -> float:
    """Answers a second with AT_ONCE callers who never rest."""
    started = time.monotonic()

    async def call() -> None:
        while time.monotonic() - started < PROBE_S:
            await send(client, load, tally, started)

    await asyncio.gather(*(call() for _ in range(AT_ONCE)))
    return len(tally.tokens) / (time.monotonic() - started)


async def arrive(client: httpx.AsyncClient, load: Load, tally: Tally, *, rate: float, seconds: float) -> None:
    """Requests at random times, `rate` a second on average, whatever becomes of those before."""
    started, clock, calls = time.monotonic(), random.Random(1), set[asyncio.Task[None]]()
    watching = asyncio.create_task(_watch_memory(tally, started))
    next_s = 0.0
    while (next_s := next_s + clock.expovariate(rate)) < seconds:
        await asyncio.sleep(max(0.0, started + next_s - time.monotonic()))
        calls.add(task := asyncio.create_task(send(client, load, tally, started)))
        task.add_done_callback(calls.discard)
    await asyncio.gather(*calls)
    watching.cancel()
    with suppress(asyncio.CancelledError):
        await watching


async def _watch_memory(tally: Tally, started: float) -> None:
    """Of the processes that are there when nothing runs; children that decode come and go."""
    yardstick = np.ones(YARDSTICK_BYTES // 4, np.float32)
    lasting = [process.pid for process in tree_of(os.getpid(), read_processes())[1:]]
    while True:
        tally.memory.append((time.monotonic() - started, sum(map(_resident_bytes, lasting))))
        tally.host.append((time.monotonic() - started, _work_s(yardstick)))
        await asyncio.sleep(2.0)


def _work_s(data: np.ndarray) -> float:
    """Processor seconds of reading it once."""
    started = time.thread_time()
    data.sum()
    return time.thread_time() - started


def _resident_bytes(pid: int) -> int:
    """All of it: a share would change with every child that maps the same pages."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES


async def read_gauges(client: httpx.AsyncClient) -> dict[str, float]:
    lines = (await client.get("/metrics")).text.splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[:1] != "#")}


async def soak(url: str, clips: list[bytes], *, seconds: float, times: float) -> Verdict:
    tally, window_s = Tally(), min(60.0, seconds / 10)
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=32)
    async with httpx.AsyncClient(base_url=url, timeout=None, limits=limits) as client:
        await measure_capacity(client, Load(clips, 1), Tally())  # warms caches and memory
        capacity = await measure_capacity(client, Load(clips, 2), Tally())
        await arrive(client, Load(clips, 3), tally, rate=times * capacity, seconds=seconds)
        for _ in range(100):
            gauges = await read_gauges(client)
            left = gauges["vllm:num_requests_running"] + gauges["vllm:num_requests_waiting"]
            missing = gauges["evs:kv_pages_total"] - gauges["evs:kv_pages_free"]
            if left == missing == 0:
                break
            await asyncio.sleep(0.1)
    second, last = (window_s, 2 * window_s), (seconds - window_s, seconds)
    windows = [(at * window_s, (at + 1) * window_s) for at in range(round(seconds / window_s))]
    return Verdict(
        seconds=seconds, capacity_rps=round(capacity, 2), statuses=dict(tally.statuses),
        failures=tuple(tally.failures[:20]), window_s=window_s,
        second_tokens=tally.tokens_between(*second), last_tokens=tally.tokens_between(*last),
        second_memory_bytes=int(tally.memory_between(*second)), last_memory_bytes=int(tally.memory_between(*last)),
        memory_bytes=tuple(int(tally.memory_between(*window)) for window in windows),
        tokens=tuple(tally.tokens_between(*window) for window in windows),
        host_ms=tuple(round(1000 * tally.host_between(*window), 2) for window in windows),
        pages_missing=int(missing), left_running=int(left),
    )  # fmt: skip


def _data_url(kind: str, data: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("model", nargs="?", default="demo")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--times", type=float, default=3.0)
    options = parser.parse_args()
    binary = str(Path(sys.executable).with_name("evs"))
    command = [binary, "serve", options.model, "--port", "0", "--max-num-seqs", str(AT_ONCE)]
    command += ["--max-waiting", str(WAITING), "--media-cache", "32MiB", "--encoder-cache", "32MiB"]
    command += ["--kv-memory", "64MiB"]  # little enough to have been touched all over before the second window
    with fresh_clips(list(range(12))) as paths, start_server(command, READY, timeout_s=300) as (url, _):
        clips = [path.read_bytes() for path in paths]
        verdict = asyncio.run(soak(url, clips, seconds=options.seconds, times=options.times))
    for name, value in asdict(verdict).items():
        print(f"{name:22} {value}")
    print(json.dumps({**asdict(verdict), "holds": verdict.holds, "machine": describe_machine()}))
    sys.exit(0 if verdict.holds else 1)


if __name__ == "__main__":
    main()
