"""From a checked body to the engine's plain data: order kept, aliases merged, nothing lost."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from app.answer import TextOptions
from app.convert import (
    check_media_count,
    convert_ask,
    convert_chat,
    convert_evs,
    convert_sampling,
    convert_text_options,
    guess_kind,
    merge_video_options,
)
from app.media import MediaPolicy
from app.schemas import AskRequest, ChatRequest
from runner.errors import RequestError
from runner.messages import Generate, decode_to_engine, encode_message
from runner.requests import EvsOptions, InlineBytes, MediaPart, SamplingParams, StoredFile, TextPart, VideoOptions
from tests.app.conftest import user

JPEG = b"\xff\xd8\xff\xe0" + bytes(20)
POLICY = MediaPolicy(max_bytes=1000, max_frames=4)


def data_url(data: bytes, media_type: str = "video/mp4") -> str:
    return f"data:{media_type};base64,{base64.b64encode(data).decode()}"


def parse(**body: Any) -> ChatRequest:
    return ChatRequest.model_validate_json(json.dumps({"messages": user(), **body}))


def video(data: bytes, **knobs: Any) -> dict[str, Any]:
    return {"type": "video_url", "video_url": {"url": data_url(data), **knobs}}


def test_parts_keep_their_order_and_kind() -> None:
    content = [
        {"type": "text", "text": "one"},
        video(b"a"),
        {"type": "image_url", "image_url": {"url": data_url(b"b", "image/png"), "detail": "low"}},
        {"type": "text", "text": "two"},
        {"type": "input_video", "input_video": {"data": base64.b64encode(b"c").decode(), "format": "mp4"}},
        {"type": "file", "file": {"file_data": data_url(JPEG, "video/mp4"), "filename": "d.mp4"}},
        {"type": "file", "file": {"file_data": base64.b64encode(b"e").decode(), "filename": "e.mp4"}},
    ]
    messages = [{"role": "system", "content": "be brief"}, *user(content)]
    system, asked = convert_chat(parse(messages=messages), POLICY, {})
    assert system.parts == (TextPart(text="be brief"),)
    kinds = [part.kind if isinstance(part, MediaPart) else part.text for part in asked.parts]
    assert kinds == ["one", "video", "image", "two", "video", "image", "video"]
    sources = [part.source for part in asked.parts if isinstance(part, MediaPart)]
    assert sources == [InlineBytes(data=data) for data in (b"a", b"b", b"c", JPEG, b"e")]


def test_stored_files_and_fetched_urls_are_looked_up(tmp_path: Path) -> None:
    """What was gathered is used as it is, wherever a part names it; a stored picture is a picture."""
    (tmp_path / "clip").write_bytes(b"clip")
    (tmp_path / "picture").write_bytes(JPEG)
    clip, picture = (StoredFile(path=str(tmp_path / name)) for name in ("clip", "picture"))
    ready = {"https://a.b/c.mp4": clip, "file-id://file-1": clip, "file-id://file-2": picture}
    content = [
        {"type": "video_url", "video_url": {"url": "https://a.b/c.mp4", "fps": 3}},
        {"type": "image_url", "image_url": {"url": "file-id://file-2"}},
        {"type": "file", "file": {"file_id": "file-1"}},
        {"type": "file", "file": {"file_id": "file-2"}},
    ]
    (turn,) = convert_chat(parse(messages=user(content)), POLICY, ready)
    assert turn.parts == (
        MediaPart(kind="video", source=clip, video=VideoOptions(fps=3)),
        MediaPart(kind="image", source=picture),
        MediaPart(kind="video", source=clip),
        MediaPart(kind="image", source=picture),
    )


def test_too_many_items_are_refused_by_their_count() -> None:
    """The limit is named, and no URL is looked at."""
    content = [video(b"a"), {"type": "video_url", "video_url": {"url": "bad"}}]
    with pytest.raises(RequestError) as caught:
        check_media_count(parse(messages=user(content)), 1)
    assert "limit is 1" in caught.value.message


def test_a_bad_url_is_named_by_its_place() -> None:
    with pytest.raises(RequestError) as caught:
        convert_chat(
            parse(messages=user([video(b"a"), {"type": "video_url", "video_url": {"url": "x"}}])),
            POLICY,
            {},
        )
    assert caught.value.param == "messages[0].content[1].video_url.url"


def test_what_stands_nearer_to_the_clip_wins() -> None:
    body = parse(messages=user([video(b"a", fps=4), video(b"b")]), video={"fps": 1, "max_frames": 8})
    first, second = convert_chat(body, POLICY, {})[0].parts
    assert isinstance(first, MediaPart) and isinstance(second, MediaPart)
    assert first.video == VideoOptions(fps=4, max_frames=8)
    assert second.video == VideoOptions(fps=1, max_frames=8)


@pytest.mark.parametrize(
    "body",
    [
        {"video": {"fps": 2}},
        {"mm_processor_kwargs": {"fps": 2}},
        {"media_io_kwargs": {"video": {"fps": 2}}},
        {"video": {"fps": 2}, "mm_processor_kwargs": {"fps": 2.0}, "media_io_kwargs": {"video": {"fps": 2}}},
    ],
)
def test_aliases_mean_the_same(body: dict[str, Any]) -> None:
    assert merge_video_options(parse(**body)) == VideoOptions(fps=2)


def test_aliases_that_differ_are_refused() -> None:
    with pytest.raises(RequestError) as caught:
        merge_video_options(parse(video={"fps": 2}, media_io_kwargs={"video": {"fps": 3}}))
    assert caught.value.message == "video.fps (2.0) and media_io_kwargs.video.fps (3.0) differ"


def test_processor_bounds() -> None:
    body = parse(mm_processor_kwargs={"num_frames": 4, "min_pixels": 16, "max_pixels": 64})
    assert merge_video_options(body) == VideoOptions(num_frames=4, min_pixels=16, max_pixels=64)


def test_processor_bounds_on_pixels_are_for_images_too() -> None:
    """Nothing is silently ignored: what vLLM's clients set for the processor, an image is resized by."""
    picture = {"type": "image_url", "image_url": {"url": data_url(b"a", "image/png")}}
    body = parse(messages=user([picture]), mm_processor_kwargs={"fps": 2, "max_pixels": 64}, video={"max_frames": 3})
    (part,) = convert_chat(body, POLICY, {})[0].parts
    assert isinstance(part, MediaPart)
    assert part.video == VideoOptions(max_pixels=64)


def test_every_sampling_field_arrives() -> None:
    fields: dict[str, Any] = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 5,
        "min_p": 0.1,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.2,
        "frequency_penalty": 0.3,
        "logit_bias": {"7": -100},
        "seed": -3,
        "max_tokens": 9,
        "min_tokens": 2,
        "stop_token_ids": [1, 2],
        "ignore_eos": True,
    }
    sampling = convert_sampling(parse(**fields), top_logprobs=3, vocab_size=100)
    assert sampling == SamplingParams(
        **(fields | {"logit_bias": {7: -100.0}, "stop_token_ids": (1, 2), "top_logprobs": 3})
    )
    assert {getattr(sampling, name) for name in ("temperature", "seed")} == {0.5, -3}
    request = Generate(request_id="r", chat=(), sampling=sampling)
    assert decode_to_engine(encode_message(request)) == request


def test_absent_means_the_models_own_default() -> None:
    assert convert_sampling(parse(), top_logprobs=None, vocab_size=100) == SamplingParams()
    assert convert_sampling(parse(top_k=-1), top_logprobs=None, vocab_size=100).top_k == 0


@pytest.mark.parametrize("body", [{"logit_bias": {"100": 1}}, {"stop_token_ids": [100]}, {"logit_bias": {"-1": 1}}])
def test_token_ids_are_in_the_vocabulary(body: dict[str, Any]) -> None:
    with pytest.raises(RequestError) as caught:
        convert_sampling(parse(**body), top_logprobs=None, vocab_size=100)
    assert caught.value.param == next(iter(body))


def test_evs_and_text_options() -> None:
    knobs = {"method": "gate", "rate": 0.5, "threshold": 0.01, "refresh": 8, "encoder": "reuse", "seed": 1}
    assert convert_evs(parse(evs=knobs).evs) == EvsOptions(**knobs)
    assert convert_evs(None) == EvsOptions()
    body = parse(stop=["a"], include_stop_str_in_output=True, min_tokens=1)
    wanted = TextOptions(stops=("a",), stop_in_output="keep", min_tokens=1, logprobs="report")
    assert convert_text_options(body, logprobs=True) == wanted
    assert convert_text_options(parse(stop="a"), logprobs=None) == TextOptions(stops=("a",))


def test_the_simple_door_puts_the_clip_before_the_question() -> None:
    body = AskRequest.model_validate_json('{"prompt": "why?", "video": {"end_s": 3}}')
    (turn,) = convert_ask(body, StoredFile(path="p"))
    clip = MediaPart(kind="video", source=StoredFile(path="p"), video=VideoOptions(end_s=3))
    assert turn.parts == (clip, TextPart(text="why?"))


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        (JPEG, "image"),
        (b"\x89PNG\r\n\x1a\n....", "image"),
        (b"RIFF\0\0\0\0WEBPVP8 ", "image"),
        (b"RIFF\0\0\0\0AVI LIST", "video"),
        (b"\0\0\0 ftypisom", "video"),
        (b"GIF89a", "video"),
        (b"", "video"),
    ],
)
def test_bytes_decide_what_a_file_part_is(head: bytes, kind: str) -> None:
    assert guess_kind(head) == kind
