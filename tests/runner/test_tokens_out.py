"""Tokens that are chosen on the device are those that the sampler would draw."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from runner.sampler import sample_runs
from runner.tokens_out import TokensOut, accept, is_quiet
from tests.runner.test_sampler import make_row

VOCAB = 12


def test_the_worked_example() -> None:
    rows = [replace(make_row(temperature=0.0), draft=(7, 7)), make_row(temperature=0.0)]
    runs = accept([7, 3, 9, 5], rows)
    assert [[token.token_id for token in run] for run in runs] == [[7, 3], [5]]


def test_as_the_sampler_draws() -> None:
    """Any drafts, suppressed tokens, and ends inside a run."""
    rng, generator = np.random.default_rng(0), torch.Generator().manual_seed(0)
    accepted = 0
    for _ in range(200):
        rows = [
            replace(make_row(temperature=0.0, stop_token_ids=(3,)), draft=tuple(rng.integers(0, 4, n).tolist()))
            for n in rng.integers(0, 4, 3)
        ]
        logits = torch.randn(sum(1 + len(row.draft) for row in rows), VOCAB, generator=generator)
        logits[:, 4:] -= 2.0
        assert is_quiet(rows)
        best = TokensOut(logits, rows[0].drawing.suppressed).wait()
        runs = accept(best, rows)
        assert runs == sample_runs(logits, rows)
        accepted += sum(len(run) > 1 for run in runs)
    assert accepted > 50


def test_who_wants_more_is_not_quiet() -> None:
    quiet = make_row(temperature=0.0)
    for row in (
        make_row(temperature=0.5),
        make_row(temperature=0.0, top_logprobs=0),
        make_row(temperature=0.0, min_tokens=4),
        make_row(temperature=0.0, repetition_penalty=1.1),
        make_row(temperature=0.0, logit_bias={1: 2.0}),
    ):
        assert is_quiet([quiet]) and not is_quiet([quiet, row])
