"""The chat route: exact bytes of streams, shapes of bodies, and that what is wrong is known before the first byte."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from runner.errors import EngineDeadError, RequestError
from runner.requests import InlineBytes, MediaPart
from tests.app.conftest import MakeClient, user
from tests.app.fake_engine import PROMPT_TOKENS, FakeEngine
from tests.app.test_detokenize import HARD_TEXTS

URL = "/v1/chat/completions"


def read_events(text: str) -> list[Any]:
    """Every event is `data: `, one line of JSON or [DONE], and an empty line."""
    assert text.endswith("\n\n")
    events = []
    for event in text[:-2].split("\n\n"):
        assert event.startswith("data: ") and "\n" not in event
        data = event.removeprefix("data: ")
        events.append(data if data == "[DONE]" else json.loads(data))
    return events


def stream(client: Any, **body: Any) -> list[Any]:
    response = client.post(URL, json={"messages": user(), "stream": True, **body})
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    return read_events(response.text)


def content_of(events: list[Any], index: int = 0) -> str:
    choices = [choice for event in events if event != "[DONE]" for choice in event["choices"]]
    return "".join(choice["delta"].get("content", "") for choice in choices if choice["index"] == index)


def test_stream_is_exactly_these_bytes(make_client: MakeClient) -> None:
    response = make_client(FakeEngine("hé")).post(URL, json={"messages": user(), "stream": True})
    first = json.loads(response.text.partition("\n\n")[0].removeprefix("data: "))
    head = f'"id":"{first["id"]}","object":"chat.completion.chunk","created":{first["created"]},"model":"fake"'
    choices = [
        '"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null',
        '"delta":{"content":"h"},"logprobs":null,"finish_reason":null',
        '"delta":{"content":"é"},"logprobs":null,"finish_reason":null',
        '"delta":{},"logprobs":null,"finish_reason":"stop","stop_reason":256',
    ]
    events = [f'data: {{{head},"choices":[{{"index":0,{choice}}}]}}\n\n' for choice in choices]
    assert response.content.decode() == "".join([*events, "data: [DONE]\n\n"])
    assert first["id"] == "chatcmpl-" + response.headers["x-request-id"]


def test_usage_comes_last_when_asked_for_and_never_otherwise(make_client: MakeClient) -> None:
    client = make_client(FakeEngine("ab"))
    events = stream(client, stream_options={"include_usage": True})
    assert [event.get("usage") for event in events[:-2]] == [None] * (len(events) - 2)
    assert all("usage" in event for event in events[:-1])
    assert events[-2]["choices"] == []
    assert events[-2]["usage"]["total_tokens"] == PROMPT_TOKENS + 3
    assert events[-1] == "[DONE]"
    assert len({(event["id"], event["model"], event["created"]) for event in events[:-1]}) == 1
    for options in (None, {"include_usage": False}):
        assert all("usage" not in event for event in stream(client, stream_options=options)[:-1])


def test_usage_can_come_with_every_event(make_client: MakeClient) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = stream(make_client(FakeEngine("abc")), stream_options=options)
    assert [event["usage"]["completion_tokens"] for event in events[:-1]] == [1, 1, 2, 3, 4, 4]


def test_body_of_a_whole_answer(make_client: MakeClient) -> None:
    body = make_client(FakeEngine("hi")).post(URL, json={"messages": user()}).json()
    assert body["object"] == "chat.completion"
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "hi", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
            "stop_reason": 256,
        }
    ]
    usage = body["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (7, 3, 10)
    assert usage["prompt_tokens_details"] == {"cached_tokens": 3, "image_tokens": 0, "video_tokens": 4}
    assert usage["evs"]["kept_per_slot"] == [[4]]
    assert usage["video"][0]["timestamps_s"] == [0.0, 1.0]
    assert "type" not in usage["evs"]


@pytest.mark.parametrize("text", HARD_TEXTS)
@pytest.mark.parametrize("limit", [None, 3, 5])
def test_streamed_text_is_the_whole_text(make_client: MakeClient, text: str, limit: int | None) -> None:
    """Also when max_tokens cuts a character: both modes end the same way."""
    client = make_client(FakeEngine(text))
    whole = client.post(URL, json={"messages": user(), "max_tokens": limit}).json()["choices"][0]
    streamed = stream(client, max_tokens=limit)
    assert content_of(streamed) == whole["message"]["content"]
    if limit is None:
        assert whole["message"]["content"] == text
    else:
        assert whole["finish_reason"] == "length"


def test_stop_string_over_token_borders(make_client: MakeClient) -> None:
    """Nothing of it is ever sent, the rest of the answer is aborted, both modes agree."""
    engine = FakeEngine("ABCDEFGHIJ")
    client = make_client(engine)
    whole = client.post(URL, json={"messages": user(), "stop": ["DEFGHIJ", "zzz"]}).json()
    assert whole["choices"][0]["message"]["content"] == "ABC"
    assert (whole["choices"][0]["finish_reason"], whole["choices"][0]["stop_reason"]) == ("stop", "DEFGHIJ")
    assert whole["usage"]["completion_tokens"] == 10
    assert content_of(stream(client, stop="DEF")) == "ABC"
    assert len(engine.aborted_answers) == 2
    assert not engine.live


def test_several_answers_are_told_apart_by_index(make_client: MakeClient) -> None:
    client = make_client(FakeEngine("abc"))
    whole = client.post(URL, json={"messages": user(), "n": 3}).json()
    assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2]
    assert whole["usage"]["completion_tokens"] == 12
    events = stream(client, n=3)
    assert [content_of(events, index) for index in range(3)] == ["abc"] * 3
    ends = [choice["index"] for event in events[:-1] for choice in event["choices"] if choice["finish_reason"]]
    assert ends == [0, 1, 2]


def test_logprobs_have_openais_shape(make_client: MakeClient) -> None:
    client = make_client(FakeEngine("é"))
    options = {"logprobs": True, "top_logprobs": 1}
    whole = client.post(URL, json={"messages": user(), **options}).json()["choices"][0]["logprobs"]
    top = [{"token": "A", "logprob": -65.5, "bytes": [65]}]
    assert whole == {
        "content": [
            {"token": "\ufffd", "logprob": -0.5, "bytes": [0xC3], "top_logprobs": top},
            {"token": "\ufffd", "logprob": -0.5, "bytes": [0xA9], "top_logprobs": top},
        ],
        "refusal": None,
    }
    chunks = [event["choices"][0]["logprobs"] for event in stream(client, **options)[:-1]]
    assert [chunk for chunk in chunks if chunk] == [whole]
    bare = client.post(URL, json={"messages": user(), "logprobs": True}).json()["choices"][0]["logprobs"]
    assert [entry["top_logprobs"] for entry in bare["content"]] == [[], []]


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (RequestError("invalid", "too long", param="messages"), 400, "invalid"),
        (RequestError("too_large", "the clip has 9 frames; the limit is 8", code="frames"), 413, "frames"),
        (RequestError("undecodable", "no video stream"), 422, "undecodable"),
        (RequestError("queue_full", "busy"), 429, "queue_full"),
        (RequestError("deadline", "too slow"), 504, "deadline"),
        (EngineDeadError("gone"), 503, "engine_dead"),
    ],
)
def test_refusals_come_before_the_first_byte(
    make_client: MakeClient, error: Any, status: int, code: str, streamed: bool
) -> None:
    """A stream is never answered 200 and then silence."""
    engine = FakeEngine(refuses=error)
    response = make_client(engine).post(URL, json={"messages": user(), "stream": streamed})
    assert response.status_code == status
    assert response.json()["error"]["code"] == code
    assert not engine.live


@pytest.mark.parametrize(("options", "code"), [({"fails_at": 2}, "internal"), ({"dies_at": 2}, "engine_dead")])
def test_failure_after_the_head_is_an_error_event(make_client: MakeClient, options: dict, code: str) -> None:
    """Then the stream ends: no [DONE], no finish_reason that looks like an end, no details."""
    engine = FakeEngine("abcdef", **options)
    client = make_client(engine)
    events = stream(client)
    assert events[-1]["error"]["code"] == code
    assert "[DONE]" not in events
    assert all(choice["finish_reason"] is None for event in events[:-1] for choice in event["choices"])
    assert "0xdeadbeef" not in json.dumps(events)
    assert not engine.live


@pytest.mark.parametrize(("options", "status"), [({"fails_at": 2}, 500), ({"dies_at": 2}, 503)])
def test_failure_of_a_whole_answer(make_client: MakeClient, options: dict, status: int) -> None:
    engine = FakeEngine("abcdef", **options)
    response = make_client(engine).post(URL, json={"messages": user()})
    assert response.status_code == status
    assert "0xdeadbeef" not in response.text
    assert not engine.live


def test_answer_aborted_by_the_engine_is_not_an_end(make_client: MakeClient) -> None:
    """A server that shuts down does not pretend that the model had finished."""
    client = make_client(FakeEngine("ab", finish="abort"))
    assert client.post(URL, json={"messages": user()}).status_code == 503
    assert stream(client)[-1]["error"]["code"] == "unavailable"


def test_media_reaches_the_engine(make_client: MakeClient) -> None:
    engine = FakeEngine()
    url = "data:video/mp4;base64," + base64.b64encode(b"clip").decode()
    content = [{"type": "text", "text": "what?"}, {"type": "video_url", "video_url": {"url": url, "fps": 2}}]
    assert make_client(engine).post(URL, json={"messages": user(content)}).status_code == 200
    (request,) = engine.requests
    part = request.chat[0].parts[1]
    assert isinstance(part, MediaPart)
    assert (part.source, part.video.fps) == (InlineBytes(data=b"clip"), 2)


@pytest.mark.parametrize(
    ("content", "headers", "status"),
    [
        (b"", {}, 400),
        (b"{", {}, 400),
        (b"[]", {}, 400),
        (b"null", {}, 400),
        (b'{"messages": [{"role": "user", "content": "\xff"}]}', {}, 400),
        (b'{"messages": [{"role": "user", "content": "\\ud800"}]}', {}, 400),
        (b"[" * 100_000, {}, 400),
        (b"{}", {"content-type": "text/plain"}, 415),
        (b"{}", {"content-type": "application/x-www-form-urlencoded"}, 415),
    ],
)
def test_bodies_that_are_not_requests(make_client: MakeClient, content: bytes, headers: dict, status: int) -> None:
    response = make_client().post(URL, content=content, headers={"content-type": "application/json", **headers})
    assert response.status_code == status
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}


def test_body_limit(make_client: MakeClient) -> None:
    """By the claimed length, and by what really comes when nothing is claimed."""
    client = make_client(max_body=1000)
    headers = {"content-type": "application/json"}
    assert client.post(URL, content=b"x" * 1001, headers=headers).status_code == 413
    chunked = client.post(URL, content=(b"x" * 100 for _ in range(11)), headers=headers)
    assert chunked.status_code == 413
    assert "1000 bytes" in chunked.json()["error"]["message"]


def test_model_names(make_client: MakeClient) -> None:
    client = make_client(served_model_name=["one", "two"])
    assert client.post(URL, json={"messages": user()}).json()["model"] == "one"
    assert client.post(URL, json={"messages": user(), "model": "two"}).json()["model"] == "two"
    response = client.post(URL, json={"messages": user(), "model": "three"})
    assert (response.status_code, response.json()["error"]["code"]) == (404, "model_not_found")


def test_render(make_client: MakeClient) -> None:
    client = make_client()
    body = client.post(URL + "/render", json={"messages": user(), "evs": {"rate": 0.5}}).json()
    assert body["prompt_token_ids"] == [1, 2]
    assert body["position_ids"] == [[0, 1]]
    assert body["usage"]["completion_tokens"] == 0
    assert body["items"] == [
        {
            "kind": "video",
            "timestamps_s": [0.0, 1.0],
            "size": [32, 32],
            "slots": 1,
            "grid": [2, 2],
            "kept": [[0, 1, 2, 3]],
            "pixels_sha256": "00",
        }
    ]
    with_frames = client.post(URL + "/render", json={"messages": user(), "include": ["frames"]}).json()
    assert with_frames["items"][0]["frames"] == ["data:image/png;base64,cG5n"]
    refused = client.post(URL + "/render", json={"messages": user(), "include": ["bogus"]})
    assert refused.json()["error"]["param"] == "include[0]"
