"""The real engine without its socket: assembled on a real checkpoint and stepped by the test. Nothing is replaced."""

from __future__ import annotations

import atexit
import itertools
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch

from evs.policy import EvsPolicy
from evs.select import PendingSelection
from runner.admission import Laid
from runner.assembly import Assembled, build_engine
from runner.config import EngineConfig
from runner.items import MediaItem
from runner.loader import load_model
from runner.messages import Delta, Generate, PromptUsage
from runner.plan import EncodeJob
from runner.ranges import longest_range
from runner.requests import ChatMessage, EvsOptions, SamplingParams
from vision.cage import DecodePool


@dataclass(eq=False)
class Answer:
    """One finished answer. logprobs (n, V) when every alternative was asked for."""

    usage: PromptUsage
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    cached_tokens: int = 0
    tops: list[dict[int, float]] = field(default_factory=list)

    @property
    def logprobs(self) -> torch.Tensor:
        size = len(self.tops[0])
        return torch.tensor([[top[token] for token in range(size)] for top in self.tops])


class LocalCaller:
    """Waits for the encoder by stepping the engine itself."""

    def __init__(self, local: LocalEngine, arrival: int) -> None:
        self._local = local
        self._arrival = arrival
        self.cancel = threading.Event()

    def tell_decoded(self, done: int, total: int) -> None:
        assert 1 <= done <= total

    def finish_selection(self, item: MediaItem, pending: PendingSelection, policy: EvsPolicy) -> MediaItem:
        answer: Future[MediaItem] = Future()
        self._local.engine.scheduler.add_job(
            EncodeJob(
                request_id="job",
                item=item,
                priority=0,
                arrival=self._arrival,
                pending=pending,
                policy=policy,
                answer=answer,
            )
        )
        while not answer.done():
            self._local.step()
        return answer.result()


class LocalEngine:
    """Submits as the service does, in this thread."""

    def __init__(self, assembled: Assembled) -> None:
        self.assembled = assembled
        self.engine = assembled.engine
        self.answers: dict[tuple[str, int], Answer] = {}
        self.arrivals = itertools.count()

    @property
    def vocab_size(self) -> int:
        return self.assembled.info.vocab_size

    def submit(
        self,
        chat: Sequence[ChatMessage],
        *,
        sampling: SamplingParams | None = None,
        evs: EvsOptions | None = None,
        n: int = 1,
        priority: int = 0,
    ) -> str:
        arrival = next(self.arrivals)
        request = Generate(
            request_id=f"r{arrival}", chat=tuple(chat), sampling=sampling or self.everything(8),
            evs=evs or EvsOptions(), n=n, priority=priority,
        )  # fmt: skip
        sequences, usage = self.assembled.admission.submit(request, arrival, LocalCaller(self, arrival))
        for sequence in sequences:
            self.answers[sequence.id] = Answer(usage=usage)
        self.engine.add(sequences)
        return request.request_id

    def everything(self, max_tokens: int, **values: Any) -> SamplingParams:
        """Greedy to the end of max_tokens, with the whole vocabulary's log-probabilities."""
        return SamplingParams(
            temperature=0.0, max_tokens=max_tokens, ignore_eos=True, top_logprobs=self.vocab_size, **values
        )

    def lay_out(self, chat: Sequence[ChatMessage], evs: EvsOptions | None = None) -> Laid:
        return self.assembled.admission.lay_out(tuple(chat), evs or EvsOptions(), None, LocalCaller(self, 0))

    def smallest_step(self, chat: Sequence[ChatMessage], evs: EvsOptions | None = None) -> int:
        """The fewest rows that a step must be able to compute for this chat to be taken."""
        return max(longest_range(self.lay_out(chat, evs).prompt.ranges), 1)

    def media_events(self) -> Counter[str]:
        return Counter(self.assembled.admission.ingest.cache.events)

    def encoder_events(self) -> Counter[str]:
        return Counter(self.assembled.store.events)

    def step(self) -> None:
        self.receive(self.engine.step().deltas)

    def receive(self, deltas: Sequence[Delta]) -> None:
        for delta in deltas:
            answer = self.answers[delta.request_id, delta.index]
            answer.token_ids += delta.token_ids
            answer.cached_tokens = delta.cached_tokens
            answer.tops += [dict(logprob.top) for logprob in delta.logprobs]
            answer.finish_reason = delta.finish_reason or answer.finish_reason

    def run(self, *, max_steps: int = 10_000) -> None:
        """Step until idle, then check that nothing is left behind."""
        for _ in range(max_steps):
            if not self.engine.has_work:
                break
            self.step()
        assert not self.engine.has_work, "the engine does not come to rest"
        self.engine.scheduler.check_integrity()

    def answer(self, chat: Sequence[ChatMessage], **arguments: Any) -> Answer:
        request_id = self.submit(chat, **arguments)
        self.run()
        return self.answers[request_id, 0]


@contextmanager
def local_engine(folder: Path, **settings: Any) -> Iterator[LocalEngine]:
    assert "decode" not in settings, "all engines here share one pool"
    config = make_config(folder, **settings)
    loaded = load_model(config, lambda _phase, _done, _total: None)
    yield LocalEngine(build_engine(config, loaded, shared_pool(), started=time.monotonic()))


@cache
def shared_pool() -> DecodePool:
    """One for all engines of a run: its start takes seconds, and nothing passes from one item to the next."""
    pool = DecodePool()
    atexit.register(pool.close)
    return pool


def make_config(folder: Path, **settings: Any) -> EngineConfig:
    values: dict[str, Any] = {"dtype": "float32", "kv_memory_bytes": 8 << 20, "threads": 1, **settings}
    return EngineConfig(model=str(folder), served_name="tiny", **values)


def rebuilt(local: LocalEngine, folder: Path, **settings: Any) -> LocalEngine:
    """Another engine over the same loaded model and decode pool, with other settings."""
    assembled = local.assembled
    config = make_config(folder, **settings)
    return LocalEngine(build_engine(config, assembled.loaded, assembled.pool, started=time.monotonic()))
