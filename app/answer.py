"""Owns one answer while it grows: tokens in, text, log-probabilities and an end out.

Knows nothing of HTTP or of the other answers of its request. Streaming and not are the same pieces, joined or not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from app.detokenize import Detokenizer, Vocabulary
from app.stops import StopChecker
from runner.messages import Delta, FinishReason, TokenLogprob


@dataclass(frozen=True, kw_only=True)
class TextOptions:
    """What the request wants done with text, as opposed to tokens."""

    stops: tuple[str, ...] = ()
    stop_in_output: Literal["drop", "keep"] = "drop"
    min_tokens: int = 0
    logprobs: Literal["none", "report"] = "none"
    token_ids: Literal["none", "report"] = "none"


@dataclass(frozen=True, kw_only=True)
class Piece:
    """What one delta adds to an answer. `stop_reason` is the stop string or stop token that ended it.

    `token_ids` are there when they were asked for: those that the delta brought, up to the one that ended the answer.
    """

    text: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[dict[str, Any], ...] = ()
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None

    @property
    def is_empty(self) -> bool:
        return not self.text and not self.logprobs and not self.token_ids and self.finish_reason is None


class Answer:
    """One of a request's n answers. A token's log-probability is shown with the first of its text."""

    def __init__(self, vocabulary: Vocabulary, options: TextOptions) -> None:
        self.tokens = 0
        self.is_finished = False
        self._vocabulary = vocabulary
        self._options = options
        self._detokenizer = Detokenizer(vocabulary)
        self._checker = StopChecker(options.stops)
        self._seen_chars = 0  # text of all tokens so far
        self._shown_chars = 0
        self._waiting: deque[tuple[int, dict[str, Any]]] = deque()  # (where its text starts, entry)

    def feed(self, delta: Delta) -> Piece:
        """Tokens after a stop string are forgotten: they were made in the same step and are nobody's."""
        before = self.tokens
        piece = self._feed(delta)
        if self._options.token_ids == "none":
            return piece
        return replace(piece, token_ids=delta.token_ids[: self.tokens - before])

    def _feed(self, delta: Delta) -> Piece:
        shown: list[str] = []
        for place, token_id in enumerate(delta.token_ids):
            self.tokens += 1
            if self._options.logprobs == "report":
                self._waiting.append(
                    (self._seen_chars, spell_logprob(self._vocabulary, token_id, delta.logprobs[place]))
                )
            text, hit = self._check(self._detokenizer.push(token_id))
            shown.append(text)
            if hit is not None:
                return self._end("".join(shown), "stop", hit)
        if delta.finish_reason is None:
            return self._show("".join(shown))
        text, hit = self._check(self._detokenizer.finish())
        shown.append(text)
        if hit is not None:
            return self._end("".join(shown), "stop", hit)
        shown.append(self._checker.finish())
        self.tokens += delta.stop_token_id is not None  # it was sampled and is billed, as everywhere else
        return self._end("".join(shown), delta.finish_reason, delta.stop_token_id)

    def _check(self, text: str) -> tuple[str, str | None]:
        self._seen_chars += len(text)
        if self.tokens <= self._options.min_tokens:
            return text, None
        checked = self._checker.push(text)
        if checked.hit is not None and self._options.stop_in_output == "keep":
            return checked.text + checked.hit, checked.hit
        return checked.text, checked.hit

    def _end(self, text: str, reason: FinishReason, stop_reason: str | int | None) -> Piece:
        self.is_finished = True
        self._shown_chars += len(text)
        whole = not isinstance(stop_reason, str)
        entries = tuple(entry for start, entry in self._waiting if whole or start < self._shown_chars)
        self._waiting.clear()
        return Piece(text=text, logprobs=entries, finish_reason=reason, stop_reason=stop_reason)

    def _show(self, text: str) -> Piece:
        self._shown_chars += len(text)
        entries: list[dict[str, Any]] = []
        while self._waiting and self._waiting[0][0] < self._shown_chars:
            entries.append(self._waiting.popleft()[1])
        return Piece(text=text, logprobs=tuple(entries))


def spell_logprob(vocabulary: Vocabulary, token_id: int, logprob: TokenLogprob) -> dict[str, Any]:
    """OpenAI's entry: the token, its bytes (it may be part of a character), and the best alternatives."""
    entry = _spell(vocabulary, token_id, logprob.logprob)
    entry["top_logprobs"] = [_spell(vocabulary, other, value) for other, value in logprob.top]
    return entry


def _spell(vocabulary: Vocabulary, token_id: int, logprob: float) -> dict[str, Any]:
    spelled = vocabulary.spell_token(token_id)
    finite = max(logprob, -9999.0)  # JSON has no -inf; OpenAI writes -9999.0
    return {"token": spelled.decode("utf-8", "replace"), "logprob": finite, "bytes": list(spelled)}


def join_logprobs(pieces: Sequence[Piece]) -> list[dict[str, Any]]:
    return [entry for piece in pieces for entry in piece.logprobs]
