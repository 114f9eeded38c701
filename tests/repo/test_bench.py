"""The benchmarks measure what they say: what the client times, what the ratios mean, who else used the machine; and the
load is 1182 tokens, of which 1152 are video."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from bench.checkpoint import FRAMES, QUESTION, SIZE, fresh_clips, make_frames
from bench.client import Timing, joint_step_s, make_body, time_together
from bench.compare import Round, paired_ratios, ratios
from bench.machine import Watch, describe_machine, own_cpu_s, read_processes, resident_bytes, tree_of
from bench.serve import Figures
from bench.sessions import start_server
from bench.soak import Load, Tally, Verdict, send
from runner.requests import ChatMessage, InlineBytes, MediaPart, TextPart
from tests.checkpoints.bench_load import write_tiny_load
from tests.harness import local_engine
from tests.processes import wait_until


def stream_three_tokens(request: httpx.Request) -> httpx.Response:
    """Streams a role, three tokens of text, and the usage."""
    assert json.loads(request.content)["stream_options"] == {"include_usage": True}
    deltas = [{"role": "assistant", "content": ""}, {"content": "a"}, {"content": "b"}, {"content": "c"}]
    events: list[dict[str, object]] = [{"choices": [{"delta": delta}]} for delta in deltas]
    events.append({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3}})
    text = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
    return httpx.Response(200, text=text)


async def test_the_client_times_text_and_counts_usage() -> None:
    """The first token is the first text, not the role."""
    with fresh_clips([1, 2]) as clips:
        bodies = [make_body("m", clip=clip, question="?", max_tokens=3) for clip in clips]
    assert bodies[0] != bodies[1]
    async with httpx.AsyncClient(transport=httpx.MockTransport(stream_three_tokens), base_url="http://test") as client:
        timings = await time_together(client, bodies)
    for timing in timings:
        assert (timing.prompt_tokens, timing.completion_tokens, len(timing.pieces_s)) == (7, 3, 3)
        assert timing.first_token_s > 0


async def test_a_refusal_is_not_timed() -> None:
    transport = httpx.MockTransport(lambda _: httpx.Response(429, text="try again later"))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        with pytest.raises(RuntimeError, match="429: try again later"):
            await time_together(client, [{}])


def timing(*pieces_s: float) -> Timing:
    return Timing(asked_s=0.0, pieces_s=pieces_s, prompt_tokens=1, completion_tokens=len(pieces_s))


def test_time_per_token_leaves_the_first_out() -> None:
    """Five tokens are four gaps."""
    assert timing(1.0, 1.5, 2.0, 2.5, 3.0).per_token_s == 0.5


def test_a_joint_step_is_one_in_which_all_decode() -> None:
    """The first answer's gap of 6 s is the other's prefill; the second answer's last gap is after the first ended."""
    assert joint_step_s([timing(1, 7, 8, 9), timing(7, 8, 9, 15)]) == 1
    assert joint_step_s([timing(1, 2), timing(3, 4)]) is None


def test_ratios_are_shares_of_time_and_factors_of_speed() -> None:
    common = {"prompt_tokens": 1, "together_per_token_s": None}
    ours = Figures(engine="a", first_token_s=1.0, per_token_s=0.05, together_tokens_per_s=30.0, **common)
    other = Figures(engine="b", first_token_s=2.0, per_token_s=0.10, together_tokens_per_s=10.0, **common)
    assert ratios(ours, other) == {"first_token": 0.5, "decode": 2.0, "together": 3.0}


def test_ratios_of_rounds_are_paired() -> None:
    """The machine is three times as slow in the second of three rounds, and both engines with it: we stay twice as
    fast, which seconds compared across rounds would not show."""

    def make_round(slowness: float) -> Round:
        one = timing(1 * slowness, 2 * slowness, 3 * slowness)
        return Round(alone=one, together=(one, one))

    ours = [make_round(s) for s in (1, 3, 1)]
    other = [make_round(2 * s) for s in (1, 3, 1)]
    assert paired_ratios(ours, other) == {"first_token": 0.5, "decode": 2.0, "together": 2.0}


def test_what_we_start_is_ours_and_not_others() -> None:
    """A busy child is in the tree, adds to its memory, and its CPU time is ours, also when it has ended."""
    before = own_cpu_s()
    with Watch(every_s=0.05) as watch:
        child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        try:
            wait_until(lambda: read_processes()[child.pid].cpu_s > 0.2, what="a child that is busy")
            spent = read_processes()[child.pid].cpu_s
            assert child.pid in [p.pid for p in tree_of(os.getpid(), read_processes())]
            assert resident_bytes(child.pid) > 1 << 20
            assert own_cpu_s() - before >= spent
            wait_until(lambda: watch.peak_memory_bytes > 1 << 20, what="a look at it")
        finally:
            child.kill()
            child.wait()
    assert own_cpu_s() - before >= spent
    assert watch.others >= 0
    assert describe_machine()["cores"] == len(os.sched_getaffinity(0))


def test_a_server_is_started_and_ended() -> None:
    script = "import time; print('serving x url=http://h:1/', flush=True); time.sleep(60)"
    with start_server([sys.executable, "-c", script], re.compile(r"url=(\S+)"), timeout_s=30) as (url, start_s):
        assert url == "http://h:1" and start_s > 0
    with (
        pytest.raises(RuntimeError, match="no such model"),
        start_server([sys.executable, "-c", "print('no such model')"], re.compile("(x)url"), timeout_s=30),
    ):
        pass


def test_clips_differ_by_seed_and_move_or_stand() -> None:
    moving, static = make_frames("moving", 0), make_frames("static", 0)
    assert moving.shape == static.shape == (FRAMES, *SIZE, 3)
    assert (make_frames("moving", 1) != moving).any()
    assert (moving[0] != moving[1]).any(-1).mean() > 0.3
    assert 0.01 < (static[0] != static[1]).any(-1).mean() < 0.13


@pytest.mark.filterwarnings("ignore")  # saving a checkpoint draws a progress bar over threads that are none of ours
def test_the_load_is_as_stated(tmp_path: Path) -> None:
    """The same recipe, smaller: the whole vocabulary is tokens that read as text, and the prompt has 1182."""
    write_tiny_load(tmp_path)
    with fresh_clips([0]) as (clip,), local_engine(tmp_path, dtype="bfloat16") as local:
        media = MediaPart(kind="video", source=InlineBytes(data=clip.read_bytes()))
        chat = [ChatMessage(role="user", parts=(media, TextPart(text=QUESTION)))]
        answer = local.answer(chat, sampling=local.everything(2))
        assert local.vocab_size == 600
    assert answer.usage.prompt_tokens == 1182
    assert len(answer.token_ids) == 2


def verdict(**values: object) -> Verdict:
    good: dict[str, object] = {
        "seconds": 600.0, "capacity_rps": 5.0, "statuses": {"200": 9, "429": 9}, "failures": (), "window_s": 60.0,
        "second_tokens": 1000, "last_tokens": 950, "second_memory_bytes": 1 << 30, "last_memory_bytes": 1 << 30,
        "memory_bytes": (1 << 30,) * 10, "tokens": (1000,) * 10, "host_ms": (5.0,) * 10,
        "pages_missing": 0, "left_running": 0,
    }  # fmt: skip
    return Verdict(**{**good, **values})  # type: ignore[arg-type]


def test_a_soak_holds_only_when_all_of_it_does() -> None:
    assert verdict().holds
    for bad in (
        {"failures": ("500: x",)}, {"last_tokens": 949}, {"second_tokens": 0, "last_tokens": 0},
        {"last_memory_bytes": (1 << 30) + (100 << 20)}, {"pages_missing": 1}, {"left_running": 1},
    ):  # fmt: skip
        assert not verdict(**bad).holds, bad


async def soak_against(status: int, text: str, *, requests: int = 40) -> Tally:
    """What the tally says when every answer is this one."""
    load, tally = Load([b"\0" * 1000], 1, hang_ups=0.0), Tally()
    transport = httpx.MockTransport(lambda _: httpx.Response(status, text=text))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        for _ in range(requests):
            await send(client, load, tally, time.monotonic())
    return tally


async def test_a_soak_forgives_only_a_full_queue_and_damaged_files() -> None:
    """The load is the same each time: among two hundred requests some bring a damaged file."""
    assert (await soak_against(429, "try again later")).failures == []
    assert len((await soak_against(500, "oh")).failures) == 40
    assert 0 < 200 - len((await soak_against(422, "it is damaged", requests=200)).failures) < 50
    assert len((await soak_against(200, 'data: {"error": {}}')).failures) == 40
    good = await soak_against(200, "{}")
    assert (good.failures, len(good.tokens)) == ([], 40)
    assert good.tokens_between(0, 60) == sum(count for _, count in good.tokens) > 40
