"""Draws tokens from logits. Owns the order of the controls and the stateless randomness; knows no sequence's state.

A draw is a function of (seed, position) and that row's logits alone: neighbours in the batch, preemption and restarts
cannot change it. So a guess needs no test of its own: the token of its place is drawn as it would have been, and the
guess was right where it is that token. Rows that use no control cost one argmax over the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from runner.messages import TokenLogprob
from runner.sampling import Drawing


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SampleRow:
    """What a row of logits is drawn with. prompt and output: the tokens so far (int64), read by penalties; the first
    `num_in_both` of the output stand in the prompt, too, for rows were appended behind them. draft: guesses of what
    comes, each of which has a row of logits of its own behind this one's."""

    drawing: Drawing
    prompt: np.ndarray
    output: Sequence[int]
    num_in_both: int = 0
    draft: tuple[int, ...] = ()

    @property
    def position(self) -> int:
        """The row of the token that is drawn."""
        return len(self.prompt) + len(self.output) - self.num_in_both

    @property
    def is_plain(self) -> bool:
        """Greedy, and no control touches the logits."""
        drawing = self.drawing
        return (
            drawing.temperature == 0.0
            and not drawing.has_penalties
            and not drawing.logit_bias
            and len(self.output) >= drawing.min_tokens
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    token_id: int
    logprob: TokenLogprob | None


def sample_runs(logits: torch.Tensor, rows: Sequence[SampleRow]) -> list[tuple[Sampled, ...]]:
    """What is drawn from each row's 1 + len(draft) rows of logits (R, V) float32: the tokens up to the first that was
    not guessed, or that ends the answer, and that one. Log-probabilities reported are the model's own, before any
    control.

    Worked example: draft (7, 7) and best tokens 7, 3, 9 in its three rows, greedily: 7 and 3; with best tokens 7, 7, 9:
    all three.
    """
    masked = _suppress(logits, rows)
    best = masked.argmax(-1).tolist()
    runs: list[tuple[Sampled, ...]] = []
    first = 0
    for row in rows:
        tokens = _draw_run(masked, best, first, row)
        if row.drawing.top_logprobs is None:
            runs.append(tuple(Sampled(token_id=token, logprob=None) for token in tokens))
        else:
            logprobs = torch.log_softmax(logits[first : first + len(tokens)], dim=-1)
            told = [_report(logprobs[place], token, row) for place, token in enumerate(tokens)]
            runs.append(tuple(Sampled(token_id=t, logprob=p) for t, p in zip(tokens, told, strict=True)))
        first += 1 + len(row.draft)
    return runs


def _suppress(logits: torch.Tensor, rows: Sequence[SampleRow]) -> torch.Tensor:
    suppressed = {row.drawing.suppressed for row in rows}
    if len(suppressed) == 1 and (ids := next(iter(suppressed))):
        logits = logits.clone()
        logits[:, list(ids)] = -torch.inf
    return logits


def _draw_run(masked: torch.Tensor, best: list[int], first: int, row: SampleRow) -> list[int]:
    """The tokens of one row's logits, from number `first` on: each place sees those before it as its output."""
    tokens: list[int] = []
    ends = row.drawing.eos_token_ids | row.drawing.stop_token_ids
    for place in range(1 + len(row.draft)):
        here = replace(row, output=[*row.output, *tokens]) if tokens else row
        token = best[first + place] if here.is_plain else _draw_one(masked[first + place], here)
        tokens.append(token)
        if token in ends or row.draft[place : place + 1] != (token,):
            break
    return tokens


def _draw_one(logits: torch.Tensor, row: SampleRow) -> int:
    drawing = row.drawing
    shaped = _apply_controls(logits.clone(), row)
    if drawing.temperature == 0.0:
        return int(shaped.argmax())
    probabilities, ids = filtered_distribution(shaped, drawing)
    cumulative = probabilities.cumsum(0)
    point = uniform(drawing.seed, row.position) * float(cumulative[-1])
    place = int(torch.searchsorted(cumulative, torch.tensor(point, dtype=torch.float64), right=True))
    return int(ids[min(place, len(ids) - 1)])


def _apply_controls(logits: torch.Tensor, row: SampleRow) -> torch.Tensor:
    """Bias, minimum length, penalties, in this order; all before temperature."""
    drawing = row.drawing
    for token, bias in drawing.logit_bias:
        logits[token] += bias
    if len(row.output) < drawing.min_tokens:
        logits[list(drawing.eos_token_ids | drawing.stop_token_ids)] = -torch.inf
    if drawing.repetition_penalty != 1.0:
        seen = torch.from_numpy(np.unique(np.concatenate((row.prompt, np.asarray(row.output, np.int64)))))
        values = logits[seen]
        penalty = drawing.repetition_penalty
        logits[seen] = torch.where(values > 0, values / penalty, values * penalty)
    if row.output and (drawing.presence_penalty or drawing.frequency_penalty):
        tokens, counts = np.unique(np.asarray(row.output, np.int64), return_counts=True)
        cost = drawing.presence_penalty + drawing.frequency_penalty * torch.from_numpy(counts)
        logits[torch.from_numpy(tokens)] -= cost.to(logits.dtype)
    return logits


def filtered_distribution(logits: torch.Tensor, drawing: Drawing) -> tuple[torch.Tensor, torch.Tensor]:
    """What top_k, top_p and min_p leave of one row at its temperature: weights (n,) float64, falling, and token ids
    (n,).

    top_p keeps the smallest set of most likely tokens whose share reaches it, and always one; it is measured on what
    top_k left. min_p keeps tokens at least that share as likely as the best one. Weights are not renormalised.
    """
    count = min(drawing.top_k, len(logits)) if drawing.top_k else len(logits)
    values, ids = torch.topk(logits, count)
    # Differences first: a logit over the smallest temperature is infinite, and no distribution.
    weights = torch.softmax((values.double() - values[0].double()) / drawing.temperature, dim=-1)
    kept = torch.ones(count, dtype=torch.bool)
    if drawing.top_p < 1.0:
        kept &= (weights.cumsum(0) - weights) < drawing.top_p
    if drawing.min_p > 0.0:
        kept &= weights >= drawing.min_p * weights[0]
    kept[0] = True
    kept &= weights > 0  # a suppressed token stays impossible
    return weights[kept], ids[kept]


def uniform(seed: int, position: int) -> float:
    """One number in [0, 1) that depends on these two alone (Philox, a counter-based generator)."""
    return float(np.random.Generator(np.random.Philox(key=np.array([seed, position], dtype=np.uint64))).random())


def _report(logprobs: torch.Tensor, token: int, row: SampleRow) -> TokenLogprob:
    count = row.drawing.top_logprobs or 0
    top: tuple[tuple[int, float], ...] = ()
    if count:
        values, ids = torch.topk(logprobs, count)
        top = tuple(zip(ids.tolist(), values.tolist(), strict=True))
    return TokenLogprob(logprob=float(logprobs[token]), top=top)
