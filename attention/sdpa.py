"""The `sdpa` backend: paged attention in plain torch, on any device. Owns its page memory; knows no models.

The reference of every other backend. Contexts are read in place where they lie in consecutive pages; what lies
scattered is copied together. Steps of one row a sequence go through attention/lone.py where it serves them.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F

from attention.lone import lone_rows
from attention.many import attend_pages
from attention.masks import first_visible, prefix_mask
from attention.protocol import (
    AttentionMetadata,
    Capabilities,
    KVLayout,
    LayerAttention,
    PlannedAttention,
    Range,
    StaticTables,
    slots_on,
)
from attention.sdpa_static import SdpaStatic

CAPABILITIES = Capabilities(
    name="sdpa",
    devices=("cpu", "cuda"),
    graphs=True,
    static_cost="nameable",
    mm_prefix=True,
    kv_dtypes=(torch.float32, torch.bfloat16, torch.float16),
)


# A stretch of context shorter than this is copied together with the other short ones; a longer one is read in place.
SHORT_RUN_ROWS = 128
Part = slice | torch.Tensor
Pair = tuple[torch.Tensor, torch.Tensor]  # keys and values, (rows, KH, K) each


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Segment:
    """One sequence's share of a step: its packed rows, and where its context lies in the page memory.

    past: the rows that no query of the step comes before, in parts; a lone query's own row is among them.
    whole: the rows that any query sees, in order, for a chunk that needs a mask, and for a layer with a soft cap.
    pages: of page_size rows, that hold all its `num_keys` rows.
    """

    rows: slice
    past: tuple[Part, ...]
    whole: Part | None
    mask: torch.Tensor | None  # (num_queries, num_keys), with `whole`
    pages: np.ndarray
    page_size: int
    num_keys: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Kind:
    """Layers that see the same rows."""

    softcap: float | None
    segments: tuple[_Segment, ...]


class SdpaBackend:
    """Keys and values of layer l lie in two ((num_pages + 1) * page_size, KH, K) tensors."""

    def __init__(self, layout: KVLayout) -> None:
        if layout.dtype not in CAPABILITIES.kv_dtypes:
            raise ValueError(f"sdpa keeps keys in {CAPABILITIES.kv_dtypes}, not {layout.dtype}")
        self.layout = layout
        self._by_layer = layout.by_layer
        self.capabilities = CAPABILITIES
        rows = (layout.num_pages + 1) * layout.page_size
        shape = (layout.num_layers, 2, rows, layout.num_kv_heads, layout.head_dim)
        self.memory = _zeros(shape, layout)
        self._lone = lone_rows(self.memory, layout)

    def plan(self, metadata: AttentionMetadata) -> PlannedAttention:
        if self._lone is not None and self._lone.take(metadata):
            return self._lone.plan(metadata)
        slots = slots_on(self.layout.device, metadata, self.layout.page_size)
        ranges = metadata.mm_prefix_ranges or ((),) * len(metadata.seq_lens)
        of_kind = {
            kind: _Kind(
                softcap=kind.softcap,
                segments=tuple(self._segment(metadata, index, found, kind) for index, found in enumerate(ranges)),
            )
            for kind in dict.fromkeys(self._by_layer)
        }
        return SdpaStep(memory=self.memory, slots=slots, by_layer=tuple(of_kind[kind] for kind in self._by_layer))

    def plan_static(self, tables: StaticTables) -> SdpaStatic:
        return SdpaStatic(self.memory, self.layout, tables)

    def clear(self, pages: Sequence[int], value: float = 0.0) -> None:
        paged = self.memory.view(*self.memory.shape[:2], -1, self.layout.page_size, *self.memory.shape[3:])
        for page in pages:
            paged[:, :, page] = value

    def _segment(
        self, metadata: AttentionMetadata, index: int, ranges: tuple[Range, ...], layer: LayerAttention
    ) -> _Segment:
        start, stop = int(metadata.cu_seqlens[index]), int(metadata.cu_seqlens[index + 1])
        num_queries, num_keys = stop - start, int(metadata.seq_lens[index])
        pages, rows = metadata.page_table[index], slice(start, stop)
        make = partial(_Segment, rows=rows, pages=pages, page_size=self.layout.page_size, num_keys=num_keys)
        # Torch has a kernel that also returns the sums of exponentials, by which parts are put together, on CPUs only.
        can_split = self.layout.device.type == "cpu"
        first = first_visible(num_keys - num_queries, layer)
        is_cut = layer.window is not None and layer.window < num_keys
        if num_queries > 1 and (ranges or is_cut or layer.softcap or not (can_split or num_queries == num_keys)):
            mask = prefix_mask(num_keys - num_queries, num_queries, num_keys, ranges, layer, key_start=first)
            whole = self._in_order(pages, num_keys, first=first)
            return make(past=(), whole=whole, mask=mask.to(self.layout.device))
        if first or layer.softcap:  # a lone query, which sees all that it is shown
            whole = self._in_order(pages, num_keys, first=first)
            return make(past=() if layer.softcap else (whole,), whole=whole, mask=None)
        num_past = num_keys if num_queries == 1 else num_keys - num_queries
        past: tuple[Part, ...] = ()
        if num_past:
            past = self._in_parts(pages, num_past) if can_split else (self._in_order(pages, num_past),)
        return make(past=past, whole=None, mask=None)

    def _in_order(self, pages: np.ndarray, num_rows: int, *, first: int = 0) -> Part:
        """Rows [first, num_rows) of a sequence. Pages before theirs are not looked at: they may be others' by now."""
        size = self.layout.page_size
        skipped = first // size
        pages, first, num_rows = pages[skipped : -(-num_rows // size)], first % size, num_rows - skipped * size
        if len(pages) and (np.diff(pages) == 1).all():
            return slice(int(pages[0]) * size + first, int(pages[0]) * size + num_rows)
        return self._listed(pages, num_rows)[first:]

    def _in_parts(self, pages: np.ndarray, num_rows: int) -> tuple[Part, ...]:
        """Long runs of consecutive pages, each in place, and all that lies in short ones together, in any order."""
        size = self.layout.page_size
        pages = pages[: -(-num_rows // size)]
        starts = np.flatnonzero(np.diff(pages, prepend=-2) != 1)
        parts, short = list[Part](), list[np.ndarray]()
        for run in np.split(np.arange(len(pages)), starts[1:]):
            first, count = int(pages[run[0]]) * size, min(len(run) * size, num_rows - int(run[0]) * size)
            if count >= SHORT_RUN_ROWS or len(starts) == 1:
                parts.append(slice(first, first + count))
            else:
                short.append(np.arange(first, first + count))
        if short:
            parts.append(torch.from_numpy(np.concatenate(short)))
        return tuple(parts)

    def _listed(self, pages: np.ndarray, num_rows: int) -> torch.Tensor:
        size = self.layout.page_size
        rows = (pages[:, None] * size + np.arange(size)).reshape(-1)[:num_rows]
        return torch.from_numpy(rows).to(self.layout.device)


def _zeros(shape: tuple[int, ...], layout: KVLayout) -> torch.Tensor:
    """On a CPU, memory that the system gives, zeroed, as small pages are first written: torch's own zeros are all
    written, and what an allocator hands out may come in huge pages."""
    if layout.device.type != "cpu":
        return torch.zeros(shape, dtype=layout.dtype, device=layout.device)
    untouched = mmap.mmap(-1, math.prod(shape) * layout.dtype.itemsize)
    return torch.frombuffer(untouched, dtype=layout.dtype).view(shape)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SdpaStep:
    """One planned step; see attention.protocol.PlannedAttention."""

    memory: torch.Tensor
    slots: torch.Tensor
    by_layer: tuple[_Kind, ...]

    def run(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
        keys, values = self.memory[layer]
        k, v = k.to(keys.dtype), v.to(values.dtype)
        keys.index_copy_(0, self.slots, k)
        values.index_copy_(0, self.slots, v)
        kind = self.by_layer[layer]
        if kind.softcap is None:
            parts = [_attend(s, q[s.rows], (k[s.rows], v[s.rows]), (keys, values), scale) for s in kind.segments]
        else:
            parts = [_softcapped(s, q[s.rows], (keys, values), scale, kind.softcap) for s in kind.segments]
        return parts[0] if len(parts) == 1 else torch.cat(parts)


def _attend(segment: _Segment, q: torch.Tensor, own: Pair, memory: Pair, scale: float) -> torch.Tensor:
    """q: (n, H, K); own: its rows' keys and values (n, KH, K); memory: those of all pages."""
    past = [(memory[0][part], memory[1][part]) for part in segment.past]
    if len(q) == 1:
        folded = q.view(1, own[0].shape[1], -1, q.shape[-1])  # (1, KH, G, K): a group's query heads as its queries
        return _combine([(folded, pair, False) for pair in past], scale).reshape(q.shape)
    if segment.whole is not None:
        return _masked(q, memory[0][segment.whole], memory[1][segment.whole], scale, segment.mask)
    pages, length = segment.pages, segment.num_keys
    found = attend_pages(q, *memory, scale, pages=pages, page_size=segment.page_size, length=length)
    if found is not None:
        return found
    headed = _headed(q)
    return _combine([*((headed, pair, False) for pair in past), (headed, own, True)], scale)[0].transpose(0, 1)


def _combine(reads: list[tuple[torch.Tensor, Pair, bool]], scale: float) -> torch.Tensor:
    """Attention of the same queries (1, H, n, K) over all pairs of keys and values (each wholly, or causally), weighed
    by the sums of their exponentials. No mask is read, and what a mask would hide is not computed."""
    if len(reads) == 1:
        q, (keys, values), causal = reads[0]
        grouped = q.shape[1] != keys.shape[1]
        return F.scaled_dot_product_attention(
            q, _headed(keys), _headed(values), is_causal=causal, scale=scale, enable_gqa=grouped
        )
    found = [_flash(q, _headed(keys), _headed(values), 0.0, causal, scale=scale) for q, (keys, values), causal in reads]
    shares = torch.stack([lse for _, lse in found]).softmax(0)[..., None]  # (parts, 1, H, n, 1) float32
    out: torch.Tensor = found[0][0] * shares[0]
    for (part, _), share in zip(found[1:], shares[1:], strict=True):
        out = out.addcmul_(part.float(), share)
    return out.to(reads[0][0].dtype)


def _masked(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float, mask: torch.Tensor | None
) -> torch.Tensor:
    out = F.scaled_dot_product_attention(
        _headed(q), _headed(keys), _headed(values), attn_mask=mask, scale=scale, enable_gqa=q.shape[1] != keys.shape[1]
    )
    return out[0].transpose(0, 1)


def _softcapped(segment: _Segment, q: torch.Tensor, memory: Pair, scale: float, cap: float) -> torch.Tensor:
    """Scores bounded by a tanh, which no kernel of torch's does: all of them in memory at once."""
    assert segment.whole is not None
    keys, values, mask = memory[0][segment.whole], memory[1][segment.whole], segment.mask
    grouped = _headed(q).view(keys.shape[1], -1, len(q), q.shape[-1])  # (KH, G, n, K)
    scores = torch.tanh(grouped @ keys.permute(1, 2, 0)[:, None] * (scale / cap)).float() * cap  # (KH, G, n, keys)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    out = scores.softmax(-1).to(values.dtype) @ values.transpose(0, 1)[:, None]
    return out.flatten(0, 1).transpose(0, 1)


def _headed(x: torch.Tensor) -> torch.Tensor:
    """(n, H, K) -> (1, H, n, K)."""
    return x.transpose(0, 1)[None]


_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
