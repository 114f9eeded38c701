"""Runs a step's encoder work: slots of all clips and images as one packed batch, and their kept cells' rows into the
store. Owns that hand-over and its counters; plans nothing and knows no sequences."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch

from runner.encoder_graphs import EncoderGraphs
from runner.encoder_queue import EncoderWork
from runner.encoder_store import EncoderStore
from runner.families.base import Family
from runner.row_ladder import RowCount, whole_rows
from vision.towers.packed import EncodedCells, PatchBatch, concatenate
from vision.towers.padding import lengthen_batch

log = logging.getLogger("evserve.engine")


class EncoderRunner:
    """The model's thread alone calls this. patches: by (mode, why it and not the one asked for). routes: batches, by
    (graph or eager, why). seconds: from pixels to stored rows; on CUDA the time it takes to ask for that. row_count:
    how many patches are encoded where so many are wanted."""

    def __init__(self, family: Family, store: EncoderStore, graphs: EncoderGraphs, row_count: RowCount) -> None:
        self._family, self._store, self._graphs, self._row_count = family, store, graphs, row_count
        self.routes: Counter[tuple[str, str]] = Counter()
        self.patches: Counter[tuple[str, str]] = Counter()
        self.seconds = 0.0

    def run(self, work: Sequence[EncoderWork]) -> None:
        started = time.perf_counter()
        batches = [self._batch(w) for w in work]
        cell = max(w.item.grid.merge_size**2 for w in work)
        encoded = self._encode(batches[0] if len(batches) == 1 else concatenate(batches), cell)
        row = carry = 0
        for w, batch in zip(work, batches, strict=True):
            keep = w.item.selection.keep[w.slot_start : w.slot_stop].reshape(-1)
            comes_out = keep if w.item.encoder == "full" else keep[keep]
            rows = torch.from_numpy(np.flatnonzero(comes_out) + row).to(encoded.embeddings.device)
            num_carried = 0 if batch.keys is None else len(batch.keys.carry_on)
            self._store.write(w.item, _take(encoded, rows, slice(carry, carry + num_carried)), w.slot_stop)
            row, carry = row + len(comes_out), carry + num_carried
            self.patches[w.item.encoder, "" if w.item.encoder == w.item.policy.encoder else "little_to_save"] += len(
                batch.rows
            )
        self.seconds += time.perf_counter() - started

    def _encode(self, batch: PatchBatch, cell: int) -> EncodedCells:
        """The batch's cells, and maybe more behind them. cell: patches that stay together."""
        chosen, padded, arranged = self._graphs.route(batch)
        if not self.routes[chosen.mode, chosen.reason]:
            way = "as graphs" if chosen.mode == "graph" else "eagerly"
            log.info("pictures are encoded %s (%s)", way, chosen.reason)
        self.routes[chosen.mode, chosen.reason] += 1
        if chosen.bucket is None or padded is None or arranged is None:
            return self._family.encode(self._lengthen(batch, cell))
        return self._graphs.run(chosen.bucket, padded, arranged)

    def _lengthen(self, batch: PatchBatch, cell: int) -> PatchBatch:
        """Filled up to a number of rows that comes again; not where the encoder takes whole pictures."""
        if self._graphs.tower is None:
            return batch
        return lengthen_batch(batch, whole_rows(self._row_count(len(batch.rows)), cell))

    def _batch(self, work: EncoderWork) -> PatchBatch:
        entry = self._store.get(work.item)
        assert entry is not None and entry.next_slot <= work.slot_start
        batch = self._family.patch_batch(work.item, work.slot_start, work.slot_stop)
        return batch.carrying(entry.carry)


def _take(cells: EncodedCells, rows: torch.Tensor, carry: slice) -> EncodedCells:
    """Some of the cells, and what one of the clips carries on: nothing where that is empty."""
    is_carried = carry.stop > carry.start
    return EncodedCells(
        embeddings=cells.embeddings[rows],
        planes=tuple(plane[rows] for plane in cells.planes),
        carry=tuple(level[:, carry].clone() for level in cells.carry) if is_carried else (),
    )
