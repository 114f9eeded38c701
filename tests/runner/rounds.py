"""Engines that are asked as a server asks them, and what each request is told when it is asked alone, of an engine that
caches nothing, guesses nothing, cuts nothing and runs no graph."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from app.detokenize import Vocabulary
from runner.appending import Addition, lay_out_addition
from runner.assembly import Assembled, build_engine
from runner.config import Speculating
from runner.draft_loader import LoadedDraft, load_draft
from runner.draft_model import DraftModel
from runner.entering import encoders_of
from runner.errors import RequestError
from runner.messages import Delta
from runner.model_runner import ExecutedStep, StepResult
from runner.requests import ChatMessage, EvsOptions
from runner.sequence import Sequence as Running
from tests.harness import LocalEngine, make_config, shared_pool
from tests.oracle import as_message, noise_clip
from tests.runner.test_speculation import replay, speculate
from tests.runner.wishes import EVS, MOST_TOKENS, TURNS, Alone, Told, Wish

LATER = noise_clip(12, num_frames=4, size=(64, 64))


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


def guess(engine: Player, method: str, known: Mapping[str, list[int]]) -> None:
    """Try guesses of any depth. `replay` knows the answers and is wrong now and then."""
    speculation = engine.engine.speculation
    if method == "replay":
        replay(engine, known)
    elif speculation._proposer is not None:
        speculate(engine, speculation._proposer)
