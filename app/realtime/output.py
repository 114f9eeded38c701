"""Owns the objects that carry vectors: of texts, of chats, and of windows, over HTTP, as events and over the socket.

Knows nothing of where they are sent. The same window is the same object by each way.
"""

from __future__ import annotations

import base64
import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from app.replies import usage_body
from runner.messages import PromptUsage
from runner.stream_client import WindowVector
from runner.stream_messages import StreamOpened, WindowLaid, WindowOptions

Encoding = Literal["float", "base64"]
Extra = Literal["evs", "latency"]


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    encoding: Encoding = "float"
    include: frozenset[Extra] = frozenset(("evs", "latency"))


def spell_vector(data: bytes, encoding: Encoding) -> list[float] | str:
    """data: little-endian float32, which is what OpenAI's base64 form holds."""
    if encoding == "base64":
        return base64.b64encode(data).decode()
    numbers = array("f", data)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tolist()


def embedding_body(index: int, data: bytes, encoding: Encoding) -> dict[str, Any]:
    return {"object": "embedding", "index": index, "embedding": spell_vector(data, encoding)}


def usages_body(usages: Sequence[PromptUsage]) -> dict[str, Any]:
    """Tokens of all inputs; what was looked at, where it is one chat."""
    tokens = sum(usage.prompt_tokens for usage in usages)
    body: dict[str, Any] = {"prompt_tokens": tokens, "total_tokens": tokens}
    if len(usages) == 1 and usages[0].evs is not None:
        whole = usage_body(usages[0], 0)
        body |= {key: whole[key] for key in ("evs", "video") if key in whole}
    return body


def window_body(event: WindowVector, output: OutputOptions) -> dict[str, Any]:
    """`embedding.done` of a window. Times are the stream's own, or the clock of whoever sent pictures with times."""
    window = event.window
    body: dict[str, Any] = {
        "type": "embedding.done",
        "object": "embedding",
        "item_id": f"window_{window.index}",
        "index": window.index,
        "start_sec": _round(window.origin_s + window.start_s),
        "end_sec": _round(window.origin_s + window.end_s),
        "frame_seqs": list(window.frame_seqs),
        "embedding": spell_vector(event.data, output.encoding),
        "usage": {"prompt_tokens": window.prompt_tokens, "total_tokens": window.prompt_tokens},
    }
    if "evs" in output.include:
        body["evs"] = _evs_body(window)
    if "latency" in output.include:
        body["latency"] = {"laid_s": _round(window.decoded_s), "model_s": _round(event.model_s)}
    return body


def settings_body(opened: StreamOpened) -> dict[str, Any]:
    """The values in force, as a session reports them."""
    evs = {name: getattr(opened.evs, name) for name in ("method", "threshold", "refresh", "encoder")}
    return {
        "dim": opened.width,
        "window": window_options_body(opened.window),
        "evs": {name: value for name, value in evs.items() if value is not None},
    }


def window_options_body(window: WindowOptions) -> dict[str, Any]:
    return {name: getattr(window, name) for name in ("duration_s", "stride_s", "fps", "max_frames")}


def _evs_body(window: WindowLaid) -> dict[str, Any]:
    return {
        "slots": window.slots,
        "cells": window.cells,
        "kept": window.kept,
        "changed": window.changed,
        "encoder_cells": window.encoder_cells,
        "size": list(window.size),
    }


def _round(seconds: float) -> float:
    return round(seconds, 6)
