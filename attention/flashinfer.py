"""The `flashinfer` backend: paged attention in FlashInfer's kernels, on CUDA. Owns its page memory, the kernels'
workspaces and fixed buffers; knows no models.

The package is imported when a backend is made. Kernels are planned once a step for each kind of layer: decodes by the
decode wrapper, any other step as a whole by the prefill wrapper, with ranges as a mask of their own.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

import torch

from attention.page_lists import PageLists, page_lists
from attention.protocol import AttentionMetadata, Capabilities, KVLayout, LayerAttention, slot_mapping

FP8 = torch.float8_e4m3fn
CAPABILITIES = Capabilities(
    name="flashinfer",
    devices=("cuda",),
    graphs=True,
    mm_prefix=True,
    kv_dtypes=(torch.bfloat16, torch.float16, FP8),
)
HEAD_DIMS = (64, 128, 256)
WORKSPACE_BYTES = 128 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """What a kernel must know of its layers beside the step."""

    num_heads: int
    scale: float
    dtype: torch.dtype


class FlashInferBackend:
    """Keys and values of layer l lie in two (num_pages, page_size, KH, K) tensors.

    graph_sizes: numbers of sequences for which decode steps are planned in buffers that keep their addresses, so that a
    captured graph finds each step's pages there. max_pages: pages that one such step may name.
    """

    def __init__(self, layout: KVLayout, *, graph_sizes: tuple[int, ...] = (), max_pages: int | None = None) -> None:
        if layout.dtype not in CAPABILITIES.kv_dtypes or layout.head_dim not in HEAD_DIMS:
            raise ValueError(
                f"flashinfer keeps keys in {CAPABILITIES.kv_dtypes} with {HEAD_DIMS} numbers a head, not "
                f"{layout.dtype} with {layout.head_dim}"
            )
        self.layout, self.capabilities = layout, CAPABILITIES
        self._package: Any = importlib.import_module("flashinfer")
        shape = (layout.num_layers, 2, layout.num_pages, layout.page_size, layout.num_kv_heads, layout.head_dim)
        self.memory = torch.zeros(shape, dtype=torch.uint8, device=layout.device).to(layout.dtype)
        self._graph_sizes, self._max_pages = graph_sizes, max_pages or layout.num_pages
        self._wrappers: dict[tuple[LayerAttention, str, int], Any] = {}
        self.calls: dict[LayerAttention, _Call] = {}

    def plan(self, metadata: AttentionMetadata) -> FlashInferStep:
        """Plan all kinds of layers whose calls are known: all of them, from the second step on."""
        layout = self.layout
        slots = torch.from_numpy(slot_mapping(metadata, layout.page_size)).to(layout.device)
        kinds = dict.fromkeys(layout.by_layer)
        lists = {kind: page_lists(metadata, layout.page_size, kind) for kind in kinds}
        step = FlashInferStep(backend=self, slots=slots, lists=lists, planned={})
        for kind, call in self.calls.items():
            step.planned[kind] = self.plan_kind(kind, lists[kind], call)
        return step

    def plan_kind(self, kind: LayerAttention, lists: PageLists, call: _Call) -> Any:
        """The wrapper that runs this step's layers of a kind."""
        size = len(lists.last_page_len)
        is_decode = int(lists.rows_indptr[-1]) == size and lists.mask is None
        if is_decode:
            wrapper = self._decode_wrapper(kind, size)
            pages = (lists.pages_indptr, lists.pages, lists.last_page_len)
            wrapper.plan(*pages, *self._sizes(call), **self._options(kind, call))
            return wrapper
        wrapper = self._prefill_wrapper(kind, "masked" if lists.mask is not None else "causal")
        tables = (lists.rows_indptr, lists.pages_indptr, lists.pages, lists.last_page_len)
        if lists.mask is None:
            wrapper.plan(*tables, *self._sizes(call), causal=True, **self._options(kind, call))
            return wrapper
        # Given packed, a mask's offsets would be counted in bits and read as bytes: the package packs it itself.
        moved = [x.to(self.layout.device) for x in (*tables, lists.mask)]
        options = {**self._options(kind, call), "window_left": -1}  # the mask holds the window, too
        wrapper.plan(*moved[:4], *self._sizes(call), causal=False, custom_mask=moved[4], **options)
        return wrapper

    def _sizes(self, call: _Call) -> tuple[int, int, int, int]:
        return call.num_heads, self.layout.num_kv_heads, self.layout.head_dim, self.layout.page_size

    def _options(self, kind: LayerAttention, call: _Call) -> dict[str, Any]:
        return {
            "window_left": -1 if kind.window is None else kind.window - 1,
            "logits_soft_cap": kind.softcap,
            "sm_scale": call.scale,
            "q_data_type": call.dtype,
            "kv_data_type": self.layout.dtype,
        }

    def _decode_wrapper(self, kind: LayerAttention, size: int) -> Any:
        """One for each batch size that has a graph, and one for all others."""
        fixed = size if size in self._graph_sizes else 0
        key = (kind, "decode", fixed)
        if key not in self._wrappers:
            buffers: dict[str, Any] = {}
            if fixed:
                buffers = {
                    "use_cuda_graph": True,
                    "paged_kv_indptr_buffer": self._buffer(size + 1),
                    "paged_kv_indices_buffer": self._buffer(self._max_pages),
                    "paged_kv_last_page_len_buffer": self._buffer(size),
                }
            # Tensor cores pay with grouped heads, and are needed for keys in FP8.
            self._wrappers[key] = self._package.BatchDecodeWithPagedKVCacheWrapper(
                self._workspace(), "NHD", use_tensor_cores=True, backend="fa2", **buffers
            )
        return self._wrappers[key]

    def _prefill_wrapper(self, kind: LayerAttention, form: str) -> Any:
        """Other kernels than fa2 take neither masks nor FP8 keys beside wider queries."""
        key = (kind, form, 0)
        if key not in self._wrappers:
            is_plain = form == "causal" and self.layout.dtype != FP8
            self._wrappers[key] = self._package.BatchPrefillWithPagedKVCacheWrapper(
                self._workspace(), "NHD", backend="auto" if is_plain else "fa2"
            )
        return self._wrappers[key]

    def _buffer(self, length: int) -> torch.Tensor:
        return torch.zeros(length, dtype=torch.int32, device=self.layout.device)

    def _workspace(self) -> torch.Tensor:
        """Each wrapper's own: plans of several kinds live through one step."""
        return torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=self.layout.device)

    def write(self, layer: int, slots: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        """Put rows (S, KH, K) into their slots; FP8 keeps what it can hold."""
        for kept, rows in zip(self.memory[layer], (k, v), strict=True):
            flat = kept.view(-1, *kept.shape[2:])
            if self.layout.dtype == FP8:
                most = torch.finfo(FP8).max
                narrow = rows.float().clamp(-most, most).to(FP8)
                flat.view(torch.uint8).index_copy_(0, slots, narrow.view(torch.uint8))
            else:
                flat.index_copy_(0, slots, rows.to(flat.dtype))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FlashInferStep:
    """One planned step; see attention.protocol.PlannedAttention."""

    backend: FlashInferBackend
    slots: torch.Tensor
    lists: dict[LayerAttention, PageLists]
    planned: dict[LayerAttention, Any]

    def run(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
        backend = self.backend
        kind, call = backend.layout.by_layer[layer], _Call(num_heads=q.shape[1], scale=scale, dtype=q.dtype)
        if backend.calls.setdefault(kind, call) != call:
            raise ValueError(f"layers of kind {kind} are called as {backend.calls[kind]} and as {call}")
        if kind not in self.planned:
            self.planned[kind] = backend.plan_kind(kind, self.lists[kind], call)
        backend.write(layer, self.slots, k, v)
        out: torch.Tensor = self.planned[kind].run(q.contiguous(), tuple(backend.memory[layer]))
        return out
