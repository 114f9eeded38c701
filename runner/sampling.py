"""How one sequence draws its tokens, with every default settled. Owns the checks of a request's values; draws
nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from runner.errors import RequestError
from runner.families.base import GenerationDefaults
from runner.requests import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """temperature 0 is greedy; top_k 0 and top_p 1 are off. `seed` with a token's position fixes its draw."""

    temperature: float
    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: tuple[tuple[int, float], ...]
    seed: int
    max_tokens: int
    min_tokens: int
    stop_token_ids: frozenset[int]
    suppressed: tuple[int, ...]
    top_logprobs: int | None
    eos_token_ids: frozenset[int] = field(default_factory=frozenset)

    @property
    def has_penalties(self) -> bool:
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1.0, 0.0, 0.0)


def settle_sampling(
    wanted: SamplingParams, defaults: GenerationDefaults, *, vocab_size: int, room: int, seed: int, stream: int = 0
) -> Drawing:
    """Put the request's values over the checkpoint's. `room` is how many tokens the context still has; `stream` tells
    the n answers of one seed apart.

    Raises RequestError naming the first value out of bounds.
    """
    _check(wanted, vocab_size)

    def over(value: float | None, default: float) -> float:
        return default if value is None else value

    max_tokens = wanted.max_tokens if wanted.max_tokens is not None else (defaults.max_tokens or room)
    return Drawing(
        temperature=over(wanted.temperature, defaults.temperature),
        top_p=over(wanted.top_p, defaults.top_p),
        top_k=max(0, int(over(wanted.top_k, defaults.top_k))),
        min_p=over(wanted.min_p, defaults.min_p),
        repetition_penalty=over(wanted.repetition_penalty, defaults.repetition_penalty),
        presence_penalty=over(wanted.presence_penalty, 0.0),
        frequency_penalty=over(wanted.frequency_penalty, 0.0),
        logit_bias=tuple(sorted((wanted.logit_bias or {}).items())),
        seed=(seed + stream) % 2**64,
        max_tokens=min(max_tokens, room) if wanted.max_tokens is None else max_tokens,
        min_tokens=wanted.min_tokens,
        stop_token_ids=frozenset(wanted.stop_token_ids),
        suppressed=defaults.suppressed_token_ids,
        top_logprobs=wanted.top_logprobs,
        eos_token_ids=frozenset() if wanted.ignore_eos else frozenset(defaults.eos_token_ids),
    )


def _check(wanted: SamplingParams, vocab_size: int) -> None:
    bounds: tuple[tuple[str, float | None, float, float], ...] = (
        ("temperature", wanted.temperature, 0.0, 100.0),
        ("top_p", wanted.top_p, 0.0, 1.0),
        ("top_k", wanted.top_k, -1, math.inf),
        ("min_p", wanted.min_p, 0.0, 1.0),
        ("repetition_penalty", wanted.repetition_penalty, 0.01, 100.0),
        ("presence_penalty", wanted.presence_penalty, -2.0, 2.0),
        ("frequency_penalty", wanted.frequency_penalty, -2.0, 2.0),
        ("max_tokens", wanted.max_tokens, 1, math.inf),
        ("min_tokens", wanted.min_tokens, 0, math.inf),
        ("top_logprobs", wanted.top_logprobs, 0, vocab_size),
    )
    for name, value, low, high in bounds:
        if value is not None and not low <= value <= high:  # also refuses NaN
            raise RequestError("invalid", f"{name} must be between {low} and {high}, got {value}", param=name)
    if wanted.max_tokens is not None and wanted.min_tokens > wanted.max_tokens:
        raise RequestError(
            "invalid", f"min_tokens ({wanted.min_tokens}) is over max_tokens ({wanted.max_tokens})", param="min_tokens"
        )
    for name, ids in (("logit_bias", wanted.logit_bias or {}), ("stop_token_ids", wanted.stop_token_ids)):
        for token in ids:
            if not 0 <= token < vocab_size:
                raise RequestError("invalid", f"{name}: token {token} is not in [0, {vocab_size})", param=name)
    for token, bias in (wanted.logit_bias or {}).items():
        if not -100.0 <= bias <= 100.0:
            raise RequestError("invalid", f"logit_bias of token {token} must be in [-100, 100]", param="logit_bias")
