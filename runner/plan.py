"""What one step does, as data: rows, encodings, and items encoded for their own sake. Owns these types; decides and
runs nothing."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np

from evs.policy import EvsPolicy
from evs.select import PendingSelection
from runner.encoder_queue import EncoderWork
from runner.items import MediaItem
from runner.sequence import Sequence


@dataclass(slots=True, kw_only=True, eq=False)
class EncodeJob:
    """An item to be encoded for its own sake: its cells are chosen from what comes out (method `evs`). It takes its
    turn among sequences, by priority and arrival."""

    request_id: str
    item: MediaItem
    priority: int
    arrival: int
    pending: PendingSelection
    policy: EvsPolicy
    answer: Future[MediaItem]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsWork:
    """Compute rows [start, stop) of a sequence; `samples` when the last of them yields a token. A pooled sequence's
    rows are read as they come and yield none.

    draft: tokens guessed to follow the sequence's own; theirs are the last rows, and each of them samples, too. Worked
    example: 10 rows, 9 of them computed, and a draft of (7, 7): rows [9, 12), and tokens are drawn after each of the
    three.
    """

    sequence: Sequence
    start: int
    stop: int
    samples: bool
    draft: tuple[int, ...] = ()

    @property
    def num_samples(self) -> int:
        """Rows at the end whose logits are wanted."""
        return 1 + len(self.draft) if self.samples else 0

    @property
    def token_ids(self) -> np.ndarray:
        """(stop - start,) int64, the draft's among them."""
        own = self.sequence.token_ids(self.start, self.stop - len(self.draft))
        return np.concatenate((own, np.asarray(self.draft, dtype=np.int64))) if self.draft else own


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    encoder: tuple[EncoderWork, ...]
    rows: tuple[RowsWork, ...]

    @property
    def is_empty(self) -> bool:
        return not self.encoder and not self.rows

    @property
    def num_rows(self) -> int:
        return sum(work.stop - work.start for work in self.rows)

    @property
    def rows_per_seq(self) -> int | None:
        """Of a step of decodes alone, which all have the same number of rows; None of any other."""
        counts = {work.stop - work.start if work.sequence.is_decoding else None for work in self.rows}
        return counts.pop() if len(counts) == 1 and not self.encoder else None
