"""Tokens are drawn from exactly the distribution that the controls define, and a draw depends on nothing but its
row."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from runner.families.base import GenerationDefaults
from runner.requests import SamplingParams
from runner.sampler import Sampled, SampleRow, sample_runs, uniform
from runner.sampling import settle_sampling

VOCAB, DRAWS = 24, 6000
DEFAULTS = GenerationDefaults(temperature=1.0, eos_token_ids=(3,), suppressed_token_ids=(5,))
PROMPT = np.array([1, 2, 2, 7])
OUTPUT = [4, 4, 9]


def make_row(seed: int = 0, output: list[int] | None = None, **values: Any) -> SampleRow:
    drawing = settle_sampling(SamplingParams(**values), DEFAULTS, vocab_size=VOCAB, room=1000, seed=seed)
    return SampleRow(drawing=drawing, prompt=PROMPT, output=OUTPUT if output is None else output)


def sample(logits: torch.Tensor, rows: list[SampleRow]) -> list[Sampled]:
    """One token a row."""
    return [drawn for (drawn,) in sample_runs(logits, rows)]


def logits_row() -> torch.Tensor:
    return torch.randn(VOCAB, generator=torch.Generator().manual_seed(11)) * 2


def exact_distribution(logits: np.ndarray, values: dict[str, Any]) -> np.ndarray:
    """The controls' definition, token by token, in float64."""
    scores = logits.astype(np.float64).copy()
    scores[list(DEFAULTS.suppressed_token_ids)] = -math.inf
    for token, bias in values.get("logit_bias", {}).items():
        scores[token] += bias
    if len(OUTPUT) < values.get("min_tokens", 0):
        scores[list(DEFAULTS.eos_token_ids)] = -math.inf
    penalty = values.get("repetition_penalty", 1.0)
    for token in {*PROMPT.tolist(), *OUTPUT}:
        scores[token] = scores[token] / penalty if scores[token] > 0 else scores[token] * penalty
    for token in set(OUTPUT):
        scores[token] -= values.get("presence_penalty", 0.0)
        scores[token] -= values.get("frequency_penalty", 0.0) * OUTPUT.count(token)
    shares = np.exp((scores - scores.max()) / values.get("temperature", 1.0))
    order = sorted(range(VOCAB), key=lambda token: -shares[token])
    if values.get("top_k"):
        for token in order[values["top_k"] :]:
            shares[token] = 0.0
    shares /= shares.sum()
    kept = np.zeros(VOCAB, dtype=bool)
    reached = 0.0
    for token in order:
        kept[token] = reached < values.get("top_p", 1.0)
        reached += shares[token]
    kept &= shares >= values.get("min_p", 0.0) * shares.max()
    shares[~kept] = 0.0
    return shares / shares.sum()


CONTROLS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.4},
    {"temperature": 2.5},
    {"top_k": 5},
    {"top_p": 0.7},
    {"top_p": 0.0001},
    {"min_p": 0.2},
    {"repetition_penalty": 1.8},
    {"presence_penalty": 1.5},
    {"frequency_penalty": 0.8},
    {"logit_bias": {9: 3.0, 2: -100.0}},
    {"min_tokens": 8},
    {"temperature": 0.8, "top_k": 12, "top_p": 0.9, "min_p": 0.02, "repetition_penalty": 1.2, "frequency_penalty": 0.3},
]


@pytest.mark.parametrize("values", CONTROLS, ids=lambda values: "-".join(values) or "plain")
def test_draws_follow_the_exact_distribution(values: dict[str, Any]) -> None:
    """Chi-square over the tokens expected at least five times; tokens of no probability are never drawn."""
    logits = logits_row()
    expected = exact_distribution(logits.numpy(), values) * DRAWS
    rows = [make_row(seed, **values) for seed in range(DRAWS)]
    drawn = [sampled.token_id for sampled in sample(logits.expand(DRAWS, -1), rows)]
    counts = np.bincount(drawn, minlength=VOCAB)
    assert counts[expected == 0].sum() == 0
    common = expected >= 5
    statistic = float(((counts - expected)[common] ** 2 / expected[common]).sum())
    freedom = int(common.sum())
    assert statistic < freedom + 5 * math.sqrt(2 * freedom) + 5


def test_one_answers_draws_are_spread_over_positions() -> None:
    """One seed, many positions: as good as many seeds."""
    logits = torch.zeros(4)
    defaults = GenerationDefaults(temperature=1.0)
    drawing = settle_sampling(SamplingParams(seed=7), defaults, vocab_size=4, room=10_000, seed=7)
    rows = [SampleRow(drawing=drawing, prompt=PROMPT, output=[0] * n) for n in range(2000)]
    counts = np.bincount([s.token_id for s in sample(logits.expand(2000, -1), rows)], minlength=4)
    assert ((counts - 500) ** 2 / 500).sum() < 3 + 5 * math.sqrt(6) + 5


def test_a_draw_is_the_same_alone_and_in_a_batch() -> None:
    logits = torch.randn(16, VOCAB, generator=torch.Generator().manual_seed(0))
    rows = [make_row(seed, temperature=1.5) if seed % 3 else make_row(seed, temperature=0.0) for seed in range(16)]
    together = [s.token_id for s in sample(logits, rows)]
    assert together == [sample(logits[i : i + 1], [row])[0].token_id for i, row in enumerate(rows)]


def test_greedy_takes_the_best_that_may_be_generated() -> None:
    logits = torch.zeros(1, VOCAB)
    logits[0, 5], logits[0, 8] = 9.0, 3.0  # 5 is a placeholder
    assert sample(logits, [make_row(temperature=0.0)])[0].token_id == 8


@pytest.mark.parametrize("temperature", [5e-324, 1e-310, 1e-30])
def test_the_smallest_temperatures_draw_the_best(temperature: float) -> None:
    """A temperature at which logits overflow is still one: nothing but the best tokens is left, never an error."""
    logits = torch.tensor([[-3.0, 40.0, 40.0, *[-100.0] * (VOCAB - 3)]])
    drawn = {sample(logits, [make_row(seed, temperature=temperature)])[0].token_id for seed in range(40)}
    assert drawn == {1, 2}


def test_logprobs_are_the_models_own() -> None:
    logits = logits_row()[None]
    drawn = sample(logits, [make_row(temperature=0.0, top_logprobs=3, logit_bias={0: 100.0})])[0]
    expected = torch.log_softmax(logits[0], -1)
    assert drawn.token_id == 0
    assert drawn.logprob is not None
    assert drawn.logprob.logprob == pytest.approx(float(expected[0]))
    assert [token for token, _ in drawn.logprob.top] == expected.topk(3).indices.tolist()


def test_uniform_depends_on_seed_and_position_alone() -> None:
    assert uniform(3, 4) == uniform(3, 4)
    assert len({uniform(seed, position) for seed in range(20) for position in range(20)}) == 400
    assert uniform(2**64 - 1, 0) < 1.0


def test_accepted_guesses_leave_the_distribution_as_it_is() -> None:
    """Two tokens drawn one after the other, the second only where the first was guessed: both follow their own row's
    distribution, whatever was guessed."""
    logits = torch.randn(2, VOCAB, generator=torch.Generator().manual_seed(3)) * 1.5
    likely = int(exact_distribution(logits[0].numpy(), {}).argmax())
    rows = [replace(make_row(seed), draft=(likely,)) for seed in range(DRAWS)]
    runs = sample_runs(logits.repeat(DRAWS, 1), rows)
    assert {len(run) for run in runs} == {1, 2}
    assert all((len(run) == 2) == (run[0].token_id == likely) for run in runs)
    for place in range(2):
        tokens = [run[place].token_id for run in runs if len(run) > place]
        expected = exact_distribution(logits[place].numpy(), {}) * len(tokens)
        counts = np.bincount(tokens, minlength=VOCAB)
        common = expected >= 5
        statistic = float(((counts - expected)[common] ** 2 / expected[common]).sum())
        freedom = int(common.sum())
        assert len(tokens) > 200 and statistic < freedom + 5 * math.sqrt(2 * freedom) + 5


def test_a_run_is_drawn_as_one_token_after_the_other() -> None:
    """With every control at once, and with an end inside the run, behind which nothing is drawn."""
    logits = torch.randn(4, VOCAB, generator=torch.Generator().manual_seed(4)) * 2
    for seed in range(200):
        row = make_row(seed, **CONTROLS[-1], min_tokens=4, top_logprobs=2)
        drawn: list[Sampled] = []
        for place in range(4):
            drawn += sample(logits[place : place + 1], [replace(row, output=[*OUTPUT, *(t.token_id for t in drawn)])])
        right = tuple(token.token_id for token in drawn)
        ends = next((place + 1 for place, token in enumerate(right) if token == 3), 4)
        assert sample_runs(logits, [replace(row, draft=right[:3])]) == [tuple(drawn[:ends])]
        wrong = (right[0], (right[1] + 1) % VOCAB, right[2])
        assert sample_runs(logits, [replace(row, draft=wrong)]) == [tuple(drawn[: min(ends, 2)])]
