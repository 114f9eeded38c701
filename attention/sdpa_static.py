"""Steps of one shape for the `sdpa` backend: every sequence's pages are gathered as far as its page table goes, and
what it must not see is masked by its length. Reads the tables it was given and the page memory alone, so that a graph
of it can be replayed; knows no models and plans nothing on the host.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from attention.protocol import AttentionMetadata, KVLayout, LayerAttention, StaticTables


def visible_rows(seq_lens: torch.Tensor, rows_per_seq: int, reach: int, layer: LayerAttention) -> torch.Tensor:
    """(B, rows_per_seq, reach) bool: which of the first `reach` rows of its sequence each of the last rows_per_seq rows
    sees: those up to itself, and in the window.

    Worked example, a sequence of 4 rows, 2 of them in this step, reach 6: [1 1 1 0 0 0], [1 1 1 1 0 0]; with a window
    of 2: [0 1 1 0 0 0], [0 0 1 1 0 0].
    """
    key = torch.arange(reach, device=seq_lens.device)
    query = seq_lens[:, None, None] - rows_per_seq + torch.arange(rows_per_seq, device=seq_lens.device)[:, None]
    seen = key <= query
    return seen if layer.window is None else seen & (key > query - layer.window)


class SdpaStatic:
    """See attention.protocol.StaticAttention. memory: (layers, 2, rows, KH, K)."""

    def __init__(self, memory: torch.Tensor, layout: KVLayout, tables: StaticTables) -> None:
        self._memory, self._layout, self._tables = memory, layout, tables

    def refresh(self, metadata: AttentionMetadata) -> None:
        """Nothing: all that changes is in the tables."""

    def begin(self) -> SdpaStaticStep:
        tables, size = self._tables, self._layout.page_size
        places = torch.arange(size, device=tables.page_table.device)
        rows = (tables.page_table[:, :, None] * size + places).flatten(1)  # (B, reach)
        seen = {
            kind: visible_rows(tables.seq_lens, tables.rows_per_seq, rows.shape[1], kind)
            for kind in dict.fromkeys(self._layout.by_layer)
        }
        return SdpaStaticStep(
            memory=self._memory, slots=tables.slots, rows=rows, seen=seen, by_layer=self._layout.by_layer
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SdpaStaticStep:
    """rows: (B, reach) of the page memory; seen: (B, rows_per_seq, reach) bool for each kind of layer. See
    attention.protocol.PlannedAttention."""

    memory: torch.Tensor
    slots: torch.Tensor
    rows: torch.Tensor
    seen: dict[LayerAttention, torch.Tensor]
    by_layer: tuple[LayerAttention, ...]

    def run(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
        kept, kind = self.memory[layer], self.by_layer[layer]
        for memory, new in zip(kept, (k, v), strict=True):
            memory.index_copy_(0, self.slots, new.to(memory.dtype))
        count, reach = self.rows.shape
        keys, values = (memory.index_select(0, self.rows.view(-1)).view(count, reach, *k.shape[1:]) for memory in kept)
        return _attend(q, keys, values, self.seen[kind], scale=scale, softcap=kind.softcap)


def _attend(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    seen: torch.Tensor,
    *,
    scale: float,
    softcap: float | None,
) -> torch.Tensor:
    """q: (B * n, H, K); keys, values: (B, reach, KH, K); seen: (B, n, reach). A group's query heads go as its queries,
    so that no key is repeated."""
    batch, rows, heads = len(seen), seen.shape[1], keys.shape[2]
    groups = q.shape[1] // heads
    folded = q.view(batch, rows, heads, groups, -1).permute(0, 2, 3, 1, 4).flatten(2, 3)  # (B, KH, G * n, K)
    mask = seen[:, None].repeat(1, 1, groups, 1) if rows > 1 else seen[:, None]  # (B, 1, G * n or 1, reach)
    keys, values = keys.transpose(1, 2), values.transpose(1, 2)  # (B, KH, reach, K)
    if softcap is None:
        out = F.scaled_dot_product_attention(folded, keys, values, attn_mask=mask, scale=scale)
    else:
        scores = torch.tanh(folded @ keys.transpose(2, 3) * (scale / softcap)).float() * softcap
        out = scores.masked_fill(~mask, -torch.inf).softmax(-1).to(values.dtype) @ values
    return out.view(batch, heads, groups, rows, -1).permute(0, 3, 1, 2, 4).reshape(q.shape)
