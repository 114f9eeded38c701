"""Over HTTP an answer is cut, counted and reported as without guesses, though several tokens come at once: a real
server, which guesses by default, and a model that is made to repeat itself."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.processes import repeat_until
from tests.server import Server, read_gauges, running_server

LETTERS = {"65": 100, "66": 100}  # the model says nothing else


@pytest.fixture(scope="module")
def server(checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    flags = ("--dtype", "float32", "--threads", "1", "--served-model-name", "tiny")
    with running_server(checkpoint("qwen3_vl"), *flags, media_dir=tmp_path_factory.mktemp("media")) as running:
        yield running


def body(**fields: Any) -> dict[str, Any]:
    values = {"model": "tiny", "temperature": 0, "max_tokens": 60, "ignore_eos": True, "logit_bias": LETTERS}
    return {"messages": [{"role": "user", "content": "say it"}], **values, **fields}


def ask(server: Server, **fields: Any) -> dict[str, Any]:
    response = httpx2.post(f"{server.url}/v1/chat/completions", json=body(**fields), timeout=60)
    assert response.status_code == 200, response.text
    reply: dict[str, Any] = response.json()
    return reply


def counted(server: Server, name: str) -> float:
    return sum(value for key, value in read_gauges(server.url).items() if key.startswith(name))


def stream(server: Server, **fields: Any) -> list[dict[str, Any]]:
    asked = body(stream=True, stream_options={"include_usage": True}, **fields)
    with httpx2.stream("POST", f"{server.url}/v1/chat/completions", json=asked, timeout=60) as response:
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: {")]
    return [json.loads(line) for line in lines]


def test_guesses_are_accepted_and_counted(server: Server) -> None:
    before = counted(server, "vllm:spec_decode_num_accepted_tokens_total")

    def ask_for_a_letter() -> None:
        assert ask(server, logit_bias={"65": 100})["usage"]["completion_tokens"] == 60

    repeat_until(
        ask_for_a_letter, lambda: counted(server, "vllm:spec_decode_num_accepted_tokens_total") > before, what="a hit"
    )
    drafted = counted(server, "vllm:spec_decode_num_draft_tokens_total")
    assert drafted >= counted(server, "vllm:spec_decode_num_accepted_tokens_total")
    assert counted(server, "evs:decode_steps_total") > 0
    assert counted(server, "evs:steps_without_drafts_total") > 0


@pytest.mark.parametrize("temperature", [0, 1])
def test_a_stop_string_cuts_where_it_would_without(server: Server, temperature: float) -> None:
    """At every place of a long answer that is its own first: the same text, log-probabilities and count of tokens."""
    sampling = {"temperature": temperature, "seed": 3, "logprobs": True}
    whole = ask(server, **sampling)["choices"][0]
    text = whole["message"]["content"]
    tried = 0
    for stop in {text[at : at + 6] for at in range(20, 50)}:
        end = text.index(stop) + len(stop)
        reply = ask(server, stop=[stop], **sampling)
        choice = reply["choices"][0]
        assert choice["message"]["content"] == text[: end - len(stop)]
        assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop)
        entries = choice["logprobs"]["content"]
        assert [e["token"] for e in entries] == [e["token"] for e in whole["logprobs"]["content"]][: len(entries)]
        assert "".join(e["token"] for e in entries) == text[: end - len(stop)]
        assert reply["usage"]["completion_tokens"] == end, "a letter is a token"
        tried += 1
        if tried == 8:
            break
    assert tried > 0


def test_a_stream_says_the_same_as_a_body(server: Server) -> None:
    """Pieces joined, whatever they hold, for each of several answers; each delta's tokens are all there. With this seed
    no draw is as near to another as other shapes of steps round."""
    fields = {"n": 2, "temperature": 1, "seed": 9, "return_token_ids": True}
    reply = ask(server, **fields)
    events = stream(server, **fields)
    for index in range(2):
        choices = [c for event in events for c in event["choices"] if c["index"] == index]
        whole = reply["choices"][index]
        assert "".join(c["delta"].get("content") or "" for c in choices) == whole["message"]["content"]
        assert [token for c in choices for token in c.get("token_ids") or ()] == whole["token_ids"]
        assert choices[-1]["finish_reason"] == whole["finish_reason"] == "length"
    assert events[-1]["usage"]["completion_tokens"] == reply["usage"]["completion_tokens"] == 120
