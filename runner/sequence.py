"""The state of one answer while it is being made. Owns what changes from step to step; knows no tensors but its
prompt's arrays and decides nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from runner.appending import Addition, extend_prompt
from runner.items import MediaItem
from runner.messages import FinishReason
from runner.pooling import Pooled
from runner.prompt import Prompt
from runner.sampling import Drawing

SequenceId = tuple[str, int]
Phase = Literal["waiting", "running", "finished"]


@dataclass(slots=True, kw_only=True, eq=False)
class Sequence:
    """request_id and index name it; priority (lower first) and arrival order it. num_computed_tokens <= len(self):
    rows whose keys lie in pages. goal: tokens drawn one by one, or a vector pooled from the prompt's own rows, which
    ends the sequence. line: sequences of one line follow one another without end, and of what they leave only the
    newest's pages are of use."""

    request_id: str
    index: int
    arrival: int
    priority: int = 0
    prompt: Prompt
    items: tuple[MediaItem, ...]
    goal: Drawing | Pooled
    wants_progress: bool = False
    line: str | None = None

    phase: Phase = "waiting"
    output: list[int] = field(default_factory=list)
    num_computed_tokens: int = 0
    pages: list[int] = field(default_factory=list)  # of rows from num_freed_pages * page_size on
    num_freed_pages: int = 0  # before those: no layer can see them any more
    page_keys: list[bytes] = field(default_factory=list)  # of its full pages, as far as they were asked for
    num_published_pages: int = 0  # of `pages`, which can be found by their keys
    num_cached_tokens: int | None = None  # rows it found computed when it was first admitted
    slot: int = -1
    last_rows: tuple[int, ...] = field(init=False)  # the last cell of each item: then its encoding is not needed
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    drawn_before: tuple[int, ...] = ()  # tokens drawn before rows were appended: they stand in the prompt now

    def __post_init__(self) -> None:
        self._find_last_rows()

    def append(self, addition: Addition) -> None:
        """Put rows behind all there are; they are to be computed before the next token is drawn."""
        self.prompt = extend_prompt(self.prompt, self.output, addition.prompt, num_items=len(self.items))
        self.items = (*self.items, *addition.items)
        self.drawn_before, self.output = (*self.drawn_before, *self.output), []
        self._find_last_rows()

    def _find_last_rows(self) -> None:
        owners = np.where(self.prompt.rank >= 0, self.prompt.item, -1)
        self.last_rows = tuple(int(np.flatnonzero(owners == index)[-1]) for index in range(len(self.items)))

    @property
    def id(self) -> SequenceId:
        return (self.request_id, self.index)

    @property
    def drawn(self) -> list[int]:
        """All tokens drawn."""
        return [*self.drawn_before, *self.output] if self.drawn_before else self.output

    @property
    def num_drawn(self) -> int:
        return len(self.drawn_before) + len(self.output)

    @property
    def drawing(self) -> Drawing:
        assert isinstance(self.goal, Drawing), "a pooled sequence draws no token"
        return self.goal

    def __len__(self) -> int:
        return len(self.prompt) + len(self.output)

    @property
    def next_items(self) -> list[MediaItem]:
        """What its next rows read of encodings (see Prompt.items_from)."""
        return [self.items[index] for index in self.prompt.items_from(self.num_computed_tokens)]

    @property
    def is_decoding(self) -> bool:
        """All rows but the newest token's are computed."""
        return bool(self.output) and self.num_computed_tokens == len(self) - 1

    def token_ids(self, start: int, stop: int) -> np.ndarray:
        """(stop - start,) int64 of rows [start, stop), prompt and output."""
        prompt = self.prompt.token_ids
        tail = self.output[max(0, start - len(prompt)) : max(0, stop - len(prompt))]
        tokens: np.ndarray = np.concatenate((prompt[start:stop], np.asarray(tail, dtype=np.int64)))
        return tokens

    def positions(self, start: int, stop: int) -> np.ndarray:
        """(rope_axes, stop - start) int64: the prompt's own, then counting on from next_position on all axes."""
        size = len(self.prompt)
        inside = self.prompt.positions[:, start:stop]
        after = self.prompt.next_position + np.arange(max(0, start - size), max(0, stop - size))
        positions: np.ndarray = np.concatenate((inside, np.broadcast_to(after, (len(inside), len(after)))), axis=1)
        return positions
