"""Steps of one shape for the `flashinfer` backend: wrappers made for graphs, whose plans are copied into buffers that
keep their addresses. Owns these buffers; knows no models.

A batch of one row a sequence goes to the decode wrapper, any other to the prefill wrapper. The number of sequences is
fixed when a wrapper is made, and the pages may be as many as the tables have columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from attention.page_lists import page_lists
from attention.protocol import AttentionMetadata, LayerAttention, StaticTables

if TYPE_CHECKING:
    from attention.flashinfer import FlashInferBackend


class FlashInferStatic:
    """See attention.protocol.StaticAttention."""

    def __init__(self, backend: FlashInferBackend, tables: StaticTables) -> None:
        self._backend, self._tables = backend, tables
        self._kinds = tuple(dict.fromkeys(backend.layout.by_layer))
        self._wrappers = {kind: self._make_wrapper() for kind in self._kinds}
        self._metadata: AttentionMetadata | None = None

    def _make_wrapper(self) -> Any:
        count, columns = self._tables.page_table.shape
        pages, last, indptr = self._buffer(count * columns), self._buffer(count), self._buffer(count + 1)
        if self._tables.rows_per_seq == 1:
            return self._backend.make_decode_wrapper(
                use_cuda_graph=True,
                paged_kv_indptr_buffer=indptr,
                paged_kv_indices_buffer=pages,
                paged_kv_last_page_len_buffer=last,
            )
        return self._backend.make_prefill_wrapper(
            "fa2",
            use_cuda_graph=True,
            qo_indptr_buf=self._buffer(count + 1),
            paged_kv_indptr_buf=indptr,
            paged_kv_indices_buf=pages,
            paged_kv_last_page_len_buf=last,
        )

    def _buffer(self, length: int) -> torch.Tensor:
        return torch.zeros(length, dtype=torch.int32, device=self._backend.layout.device)

    def refresh(self, metadata: AttentionMetadata) -> None:
        """Plan every kind of layer whose calls are known: all of them, once one step has run outside a graph."""
        self._metadata = metadata
        for kind in self._kinds:
            if kind in self._backend.calls:
                self._plan(kind)

    def _plan(self, kind: LayerAttention) -> None:
        assert self._metadata is not None, "a step was begun before it was refreshed"
        lists = page_lists(self._metadata, self._backend.layout.page_size, kind)
        pages = (lists.pages_indptr, lists.pages, lists.last_page_len)
        wrapper, call = self._wrappers[kind], self._backend.calls[kind]
        if self._tables.rows_per_seq == 1:
            self._backend.plan_wrapper(wrapper, pages, kind, call)
        else:
            self._backend.plan_wrapper(wrapper, (lists.rows_indptr, *pages), kind, call, causal=True)

    def begin(self) -> FlashInferStatic:
        return self

    def run(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
        """See attention.protocol.PlannedAttention."""
        backend = self._backend
        is_known = backend.layout.by_layer[layer] in backend.calls
        kind, _ = backend.note_call(layer, q, scale)
        if not is_known:  # in the step before the capture
            self._plan(kind)
        backend.write(layer, self._tables.slots, k, v)
        out: torch.Tensor = self._wrappers[kind].run(q.contiguous(), tuple(backend.memory[layer]))
        return out
