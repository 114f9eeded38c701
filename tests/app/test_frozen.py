"""An engine's process that is frozen, not killed: its callers, health and the process itself, before and after."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
from prometheus_client.parser import text_string_to_metric_families

from tests.processes import children_of, wait_until
from tests.server import Server, running_server

SILENCE_S = 5.0
FLAGS = ("--dtype", "float32", "--threads", "1", "--served-model-name", "tiny", "--engine-silence-s", str(SILENCE_S))


def body(**fields: Any) -> dict[str, Any]:
    values = {"model": "tiny", "temperature": 0, "ignore_eos": True, "return_token_ids": True, **fields}
    return {"messages": [{"role": "user", "content": "tell me all"}], **values}


def post(server: Server, **fields: Any) -> httpx2.Response:
    return httpx2.post(f"{server.url}/v1/chat/completions", json=body(**fields), timeout=120)


def gauge(server: Server, name: str) -> float | None:
    """None where the engine does not say."""
    families = text_string_to_metric_families(httpx2.get(f"{server.url}/metrics", timeout=60).text)
    return next((sample.value for family in families for sample in family.samples if sample.name == name), None)


def test_a_frozen_engine_is_told_and_thawed(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    """B-DEAD-1: a body is answered with a 503 of its own code, a stream ends with that error, health turns, and a new
    request is turned away at once; thawed, it is the service that it was, and has dropped what nobody waits for."""
    with running_server(checkpoint("qwen3_vl"), *FLAGS, media_dir=tmp_path) as server:
        before = post(server, max_tokens=6).json()["choices"]
        children = children_of(server.pid)
        replies: dict[bool, httpx2.Response] = {}

        def call(stream: bool) -> None:
            replies[stream] = post(server, max_tokens=4000, stream=stream)

        callers = [threading.Thread(target=call, args=(stream,)) for stream in (False, True)]
        for caller in callers:
            caller.start()
        tokens = "vllm:generation_tokens_total"
        wait_until(lambda: gauge(server, "vllm:num_requests_running") == 2, what="two running requests")
        told = gauge(server, tokens) or 0
        wait_until(lambda: (gauge(server, tokens) or 0) > told + 20, what="tokens of both")
        engine = server.engine_pid
        os.kill(engine, signal.SIGSTOP)
        try:
            check_frozen(server, callers, replies)
        finally:
            os.kill(engine, signal.SIGCONT)
        wait_until(lambda: httpx2.get(f"{server.url}/health").status_code == 200, what="good health")
        assert httpx2.get(f"{server.url}/ready").status_code == 200
        assert post(server, max_tokens=6).json()["choices"] == before
        wait_until(lambda: gauge(server, "vllm:num_requests_running") == 0, what="rest")
        assert gauge(server, "evs:kv_pages_free") == gauge(server, "evs:kv_pages_total")
        assert children_of(server.pid) == children


def check_frozen(server: Server, callers: list[threading.Thread], replies: dict[bool, httpx2.Response]) -> None:
    wait_until(lambda: httpx2.get(f"{server.url}/health").status_code == 503, what="bad health")
    for caller in callers:
        caller.join(60)
    for reply in (replies[False], post(server), httpx2.get(f"{server.url}/health"), httpx2.get(f"{server.url}/ready")):
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "engine_silent")
        assert reply.headers["retry-after"]
    *events, last = replies[True].text.rstrip().split("\n\n")
    assert replies[True].status_code == 200 and len(events) > 1
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "engine_silent"
    assert gauge(server, "evs:engine_up") == 0
