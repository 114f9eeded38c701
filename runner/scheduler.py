"""Decides what one step does. Owns the queues, the pages and both budgets; knows no tensors' contents and runs nothing.

First come, first served, within a priority (lower goes first). A step decodes every running sequence that can, then
prefills chunks, as far as the token budget and the encoded rows reach: half of what is left of the budget goes by
arrival, the other half to the sequences with the fewest rows left. So a prompt of r rows that has its pages is
prefilled within ceil((r + s) / (budget // 2)) steps, s being the rows of others of its priority that have no more left
than it, however long the prompts before it are; and the first in line never gets less than half. Encoder work is
planned for the first sequences that need it. When pages run out, the youngest running sequence gives its own back and
is computed again later.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping

import numpy as np

from runner.config import EngineConfig
from runner.encoder_queue import EncoderQueue
from runner.encoder_store import EncoderStore, StoredItem
from runner.items import MediaItem
from runner.pages import PagePool, pages_for
from runner.plan import EncodeJob, RowsWork, StepPlan
from runner.pooling import Pooled, Pooling
from runner.prefix_cache import Bypass, PrefixCache
from runner.ranges import cut_before, range_at
from runner.sequence import Sequence

NO_DRAFTS: Mapping[Sequence, tuple[int, ...]] = {}


class Scheduler:
    """The model's thread alone calls this. window: rows behind which no layer sees anything; None: all is seen.
    pooling: how this model's vectors are made."""

    def __init__(
        self, config: EngineConfig, pages: PagePool, store: EncoderStore, *, window: int | None, pooling: Pooling
    ) -> None:
        self._config = config
        self._window = window
        self._pages = pages
        bypass: Bypass | None = "off" if pages.max_cached == 0 else None if window is None else "window"
        self.prefix = PrefixCache(pages, config.page_size, bypass=bypass, pooling=pooling)
        self._store = store
        self._waiting: list[tuple[tuple[int, int, int], Sequence]] = []
        self.running: list[Sequence] = []
        self.jobs: list[EncodeJob] = []
        self._slots = list(range(config.max_num_seqs))
        self.events: Counter[str] = Counter()

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def has_work(self) -> bool:
        return bool(self._waiting or self.running or self.jobs)

    @property
    def decoding(self) -> list[Sequence]:
        """Those whose next row is the newest token's, oldest first."""
        return [sequence for sequence in self.running if sequence.is_decoding]

    def add_job(self, job: EncodeJob) -> None:
        self.jobs.append(job)
        self.jobs.sort(key=lambda job: (job.priority, job.arrival))

    def add(self, sequence: Sequence) -> None:
        heapq.heappush(self._waiting, (_order(sequence), sequence))

    # ------------------------------------------------------------------------------------------------- one step

    def schedule(self, drafts: Mapping[Sequence, tuple[int, ...]] = NO_DRAFTS) -> StepPlan:
        """Plan the next step. Every returned row has its page, and every visual row its encoding by the time it
        runs. drafts: guesses for decoding sequences, all of one length; all are cut to what fits."""
        tokens = self._config.max_num_batched_tokens
        rows: list[RowsWork] = []
        self._admit()
        self._hold_first()
        reserved = self._reserved_rows()
        decoding = self.decoding
        depth = self._depth(decoding, drafts, tokens - reserved)
        for sequence in decoding:
            if tokens <= reserved:
                break
            if sequence.phase == "running" and self._grow_pages(sequence, depth):
                rows.append(_rows_of(sequence, len(sequence), drafts[sequence][:depth] if depth else ()))
                tokens -= 1 + depth
        rows = [work for work in rows if work.sequence.phase == "running"]  # a later one may have cost it its pages
        encoder = EncoderQueue(self._store, self._encoder_budget(is_decoding=bool(rows)))
        for turn in self._turns():
            encoder.plan(self._needs(turn))
        rows += self._plan_prefills(tokens, reserved, encoder)
        return StepPlan(encoder=tuple(encoder.work), rows=tuple(rows))

    def _depth(self, decoding: list[Sequence], drafts: Mapping[Sequence, tuple[int, ...]], room: int) -> int:
        """How many tokens of each draft are tried: what half of the room beside the decodes holds, and none where
        somebody has no draft, or pages would have to be taken from another."""
        wanted = min((len(drafts.get(sequence, ())) for sequence in decoding), default=0)
        if not wanted:
            return 0
        depth = max(0, min(wanted, (room - len(decoding)) // 2 // len(decoding)))
        missing = sum(max(0, self._missing_pages(sequence, depth)) for sequence in decoding)
        if depth < wanted:
            self.events["drafts_cut_budget"] += 1
        if missing > self._pages.num_free:
            self.events["drafts_cut_pages"] += 1
            return 0
        return depth

    def _missing_pages(self, sequence: Sequence, more: int) -> int:
        """Pages it still needs for its own rows and so many more."""
        return pages_for(len(sequence) + more, self._config.page_size) - sequence.num_freed_pages - len(sequence.pages)

    def _plan_prefills(self, tokens: int, reserved: int, encoder: EncoderQueue) -> list[RowsWork]:
        """Share out `tokens` rows: the first half by arrival, the rest to whoever has least left (see above)."""
        line = [sequence for sequence in self.running if not sequence.is_decoding]
        reach = {sequence: self._reach(sequence, encoder) for sequence in line}
        stops = {sequence: sequence.num_computed_tokens for sequence in line}
        shortest_first = sorted(line, key=lambda s: (s.priority, len(s) - s.num_computed_tokens, *_order(s)))
        for turns, kept_back in ((line, max(0, min(tokens // 2, tokens - reserved))), (shortest_first, 0)):
            for sequence in turns:
                start = stops[sequence]
                stop = min(reach[sequence], start + tokens - kept_back)
                stops[sequence] = max(start, cut_before(sequence.prompt.ranges, stop))
                tokens -= stops[sequence] - start
        return [_rows_of(sequence, stop) for sequence, stop in stops.items() if stop > sequence.num_computed_tokens]

    def _encoder_budget(self, *, is_decoding: bool) -> int:
        """Patches that this step may encode. Beside running decodes they are few, for the next tokens wait for them:
        between two tokens of an answer, no more than `max_encoder_patches_decoding`, or one slot, is encoded."""
        config = self._config
        return config.max_encoder_patches if not is_decoding else config.max_encoder_patches_decoding

    def _admit(self) -> None:
        """Start waiting sequences in order, while there is a place and pages for all their rows and one more."""
        while self._waiting and self._slots:
            sequence = self._waiting[0][1]
            if not self.prefix.admit(sequence):
                return
            heapq.heappop(self._waiting)
            sequence.phase = "running"
            sequence.slot = heapq.heappop(self._slots)
            self.running.append(sequence)
            self.running.sort(key=_order)

    def make_room(self, sequence: Sequence) -> None:
        """Pages for all rows of a sequence that rows were appended to, and one more, as at its admission; where there
        are none it waits for them with the others, and is computed again."""
        if sequence.phase != "running":
            return
        missing = self._missing_pages(sequence, 1)
        taken = self._pages.take(missing, after=sequence.pages[-1]) if missing > 0 else []
        if taken is None:
            self._preempt(sequence)
        else:
            sequence.pages += taken

    def _grow_pages(self, sequence: Sequence, more: int) -> bool:
        """Pages for the newest row and so many more; takes from the youngest when none is free. False when that was
        itself."""
        while self._missing_pages(sequence, more) > 0:
            page = self._pages.take(1, after=sequence.pages[-1])
            if page is not None:
                sequence.pages += page
                continue
            youngest = self.running[-1]
            self._preempt(youngest)
            if youngest is sequence:
                return False
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self._release(sequence)
        sequence.phase, sequence.num_computed_tokens = "waiting", 0
        self.events["preemptions"] += 1
        self.add(sequence)

    def _turns(self) -> list[Sequence | EncodeJob]:
        """Who wants prefill or encoding, in order."""
        turns: list[Sequence | EncodeJob] = [s for s in self.running if not s.is_decoding]
        return sorted((*turns, *self.jobs), key=lambda turn: (turn.priority, turn.arrival))

    def _needs(self, turn: Sequence | EncodeJob) -> list[MediaItem]:
        """The items whose encodings will still be read, first those without which nothing more is computed."""
        if isinstance(turn, EncodeJob):
            return [turn.item]
        read = zip(turn.items, turn.last_rows, strict=True)
        return [*turn.next_items, *(item for item, row in read if turn.num_computed_tokens <= row)]

    def _reach(self, sequence: Sequence, encoder: EncoderQueue) -> int:
        """The first row at or after num_computed_tokens that cannot be computed in this step."""
        reach = len(sequence)
        for index, item in enumerate(sequence.items):
            if sequence.num_computed_tokens > sequence.last_rows[index]:
                continue
            encoded = item.kept_before(encoder.encoded_slots(item))
            if encoded == item.selection.kept:
                continue
            missing = (sequence.prompt.item == index) & (sequence.prompt.rank >= encoded)
            return min(reach, int(np.flatnonzero(missing)[0]))
        return reach

    def _reserved_rows(self) -> int:
        """Rows of this step for the first prefill in line, where it stands before an encoded range, which is never cut:
        decodes that find no room beside it wait for one step, or a house full of them would keep it out for ever."""
        first = next((sequence for sequence in self.running if not sequence.is_decoding), None)
        found = None if first is None else range_at(first.prompt.ranges, first.num_computed_tokens)
        if first is None or found is None or self._reach(first, EncoderQueue(self._store, 0)) < found[1]:
            return 0
        return found[1] - found[0]

    def _hold_first(self) -> None:
        """Take room for what the first in line reads next. It fits, by itself; where encodings of later turns are in
        the way, or those that it reads later itself, these are encoded again, or each could wait for the other's."""
        first = next(iter(self._turns()), None)
        items = [] if first is None else [first.item] if isinstance(first, EncodeJob) else first.next_items
        if any(self._store.open(item) is None for item in items):
            self._store.keep_pinned(set(items))
            assert all(self._store.open(item) is not None for item in items), "what was admitted cannot be held"

    # --------------------------------------------------------------------------------------------------- afterwards

    def advance(self, work: RowsWork, *, accepted: int = 0) -> None:
        """Rows [start, stop) are computed, but for those of drafted tokens that were not accepted: what stands in
        their places is written over."""
        work.sequence.num_computed_tokens = work.stop - len(work.draft) + accepted
        self.prefix.publish(work.sequence)
        if self._window is not None:
            self._free_unseen(work.sequence, self._window)

    def _free_unseen(self, sequence: Sequence, window: int) -> None:
        """Give back the pages that no coming row can see. Worked example, window 20, pages of 16: after 40 rows the
        next one sees rows 21 to 40, so the first page goes; the second, rows 16 to 31, after 51."""
        unseen = max(0, sequence.num_computed_tokens + 1 - window) // self._config.page_size
        count = min(unseen - sequence.num_freed_pages, len(sequence.pages) - 1)  # it grows behind its last page
        if count > 0:
            self._pages.give_back(sequence.pages[:count])
            del sequence.pages[:count]
            sequence.num_freed_pages += count

    def finish(self, sequence: Sequence) -> None:
        """Take a sequence out, wherever it is, and give back all it holds."""
        if sequence.phase == "running":
            self._release(sequence)
            self.prefix.succeed(sequence)
        elif sequence.phase == "waiting":
            self._waiting = [entry for entry in self._waiting if entry[1] is not sequence]
            heapq.heapify(self._waiting)
        sequence.phase = "finished"

    def take_encoded_jobs(self) -> list[tuple[EncodeJob, StoredItem]]:
        """Jobs whose item is encoded; they are done with."""
        entries = [(job, self._store.get(job.item)) for job in self.jobs]
        done = [(job, entry) for job, entry in entries if entry is not None and entry.is_complete]
        self.jobs = [job for job in self.jobs if job not in {finished for finished, _ in done}]
        return done

    def drop_jobs(self, request_id: str) -> None:
        self.jobs = [job for job in self.jobs if job.request_id != request_id]

    def release_spent_encodings(self) -> None:
        """Leave pinned only the encoder outputs that a running sequence or a job will read."""
        turns: list[Sequence | EncodeJob] = [*self.running, *self.jobs]
        self._store.keep_pinned({item for turn in turns for item in self._needs(turn)})

    def _release(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self.prefix.publish(sequence)
        self._pages.give_back(sequence.pages)
        heapq.heappush(self._slots, sequence.slot)
        sequence.pages, sequence.num_freed_pages, sequence.num_published_pages, sequence.slot = [], 0, 0, -1

    def check_integrity(self) -> None:
        """Assert that pages, places and encodings are held by running sequences alone."""
        held = [page for sequence in self.running for page in sequence.pages]
        self._pages.check_integrity(held)
        assert self._pages.num_free + len(set(held)) == self._pages.num_pages
        assert len(self._slots) + len(self.running) == self._config.max_num_seqs
        assert self.running or self.jobs or not self._store.num_pinned


def _order(sequence: Sequence) -> tuple[int, int, int]:
    return (sequence.priority, sequence.arrival, sequence.index)


def _rows_of(sequence: Sequence, stop: int, draft: tuple[int, ...] = ()) -> RowsWork:
    samples = stop == len(sequence) and not isinstance(sequence.goal, Pooled)
    start = sequence.num_computed_tokens
    return RowsWork(sequence=sequence, start=start, stop=stop + len(draft), samples=samples, draft=draft)
