"""The `flashinfer` backend: paged attention in FlashInfer's kernels, on CUDA. Owns its page memory, the kernels'
workspaces and fixed buffers; knows no models.

The package is imported when a backend is made. Kernels are planned once a step for each kind of layer: decodes by the
decode wrapper, any other step as a whole by the prefill wrapper, with ranges as a mask of their own.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from attention.flashinfer_static import FlashInferStatic
from attention.page_lists import PageLists, page_lists
from attention.protocol import AttentionMetadata, Capabilities, KVLayout, LayerAttention, StaticTables, slots_on

FP8 = torch.float8_e4m3fn
CAPABILITIES = Capabilities(
    name="flashinfer",
    devices=("cuda",),
    graphs=True,
    static_cost="read",
    mm_prefix=True,
    kv_dtypes=(torch.bfloat16, torch.float16, FP8),
)
HEAD_DIMS = (64, 128, 256)
WORKSPACE_BYTES = 128 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """What a kernel must know of its layers beside the step."""

    num_heads: int
    scale: float
    dtype: torch.dtype


class FlashInferBackend:
    """Keys and values of layer l lie in two (num_pages + 1, page_size, KH, K) tensors."""

    def __init__(self, layout: KVLayout) -> None:
        if layout.dtype not in CAPABILITIES.kv_dtypes or layout.head_dim not in HEAD_DIMS:
            raise ValueError(
                f"flashinfer keeps keys in {CAPABILITIES.kv_dtypes} with {HEAD_DIMS} numbers a head, not "
                f"{layout.dtype} with {layout.head_dim}"
            )
        self.layout, self.capabilities = layout, CAPABILITIES
        self._package: Any = importlib.import_module("flashinfer")
        shape = (layout.num_layers, 2, layout.num_pages + 1, layout.page_size, layout.num_kv_heads, layout.head_dim)
        self.memory = torch.zeros(shape, dtype=torch.uint8, device=layout.device).to(layout.dtype)
        self._workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=layout.device)
        self._wrappers: dict[tuple[LayerAttention, str], Any] = {}
        self.calls: dict[LayerAttention, Call] = {}

    def plan(self, metadata: AttentionMetadata) -> FlashInferStep:
        """Plan all kinds of layers whose calls are known: all of them, from the second step on."""
        layout = self.layout
        slots = slots_on(layout.device, metadata, layout.page_size)
        kinds = dict.fromkeys(layout.by_layer)
        lists = {kind: page_lists(metadata, layout.page_size, kind) for kind in kinds}
        step = FlashInferStep(backend=self, slots=slots, lists=lists, planned={})
        for kind, call in self.calls.items():
            step.planned[kind] = self.plan_kind(kind, lists[kind], call)
        return step

    def plan_kind(self, kind: LayerAttention, lists: PageLists, call: Call) -> Any:
        """The wrapper that runs this step's layers of a kind."""
        is_decode = int(lists.rows_indptr[-1]) == len(lists.last_page_len) and lists.mask is None
        if is_decode:
            wrapper = self._wrapper(kind, "decode")
            self.plan_wrapper(wrapper, (lists.pages_indptr, lists.pages, lists.last_page_len), kind, call)
            return wrapper
        wrapper = self._wrapper(kind, "masked" if lists.mask is not None else "causal")
        tables = (lists.rows_indptr, lists.pages_indptr, lists.pages, lists.last_page_len)
        if lists.mask is None:
            self.plan_wrapper(wrapper, tables, kind, call, causal=True)
            return wrapper
        # Given packed, a mask's offsets would be counted in bits and read as bytes: the package packs it itself.
        moved = [x.to(self.layout.device) for x in (*tables, lists.mask)]
        window_left = -1  # the mask holds the window, too
        self.plan_wrapper(wrapper, moved[:4], kind, call, causal=False, custom_mask=moved[4], window_left=window_left)
        return wrapper

    def plan_wrapper(
        self, wrapper: Any, tables: Sequence[torch.Tensor], kind: LayerAttention, call: Call, **options: Any
    ) -> None:
        layout = self.layout
        named = {
            "window_left": -1 if kind.window is None else kind.window - 1,
            "logits_soft_cap": kind.softcap,
            "sm_scale": call.scale,
            "q_data_type": call.dtype,
            "kv_data_type": layout.dtype,
            **options,
        }
        wrapper.plan(*tables, call.num_heads, layout.num_kv_heads, layout.head_dim, layout.page_size, **named)

    def make_decode_wrapper(self, **buffers: Any) -> Any:
        """Tensor cores pay with grouped heads, and are needed for keys in FP8."""
        return self._package.BatchDecodeWithPagedKVCacheWrapper(
            self._workspace, "NHD", use_tensor_cores=True, backend="fa2", **buffers
        )

    def make_prefill_wrapper(self, backend: str, **buffers: Any) -> Any:
        return self._package.BatchPrefillWithPagedKVCacheWrapper(self._workspace, "NHD", backend=backend, **buffers)

    def _wrapper(self, kind: LayerAttention, form: str) -> Any:
        """One for each kind of layer and form of step. All share a workspace: what a plan holds lies in the wrappers,
        and what a kernel leaves in the workspace nobody reads after it."""
        key = (kind, form)
        if key not in self._wrappers:
            # Other kernels than fa2 take neither masks nor FP8 keys beside wider queries.
            is_plain = form == "causal" and self.layout.dtype != FP8
            self._wrappers[key] = (
                self.make_decode_wrapper()
                if form == "decode"
                else self.make_prefill_wrapper("auto" if is_plain else "fa2")
            )
        return self._wrappers[key]

    def plan_static(self, tables: StaticTables) -> FlashInferStatic:
        return FlashInferStatic(self, tables)

    def clear(self, pages: Sequence[int], value: float = 0.0) -> None:
        for page in pages:
            if self.layout.dtype == FP8:
                self.memory.view(torch.uint8)[:, :, page] = int(torch.tensor(value).to(FP8).view(torch.uint8))
            else:
                self.memory[:, :, page] = value

    def note_call(self, layer: int, q: torch.Tensor, scale: float) -> tuple[LayerAttention, Call]:
        """How a layer's kind is called; all of a kind must be called alike."""
        kind, call = self.layout.by_layer[layer], Call(num_heads=q.shape[1], scale=scale, dtype=q.dtype)
        if self.calls.setdefault(kind, call) != call:
            raise ValueError(f"layers of kind {kind} are called as {self.calls[kind]} and as {call}")
        return kind, call

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
        kind, call = backend.note_call(layer, q, scale)
        if kind not in self.planned:
            self.planned[kind] = backend.plan_kind(kind, self.lists[kind], call)
        backend.write(layer, self.slots, k, v)
        out: torch.Tensor = self.planned[kind].run(q.contiguous(), tuple(backend.memory[layer]))
        return out
