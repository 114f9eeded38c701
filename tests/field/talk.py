"""Speaking to a real server as a client does: contents from pictures and clips, bodies, answers, the exact hook."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
from PIL import Image
from transformers import AutoTokenizer

from tests.oracle import Clip, Part, lossless_file, png_file
from tests.processes import children_of, wait_until
from tests.server import Server, read_gauges

CHAT = "/v1/chat/completions"
NO_EVS = {"method": "none"}
TIMEOUT_S = 120.0


@dataclass(frozen=True, eq=False)
class Raw:
    """A clip's file as it is, and what its part says beside the URL."""

    data: bytes
    knobs: dict[str, Any]


def raw(data: bytes, **knobs: Any) -> Raw:
    return Raw(data=data, knobs=knobs)


AnyPart = Part | Raw | dict[str, Any]


def data_url(kind: str, data: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


@lru_cache(maxsize=64)
def file_of(clip: Clip) -> bytes:
    """The same bytes for the same clip: a container has ids drawn by chance."""
    return lossless_file(clip)


def as_part(part: AnyPart) -> dict[str, Any]:
    if isinstance(part, dict):
        return part
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if isinstance(part, np.ndarray):
        return {"type": "image_url", "image_url": {"url": data_url("image/png", png_file(part))}}
    clip = raw(file_of(part)) if isinstance(part, Clip) else part
    return {"type": "video_url", "video_url": {"url": data_url("video/mp4", clip.data), **clip.knobs}}


def user(*parts: AnyPart) -> dict[str, Any]:
    return {"role": "user", "content": [as_part(part) for part in parts]}


def body_of(*parts: AnyPart, **fields: Any) -> dict[str, Any]:
    """Greedy, to the end of a few tokens, all of them told; `messages` may be given whole."""
    values = {"temperature": 0, "max_tokens": 4, "ignore_eos": True, "return_token_ids": True, **fields}
    return {"messages": [user(*parts)], **values}


def read_frames(item: dict[str, Any]) -> list[np.ndarray]:
    """The pictures of a rendered item, (h, w, 3)."""
    return [np.asarray(Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2])))) for url in item["frames"]]


@dataclass(eq=False)
class Talk:
    """One server and the checkpoint behind it."""

    server: Server
    folder: Path

    def __post_init__(self) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(self.folder)
        self.first_children = children_of(self.server.pid)

    def send(self, body: dict[str, Any], route: str = CHAT) -> httpx2.Response:
        text = json.dumps(body)  # the client's own way would refuse what we want refused
        headers = {"Content-Type": "application/json"}
        return httpx2.post(self.server.url + route, content=text, headers=headers, timeout=TIMEOUT_S)

    def ask(self, *parts: AnyPart, **fields: Any) -> dict[str, Any]:
        """The whole reply; it must be a good one."""
        reply = self.send(body_of(*parts, **fields))
        assert reply.status_code == 200, reply.text
        return dict(reply.json())

    def tokens(self, *parts: AnyPart, **fields: Any) -> list[int]:
        return list(self.ask(*parts, **fields)["choices"][0]["token_ids"])

    def render(self, *parts: AnyPart, **fields: Any) -> dict[str, Any]:
        reply = self.send({"messages": [user(*parts)], **fields}, CHAT + "/render")
        assert reply.status_code == 200, reply.text
        return dict(reply.json())

    def refusal(self, *parts: AnyPart, route: str = CHAT, **fields: Any) -> dict[str, Any]:
        """The error of a request that must be the client's mistake; it says something, and shortly."""
        reply = self.send(body_of(*parts, **fields), route)
        assert 400 <= reply.status_code < 500, reply.text
        error = reply.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert 10 < len(error["message"]) < 600
        return {**error, "status": reply.status_code}

    def gauges(self) -> dict[str, float]:
        return read_gauges(self.server.url)

    def counted(self, name: str) -> float:
        """A counter, over all of its labels."""
        return sum(value for key, value in self.gauges().items() if key.partition("{")[0] == name)

    @contextmanager
    def full_house(self, places: int) -> Iterator[None]:
        """Meanwhile every place is taken by an answer that does not end by itself."""
        body = {**body_of("go on", max_tokens=3000, n=places), "stream": True}
        with httpx2.stream("POST", self.server.url + CHAT, json=body, timeout=TIMEOUT_S) as answers:
            assert answers.status_code == 200
            wait_until(lambda: self.gauges()["vllm:num_requests_running"] == places, what="a full house")
            yield

    def wait_for_rest(self) -> None:
        """Law 7, from outside: nothing runs or waits, every page is free, nothing is pinned."""

        def is_at_rest() -> bool:
            now = self.gauges()
            busy = now["vllm:num_requests_running"] + now["vllm:num_requests_waiting"]
            pinned = now["evs:encoder_outputs_pinned"]
            return busy + pinned == 0 and now["evs:kv_pages_free"] == now["evs:kv_pages_total"]

        wait_until(is_at_rest, what="rest")

    def special_ids(self, ids: list[int]) -> list[int]:
        special = set(self.tokenizer.all_special_ids)
        return [token for token in ids if token in special]
