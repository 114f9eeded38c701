"""The small client demo/score.py against a server of canned answers."""

from __future__ import annotations

import json

import httpx

from demo.score import SAMPLES, ask_all


def answer_from_key(request: httpx.Request) -> httpx.Response:
    """Answers every question with "yes."."""
    body = json.loads(request.content)
    (video, text) = body["messages"][0]["content"]
    assert video["video_url"]["url"].startswith("data:video/mp4;base64,")
    assert text["type"] == "text"
    return httpx.Response(200, json={"choices": [{"message": {"content": " yes.\n"}}]})


def test_score_counts_exact_answers_only() -> None:
    """Each question of answers.json is asked once, and only a whole answer counts, white space apart."""
    answers = json.loads((SAMPLES / "answers.json").read_text())
    with httpx.Client(transport=httpx.MockTransport(answer_from_key), base_url="http://test") as client:
        results = list(ask_all(client, model="demo", answers=answers))
    assert len(results) == sum(len(questions) for questions in answers.values())
    assert {r.expected for r in results if r.is_exact} == {"yes."}
    assert sum(r.is_exact for r in results) == sum(r.expected == "yes." for r in results) > 0
