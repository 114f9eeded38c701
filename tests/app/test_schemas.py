"""Request bodies: what is honoured, what has no effect, and that every other key is refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from app.errors import describe_validation
from app.schemas import AskRequest, ChatRequest, RenderRequest
from tests.app.conftest import user

VIDEO = {"type": "video_url", "video_url": {"url": "data:,"}}


def parse(**body: Any) -> ChatRequest:
    return ChatRequest.model_validate_json(json.dumps({"messages": user(), **body}))


def refuse(**body: Any) -> str | None:
    """The name of the field that is refused."""
    with pytest.raises(ValidationError) as caught:
        parse(**body)
    return describe_validation(caught.value).param


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ({"bogus": 1}, "bogus"),
        ({"bogus": None}, "bogus"),
        ({"messages": [{"role": "user", "content": "a", "bogus": 1}]}, "messages[0].bogus"),
        ({"messages": user([{"type": "text", "text": "a", "bogus": 1}])}, "messages[0].content[0].bogus"),
        (
            {"messages": user([{**VIDEO, "bogus": 1}])},
            "messages[0].content[0].bogus",
        ),
        (
            {"messages": user([{"type": "video_url", "video_url": {"url": "data:,", "num_frames": 2}}])},
            "messages[0].content[0].video_url.num_frames",
        ),
        (
            {"messages": user([{"type": "image_url", "image_url": {"url": "data:,", "bogus": 2}}])},
            "messages[0].content[0].image_url.bogus",
        ),
        (
            {"messages": user([{"type": "file", "file": {"file_id": "file-1", "bogus": 1}}])},
            "messages[0].content[0].file.bogus",
        ),
        (
            {"messages": user([{"type": "input_video", "input_video": {"data": "", "bogus": 1}}])},
            "messages[0].content[0].input_video.bogus",
        ),
        ({"stream": True, "stream_options": {"bogus": 1}}, "stream_options.bogus"),
        ({"stream": True, "stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation"),
        ({"evs": {"bogus": 1}}, "evs.bogus"),
        ({"video": {"bogus": 1}}, "video.bogus"),
        ({"mm_processor_kwargs": {"bogus": 1}}, "mm_processor_kwargs.bogus"),
        ({"media_io_kwargs": {"bogus": {}}}, "media_io_kwargs.bogus"),
        ({"media_io_kwargs": {"video": {"bogus": 1}}}, "media_io_kwargs.video.bogus"),
        ({"response_format": {"type": "text", "bogus": 1}}, "response_format.bogus"),
        ({"fps": 2}, "fps"),
    ],
)
def test_unknown_keys_are_refused_by_name_at_every_level(body: dict[str, Any], name: str) -> None:
    assert refuse(**body) == name


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("tools", [{"type": "function", "function": {"name": "f"}}]),
        ("tool_choice", "auto"),
        ("functions", []),
        ("function_call", "none"),
        ("response_format", {"type": "json_object"}),
        ("response_format", {"type": "json_schema", "json_schema": {}}),
        ("audio", {}),
        ("prediction", {}),
        ("reasoning_effort", "low"),
        ("verbosity", "low"),
        ("web_search_options", {}),
        ("modalities", ["audio"]),
    ],
)
def test_openai_fields_we_lack_are_refused_by_name_unless_null(key: str, value: Any) -> None:
    """A client that always sends `tools: null` is not turned away."""
    assert (refuse(**{key: value}) or "").startswith(key)
    parse(**{key: None})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("user", "u"),
        ("metadata", {"a": "b"}),
        ("store", True),
        ("service_tier", "auto"),
        ("safety_identifier", "s"),
        ("prompt_cache_key", "k"),
        ("parallel_tool_calls", False),
        ("modalities", ["text"]),
        ("response_format", {"type": "text"}),
        ("tool_choice", "none"),
    ],
)
def test_fields_every_client_sends_are_taken(key: str, value: Any) -> None:
    parse(**{key: value})


@pytest.mark.parametrize("field", sorted(ChatRequest.model_fields.keys() - {"messages"}))
def test_null_means_absent(field: str) -> None:
    assert parse(**{field: None}) == parse()


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ({"temperature": "1"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": 2.1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": 1.5}, "top_k"),
        ({"top_k": -2}, "top_k"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_tokens": 2**40}, "max_tokens"),
        ({"n": 0}, "n"),
        ({"n": 17}, "n"),
        ({"seed": 2**63}, "seed"),
        ({"stop": ""}, "stop[0]"),
        ({"stop": ["a", ""]}, "stop[1]"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"stop": [1]}, "stop[0]"),
        ({"stop_token_ids": [-1]}, "stop_token_ids[0]"),
        ({"logit_bias": {"a": 1}}, "logit_bias.a.[key]"),
        ({"logit_bias": {"1": 101}}, "logit_bias.1"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"stream": "true"}, "stream"),
        ({"stream": 1}, "stream"),
        ({"video": {"fps": "2"}}, "video.fps"),
        ({"video": {"fps": 0}}, "video.fps"),
        ({"video": []}, "video"),
        ({"evs": {"rate": 1.0}}, "evs.rate"),
        ({"evs": {"method": "magic"}}, "evs.method"),
        ({"mm_processor_kwargs": {"num_frames": -1}}, "mm_processor_kwargs.num_frames"),
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": user([])}, "messages[0]"),
        ({"messages": user(None)}, "messages[0]"),
        ({"messages": user(3)}, "messages[0].content"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "system", "content": [VIDEO]}]}, "messages[0]"),
        ({"messages": [{"role": "assistant", "content": "x", "tool_calls": [{}]}]}, "messages[0].tool_calls"),
    ],
)
def test_types_and_bounds_are_strict(body: dict[str, Any], name: str) -> None:
    assert refuse(**body) == name


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_are_finite(number: str) -> None:
    with pytest.raises(ValidationError):
        ChatRequest.model_validate_json(json.dumps({"messages": user(), "temperature": 0.5}).replace("0.5", number))


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"messages": user("")}, "nothing to answer"),
        ({"messages": user([{"type": "text", "text": ""}])}, "nothing to answer"),
        ({"messages": [{"role": "assistant", "content": None}]}, "nothing to answer"),
        ({"top_logprobs": 2}, "logprobs"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "differ"),
        ({"max_tokens": 3, "min_tokens": 4}, "min_tokens"),
        ({"stream_options": {"include_usage": True}}, "stream"),
        ({"video": {"start_s": 2, "end_s": 1}}, "end_s"),
    ],
)
def test_fields_that_contradict_each_other(body: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError) as caught:
        parse(**body)
    assert words in describe_validation(caught.value).message


def test_a_video_without_words_is_a_question() -> None:
    parse(messages=user([VIDEO]))
    parse(messages=user([VIDEO, {"type": "text", "text": ""}]))


def test_an_answer_can_be_sent_back() -> None:
    """Clients put the message they got into the next request, empty fields included."""
    empty = {"refusal": None, "annotations": [], "tool_calls": None, "audio": None}
    parse(messages=[*user(), {"role": "assistant", "content": "x", **empty}, *user("and then?")])


def test_one_of_both_names_for_the_length() -> None:
    assert parse(max_tokens=3).limit_tokens == 3
    assert parse(max_completion_tokens=4).limit_tokens == 4
    assert parse(max_tokens=3, max_completion_tokens=3).limit_tokens == 3
    assert parse().limit_tokens is None


def test_integers_are_numbers_where_numbers_are_wanted() -> None:
    assert parse(temperature=0, video={"fps": 2}).temperature == 0.0


def test_other_bodies_share_the_rules() -> None:
    with pytest.raises(ValidationError):
        AskRequest.model_validate_json('{"prompt": "a", "n": 2}')
    with pytest.raises(ValidationError):
        AskRequest.model_validate_json('{"prompt": ""}')
    body = {"messages": user(), "include": ["frames"]}
    assert RenderRequest.model_validate_json(json.dumps(body)).include == ["frames"]
    with pytest.raises(ValidationError):
        RenderRequest.model_validate_json(json.dumps(body | {"include": ["bogus"]}))
