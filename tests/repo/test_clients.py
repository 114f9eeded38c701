"""The two small clients, demo/score.py and bench/first_token.py, against a server of canned answers."""

from __future__ import annotations

import json

import httpx

from bench.first_token import Timing, make_body, time_many
from demo.score import SAMPLES, ask_all


def answer_from_key(request: httpx.Request) -> httpx.Response:
    """Answers every question with "yes."."""
    body = json.loads(request.content)
    (video, text) = body["messages"][0]["content"]
    assert video["video_url"]["url"].startswith("data:video/mp4;base64,")
    assert text["type"] == "text"
    return httpx.Response(200, json={"choices": [{"message": {"content": " yes.\n"}}]})


def stream_three_tokens(request: httpx.Request) -> httpx.Response:
    """Streams a role, three tokens of text, and the usage."""
    assert json.loads(request.content)["stream_options"] == {"include_usage": True}
    deltas = [{"role": "assistant", "content": ""}, {"content": "a"}, {"content": "b"}, {"content": "c"}]
    events: list[dict[str, object]] = [{"choices": [{"delta": delta}]} for delta in deltas]
    events.append({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3}})
    text = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
    return httpx.Response(200, text=text)


def test_score_counts_exact_answers_only() -> None:
    """Each question of answers.json is asked once, and only a whole answer counts, white space apart."""
    answers = json.loads((SAMPLES / "answers.json").read_text())
    with httpx.Client(transport=httpx.MockTransport(answer_from_key), base_url="http://test") as client:
        results = list(ask_all(client, model="demo", answers=answers))
    assert len(results) == sum(len(questions) for questions in answers.values())
    assert {r.expected for r in results if r.is_exact} == {"yes."}
    assert sum(r.is_exact for r in results) == sum(r.expected == "yes." for r in results) > 0


async def test_bench_times_streams() -> None:
    """Counts come from `usage`; the first token is the first text, not the role."""
    body = make_body("demo", clip=SAMPLES / "mover.mp4", max_tokens=3)
    async with httpx.AsyncClient(transport=httpx.MockTransport(stream_three_tokens), base_url="http://test") as client:
        timings = await time_many(client, body, requests=3, concurrency=2)
    assert [(t.prompt_tokens, t.completion_tokens) for t in timings] == [(7, 3)] * 3
    assert all(0 < t.first_token_s <= t.last_token_s for t in timings)


def test_time_per_token_leaves_the_first_out() -> None:
    """Five tokens are four gaps."""
    timing = Timing(first_token_s=1.0, last_token_s=3.0, prompt_tokens=1, completion_tokens=5)
    assert timing.per_token_s == 0.5
