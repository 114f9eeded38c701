"""Defaults are the checkpoint's, a request's values stand over them, and what is out of bounds is named."""

from __future__ import annotations

from typing import Any

import pytest

from runner.errors import RequestError
from runner.families.base import GenerationDefaults
from runner.requests import SamplingParams
from runner.sampling import settle_sampling

DEFAULTS = GenerationDefaults(
    temperature=0.7, top_p=0.8, top_k=20, repetition_penalty=1.05, max_tokens=64, eos_token_ids=(2, 0)
)


def settle(**values: Any):
    return settle_sampling(SamplingParams(**values), DEFAULTS, vocab_size=100, room=50, seed=9)


def test_the_checkpoints_defaults_hold() -> None:
    drawing = settle()
    assert (drawing.temperature, drawing.top_p, drawing.top_k, drawing.repetition_penalty) == (0.7, 0.8, 20, 1.05)
    assert drawing.eos_token_ids == {2, 0}
    assert drawing.max_tokens == 50  # the default of 64, cut to the room that is left


def test_the_request_stands_over_them() -> None:
    drawing = settle(temperature=0.0, top_p=1.0, top_k=-1, repetition_penalty=1.0, max_tokens=7, ignore_eos=True)
    assert (drawing.temperature, drawing.top_p, drawing.top_k, drawing.max_tokens) == (0.0, 1.0, 0, 7)
    assert not drawing.has_penalties
    assert not drawing.eos_token_ids


@pytest.mark.parametrize(
    ("param", "value"),
    [
        ("temperature", -0.1), ("temperature", float("nan")), ("top_p", 1.1), ("top_k", -2), ("min_p", 2.0),
        ("repetition_penalty", 0.0), ("presence_penalty", 2.1), ("frequency_penalty", -2.1), ("max_tokens", 0),
        ("min_tokens", -1), ("top_logprobs", 101), ("logit_bias", {100: 1.0}), ("logit_bias", {1: 101.0}),
        ("stop_token_ids", (-1,)),
    ],
)  # fmt: skip
def test_out_of_bounds_is_named(param: str, value: Any) -> None:
    with pytest.raises(RequestError) as caught:
        settle(**{param: value})
    assert caught.value.param == param
    assert caught.value.kind == "invalid"


def test_min_tokens_over_max_tokens_is_refused() -> None:
    with pytest.raises(RequestError, match="min_tokens"):
        settle(min_tokens=5, max_tokens=4)


def test_answers_of_one_request_draw_apart() -> None:
    seeds = {
        settle_sampling(SamplingParams(seed=1), DEFAULTS, vocab_size=9, room=9, seed=1, stream=i).seed for i in range(4)
    }
    assert len(seeds) == 4
