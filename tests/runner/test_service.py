"""The engine behind its socket: refusals by kind, cancellation in every phase, death, and nothing left behind."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from runner.client import EngineClient, start_engine
from runner.config import DecodeLimits, EngineConfig
from runner.errors import EngineDeadError, EngineStartError, RequestError
from runner.messages import Generate, Progress, Render
from runner.requests import ChatMessage, EvsOptions, InlineBytes, MediaPart, SamplingParams, TextPart, VideoOptions
from tests.oracle import Clip, as_message, lossless_file, noise_clip
from tests.processes import children_of, wait_until

CLIP = noise_clip(1, num_frames=6, size=(64, 96))
LONG = Clip(frames=np.repeat(noise_clip(2, num_frames=10, size=(480, 640)).frames, 30, axis=0), fps=30.0)


def make_config(folder: Path, **settings: Any) -> EngineConfig:
    values: dict[str, Any] = {"dtype": "float32", "threads": 1, "kv_memory_bytes": 8 << 20, **settings}
    return EngineConfig(model=str(folder), served_name="tiny", **values)


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(checkpoint: Callable[[str], Path]) -> AsyncIterator[EngineClient]:
    started = await start_engine(make_config(checkpoint("qwen3_vl"), max_model_len=600), where="thread")
    yield started
    await started.close()
    assert not started.is_alive


@pytest_asyncio.fixture(loop_scope="module")
async def client(shared: EngineClient) -> AsyncIterator[EngineClient]:
    """The shared engine; after each test all pages and encodings must be back."""
    yield shared
    stats = await shared.stats(os.urandom(4).hex())
    assert stats.gauges["evs:kv_pages_free"] == stats.gauges["evs:kv_pages_total"]
    assert stats.gauges["evs:encoder_outputs_pinned"] == 0


def ask(name: str, *turn: Any, max_tokens: int = 5, **fields: Any) -> Generate:
    sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    return Generate(request_id=name, chat=(as_message(turn),), sampling=sampling, **fields)


def with_video(name: str, data: bytes, video: VideoOptions = VideoOptions()) -> Generate:  # noqa: B008 - frozen
    part = MediaPart(kind="video", source=InlineBytes(data=data), video=video)
    return Generate(request_id=name, chat=(ChatMessage(role="user", parts=(part, TextPart(text="?"))),))


async def collect(client: EngineClient, request: Generate) -> dict[int, list[int]]:
    tokens: dict[int, list[int]] = {index: [] for index in range(request.n)}
    async for delta in await client.generate(request):
        tokens[delta.index] += delta.token_ids
    return tokens


async def test_answers_stream_and_progress_is_told(client: EngineClient) -> None:
    seen: list[Progress] = []
    stream = await client.generate(ask("a", CLIP, "what?", progress=True), progress=seen.append)
    deltas = [delta async for delta in stream]
    assert [delta.finish_reason for delta in deltas] == [None] * 4 + ["length"]
    assert sum(len(delta.token_ids) for delta in deltas) == 5
    assert [(p.phase, p.done == p.total) for p in seen if p.phase == "decode"] == [("decode", True)]
    assert any(p.phase == "prefill" and p.done == p.total == stream.accepted.usage.prompt_tokens for p in seen)


async def test_n_answers_of_one_prompt(client: EngineClient) -> None:
    greedy = await collect(client, ask("g", CLIP, "what?", n=3))
    assert greedy[0] == greedy[1] == greedy[2]
    sampling = SamplingParams(temperature=3.0, max_tokens=12, seed=5, ignore_eos=True)
    chat = (as_message([CLIP, "what?"]),)
    drawn = await collect(client, Generate(request_id="s", chat=chat, sampling=sampling, n=3))
    again = await collect(client, Generate(request_id="t", chat=chat, sampling=sampling, n=3))
    assert drawn == again
    assert len({tuple(tokens) for tokens in drawn.values()}) == 3


@pytest.mark.parametrize(
    ("make", "kind", "param"),
    [
        (lambda: with_video("x", b"not a video at all"), "unsupported_media", "messages"),
        (lambda: with_video("x", lossless_file(CLIP)[:300]), "undecodable", "messages"),
        (lambda: with_video("x", lossless_file(CLIP), VideoOptions(fps=-1.0)), "invalid", "fps"),
        (lambda: ask("x", "word " * 600), "invalid", "messages"),
        (lambda: ask("x", "hi", max_tokens=599), "invalid", "max_tokens"),
        (lambda: ask("x", *[CLIP] * 17), "invalid", "messages"),
        (lambda: ask("x", "hi", n=0), "invalid", "n"),
        (lambda: ask("x", "hi", evs=EvsOptions(rate=0.5)), "invalid", "evs.rate"),
        (lambda: Generate(request_id="x", chat=(ChatMessage(role="user", parts=()),)), "invalid", "messages"),
    ],
)
async def test_refusals_have_their_kind_and_harm_nobody(
    client: EngineClient, make: Callable[[], Generate], kind: str, param: str
) -> None:
    before = await collect(client, ask("before", CLIP, "what?"))
    with pytest.raises(RequestError) as caught:
        await client.generate(make())
    assert (caught.value.kind, caught.value.param) == (kind, param)
    assert not re.search(r"(^|\s)/\w|0x[0-9a-f]|Traceback", caught.value.message)
    assert await collect(client, ask("after", CLIP, "what?")) == before


async def test_render_says_what_the_engine_would_see(client: EngineClient) -> None:
    rendered = await client.render(Render(request_id="r", chat=(as_message([CLIP, "?"]),), include_frames=True))
    item = rendered.items[0]
    assert item.timestamps_s == tuple(i / 2 for i in range(6))
    assert item.kept == tuple(tuple(range(item.grid[0] * item.grid[1])) for _ in range(item.slots))
    assert len(item.frames_png) == 6
    assert len(rendered.position_ids) == 3
    assert len(rendered.prompt_token_ids) == len(rendered.position_ids[0]) == rendered.usage.prompt_tokens


async def test_leaving_a_stream_frees_what_it_held(client: EngineClient) -> None:
    stream = await client.generate(ask("a", CLIP, "what?", max_tokens=300))
    async for _ in stream:
        break
    stream.close()
    await wait_for(client, lambda gauges: gauges["evs:kv_pages_free"] == gauges["evs:kv_pages_total"])


async def wait_for(client: EngineClient, condition: Callable[[dict[str, float]], bool]) -> None:
    """Until it holds of the gauges; a minute at most."""
    async with asyncio.timeout(60):
        while not condition((await client.stats(os.urandom(4).hex())).gauges):
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("phase", ["on its way", "in its child"])
async def test_giving_up_while_decoding_kills_the_child(client: EngineClient, phase: str) -> None:
    idle = children_of(os.getpid())
    part = MediaPart(kind="video", source=InlineBytes(data=lossless_file(LONG)))
    request = Generate(request_id="slow", chat=(ChatMessage(role="user", parts=(part,)),))
    task = asyncio.create_task(client.generate(request))
    while phase == "in its child" and children_of(os.getpid()) <= idle:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await wait_for(client, lambda g: g["vllm:num_requests_waiting"] + g["vllm:num_requests_running"] == 0)
    wait_until(lambda: children_of(os.getpid()) <= idle, what="the end of the child")


async def test_a_full_queue_refuses_at_once(checkpoint: Callable[[str], Path]) -> None:
    """Behind an answer that has the only place, two wait and all others are refused; then the two are answered."""
    client = await start_engine(make_config(checkpoint("qwen3_vl"), max_waiting=2, max_num_seqs=1), where="thread")
    long = await client.generate(ask("long", "hm", max_tokens=3000))
    deltas = aiter(long)
    await anext(deltas)
    tasks = [asyncio.create_task(collect(client, ask(f"q{i}", CLIP, "hm", max_tokens=50))) for i in range(12)]
    await wait_for(client, lambda _: sum(task.done() for task in tasks) >= 10)
    await deltas.aclose()  # type: ignore[attr-defined]
    results = await asyncio.gather(*tasks, return_exceptions=True)
    refused = [error for error in results if isinstance(error, RequestError)]
    assert all(error.kind == "queue_full" for error in refused)
    assert (len(refused), sum(isinstance(result, dict) for result in results)) == (10, 2)
    await client.close()


async def test_a_decode_deadline_is_its_own_kind(checkpoint: Callable[[str], Path]) -> None:
    limits = DecodeLimits(decode_timeout_s=0.02)
    client = await start_engine(make_config(checkpoint("qwen3_vl"), decode=limits), where="thread")
    with pytest.raises(RequestError) as caught:
        await client.generate(with_video("slow", lossless_file(LONG)))
    assert caught.value.kind == "deadline"
    await client.close()


async def test_shutdown_lets_running_answers_end(checkpoint: Callable[[str], Path]) -> None:
    client = await start_engine(make_config(checkpoint("qwen3_vl")), where="thread")
    stream = await client.generate(ask("a", CLIP, "what?", max_tokens=40))
    closing = asyncio.create_task(client.close(grace_s=20.0))
    tokens = [token async for delta in stream for token in delta.token_ids]
    await closing
    assert len(tokens) == 40


async def test_a_process_of_its_own_dies_loudly_and_leaves_nothing(checkpoint: Callable[[str], Path]) -> None:
    before = children_of(os.getpid())
    client = await start_engine(make_config(checkpoint("qwen3_vl")), where="process")
    stream = await client.generate(ask("a", CLIP, "what?", max_tokens=500))
    engine = client.handle.pid
    os.kill(engine, signal.SIGKILL)
    with pytest.raises(EngineDeadError):
        _ = [delta async for delta in stream]
    assert not client.is_alive
    with pytest.raises(EngineDeadError):
        await client.generate(ask("b", "hi"))
    await client.close(grace_s=0.0)
    wait_until(lambda: children_of(os.getpid()) <= before, what="the end of every child")


async def test_a_model_that_cannot_be_served_says_why(tmp_path: Path) -> None:
    with pytest.raises(EngineStartError, match=r"config\.json"):
        await start_engine(make_config(tmp_path), where="process")
