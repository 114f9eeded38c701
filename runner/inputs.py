"""The persistent inputs of a step: buffers made once, edited each step, read by views. Owns what the model sees;
knows no queues and no model.

A row is a token or an embedded cell, in any step: tokens are embedded into the same buffer that cells are copied to.
On CUDA the host writes pinned mirrors and pushes them without waiting; it waits only before it writes to them again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from attention.protocol import AttentionBackend, AttentionMetadata, StaticTables, slot_mapping
from runner.config import EngineConfig
from runner.encoder_store import EncoderStore
from runner.families.base import DecoderShape, VisualRows
from runner.pages import pages_for
from runner.plan import RowsWork
from runner.ranges import ranges_within
from runner.route import DecodeBucket, StepShape
from runner.row_ladder import RowCount
from runner.slots import Mirror, SlotTables, make_event

# What stands in rows that only fill a batch up.
PADDING = 0.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepInputs:
    """Views into the persistent buffers for S rows, and maybe more behind them that only fill up: `num_rows` is S.
    sample_rows: (samples,) int64, rows whose logits are wanted."""

    num_rows: int

    embeds: torch.Tensor
    positions: torch.Tensor
    visual: VisualRows | None
    sample_rows: torch.Tensor
    attention: AttentionMetadata


class InputBuffers:
    """Sized once from the settings; a step writes the first S rows of each buffer. max_rows_per_seq: of a graph's step.
    with_graphs: whether what lies in the tails of pages is ever read. row_count: how many rows an eager step computes
    where it has so many."""

    def __init__(
        self,
        config: EngineConfig,
        shape: DecoderShape,
        backend: AttentionBackend,
        *,
        max_model_len: int,
        dtype: torch.dtype,
        with_graphs: bool,
        row_count: RowCount,
        max_rows_per_seq: int = 1,
    ) -> None:
        layout, self._num_planes = backend.layout, shape.num_planes
        rows = row_count(max(config.max_num_batched_tokens, config.max_num_seqs * max_rows_per_seq))
        self._page_size, self._device, self._row_count = config.page_size, layout.device, row_count
        self.columns = pages_for(max_model_len + max_rows_per_seq, config.page_size)
        self.slots = SlotTables(
            config.max_num_seqs,
            self.columns,
            page_size=config.page_size,
            scratch_page=layout.scratch_page,
            device=layout.device,
            clear=backend.clear if with_graphs else None,
        )
        self.token_ids = Mirror((rows,), layout.device)
        self.positions = Mirror((shape.rope_axes, rows), layout.device)
        self.slot_mapping = Mirror((rows,), layout.device)
        self.seq_lens = Mirror((config.max_num_seqs,), layout.device)
        self.places = Mirror((config.max_num_seqs,), layout.device)
        self.sample_rows = Mirror((rows,), layout.device)
        self.page_table = torch.zeros((config.max_num_seqs, self.columns), dtype=torch.int64, device=layout.device)
        self.embeds = torch.zeros((rows, shape.hidden_size), dtype=dtype, device=layout.device)
        self._pushed = make_event() if layout.device.type == "cuda" else None

    def shape_of(self, work: Sequence[RowsWork]) -> StepShape:
        """What the route is chosen by."""
        counts = {w.stop - w.start for w in work}
        prompts = [(w.sequence.prompt, w.start, w.stop) for w in work if w.start < len(w.sequence.prompt)]
        extras = []
        if any(ranges_within(prompt.ranges, start, stop) for prompt, start, stop in prompts):
            extras.append("ranges")
        if self._num_planes and any((prompt.rank[start:stop] >= 0).any() for prompt, start, stop in prompts):
            extras.append("deepstack")
        return StepShape(
            num_rows=sum(w.stop - w.start for w in work),
            num_seqs=len(work),
            rows_per_seq=counts.pop() if len(counts) == 1 else 0,
            is_decode=all(w.sequence.is_decoding for w in work),
            num_pages=pages_for(max(w.stop for w in work), self._page_size),
            extras=tuple(extras),
        )

    def tables(self, bucket: DecodeBucket) -> StaticTables:
        """What the attention of a graph of this shape reads."""
        return StaticTables(
            rows_per_seq=bucket.rows_per_seq,
            slots=self.slot_mapping.device[: bucket.num_rows],
            seq_lens=self.seq_lens.device[: bucket.num_seqs],
            page_table=self.page_table[: bucket.num_seqs, : bucket.num_pages],
        )

    def idle(self, bucket: DecodeBucket) -> AttentionMetadata:
        """A step of this shape in which all is padding, written to the buffers: what a graph is captured with."""
        return self._fill((), bucket)[0]

    def fill(
        self,
        work: Sequence[RowsWork],
        store: EncoderStore,
        embed: Callable[[torch.Tensor], torch.Tensor],
        bucket: DecodeBucket | None = None,
    ) -> StepInputs:
        """Write one step's rows, sequence after sequence; with a bucket, fill the batch up to its shape."""
        metadata, samples = self._fill(work, bucket)
        cu_seqlens = metadata.cu_seqlens
        total = int(cu_seqlens[len(work)])
        num_rows = self._row_count(total) if bucket is None else bucket.num_rows
        self.embeds[:total] = embed(self.token_ids.device[:total])
        if num_rows > total:
            self.embeds[total:num_rows].fill_(PADDING)
        if bucket is None:
            self.positions.device[:, total:num_rows].zero_()
        return StepInputs(
            num_rows=total,
            embeds=self.embeds[:num_rows],
            positions=self.positions.device[:, :num_rows],
            visual=self._place_cells(work, cu_seqlens, store),
            sample_rows=self.sample_rows.device[:samples],
            attention=metadata,
        )

    def _fill(self, work: Sequence[RowsWork], bucket: DecodeBucket | None) -> tuple[AttentionMetadata, int]:
        """Everything but embeddings; also how many rows are sampled."""
        if self._pushed is not None:
            self._pushed.synchronize()  # the mirrors may still be on their way
        lengths = [w.stop - w.start for w in work]
        total = sum(lengths)
        num_seqs, num_rows = (len(work), total) if bucket is None else (bucket.num_seqs, bucket.num_rows)
        lengths += [0 if bucket is None else bucket.rows_per_seq] * (num_seqs - len(work))
        cu_seqlens = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths)))
        places = self.places.host[:num_seqs]
        for number, w in enumerate(work):
            places[number] = self.slots.edit(w)
            self._write_rows(w, int(cu_seqlens[number]))
        self._fill_up(places, len(work), total, num_rows, bucket)
        metadata = self._describe(work, cu_seqlens, places, num_rows)
        ends = cu_seqlens[1:].tolist()
        samples = [row for w, end in zip(work, ends, strict=False) for row in range(end - w.num_samples, end)]
        self._push(num_rows, num_seqs, samples, is_static=bucket is not None)
        return metadata, len(samples)

    def _write_rows(self, w: RowsWork, first: int) -> None:
        """A decode's one row stands in the tables; others are read from the sequence."""
        rows = slice(first, first + w.stop - w.start)
        slot, sequence = w.sequence.slot, w.sequence
        if sequence.output and w.start == len(sequence) - 1 == w.stop - 1:  # without a draft
            self.token_ids.host[first] = self.slots.tokens[slot]
            self.positions.host[:, first] = self.slots.next_positions[slot]
            return
        self.token_ids.host[rows] = w.token_ids
        self.positions.host[:, rows] = sequence.positions(w.start, w.stop)

    def _fill_up(
        self, places: np.ndarray, num_seqs: int, total: int, num_rows: int, bucket: DecodeBucket | None
    ) -> None:
        if bucket is not None:
            places[num_seqs:] = self.slots.spare
            self.slots.seq_lens[self.slots.spare] = bucket.rows_per_seq
            self.token_ids.host[total:num_rows] = 0
            self.positions.host[:, total:num_rows] = 0

    def _describe(
        self, work: Sequence[RowsWork], cu_seqlens: np.ndarray, places: np.ndarray, num_rows: int
    ) -> AttentionMetadata:
        """The step as backends want it, with its slot mapping where the device will have it."""
        seq_lens = self.seq_lens.host[: len(places)]
        seq_lens[:] = self.slots.seq_lens[places]
        columns = pages_for(int(seq_lens.max()), self._page_size)
        metadata = AttentionMetadata(
            cu_seqlens=cu_seqlens,
            seq_lens=seq_lens.copy(),
            page_table=self.slots.pages.host[places, :columns],
            mm_prefix_ranges=tuple(ranges_within(w.sequence.prompt.ranges, w.start, w.stop) for w in work)
            + ((),) * (len(places) - len(work)),
            slots=self.slot_mapping.device[:num_rows],
        )
        self.slot_mapping.host[:num_rows] = slot_mapping(metadata, self._page_size)
        return metadata

    def _push(self, num_rows: int, num_seqs: int, samples: list[int], *, is_static: bool) -> None:
        self.sample_rows.host[: len(samples)] = samples
        for mirror in (self.token_ids, self.slot_mapping):
            mirror.push(slice(num_rows))
        for axis in range(len(self.positions.host)):
            self.positions.push((slice(axis, axis + 1), slice(num_rows)))
        self.sample_rows.push(slice(len(samples)))
        if is_static:
            self.seq_lens.push(slice(num_seqs))
            self.places.push(slice(num_seqs))
            table = self.page_table[:num_seqs]
            torch.index_select(self.slots.pages.device, 0, self.places.device[:num_seqs], out=table)
        if self._pushed is not None:
            self._pushed.record()

    def _place_cells(self, work: Sequence[RowsWork], cu_seqlens: np.ndarray, store: EncoderStore) -> VisualRows | None:
        """Copy encoded cells over their placeholder rows; their deeper planes are handed on beside them."""
        rows: list[np.ndarray] = []
        cells: list[torch.Tensor] = []
        for w, first in zip(work, cu_seqlens.tolist(), strict=False):
            items = w.sequence.prompt.item[w.start : w.stop]
            rank = w.sequence.prompt.rank[w.start : w.stop]
            for index in np.unique(items[rank >= 0]).tolist():
                within = np.flatnonzero((items == index) & (rank >= 0))
                entry = store.get(w.sequence.items[index])
                assert entry is not None, "a cell's row was scheduled before its encoding"
                ranks = rank[within]
                assert ranks[-1] < entry.num_rows, (ranks[-1], entry.num_rows)
                rows.append(within + first)
                cells.append(entry.rows[:, torch.from_numpy(ranks).to(self._device)])
        if not rows:
            return None
        where = torch.from_numpy(np.concatenate(rows)).to(self._device)
        planes = torch.cat(cells, dim=1)  # (1 + planes, n, D)
        self.embeds.index_copy_(0, where, planes[0])
        return VisualRows(rows=where, planes=tuple(planes[1:]))
