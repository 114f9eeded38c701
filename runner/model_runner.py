"""Runs one planned step on the device: encode, fill the inputs, route, decode, sample. Owns the order of these; decides
neither what runs nor what becomes of the tokens."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from attention.protocol import AttentionBackend
from runner.config import EngineConfig
from runner.encoder_queue import EncoderWork
from runner.encoder_store import EncoderStore
from runner.families.base import Family
from runner.families.embedding import embedding_policy
from runner.inputs import InputBuffers, StepInputs
from runner.plan import RowsWork, StepPlan
from runner.pooling import Pooled, pool_rows
from runner.route import StepShape, route
from runner.sampler import Sampled, SampleRow, sample_runs
from runner.threads import ComputeThreads
from vision.towers.packed import EncodedCells, PatchBatch, concatenate


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """The tokens drawn for each work that samples, one and those that its draft guessed, and one vector for each pooled
    sequence that is through, in the plan's order."""

    tokens: tuple[tuple[Sampled, ...], ...] = ()
    vectors: tuple[np.ndarray, ...] = ()


class ModelRunner:
    """The model's thread alone calls this."""

    def __init__(
        self,
        config: EngineConfig,
        family: Family,
        backend: AttentionBackend,
        store: EncoderStore,
        *,
        max_model_len: int,
        dtype: torch.dtype,
        threads: ComputeThreads | None = None,
    ) -> None:
        """threads: adjusted before each step; None leaves torch's as they are."""
        self._config = config
        self._family = family
        self.backend = backend
        self._store = store
        self._threads = threads
        self._pooling = embedding_policy(family).pooling
        layout = backend.layout
        embeds = torch.zeros(
            (config.max_num_batched_tokens, family.shape.hidden_size), dtype=dtype, device=layout.device
        )
        self._inputs = InputBuffers(config, family.shape, max_model_len, embeds)
        self.routes: Counter[tuple[str, str]] = Counter()
        self.encoded: Counter[tuple[str, str]] = Counter()  # patches, by (mode, why it and not the one asked for)
        self.encoder_s = 0.0

    @torch.inference_mode()
    def run(self, plan: StepPlan) -> StepResult:
        if self._threads is not None:
            self._threads.adjust(plan.num_rows, encodes=bool(plan.encoder))
        if plan.encoder:
            self._encode(plan.encoder)
        if not plan.rows:
            return StepResult()
        inputs = self._inputs.fill(plan.rows, self._store, self._family.embed)
        hidden = self._forward(inputs, plan)
        vectors = tuple(self._pool(plan.rows, hidden))
        sampling = [work for work in plan.rows if work.samples]
        if not sampling:
            return StepResult(vectors=vectors)
        logits = self._family.logits(hidden[inputs.sample_rows]).cpu()
        drawn = sample_runs(logits, [_sample_row(work) for work in sampling])
        return StepResult(tokens=tuple(drawn), vectors=vectors)

    def _pool(self, rows: Sequence[RowsWork], hidden: torch.Tensor) -> Iterator[np.ndarray]:
        """Read the rows of pooled sequences; hidden (S, D) in the order of `rows`."""
        first = 0
        for work in rows:
            states = hidden[first : first + work.stop - work.start]
            first += len(states)
            if isinstance(work.sequence.goal, Pooled):
                pooling, length = self._pooling, len(work.sequence)
                vector = pool_rows(work.sequence.goal, states, start=work.start, length=length, pooling=pooling)
                if vector is not None:
                    yield vector

    def _forward(self, inputs: StepInputs, plan: StepPlan) -> torch.Tensor:
        num_visual = 0 if inputs.visual is None else len(inputs.visual.rows)
        shape = StepShape(
            num_rows=plan.num_rows, num_seqs=len(plan.rows), num_visual=num_visual, rows_per_seq=plan.rows_per_seq
        )
        chosen = route(shape, policy=self._config.graphs, backend_graphs=self.backend.capabilities.graphs, captured=())
        self.routes[chosen.mode, chosen.reason] += 1
        planned = self.backend.plan(inputs.attention)
        return self._family.forward(inputs.embeds, inputs.positions, inputs.visual, planned)

    def _encode(self, work: Sequence[EncoderWork]) -> None:
        """Encode the slots of all works as one packed batch and store the rows of their kept cells. The time is from
        pixels to stored rows; on CUDA it is the time it takes to ask for that."""
        started = time.perf_counter()
        batches = [self._batch(w) for w in work]
        encoded = self._family.encode(batches[0] if len(batches) == 1 else concatenate(batches))
        row = carry = 0
        for w, batch in zip(work, batches, strict=True):
            keep = w.item.selection.keep[w.slot_start : w.slot_stop].reshape(-1)
            comes_out = keep if w.item.encoder == "full" else keep[keep]
            rows = torch.from_numpy(np.flatnonzero(comes_out) + row).to(encoded.embeddings.device)
            num_carried = 0 if batch.keys is None else len(batch.keys.carry_on)
            self._store.write(w.item, _take(encoded, rows, slice(carry, carry + num_carried)), w.slot_stop)
            row, carry = row + len(comes_out), carry + num_carried
            self.encoded[w.item.encoder, "" if w.item.encoder == w.item.policy.encoder else "little_to_save"] += len(
                batch.rows
            )
        self.encoder_s += time.perf_counter() - started

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


def _sample_row(work: RowsWork) -> SampleRow:
    sequence = work.sequence
    return SampleRow(
        drawing=sequence.drawing, prompt=sequence.prompt.token_ids, output=sequence.output, draft=work.draft
    )
