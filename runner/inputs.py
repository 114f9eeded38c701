"""The persistent inputs of a step: buffers made once, edited each step, read by views. Owns what the model sees;
knows no queues and no model.

A row is a token or an embedded cell, in any step: tokens are embedded into the same buffer that cells are copied to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from attention.protocol import AttentionMetadata
from runner.config import EngineConfig
from runner.encoder_store import EncoderStore
from runner.families.base import DecoderShape, VisualRows
from runner.pages import pages_for
from runner.plan import RowsWork
from runner.ranges import ranges_within


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepInputs:
    """Views into the persistent buffers for S rows. sample_rows: (samples,) int64, rows whose logits are wanted."""

    embeds: torch.Tensor
    positions: torch.Tensor
    visual: VisualRows | None
    sample_rows: torch.Tensor
    attention: AttentionMetadata


class InputBuffers:
    """Sized once from the settings; a step writes the first S rows of each buffer."""

    def __init__(self, config: EngineConfig, shape: DecoderShape, max_model_len: int, embeds: torch.Tensor) -> None:
        rows = config.max_num_batched_tokens
        self._page_size = config.page_size
        self._device = embeds.device
        self.token_ids = np.zeros(rows, dtype=np.int64)
        self.positions = np.zeros((shape.rope_axes, rows), dtype=np.int64)
        self.page_table = np.zeros((config.max_num_seqs, pages_for(max_model_len + 1, config.page_size)), np.int64)
        self.embeds = embeds

    def fill(
        self, work: Sequence[RowsWork], store: EncoderStore, embed: Callable[[torch.Tensor], torch.Tensor]
    ) -> StepInputs:
        """Write one step's rows, sequence after sequence."""
        lengths = np.array([w.stop - w.start for w in work], dtype=np.int64)
        cu_seqlens = np.concatenate((np.zeros(1, np.int64), lengths.cumsum()))
        for w, first in zip(work, cu_seqlens.tolist(), strict=False):
            rows = slice(first, first + w.stop - w.start)
            self.token_ids[rows] = w.token_ids
            self.positions[:, rows] = w.sequence.positions(w.start, w.stop)
            freed, pages = w.sequence.num_freed_pages, w.sequence.pages
            self.page_table[w.sequence.slot, freed : freed + len(pages)] = pages
        total = int(cu_seqlens[-1])
        self.embeds[:total] = embed(torch.from_numpy(self.token_ids[:total]).to(self._device))
        ends = cu_seqlens[1:].tolist()
        samples = [row for w, end in zip(work, ends, strict=True) for row in range(end - w.num_samples, end)]
        return StepInputs(
            embeds=self.embeds[:total],
            positions=torch.from_numpy(self.positions[:, :total]).to(self._device),
            visual=self._place_cells(work, cu_seqlens, store),
            sample_rows=torch.tensor(samples, dtype=torch.int64, device=self._device),
            attention=AttentionMetadata(
                cu_seqlens=cu_seqlens,
                seq_lens=np.array([w.stop for w in work], dtype=np.int64),
                page_table=self.page_table[[w.sequence.slot for w in work]],
                mm_prefix_ranges=tuple(ranges_within(w.sequence.prompt.ranges, w.start, w.stop) for w in work),
            ),
        )

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
