"""What an attention backend is asked and what it declares. Owns the types at the seam; knows no kernels.

A backend keeps the keys and values of all sequences in pages, and pages are its own business: there is no paging layer
above it. A step goes `plan(metadata)` once, then `run(layer, q, k, v)` in each layer. A step of a graph is planned in
tensors that keep their addresses: `plan_static(tables)` once, then `refresh(metadata)` before each replay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import torch

Range = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a backend can do; the runner believes nothing else. static_cost: whether a graph's step costs what its
    sequences read, or what its page table could name, so that there must be a graph for each length of it."""

    name: str
    devices: tuple[str, ...]
    graphs: bool
    static_cost: Literal["read", "nameable"]
    mm_prefix: bool
    kv_dtypes: tuple[torch.dtype, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerAttention:
    """What one layer's queries see, and how scores are bounded.

    window: a query sees itself and the window - 1 rows before it; None: all of them. ranges: whether a query inside a
    bidirectional range sees the whole of it whatever the window, or only what is in the window. softcap: scores become
    softcap * tanh(score / softcap).
    """

    window: int | None = None
    ranges: Literal["whole", "in_window"] = "whole"
    softcap: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KVLayout:
    """The shape of the page pool: `num_pages` pages of `page_size` rows, in each of `num_layers` layers. layers: what
    each layer sees; empty: all see everything before them."""

    num_layers: int
    num_pages: int
    page_size: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device
    layers: tuple[LayerAttention, ...] = ()

    def __post_init__(self) -> None:
        if self.layers and len(self.layers) != self.num_layers:
            raise ValueError(f"{len(self.layers)} layers are described, and there are {self.num_layers}")

    @property
    def scratch_page(self) -> int:
        """The page behind the pool's, for rows that belong to no sequence."""
        return self.num_pages

    @property
    def by_layer(self) -> tuple[LayerAttention, ...]:
        """What each of the num_layers layers sees."""
        return self.layers or (LayerAttention(),) * self.num_layers

    @property
    def window(self) -> int | None:
        """Rows behind which no layer sees anything; None where some layer sees all."""
        windows = [layer.window for layer in self.by_layer]
        return None if None in windows else max(window for window in windows if window is not None)

    @property
    def page_bytes(self) -> int:
        """Bytes of one page over all layers, keys and values."""
        rows = 2 * self.num_layers * self.page_size
        return rows * self.num_kv_heads * self.head_dim * self.dtype.itemsize


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AttentionMetadata:
    """One step, in packed rows: B sequences, S rows in all.

    cu_seqlens: (B + 1,) int64, sequence b owns rows [cu_seqlens[b], cu_seqlens[b + 1]).
    seq_lens: (B,) int64, keys each sequence has once this step's are written; its rows are the last of them.
    page_table: (B, >= pages needed) int64, pages in order.
    mm_prefix_ranges: per sequence, half-open ranges of positions in which attention is bidirectional; a range is never
    split between steps.
    slots: (S,) int64 on the device, the step's slot_mapping; None where nobody has put it there yet.

    Worked example, page_size 4: sequence 0 decodes its 6th token, sequence 1 prefills its first 3 rows:
    cu_seqlens [0, 1, 4], seq_lens [6, 3], page_table [[7, 2], [5, 0]]; the new rows land in slots [9, 20, 21, 22]
    (page 2 * 4 + 1; page 5 * 4 + 0..2).
    """

    cu_seqlens: np.ndarray
    seq_lens: np.ndarray
    page_table: np.ndarray
    mm_prefix_ranges: tuple[tuple[Range, ...], ...] = ()
    slots: torch.Tensor | None = None

    def __post_init__(self) -> None:
        lengths = np.diff(self.cu_seqlens)
        if len(lengths) != len(self.seq_lens) or (lengths < 1).any() or (lengths > self.seq_lens).any():
            raise ValueError(f"row counts {lengths.tolist()} do not fit sequence lengths {self.seq_lens.tolist()}")


def slot_mapping(metadata: AttentionMetadata, page_size: int) -> np.ndarray:
    """(S,) int64: where each row's key and value are written. See AttentionMetadata's worked example."""
    lengths = np.diff(metadata.cu_seqlens)
    sequence = np.repeat(np.arange(len(lengths)), lengths)
    within = np.arange(metadata.cu_seqlens[-1]) - metadata.cu_seqlens[sequence]
    position = metadata.seq_lens[sequence] - lengths[sequence] + within
    pages = metadata.page_table[sequence, position // page_size]
    slots: np.ndarray = pages * page_size + position % page_size
    return slots


def slots_on(device: torch.device, metadata: AttentionMetadata, page_size: int) -> torch.Tensor:
    """The step's slot_mapping on the device."""
    if metadata.slots is not None:
        return metadata.slots
    return torch.from_numpy(slot_mapping(metadata, page_size)).to(device)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StaticTables:
    """A step of B sequences with rows_per_seq rows each, as a graph reads it: tensors on the device, whose contents
    change from replay to replay and whose addresses and shapes do not.

    slots: (B * rows_per_seq,) int64, where keys and values are written. seq_lens: (B,) int64, with this step's rows.
    page_table: (B, pages) int64; columns behind a sequence's last page, and before the first it still has, name a page
    of its own again, so that whatever they are read as is finite. A sequence that only fills the batch up has
    `scratch_page` in all columns and rows_per_seq keys, and writes there.
    """

    rows_per_seq: int
    slots: torch.Tensor
    seq_lens: torch.Tensor
    page_table: torch.Tensor


class PlannedAttention(Protocol):
    """One step's attention, ready to run in each layer."""

    def run(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
        """Write the new keys and values, then attend over pages.

        q: (S, H, K); k, v: (S, KH, K), already rotated. Returns (S, H, K).
        """
        ...


class StaticAttention(Protocol):
    """The attention of a graph's steps."""

    def refresh(self, metadata: AttentionMetadata) -> None:
        """Before each replay and before the capture, outside the graph: what this step needs beside the tables'
        contents. metadata: of the whole batch, sequences that only fill it up included."""
        ...

    def begin(self) -> PlannedAttention:
        """Inside the graph, before its first layer: what all layers share is computed here, from the tables."""
        ...


class AttentionBackend(Protocol):
    """Owns the page memory of all layers, with one page more than the layout's: `scratch_page`, which no sequence
    owns."""

    @property
    def capabilities(self) -> Capabilities: ...

    @property
    def layout(self) -> KVLayout: ...

    def plan(self, metadata: AttentionMetadata) -> PlannedAttention:
        """Prepare one step. Raises ValueError for metadata that needs what the capabilities do not declare."""
        ...

    def plan_static(self, tables: StaticTables) -> StaticAttention:
        """Prepare steps of one shape for a graph. For backends that declare graphs."""
        ...

    def clear(self, pages: Sequence[int], value: float = 0.0) -> None:
        """Fill pages, in all layers. A graph reads the tails of pages, and hides what it has read."""
        ...
