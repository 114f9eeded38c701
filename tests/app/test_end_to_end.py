"""From a file on disk to tokens on a socket: a real server process, a real model, the official client.

Law 1 through HTTP, law 7 after aborts, law 8 when an engine or a decoding child dies."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import av
import httpx2
import numpy as np
import openai
import pytest
from transformers import AutoTokenizer

from tests.oracle import Clip, Part, answer, lossless_file, noise_clip, png_file
from tests.processes import children_of, descriptors_of, threads_of, wait_until
from tests.runner.test_parity import TURNS
from tests.server import Server, read_gauges, running_server

SAMPLES = Path(__file__).parents[2] / "sample_videos"


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server("demo", "--dtype", "float32", media_dir=tmp_path_factory.mktemp("media")) as server:
        yield server


@pytest.fixture(scope="module")
def tiny(checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    flags = (
        "--dtype",
        "float32",
        "--threads",
        "1",
        "--served-model-name",
        "tiny",
        "--max-num-seqs",
        "16",
        "--evs",
        "none",
    )
    with running_server(checkpoint("qwen3_vl"), *flags, media_dir=tmp_path_factory.mktemp("media")) as server:
        yield server


def data_url(kind: str, data: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def as_content(turn: list[Part]) -> list[dict[str, Any]]:
    content: list[dict[str, Any]] = []
    for part in turn:
        if isinstance(part, str):
            content.append({"type": "text", "text": part})
        elif isinstance(part, Clip):
            content.append(
                {"type": "video_url", "video_url": {"url": data_url("video/x-matroska", lossless_file(part))}}
            )
        else:
            content.append({"type": "image_url", "image_url": {"url": data_url("image/png", png_file(part))}})
    return content


def ask(turn: list[Part], **fields: Any) -> dict[str, Any]:
    values = {"model": "tiny", "temperature": 0, "max_tokens": 8, "ignore_eos": True, **fields}
    return {"messages": [{"role": "user", "content": as_content(turn)}], **values}


def is_at_rest(server: Server) -> bool:
    now = read_gauges(server.url)
    busy = now["vllm:num_requests_running"] + now["vllm:num_requests_waiting"] + now["evs:encoder_outputs_pinned"]
    return busy == 0 and now["evs:kv_pages_free"] == now["evs:kv_pages_total"]


# ----------------------------------------------------------------------------------------------------------- parity


@pytest.mark.parametrize("name", TURNS)
def test_tokens_and_logprobs_equal_the_oracle(tiny: Server, checkpoint: Callable[[str], Path], name: str) -> None:
    folder = checkpoint("qwen3_vl")
    oracle = answer(folder, TURNS[name], 8)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    body = ask(TURNS[name], logprobs=True, top_logprobs=20, return_token_ids=True)
    choice = post(tiny, body)["choices"][0]
    assert choice["token_ids"] == oracle.token_ids
    assert choice["message"]["content"] == tokenizer.decode(oracle.token_ids, skip_special_tokens=True)
    spread = oracle.logits.std(-1)
    for entry, logits, width in zip(choice["logprobs"]["content"], oracle.logits.log_softmax(-1), spread, strict=True):
        expected = logits.topk(20).values.tolist()
        ours = [top["logprob"] for top in entry["top_logprobs"]]
        assert max(abs(a - b) for a, b in zip(ours, expected, strict=True)) < 1e-4 * float(width)


def test_render_equals_the_processor(tiny: Server, checkpoint: Callable[[str], Path]) -> None:
    turn = TURNS["all_mixed"]
    body = {"model": "tiny", "messages": [{"role": "user", "content": as_content(turn)}]}
    rendered = httpx2.post(f"{tiny.url}/v1/chat/completions/render", json=body, timeout=60).json()
    assert rendered["prompt_token_ids"] == answer(checkpoint("qwen3_vl"), turn, 1).prompt_ids
    assert [item["kind"] for item in rendered["items"]] == ["image", "video", "video", "image"]
    assert len(rendered["position_ids"]) == 3


def post(server: Server, body: dict[str, Any]) -> dict[str, Any]:
    response = httpx2.post(f"{server.url}/v1/chat/completions", json=body, timeout=120)
    assert response.status_code == 200, response.text
    return response.json()


# -------------------------------------------------------------------------------------------------- the demo model


def test_the_demo_model_answers_about_its_clips(demo: Server) -> None:
    """Through an upload, as the README's curl does, pruned by default; the whole answer must be right."""
    expected = json.loads((SAMPLES / "answers.json").read_text())
    wrong = []
    for clip in ("mover.mp4", "appears.mp4"):
        for question, right in expected[clip].items():
            with (SAMPLES / clip).open("rb") as file:
                reply = httpx2.post(
                    f"{demo.url}/v1/videos/ask", files={"file": (clip, file)}, data={"prompt": question}, timeout=60
                ).json()
            assert reply["usage"]["evs"]["method"] == "gate"
            assert reply["usage"]["evs"]["kept"] < 0.6 * reply["usage"]["evs"]["cells"]
            if reply["answer"].strip() != right:
                wrong.append((question, right, reply["answer"]))
    assert not wrong


@pytest.mark.parametrize("clip", ["mover.mp4", "passes.mp4"])
def test_the_demo_model_answers_as_in_transformers(demo: Server, clip: str) -> None:
    """The shipped weights, on a real file: the same words, token for token."""
    with av.open(str(SAMPLES / clip)) as container:
        frames = np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])
    turn: list[Part] = [Clip(frames=frames, fps=2.0), "Describe the video."]
    folder = Path(__file__).parents[2] / "demo" / "model"
    oracle = answer(folder, turn, 24)
    content = [
        {"type": "video_url", "video_url": {"url": data_url("video/mp4", (SAMPLES / clip).read_bytes())}},
        {"type": "text", "text": "Describe the video."},
    ]
    body = {"model": "demo", "messages": [{"role": "user", "content": content}], "temperature": 0, "max_tokens": 24,
            "ignore_eos": True, "return_token_ids": True, "evs": {"method": "none"}}  # fmt: skip
    assert post(demo, body)["choices"][0]["token_ids"] == oracle.token_ids


def test_the_official_client_streams_an_answer(demo: Server) -> None:
    clip = (SAMPLES / "mover.mp4").read_bytes()
    content = [
        {"type": "video_url", "video_url": {"url": data_url("video/mp4", clip)}},
        {"type": "text", "text": "Which way does the triangle move?"},
    ]
    with openai.OpenAI(base_url=f"{demo.url}/v1", api_key="none") as client:
        assert [model.id for model in client.models.list()] == ["demo"]
        stream = client.chat.completions.create(
            model="demo",
            messages=[{"role": "user", "content": content}],  # type: ignore[list-item, misc]
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text.strip() == "right to left."
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.prompt_tokens > 100


@pytest.mark.parametrize(("form", "magic"), [("png", b"\x89PNG"), ("webp", b"RIFF")])
def test_the_overlay_is_a_picture_of_what_was_kept(demo: Server, form: str, magic: bytes) -> None:
    with (SAMPLES / "mover.mp4").open("rb") as file:
        reply = httpx2.post(
            f"{demo.url}/v1/videos/overlay", files={"file": ("m.mp4", file)}, data={"format": form}, timeout=60
        )
    assert reply.status_code == 200
    assert reply.content.startswith(magic)
    assert (reply.headers["x-evs-cells"], reply.headers["x-evs-kept"]) == ("160", "56")


def test_a_second_question_decodes_and_encodes_nothing(demo: Server) -> None:
    def ask_it() -> None:
        with (SAMPLES / "turns.mp4").open("rb") as file:
            reply = httpx2.post(
                f"{demo.url}/v1/videos/ask", files={"file": ("x.mp4", file)}, data={"prompt": "What moves?"}, timeout=60
            )
        assert reply.status_code == 200

    ask_it()
    before = read_gauges(demo.url)
    ask_it()
    after = read_gauges(demo.url)
    for cache in ("media", "encoder"):
        assert after[f"evs:{cache}_cache_misses_total"] == before[f"evs:{cache}_cache_misses_total"]
        assert after[f"evs:{cache}_cache_hits_total"] == before[f"evs:{cache}_cache_hits_total"] + 1


# ------------------------------------------------------------------------------------------------ many, and aborts


def distinct_turn(number: int) -> list[Part]:
    clip = noise_clip(100 + number, num_frames=2 + number % 5, size=(64 + 8 * (number % 4), 96))
    return [clip, f"what is in clip {number}?"]


async def test_thirty_two_at_once_equal_each_alone_and_aborts_leave_nothing(tiny: Server) -> None:
    bodies = [ask(distinct_turn(n), max_tokens=12, return_token_ids=True) for n in range(32)]
    alone = [post(tiny, body)["choices"][0]["token_ids"] for body in bodies]
    wait_until(lambda: is_at_rest(tiny), what="rest")
    engine = tiny.engine_pid
    before = {pid: (descriptors_of(pid), threads_of(pid)) for pid in (tiny.pid, engine)}
    children = children_of(tiny.pid)
    async with httpx2.AsyncClient(base_url=tiny.url, timeout=120) as client:
        doomed = [
            asyncio.create_task(client.post("/v1/chat/completions", json=ask(distinct_turn(n), max_tokens=400)))
            for n in range(40, 50)
        ]
        kept = [asyncio.create_task(client.post("/v1/chat/completions", json=body)) for body in bodies]
        for number, task in enumerate(doomed):
            await asyncio.sleep(0.05 * number)
            task.cancel()
        replies = await asyncio.gather(*kept)
    together = [reply.json()["choices"][0]["token_ids"] for reply in replies]
    assert together == alone
    wait_until(lambda: is_at_rest(tiny), what="rest after the aborts")
    wait_until(lambda: children_of(tiny.pid) == children, what="the end of decoding children")
    for pid, (descriptors, threads) in before.items():
        wait_until(lambda p=pid, d=descriptors: len(descriptors_of(p)) <= len(d), what="closed descriptors")  # type: ignore[misc]
        assert threads_of(pid) <= threads + 16  # thread pools may have grown to their bounds
        assert not [name for name in descriptors_of(pid) if "memfd" in name]


def test_uploads_leave_no_file(tiny: Server) -> None:
    command = command_of(tiny.pid)
    media = Path(command[command.index("--media-dir") + 1])
    before = sorted(media.rglob("*"))  # the run's folder and its lock
    data = lossless_file(noise_clip(1, num_frames=4, size=(64, 64)))
    for fields, status in (({"prompt": "?"}, 200), ({"prompt": "?", "fps": "-3"}, 400)):
        reply = httpx2.post(f"{tiny.url}/v1/videos/ask", files={"file": ("a.mkv", data)}, data=fields, timeout=60)
        assert reply.status_code == status, reply.text
    wait_until(lambda: sorted(media.rglob("*")) == before, what="a media folder as it was")


def command_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")


# ------------------------------------------------------------------------------------------------------------ death


def test_killing_a_decoding_child_fails_one_request(tiny: Server) -> None:
    control = ask(distinct_turn(3))
    before = post(tiny, control)["choices"][0]["message"]
    idle = children_of(tiny.pid)
    slow = ask([noise_clip(5, num_frames=60, size=(720, 1280), fps=30.0), "?"])
    results: list[httpx2.Response] = []
    caller = threading.Thread(
        target=lambda: results.append(httpx2.post(f"{tiny.url}/v1/chat/completions", json=slow, timeout=120))
    )
    caller.start()
    victim = 0
    deadline = time.monotonic() + 60
    while not victim and time.monotonic() < deadline:
        victim = next(iter(children_of(tiny.pid) - idle), 0)
    os.kill(victim, signal.SIGKILL)
    caller.join(120)
    assert results[0].status_code == 422, results[0].text
    assert set(results[0].json()) == {"error"}
    assert post(tiny, control)["choices"][0]["message"] == before
    assert httpx2.get(f"{tiny.url}/health").status_code == 200


def test_killing_the_engine_fails_requests_and_health(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    with running_server(
        checkpoint("qwen3_vl"), "--threads", "1", "--served-model-name", "tiny", media_dir=tmp_path
    ) as server:
        results: list[httpx2.Response] = []
        body = ask(["tell me all"], max_tokens=3000)
        callers = [
            threading.Thread(
                target=lambda: results.append(httpx2.post(f"{server.url}/v1/chat/completions", json=body, timeout=120))
            )
            for _ in range(3)
        ]
        for caller in callers:
            caller.start()
        wait_until(lambda: read_gauges(server.url)["vllm:num_requests_running"] == 3, what="three running requests")
        os.kill(server.engine_pid, signal.SIGKILL)
        for caller in callers:
            caller.join(60)
        assert [result.status_code for result in results] == [503, 503, 503]
        assert httpx2.get(f"{server.url}/health").status_code == 503
        assert httpx2.post(f"{server.url}/v1/chat/completions", json=body, timeout=60).status_code == 503
