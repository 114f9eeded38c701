"""The `sdpa` backend: paged attention in plain torch, on any device. Owns its page memory; knows no models.

The reference of every other backend. Contexts that lie in consecutive pages are read in place; others are gathered.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from attention.masks import prefix_mask
from attention.protocol import AttentionMetadata, Capabilities, KVLayout, Range, slot_mapping

CAPABILITIES = Capabilities(
    name="sdpa",
    devices=("cpu", "cuda"),
    graphs=False,
    mm_prefix=True,
    kv_dtypes=(torch.float32, torch.bfloat16, torch.float16),
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Segment:
    """One sequence's share of a step: its packed rows, and where its context lies in the page memory."""

    rows: slice
    context: slice | torch.Tensor
    num_queries: int
    mask: torch.Tensor | None  # (num_queries, num_keys); None: causal


class SdpaBackend:
    """Keys and values of layer l lie in two (num_pages * page_size, KH, K) tensors."""

    def __init__(self, layout: KVLayout) -> None:
        if layout.dtype not in CAPABILITIES.kv_dtypes:
            raise ValueError(f"sdpa keeps keys in {CAPABILITIES.kv_dtypes}, not {layout.dtype}")
        self.layout = layout
        self.capabilities = CAPABILITIES
        rows = layout.num_pages * layout.page_size
        shape = (layout.num_layers, 2, rows, layout.num_kv_heads, layout.head_dim)
        self.memory = _zeros(shape, layout)

    def plan(self, metadata: AttentionMetadata) -> SdpaStep:
        slots = torch.from_numpy(slot_mapping(metadata, self.layout.page_size)).to(self.layout.device)
        ranges = metadata.mm_prefix_ranges or ((),) * len(metadata.seq_lens)
        segments = tuple(self._segment(metadata, index, ranges[index]) for index in range(len(metadata.seq_lens)))
        return SdpaStep(memory=self.memory, slots=slots, segments=segments)

    def _segment(self, metadata: AttentionMetadata, index: int, ranges: tuple[Range, ...]) -> _Segment:
        start, stop = int(metadata.cu_seqlens[index]), int(metadata.cu_seqlens[index + 1])
        num_queries, num_keys = stop - start, int(metadata.seq_lens[index])
        mask = None
        # A later chunk needs a mask where torch has no kernel that also returns the sums: everywhere but on CPUs.
        whole_or_split = num_queries == num_keys or self.layout.device.type == "cpu"
        if num_queries > 1 and (ranges or not whole_or_split):
            mask = prefix_mask(num_keys - num_queries, num_queries, num_keys, ranges).to(self.layout.device)
        return _Segment(
            rows=slice(start, stop),
            context=self._context(metadata.page_table[index], num_keys),
            num_queries=num_queries,
            mask=mask,
        )

    def _context(self, pages: np.ndarray, num_keys: int) -> slice | torch.Tensor:
        size = self.layout.page_size
        pages = pages[: -(-num_keys // size)]
        first = int(pages[0]) * size
        if (np.diff(pages) == 1).all():
            return slice(first, first + num_keys)
        rows = (pages[:, None] * size + np.arange(size)).reshape(-1)[:num_keys]
        return torch.from_numpy(rows).to(self.layout.device)


def _zeros(shape: tuple[int, ...], layout: KVLayout) -> torch.Tensor:
    """On a CPU, memory that the system gives, zeroed, as pages are first written: torch's own zeros are all written."""
    if layout.device.type != "cpu":
        return torch.zeros(shape, dtype=layout.dtype, device=layout.device)
    untouched = np.zeros(math.prod(shape) * layout.dtype.itemsize, dtype=np.uint8)
    return torch.from_numpy(untouched).view(layout.dtype).view(shape)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SdpaStep:
    """One planned step; see attention.protocol.PlannedAttention."""

    memory: torch.Tensor
    slots: torch.Tensor
    segments: tuple[_Segment, ...]

    def run(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
        keys, values = self.memory[layer]
        keys.index_copy_(0, self.slots, k.to(keys.dtype))
        values.index_copy_(0, self.slots, v.to(values.dtype))
        parts = [_attend(s, q[s.rows], keys[s.context], values[s.context], scale) for s in self.segments]
        return parts[0] if len(parts) == 1 else torch.cat(parts)


def _attend(segment: _Segment, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float) -> torch.Tensor:
    """q: (n, H, K); keys, values: (num_keys, KH, K)."""
    past = len(keys) - segment.num_queries
    if segment.num_queries == 1:
        return _attend_one(q, keys, values, scale)
    if segment.mask is not None:
        return _attend_many(q, keys, values, scale, mask=segment.mask)
    if past == 0:
        return _attend_many(q, keys, values, scale, causal=True)
    return _attend_in_two(q, keys, values, scale, past=past)


def _attend_one(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float) -> torch.Tensor:
    """One query over its whole context, the query heads of a KV group folded into rows. q: (1, H, K)."""
    folded = q.view(1, keys.shape[1], -1, q.shape[-1])  # (1, KH, G, K)
    out = F.scaled_dot_product_attention(folded, _headed(keys), _headed(values), scale=scale)
    return out.reshape(q.shape)


def _attend_many(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    scale: float,
    *,
    mask: torch.Tensor | None = None,
    causal: bool = False,
) -> torch.Tensor:
    """A chunk of queries over their context."""
    out = F.scaled_dot_product_attention(
        _headed(q),
        _headed(keys),
        _headed(values),
        attn_mask=mask,
        is_causal=causal,
        scale=scale,
        enable_gqa=q.shape[1] != keys.shape[1],
    )
    return out[0].transpose(0, 1)


def _attend_in_two(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float, *, past: int
) -> torch.Tensor:
    """A later chunk: all of what came before it, then itself causally, weighed by the sums of their exponentials. No
    mask is read, and what a mask would hide is not computed."""
    before, before_lse = _flash(q, keys[:past], values[:past], scale, causal=False)
    own, own_lse = _flash(q, keys[past:], values[past:], scale, causal=True)
    share = torch.sigmoid(own_lse - before_lse)[..., None]  # (n, H, 1) float32
    return torch.lerp(before.float(), own.float(), share).to(q.dtype)


def _flash(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float, *, causal: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """(n, H, K), and (n, H) float32: each query's log of the sum of its exponentials."""
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        _headed(q), _headed(keys), _headed(values), 0.0, causal, scale=scale
    )
    return out[0].transpose(0, 1), lse[0].transpose(0, 1)


def _headed(x: torch.Tensor) -> torch.Tensor:
    """(n, H, K) -> (1, H, n, K)."""
    return x.transpose(0, 1)[None]
