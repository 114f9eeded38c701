"""The engine's loop: schedule, run, commit. Owns the sequences in flight and what becomes of their tokens; knows no
sockets, no pictures and no threads but the one that calls it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from runner.appending import Addition
from runner.embed_messages import Vector
from runner.encoder_store import EncoderStore, StoredItem
from runner.errors import RequestError
from runner.items import MediaItem
from runner.limits import Limits, check_addition
from runner.messages import Delta, FinishReason, TokenLogprob
from runner.model_runner import ModelRunner, StepResult
from runner.plan import EncodeJob, StepPlan
from runner.pooling import Pooled, vector_bytes
from runner.sampler import Sampled
from runner.scheduler import Scheduler
from runner.sequence import Sequence, SequenceId
from runner.speculation import Speculation


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """What a step gave: deltas and vectors for clients, and prefilling sequences whose progress was asked for."""

    deltas: tuple[Delta, ...]
    vectors: tuple[Vector, ...]
    plan: StepPlan


class Engine:
    """The model's thread alone calls this."""

    def __init__(
        self,
        scheduler: Scheduler,
        runner: ModelRunner,
        store: EncoderStore,
        speculation: Speculation,
        limits: Limits,
    ) -> None:
        self.scheduler = scheduler
        self._limits = limits
        self.store = store
        self.speculation = speculation
        self.runner = runner
        self._sequences: dict[SequenceId, Sequence] = {}
        self._additions: list[tuple[SequenceId, Addition]] = []
        self.counters: Counter[str] = Counter()

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work

    def add(self, sequences: Iterable[Sequence]) -> None:
        for sequence in sequences:
            self._sequences[sequence.id] = sequence
            self.scheduler.add(sequence)

    def step(self, meanwhile: Callable[[], None] | None = None) -> StepReport:
        """meanwhile: called while the device computes; it may add and end sequences, and those it ends get no more."""
        started = time.perf_counter()
        self._append_waiting()
        plan = self.scheduler.schedule(self.speculation.propose(self.scheduler.decoding))
        executed = self.runner.execute(plan)
        if meanwhile is not None:
            meanwhile()
        result = self.runner.sample(executed)
        self.speculation.learn(plan, result.tokens, time.perf_counter() - started)
        deltas, vectors = self._commit(plan, result)
        return StepReport(deltas=deltas, vectors=vectors, plan=plan)

    def append(self, sequence_id: SequenceId, addition: Addition) -> None:
        """Append rows to a live sequence before its next step; what comes too late is counted. A sequence that was
        drawing goes on behind the new rows. Raises RequestError for more than can be held (see limits.check_addition);
        the sequence then goes on without them."""
        if (sequence := self._sequences.get(sequence_id)) is not None:
            waiting = [other for owner, other in self._additions if owner == sequence_id]
            check_addition(self._limits, self.store, sequence, waiting, addition)
        self._additions.append((sequence_id, addition))

    def _append_waiting(self) -> None:
        for sequence_id, addition in self._additions:
            sequence = self._sequences.get(sequence_id)
            self.counters["appended" if sequence is not None else "appended_too_late"] += 1
            if sequence is not None:
                self.speculation.forget(sequence)
                sequence.append(addition)
                self.scheduler.make_room(sequence)
        self._additions.clear()

    def abort(self, request_id: str, index: int | None, reason: Literal["abort", "stop"] = "abort") -> list[Delta]:
        """End one answer, or all of a request's; unknown ids are no error: they may just have finished."""
        self.scheduler.drop_jobs(request_id)
        ended = [
            sequence
            for sequence in self._sequences.values()
            if sequence.request_id == request_id and index in (None, sequence.index)
        ]
        return self._end(ended, reason)

    def fail_all(self, error: str) -> list[Delta]:
        """End everything that runs, and every job; what waits is unharmed."""
        for job in self.scheduler.jobs:
            job.answer.set_exception(RequestError("internal", error))
        self.scheduler.jobs.clear()
        return self._end(list(self.scheduler.running), "error", error)

    def _end(self, sequences: list[Sequence], reason: FinishReason, error: str | None = None) -> list[Delta]:
        deltas = [self._finish(sequence, reason, error=error) for sequence in sequences]
        self.scheduler.release_spent_encodings()
        return deltas

    def _commit(self, plan: StepPlan, result: StepResult) -> tuple[tuple[Delta, ...], tuple[Vector, ...]]:
        deltas, vectors = [], []
        tokens, pooled = iter(result.tokens), iter(result.vectors)
        for work in plan.rows:
            drawn = next(tokens) if work.samples else ()
            is_through = isinstance(work.sequence.goal, Pooled) and work.stop == len(work.sequence)
            vector = next(pooled) if is_through else None
            if work.sequence.phase == "finished":  # ended while its step ran
                continue
            self.counters["prompt_tokens" if not work.sequence.output else "decode_rows"] += work.stop - work.start
            self.scheduler.advance(work, accepted=max(0, len(drawn) - 1))
            if work.samples:
                deltas.append(self._take_tokens(work.sequence, drawn))
            elif vector is not None:
                vectors.append(self._take_vector(work.sequence, vector))
        for job, entry in self.scheduler.take_encoded_jobs():
            self._finish_job(job, entry)
        self.scheduler.release_spent_encodings()
        return tuple(deltas), tuple(vectors)

    def _finish_job(self, job: EncodeJob, entry: StoredItem) -> None:
        """Choose an item's cells from its encoding, and keep their rows for the sequence that is about to come."""
        selection = job.pending.finish(entry.rows[0])
        item = MediaItem.of(job.item.decoded, selection, job.policy)
        self.store.add_pruned(item, entry)
        job.answer.set_result(item)

    def _take_vector(self, sequence: Sequence, vector: np.ndarray) -> Vector:
        """A pooled sequence is over when its rows are computed."""
        self._finish(sequence, "stop")
        return Vector(request_id=sequence.request_id, index=sequence.index, data=vector_bytes(vector))

    def _take_tokens(self, sequence: Sequence, drawn: tuple[Sampled, ...]) -> Delta:
        """Tokens in the order of their places, one or several. What follows an end is nobody's."""
        drawing, taken = sequence.drawing, list[Sampled]()
        ended: FinishReason | None = None
        for token in drawn:
            self.counters["generation_tokens"] += 1
            if token.token_id in drawing.eos_token_ids or token.token_id in drawing.stop_token_ids:
                sequence.stop_token_id, ended = token.token_id, "stop"
                break
            taken.append(token)
            sequence.output.append(token.token_id)
            if sequence.num_drawn >= drawing.max_tokens:
                ended = "length"
                break
        token_ids = tuple(token.token_id for token in taken)
        logprobs = tuple(token.logprob for token in taken if token.logprob is not None)
        if ended is not None:
            return self._finish(sequence, ended, token_ids=token_ids, logprobs=logprobs)
        return Delta(
            request_id=sequence.request_id, index=sequence.index, token_ids=token_ids, logprobs=logprobs,
            cached_tokens=sequence.num_cached_tokens or 0,
        )  # fmt: skip

    def _finish(
        self,
        sequence: Sequence,
        reason: FinishReason,
        *,
        token_ids: tuple[int, ...] = (),
        logprobs: tuple[TokenLogprob, ...] = (),
        error: str | None = None,
    ) -> Delta:
        self.scheduler.finish(sequence)
        sequence.finish_reason = reason
        del self._sequences[sequence.id]
        self.speculation.forget(sequence)
        self.counters[f"finished_{reason}"] += 1
        if isinstance(sequence.goal, Pooled):
            sequence.goal.finished()
        return Delta(
            request_id=sequence.request_id,
            index=sequence.index,
            token_ids=token_ids,
            logprobs=logprobs,
            finish_reason=reason,
            stop_token_id=sequence.stop_token_id,
            cached_tokens=sequence.num_cached_tokens or 0,
            error=error,
        )
