"""Requests that may be asked in any order, at any time and of any engine, and what each is told when it is asked alone,
of an engine that caches nothing, guesses nothing, cuts nothing and runs no graph."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from app.answer import Answer as Telling
from app.answer import Piece, TextOptions, join_logprobs
from app.detokenize import Vocabulary
from runner.appending import Addition, lay_out_addition
from runner.assembly import Assembled, build_engine
from runner.config import Speculating
from runner.draft_loader import LoadedDraft, load_draft
from runner.draft_model import DraftModel
from runner.entering import encoders_of
from runner.errors import RequestError
from runner.messages import Delta, TokenLogprob
from runner.model_runner import ExecutedStep, StepResult
from runner.requests import ChatMessage, EvsOptions, SamplingParams
from runner.sampler import SampleRow, sample_runs
from runner.sequence import Sequence as Running
from tests.harness import LocalEngine, make_config, shared_pool
from tests.oracle import Part, as_message, noise_clip, noise_picture
from tests.runner.test_evs import mover
from tests.runner.test_speculation import replay, speculate

CLIP, OTHER_CLIP = mover(1, num_frames=9, size=(70, 100)), mover(2, num_frames=7, size=(70, 100))
PICTURE, OTHER_PICTURE = (noise_picture(seed, size=(64, 80)) for seed in (2, 3))
LATER = noise_clip(12, num_frames=4, size=(64, 64))
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


class Player(LocalEngine):
    """An engine whose answers are taken as the server takes them, and which remembers what happened in its steps."""

    def __init__(self, assembled: Assembled) -> None:
        super().__init__(assembled)
        self.vocabulary = Vocabulary(assembled.info.tokenizer_json)
        self.told: dict[tuple[str, int], Told] = {}
        self.sequences: dict[tuple[str, int], Running] = {}
        self.seen: Counter[str] = Counter()

    def ask(self, wish: Wish, message: ChatMessage, *, priority: int = 0) -> tuple[str, int]:
        key = (self.submit([message], sampling=wish.sampling, evs=wish.evs, priority=priority), 0)
        self.told[key] = Told(wish, self.vocabulary)
        self.sequences[key] = self.engine._sequences[key]
        return key

    def append(self, key: tuple[str, int], addition: Addition) -> None:
        self.seen["appended later" if self.sequences[key].num_drawn else "appended to a prompt"] += 1
        self.engine.append(key, addition)

    def abort(self, key: tuple[str, int]) -> None:
        self.seen["aborted while answering" if self.sequences[key].num_drawn else "aborted before"] += 1
        self.told[key].is_aborted = True
        self.receive(self.engine.abort(key[0], None))

    def receive(self, deltas: Sequence[Delta]) -> None:
        super().receive(deltas)
        for delta in deltas:
            if self.told[delta.request_id, delta.index].take(delta):
                self.seen["stop string in a run" if len(delta.token_ids) > 1 else "stop string"] += 1
                self.receive(self.engine.abort(delta.request_id, delta.index, "stop"))

    def step(self) -> None:
        report = self.engine.step()
        for work in report.plan.rows:
            self.seen["clip cut by a chunk"] += is_inside_item(work.sequence, work.stop)
        self.receive(report.deltas)
        self.engine.scheduler.check_integrity()

    def record_draws(self, into: Alone) -> None:
        """Keep what each token of the one request that runs is drawn with."""
        sample = type(self.engine.runner).sample

        def recording(executed: ExecutedStep) -> StepResult:
            result = sample(self.engine.runner, executed)
            if executed.logits is not None:
                (row,), ((token,),) = executed.rows, result.tokens
                assert token.logprob is not None
                into.drawn.append((executed.logits[0].clone(), replace(row, output=list(row.output))))
                into.token_ids.append(token.token_id)
                into.logprobs.append(token.logprob)
            return result

        self.engine.runner.sample = recording  # type: ignore[method-assign]


def is_inside_item(sequence: Running, row: int) -> bool:
    """Whether the rows before and from `row` on are cells of one item."""
    rank, item = sequence.prompt.rank, sequence.prompt.item
    return 0 < row < len(rank) and bool(rank[row - 1] >= 0 and rank[row] >= 0 and item[row - 1] == item[row])


class Stage:
    """One loaded model, what can be asked of it, and the answers alone."""

    def __init__(self, local: LocalEngine, folder: Path) -> None:
        self.local, self.folder = local, folder
        self.family = local.assembled.loaded.family
        self.messages = {name: as_message(turn) for name, turn in TURNS.items()}
        self.evs = [evs for evs in EVS if evs.encoder in (None, *encoders_of(self.family))]
        self.additions = self._lay_out_additions()
        self.largest_encoding = self._largest_encoding()
        self._drafts: LoadedDraft | None = None
        self._plain = self.build(prefix_cache_bytes=0, graphs="never")
        self.vocabulary = self._plain.vocabulary
        self._alone: dict[Wish, Alone] = {}

    def _lay_out_additions(self) -> tuple[Addition, ...]:
        """A clip between words, and words alone, as far as the model's template can say either."""
        clip = self.local.lay_out([as_message([LATER])]).items[0]
        found = []
        for parts in ([" then", clip, " and?"], [" and then what?"]):
            try:
                found.append(lay_out_addition(self.family, self.local.assembled.loaded.tokenizer, parts))
            except RequestError:
                continue
        return tuple(found)

    def _largest_encoding(self) -> int:
        """Bytes that must be held at once for any of TURNS to be read."""
        laid = [self.local.lay_out([message], EvsOptions(method="none")) for message in self.messages.values()]
        sizes = [[self.local.assembled.store.bytes_of(item) for item in one.items] for one in laid]
        return max(sum(row) if self.family.shape.prefix == "prompt" else max(row, default=0) for row in sizes)

    def page_bytes(self, page_size: int, proposer: str) -> int:
        """Of a page, and of what the draft model keeps beside it."""
        engine = self.build(proposer=proposer, page_size=page_size, kv_memory_bytes=1 << 20, graphs="never")
        draft = engine.engine.speculation._proposer
        beside = draft._backend.layout.page_bytes if isinstance(draft, DraftModel) else 0
        return engine.engine.runner.backend.layout.page_bytes + beside

    def addition(self, wish: Wish) -> Addition:
        return self.additions[wish.seed % len(self.additions)]

    def build(self, *, proposer: str = "none", **settings: Any) -> Player:
        """An engine over the same models; clips that another one decoded are not decoded again."""
        draft = proposer == "draft"
        method = "none" if proposer == "none" else "draft" if draft else "ngram"
        speculating = Speculating(method=method, model=str(self.folder) if draft else None, max_tokens=4)
        config = make_config(self.folder, speculating=speculating, **settings)
        loaded = self.local.assembled.loaded
        if draft and self._drafts is None:
            self._drafts = load_draft(config, loaded, lambda _phase, _done, _total: None)
        drafts = self._drafts if draft else None
        player = Player(build_engine(config, loaded, shared_pool(), started=time.monotonic(), draft=drafts))
        player.assembled.admission.ingest.cache = self.local.assembled.admission.ingest.cache
        return player

    def alone(self, wish: Wish) -> Alone:
        if (wish := wish.longest) not in self._alone:
            plain, alone = self._plain, Alone()
            plain.assembled.store.drop_unpinned()
            plain.record_draws(alone)
            key = plain.ask(wish, self.messages[wish.turn])
            if wish.more_after is not None:
                while plain.sequences[key].num_drawn < wish.more_after:
                    plain.step()
                plain.append(key, self.addition(wish))
            plain.run()
            assert len(alone.token_ids) == MOST_TOKENS
            self._alone[wish] = alone
        return self._alone[wish]


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


def guess(engine: Player, method: str, known: Mapping[str, list[int]]) -> None:
    """Try guesses of any depth. `replay` knows the answers and is wrong now and then."""
    speculation = engine.engine.speculation
    if method == "replay":
        replay(engine, known)
    elif speculation._proposer is not None:
        speculate(engine, speculation._proposer)
