"""Steps in which every sequence has one new row, as one compiled call a layer. Owns calling what an installation
compiled of attention/native, where it had a C compiler; owns no pages, and knows neither masks nor soft caps.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np
import torch

from attention.compiled import load_library
from attention.masks import first_visible
from attention.protocol import AttentionMetadata, KVLayout, LayerAttention, slots_on


class _Step(ctypes.Structure):
    """`step` of attention/native/lone.c."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("pages", "slots", "starts", "stops")),
        *((name, ctypes.c_int64) for name in ("rows", "columns", "page_size", "kv_heads", "group", "size")),
    )


class _Layer(ctypes.Structure):
    """`layer` of attention/native/lone.c."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("q", "k", "v", "keys", "values", "out")),
        *((name, ctypes.c_int64) for name in ("q_stride", "k_stride", "v_stride")),
        ("scale", ctypes.c_float),
    )


class LoneRows:
    """Plans steps over one backend's memory, (layers, 2, rows, KH, K) bfloat16."""

    def __init__(self, library: ctypes.CDLL, memory: torch.Tensor, layout: KVLayout) -> None:
        self.library, self.memory, self.layout = library, memory, layout
        self._by_layer = layout.by_layer

    def take(self, metadata: AttentionMetadata) -> bool:
        """Whether each sequence has one row. Ranges do not matter to it: none is ever split."""
        return len(metadata.seq_lens) == int(metadata.cu_seqlens[-1])

    def plan(self, metadata: AttentionMetadata) -> LoneStep:
        pages = np.ascontiguousarray(metadata.page_table, dtype=np.int64)
        stops = np.ascontiguousarray(metadata.seq_lens, dtype=np.int64)
        starts = {kind: first_rows(stops, kind) for kind in dict.fromkeys(self._by_layer)}
        slots = slots_on(self.layout.device, metadata, self.layout.page_size).contiguous()
        return LoneStep(
            lone=self, pages=pages, stops=stops, slots=slots, starts=tuple(starts[kind] for kind in self._by_layer)
        )


def first_rows(stops: np.ndarray, layer: LayerAttention) -> np.ndarray:
    """(B,) int64: the first key that the last row of each of so many sees.

    Worked example: window 4, sequences of 11 and 2 rows: 7, 0.
    """
    return np.array([first_visible(stop - 1, layer) for stop in stops.tolist()], dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LoneStep:
    """One planned step; see attention.protocol.PlannedAttention. A row's result depends neither on other rows nor on
    the number of threads."""

    lone: LoneRows
    pages: np.ndarray
    stops: np.ndarray
    slots: torch.Tensor
    starts: tuple[np.ndarray, ...]

    def run(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
        memory, layout = self.lone.memory, self.lone.layout
        q, k, v = (_dense_rows(x, memory.dtype) for x in (q, k, v))
        out = torch.empty(q.shape, dtype=q.dtype)
        step = _Step(
            self.pages.ctypes.data, self.slots.data_ptr(), self.starts[layer].ctypes.data, self.stops.ctypes.data,
            len(q), self.pages.shape[1], layout.page_size, layout.num_kv_heads, q.shape[1] // layout.num_kv_heads,
            layout.head_dim,
        )  # fmt: skip
        half = memory.stride(1) * memory.itemsize
        keys = memory.data_ptr() + 2 * layer * half
        call = _Layer(
            q.data_ptr(), k.data_ptr(), v.data_ptr(), keys, keys + half, out.data_ptr(), q.stride(0), k.stride(0),
            v.stride(0), scale,
        )  # fmt: skip
        self.lone.library.evs_attend(ctypes.byref(step), ctypes.byref(call), torch.get_num_threads())
        return out


def _dense_rows(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """(S, heads, K) whose rows have no gaps inside; there may be some between them."""
    x = x.to(dtype)
    return x if x.stride()[1:] == (x.shape[2], 1) else x.contiguous()


def lone_rows(memory: torch.Tensor, layout: KVLayout) -> LoneRows | None:
    """None where nothing was compiled, or this CPU or these layers need something else."""
    library = load_library()
    is_plain = all(layer.softcap is None for layer in layout.by_layer)
    if library is None or layout.device.type != "cpu" or layout.dtype != torch.bfloat16 or not is_plain:
        return None
    can = library.evs_can_attend(layout.head_dim, layout.page_size)
    return LoneRows(library, memory, layout) if can else None
