"""The official OpenAI client against a real server, unmodified."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import openai
import pytest

from app.server import create_app
from app.settings import load_settings
from runner.errors import RequestError
from tests.app.conftest import StartServer, user, wait_until
from tests.app.fake_engine import FakeEngine
from tests.app.test_detokenize import HARD_TEXTS


def test_whole_answer(start_server: StartServer) -> None:
    server = start_server(FakeEngine("a red square"))
    with server.openai() as client:
        completion = client.chat.completions.create(model="fake", messages=user(), max_tokens=50, user="u", store=False)
    assert completion.choices[0].message.content == "a red square"
    assert completion.choices[0].finish_reason == "stop"
    assert completion.usage is not None
    assert completion.usage.prompt_tokens_details is not None
    assert completion.usage.prompt_tokens_details.cached_tokens == 3
    assert completion.usage.evs["method"] == "none"  # type: ignore[attr-defined]
    assert completion._request_id is not None and completion.id.endswith(completion._request_id)
    assert server.engine.live == set()


@pytest.mark.parametrize("text", HARD_TEXTS)
def test_stream(start_server: StartServer, text: str) -> None:
    with start_server(FakeEngine(text)).openai() as client:
        stream = client.chat.completions.create(
            model="fake", messages=user(), stream=True, stream_options={"include_usage": True}
        )
        chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == text
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].choices == [] and chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == len(text.encode()) + 1


def test_stream_helper_of_the_client(start_server: StartServer) -> None:
    """The client's accumulating helper is the strictest reader of chunks there is."""
    with (
        start_server(FakeEngine("abc")).openai() as client,
        client.chat.completions.stream(model="fake", messages=user(), logprobs=True, top_logprobs=2) as stream,
    ):
        final = stream.get_final_completion()
    choice = final.choices[0]
    assert choice.message.content == "abc"
    assert choice.logprobs is not None and choice.logprobs.content is not None
    assert [entry.token for entry in choice.logprobs.content] == ["a", "b", "c"]
    assert [len(entry.top_logprobs) for entry in choice.logprobs.content] == [2, 2, 2]


def test_conversation_with_media(start_server: StartServer) -> None:
    """The answer's own message object goes back in, beside a clip and our extra fields."""
    server = start_server(FakeEngine("ok"))
    url = "data:video/mp4;base64," + base64.b64encode(b"clip").decode()
    clip = {"type": "video_url", "video_url": {"url": url}}
    messages = user([clip, {"type": "text", "text": "what?"}])
    with server.openai() as client:
        first = client.chat.completions.create(model="fake", messages=messages, n=2)
        messages += [first.choices[0].message, *user("and then?")]
        second = client.chat.completions.create(
            model="fake", messages=messages, extra_body={"evs": {"rate": 0.5}, "video": {"fps": 1}, "top_k": 5}
        )
    assert second.choices[0].message.content == "ok"
    request = server.engine.requests[-1]
    assert [message.role for message in request.chat] == ["user", "assistant", "user"]
    assert (request.evs.rate, request.chat[0].parts[0].video.fps, request.sampling.top_k) == (0.5, 1, 5)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RequestError("invalid", "no"), openai.BadRequestError),
        (RequestError("undecodable", "no"), openai.UnprocessableEntityError),
        (RequestError("queue_full", "busy"), openai.RateLimitError),
        (RequestError("unavailable", "draining"), openai.InternalServerError),
    ],
)
def test_errors_are_the_clients_own(start_server: StartServer, error: RequestError, kind: type) -> None:
    server = start_server(FakeEngine(refuses=error))
    with server.openai() as client:
        for stream in (False, True):
            with pytest.raises(kind) as caught:
                client.chat.completions.create(model="fake", messages=user(), stream=stream)
            assert caught.value.body["message"] == error.message


def test_client_names_the_refused_field(start_server: StartServer) -> None:
    with start_server().openai() as client:
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(model="fake", messages=user(), extra_body={"fps": 2})
        assert (caught.value.param, caught.value.code) == ("fps", "unknown_parameter")
        with pytest.raises(openai.NotFoundError) as missing:
            client.chat.completions.create(model="other", messages=user())
        assert missing.value.code == "model_not_found"


def test_failure_in_a_stream_is_an_error_to_the_client(start_server: StartServer) -> None:
    with start_server(FakeEngine("abcdef", fails_at=3)).openai() as client:
        stream = client.chat.completions.create(model="fake", messages=user(), stream=True)
        with pytest.raises(openai.APIError):
            list(stream)


def test_closed_stream_aborts(start_server: StartServer) -> None:
    engine = FakeEngine("abcdefgh" * 100)
    server = start_server(engine)
    with server.openai() as client:
        stream = client.chat.completions.create(model="fake", messages=user(), stream=True)
        for _, _chunk in zip(range(3), stream, strict=False):
            pass
        stream.close()
    assert wait_until(server.is_clean)


def test_models_and_keys(start_server: StartServer) -> None:
    with start_server(api_key=["key", "other"]).openai() as client:
        assert [model.id for model in client.models.list()] == ["fake"]
        assert client.models.retrieve("fake").id == "fake"
        with pytest.raises(openai.AuthenticationError) as caught:
            client.with_options(api_key="wrong").models.list()
        assert caught.value.code == "invalid_api_key"


async def test_engine_and_folder_go_with_the_server(tmp_path: Path) -> None:
    """Shut-down closes the engine and leaves nothing in the media folder, also when start-up failed half-way."""
    engine = FakeEngine()

    async def factory() -> Any:
        return engine

    settings = load_settings(None, model="fake", media_dir=tmp_path)
    app = create_app(settings, factory)
    async with app.router.lifespan_context(app):
        assert [path.name for path in tmp_path.glob("run-*")]
        assert not engine.closed
    assert engine.closed
    assert list(tmp_path.glob("run-*")) == []
    other = FakeEngine()
    engine = other
    broken = create_app(load_settings(None, model="fake", media_dir=Path("/dev/null/x")), factory)
    with pytest.raises(OSError, match="null"):
        async with broken.router.lifespan_context(broken):
            pass
    assert other.closed
