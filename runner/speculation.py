"""Tokens guessed before the model draws them, so that one step may give several. Owns who guesses, how many, and what
is counted of it; knows neither pages nor logits.

Guesses change nothing but speed: each place's token is drawn as it would have been without (runner/sampler.py), and a
guess counts where it is that token. All sequences of a step try the same number of tokens, so that a step's shape is
its batch and its depth; where a guess is shorter it is filled up, and what fills it up is not counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Protocol

import numpy as np

from runner.draft_depth import AcceptRate, DraftDepth
from runner.ngrams import HIDDEN, Ngrams
from runner.plan import StepPlan
from runner.sampler import Sampled
from runner.sequence import Sequence, SequenceId

Drafts = dict[Sequence, tuple[int, ...]]


class Proposer(Protocol):
    """Guesses tokens. The model's thread alone calls it."""

    @property
    def method(self) -> str: ...

    def reach(self, sequences: list[Sequence], most: int) -> list[int]:
        """How many tokens it could guess for each, at most `most`."""
        ...

    def propose(self, sequences: list[Sequence], depth: int) -> list[tuple[int, ...]]:
        """At most `depth` tokens for each; the sequences are those that were last asked about."""
        ...

    def forget(self, sequence_id: SequenceId) -> None:
        """It has ended, or gave its pages back."""
        ...


class NgramProposer:
    """What followed the newest tokens before, in the prompt's text or the answer."""

    method = "ngram"

    def __init__(self) -> None:
        self._indices: dict[SequenceId, Ngrams] = {}
        self._guesses: list[tuple[int, ...]] = []

    def reach(self, sequences: list[Sequence], most: int) -> list[int]:
        self._guesses = [self._index(sequence).guess(most) for sequence in sequences]
        return [len(guess) for guess in self._guesses]

    def propose(self, sequences: list[Sequence], depth: int) -> list[tuple[int, ...]]:
        assert len(sequences) == len(self._guesses)
        return [guess[:depth] for guess in self._guesses]

    def forget(self, sequence_id: SequenceId) -> None:
        self._indices.pop(sequence_id, None)

    def _index(self, sequence: Sequence) -> Ngrams:
        index = self._indices.get(sequence.id)
        if index is None:
            prompt = sequence.prompt
            index = self._indices[sequence.id] = Ngrams(np.where(prompt.item < 0, prompt.token_ids, HIDDEN))
        index.extend(sequence.output[len(index) - len(sequence.prompt) :])
        return index


class Speculation:
    """Between the engine and whoever guesses. proposer None: nobody does."""

    def __init__(self, proposer: Proposer | None, depth: DraftDepth) -> None:
        self._proposer = proposer
        self._depth = depth
        self._rates: dict[SequenceId, AcceptRate] = {}
        self._reach: dict[SequenceId, int] = {}  # of the step in flight: tokens that are guesses and no filling
        self.counters: Counter[str] = Counter()  # steps, drafts, drafted, accepted
        self.depths: Counter[int] = Counter()  # steps that decoded, by depth

    @property
    def method(self) -> str:
        return "none" if self._proposer is None else self._proposer.method

    @property
    def reasons(self) -> Counter[str]:
        """Why steps that decoded tried no guess."""
        return self._depth.reasons

    def propose(self, decoding: list[Sequence]) -> Drafts:
        """Drafts for these sequences, all of one length; empty where it does not pay."""
        self._reach = {}
        if self._proposer is None:
            return {}
        self._keep_only(decoding)
        room = min((_room(sequence) for sequence in decoding), default=0)
        if not decoding or not room:
            self._depth.reasons["at_the_end"] += bool(decoding)
            return {}
        reach = self._proposer.reach(decoding, min(self._depth.most, room))
        rates = [self._rate(sequence) for sequence in decoding]
        depth = self._depth.choose(len(decoding), [(r.value, n) for r, n in zip(rates, reach, strict=True)])
        if not depth:
            return {}
        guesses = self._proposer.propose(decoding, depth)
        if not any(guesses):
            self._depth.reasons["no_guess"] += 1
            return {}
        self._reach = {sequence.id: len(guess) for sequence, guess in zip(decoding, guesses, strict=True)}
        return {sequence: _fill(sequence, guess, depth) for sequence, guess in zip(decoding, guesses, strict=True)}

    def learn(self, plan: StepPlan, drawn: Iterable[tuple[Sampled, ...]], seconds: float) -> None:
        """What became of the drafts of a step that took so long. Called before its sequences advance."""
        if self._proposer is None:
            return
        rows = plan.rows_per_seq
        if rows is not None:
            self.depths[rows - 1] += 1
            self._depth.costs.learn(len(plan.rows), rows - 1, seconds)
        sampling = [work for work in plan.rows if work.samples]
        for work, run in zip(sampling, drawn, strict=True):
            tried = min(len(work.draft), self._reach.get(work.sequence.id, 0))
            if tried and work.sequence.id in self._rates:  # else it ended while its step ran
                accepted = count_accepted(work.draft[:tried], run)
                self._rate(work.sequence).learn(tried, accepted)
                self._depth.rate.learn(tried, accepted)
                self.counters.update({"drafts": 1, "drafted": tried, "accepted": accepted})

    def forget(self, sequence: Sequence) -> None:
        self._drop(sequence.id)

    def _keep_only(self, decoding: list[Sequence]) -> None:
        """Of a sequence that was preempted nothing is kept."""
        for gone in self._rates.keys() - {sequence.id for sequence in decoding}:
            self._drop(gone)

    def _drop(self, sequence_id: SequenceId) -> None:
        if self._proposer is not None and self._rates.pop(sequence_id, None) is not None:
            self._proposer.forget(sequence_id)

    def _rate(self, sequence: Sequence) -> AcceptRate:
        return self._rates.setdefault(sequence.id, self._depth.new_rate())


def count_accepted(draft: tuple[int, ...], drawn: tuple[Sampled, ...]) -> int:
    """How many of the guesses came true. Worked example: draft (7, 7, 7), drawn 7, 3: one."""
    count = 0
    for guess, token in zip(draft, drawn, strict=False):
        if guess != token.token_id:
            break
        count += 1
    return count


def _room(sequence: Sequence) -> int:
    """Guesses that could all be accepted before the answer is as long as it may be; one more token is always drawn."""
    return sequence.drawing.max_tokens - sequence.num_drawn - 1


def _fill(sequence: Sequence, guess: tuple[int, ...], depth: int) -> tuple[int, ...]:
    return guess + (sequence.output[-1],) * (depth - len(guess))
