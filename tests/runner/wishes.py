"""Requests that may be asked in any order, at any time and of any engine; what their clients are told, and when that is
the same."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from app.answer import Answer as Telling
from app.answer import Piece, TextOptions, join_logprobs
from app.detokenize import Vocabulary
from runner.messages import Delta, TokenLogprob
from runner.requests import EvsOptions, SamplingParams
from runner.sampler import SampleRow, sample_runs
from tests.oracle import Part, noise_picture
from tests.runner.test_evs import mover

CLIP, OTHER_CLIP = mover(1, num_frames=9, size=(70, 100)), mover(2, num_frames=7, size=(70, 100))
PICTURE, OTHER_PICTURE = (noise_picture(seed, size=(64, 80)) for seed in (2, 3))
TURNS: dict[str, list[Part]] = {
    "first": ["look at this", CLIP, "and this", PICTURE, "why?"],
    "other end": ["look at this", CLIP, "and this", PICTURE, "what else is in there?"],
    "other picture": ["look at this", CLIP, "and this", OTHER_PICTURE, "why?"],
    "clip alone": ["look at this", CLIP, "x"],
    "clip twice": ["look at this", CLIP, CLIP, "the same?"],
    "other clip": ["look at this", OTHER_CLIP, "and this", PICTURE, "why?"],
    "words": ["say it again, and " * 4],
    "more words": ["say it again, and " * 5 + "stop"],
}
EVS = (
    EvsOptions(method="none"),
    EvsOptions(method="gate", threshold=0.1),
    EvsOptions(method="gate", threshold=0.1, refresh=3, encoder="skip"),
    EvsOptions(method="gate", threshold=0.1, encoder="full"),
    EvsOptions(method="evs", rate=0.6),
    EvsOptions(method="uniform", rate=0.5, encoder="reuse"),
    EvsOptions(method="random", rate=0.6, seed=3, encoder="reuse"),
    EvsOptions(method="random", rate=0.6, seed=4, encoder="skip"),
)
TWO_LETTERS = {65: 12.0, 66: 12.0}
DRAWS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "greedy, two letters": {"temperature": 0.0, "logit_bias": TWO_LETTERS},
    "two letters": {"temperature": 1.0, "logit_bias": TWO_LETTERS},
    "seeded": {"temperature": 1.1},
    "filtered": {"temperature": 1.2, "top_k": 20, "top_p": 0.9, "min_p": 0.01},
    "penalised": {"temperature": 0.0, "frequency_penalty": 1.0, "repetition_penalty": 1.2},
}
MOST_TOKENS, MOST_LOGPROBS = 40, 5
NEAR = 1e-4  # of the logits' spread: nearer than this, two of them may change places


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """One request. more_after: it was given more to read when it had drawn so many tokens; None: it was not."""

    turn: str
    evs: EvsOptions
    draw: str
    seed: int
    max_tokens: int = MOST_TOKENS
    top_logprobs: int | None = MOST_LOGPROBS
    stops: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    more_after: int | None = None

    @property
    def sampling(self) -> SamplingParams:
        return SamplingParams(
            **DRAWS[self.draw], seed=self.seed, max_tokens=self.max_tokens, top_logprobs=self.top_logprobs,
            stop_token_ids=self.stop_token_ids, ignore_eos=True,
        )  # fmt: skip

    @property
    def longest(self) -> Wish:
        """The same tokens, as many as there may be."""
        return Wish(turn=self.turn, evs=self.evs, draw=self.draw, seed=self.seed, more_after=self.more_after)


class Told:
    """A request and what its client is told, as the server tells it."""

    def __init__(self, wish: Wish, vocabulary: Vocabulary) -> None:
        reports = "none" if wish.top_logprobs is None else "report"
        self.wish = wish
        self.is_aborted = False
        self.telling = Telling(vocabulary, TextOptions(stops=wish.stops, logprobs=reports, token_ids="report"))
        self.pieces: list[Piece] = []

    def take(self, delta: Delta) -> bool:
        """Whether the client has all it wants, though the engine would go on."""
        if self.telling.is_finished:
            return False
        self.pieces.append(self.telling.feed(delta))
        return self.telling.is_finished and delta.finish_reason is None

    @property
    def tokens(self) -> list[int]:
        return [token for piece in self.pieces for token in piece.token_ids]

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.pieces)

    @property
    def logprobs(self) -> list[dict[str, Any]]:
        return join_logprobs(self.pieces)

    @property
    def end(self) -> tuple[Any, ...]:
        return (*((p.finish_reason, p.stop_reason) for p in self.pieces if p.finish_reason), self.telling.tokens)


@dataclass(slots=True, kw_only=True, eq=False)
class Alone:
    """An answer of MOST_TOKENS. drawn: for each token its logits (V,) and what it was drawn with."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    drawn: list[tuple[torch.Tensor, SampleRow]] = field(default_factory=list)

    def tell(self, wish: Wish, vocabulary: Vocabulary) -> Told:
        """What of it the client of a request with these ends is told, a token at a time."""
        told = Told(wish, vocabulary)
        for place, (token, logprob) in enumerate(zip(self.token_ids, self.logprobs, strict=True)):
            is_stop, is_last = token in wish.stop_token_ids, place + 1 == wish.max_tokens
            shown = TokenLogprob(logprob=logprob.logprob, top=logprob.top[: wish.top_logprobs])
            delta = Delta(
                request_id="alone", index=0, token_ids=() if is_stop else (token,),
                logprobs=() if is_stop or wish.top_logprobs is None else (shown,),
                finish_reason="stop" if is_stop else "length" if is_last else None,
                stop_token_id=token if is_stop else None,
            )  # fmt: skip
            told.take(delta)
        return told


def compare(told: Told, alone: Alone, vocabulary: Vocabulary) -> bool:
    """Assert that the same is told: tokens, log-probabilities, text and end; of an aborted request, as far as it came.
    False where from some token on nothing can be compared: of two that are equally good it is the other one."""
    expected, wish = alone.tell(told.wish, vocabulary), told.wish
    for place, (ours, theirs) in enumerate(zip(told.tokens, expected.tokens, strict=False)):
        if ours != theirs:
            assert is_near_tie(ours, *alone.drawn[place]), f"token {place} of {wish}: {ours} is not {theirs}"
            return False
    _compare_logprobs(told.logprobs, expected.logprobs)
    if told.is_aborted:
        assert told.tokens == expected.tokens[: len(told.tokens)], wish
        return True
    assert (told.tokens, told.text, told.end) == (expected.tokens, expected.text, expected.end), wish
    assert len(told.logprobs) == len(expected.logprobs), wish
    return True


def _compare_logprobs(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> None:
    for one, other in zip(ours, theirs, strict=False):
        assert (one["token"], one["bytes"]) == (other["token"], other["bytes"])
        values = [[e["logprob"], *(top["logprob"] for top in e["top_logprobs"])] for e in (one, other)]
        np.testing.assert_allclose(*values, atol=5e-4)


def is_near_tie(token: int, logits: torch.Tensor, row: SampleRow) -> bool:
    """Whether rounding could have made this token the one that is drawn."""
    near = NEAR * float(logits.std())
    for change in (near, -near):
        changed = logits.clone()
        changed[token] += change
        for scale in (1.0, 1.0 + NEAR, 1.0 - NEAR):
            if sample_runs(changed[None] * scale, [row])[0][0].token_id == token:
                return True
    return False
