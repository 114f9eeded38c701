"""Owns the shapes of what we answer: completions, chunks, usage, rendered prompts, model cards.

Knows nothing of how an answer is made. Shapes are OpenAI's; what is ours beside them: `usage.evs`, `usage.video`.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from app.answer import Piece, join_logprobs
from runner.messages import PromptUsage, Rendered, RenderedItem


@dataclass(frozen=True, kw_only=True)
class Head:
    """What every chunk of one reply repeats."""

    id: str
    created: int
    model: str


def usage_body(usage: PromptUsage, completion_tokens: int, *, cached_tokens: int = 0) -> dict[str, Any]:
    """cached_tokens: rows of the prompt that were computed before, where that is counted."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": usage.prompt_tokens + completion_tokens,
        "prompt_tokens_details": {
            "cached_tokens": cached_tokens,
            "image_tokens": usage.image_tokens,
            "video_tokens": usage.video_tokens,
        },
        "evs": _plain(usage.evs),
        "video": [_plain(clip) for clip in usage.video],
    }


def completion_body(
    head: Head, choices: Sequence[Sequence[Piece]], usage: dict[str, Any], *, logprobs: Literal["none", "report"]
) -> dict[str, Any]:
    return {
        "id": head.id,
        "object": "chat.completion",
        "created": head.created,
        "model": head.model,
        "choices": [_choice(index, pieces, logprobs) for index, pieces in enumerate(choices)],
        "usage": usage,
        "system_fingerprint": None,
    }


def _choice(index: int, pieces: Sequence[Piece], logprobs: Literal["none", "report"]) -> dict[str, Any]:
    content = "".join(piece.text for piece in pieces)
    token_ids = [token_id for piece in pieces for token_id in piece.token_ids]
    return {
        "index": index,
        "message": {"role": "assistant", "content": content, "refusal": None},
        "logprobs": {"content": join_logprobs(pieces), "refusal": None} if logprobs == "report" else None,
        "finish_reason": pieces[-1].finish_reason,
        "stop_reason": pieces[-1].stop_reason,
        **({"token_ids": token_ids} if token_ids else {}),
    }


def answer_body(head: Head, pieces: Sequence[Piece], usage: dict[str, Any]) -> dict[str, Any]:
    """The simple door's reply: one plain `answer` instead of choices."""
    return {
        "id": head.id,
        "object": "video.answer",
        "created": head.created,
        "model": head.model,
        "answer": "".join(piece.text for piece in pieces),
        "finish_reason": pieces[-1].finish_reason,
        "usage": usage,
    }


def chunk_body(head: Head, choices: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": head.id,
        "object": "chat.completion.chunk",
        "created": head.created,
        "model": head.model,
        "choices": choices,
    }


def role_choice(index: int) -> dict[str, Any]:
    delta = {"role": "assistant", "content": ""}
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}


def piece_choice(index: int, piece: Piece) -> dict[str, Any]:
    choice: dict[str, Any] = {
        "index": index,
        "delta": {"content": piece.text} if piece.text or piece.finish_reason is None else {},
        "logprobs": {"content": list(piece.logprobs), "refusal": None} if piece.logprobs else None,
        "finish_reason": piece.finish_reason,
    }
    if piece.token_ids:
        choice["token_ids"] = list(piece.token_ids)
    if piece.finish_reason is not None:
        choice["stop_reason"] = piece.stop_reason
    return choice


def rendered_body(rendered: Rendered) -> dict[str, Any]:
    return {
        "prompt_token_ids": rendered.prompt_token_ids,
        "position_ids": rendered.position_ids,
        "items": [_item_body(item) for item in rendered.items],
        "usage": usage_body(rendered.usage, 0),
    }


def _item_body(item: RenderedItem) -> dict[str, Any]:
    body = msgspec.structs.asdict(item)
    frames = body.pop("frames_png")
    if frames:
        body["frames"] = ["data:image/png;base64," + base64.b64encode(frame).decode() for frame in frames]
    return body


def model_card(name: str, created: int, max_model_len: int) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "evserve",
        "max_model_len": max_model_len,
    }


def _plain(struct: msgspec.Struct | None) -> Any:
    """Fields by their own names; the wire's tag is no business of the client's."""
    return None if struct is None else msgspec.structs.asdict(struct)
