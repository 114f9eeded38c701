"""Linear layers whose weights lie in memory as the CPU's matrix kernels read them. Owns the private operators behind
that, finding out whether they pay here, and the swap; knows no model.

One copy of a weight is kept: the original is dropped, except where an embedding table shares it. Of what follows a
product, a function of it alone is computed with it; a second operand makes the kernel up to twice as slow (see
bench/README.md).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import torch
from torch import nn

# Kernels arrange a weight for a number of rows; what is arranged for many is no slower for few, and not the reverse.
PACKED_FOR_ROWS = 1024
# The probe: rows of a product and how often it runs, for decode, small batches and prefill; about as long each.
PROBES = ((1, 16), (16, 8), (512, 1))
PROBE_SIZE = (4864, 896)
PROBE_ROUNDS = 8


class PackedLinear(nn.Module):
    """Stands in for an nn.Linear; has no `weight`."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.bias = linear.bias
        self.packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.data, PACKED_FOR_ROWS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._run(x, "none")

    def silu(self, x: torch.Tensor) -> torch.Tensor:
        """F.silu of the product, rounded once."""
        return self._run(x, "swish")

    def _run(self, x: torch.Tensor, then: str) -> torch.Tensor:
        out: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, then, [], "")
        return out


def pack_linears(model: nn.Module) -> int:
    """Swap the linear layers in `model` that are bfloat16 on a CPU, one after the other, where that pays; returns how
    many were swapped."""
    found = [
        (parent, name)
        for parent in model.modules()
        for name, child in parent.named_children()
        if isinstance(child, nn.Linear) and child.weight.dtype == torch.bfloat16 and child.weight.device.type == "cpu"
    ]
    if not found or not packing_pays():
        return 0
    _swap(found)
    for parameter in model.parameters():  # what is left must not keep the checkpoint's file mapped
        parameter.data = parameter.data.clone()
    return len(found)


def _swap(found: Sequence[tuple[nn.Module, str]]) -> None:
    """Each thread takes layer after layer: arranging one weight on all threads takes nearly three times as long."""

    def swap(place: tuple[nn.Module, str]) -> None:
        parent, name = place
        setattr(parent, name, PackedLinear(getattr(parent, name)))

    count = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(count, initializer=torch.set_num_threads, initargs=(1,)) as threads:
            list(threads.map(swap, found))
    finally:
        torch.set_num_threads(count)  # threads that begin later are given the number that was set last


@cache
def packing_pays() -> bool:
    """Whether packed products exist here and are faster on the whole; measured once, in a fraction of a second."""
    ratios = probe_packing()
    return bool(ratios) and sum(ratios.values()) < len(ratios)


@torch.inference_mode()
def probe_packing() -> dict[int, float]:
    """The time of packed products over that of plain ones, for each number of rows in PROBES; empty where the
    operators are missing. The two take turns on one thread, and the least CPU time of each counts: others may be using
    the machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    plain = nn.Linear(PROBE_SIZE[1], PROBE_SIZE[0], bias=False, dtype=torch.bfloat16)
    try:
        packed = PackedLinear(plain)
        return {rows: _time_ratio(packed, plain, rows=rows, times=times) for rows, times in PROBES}
    except (AttributeError, NotImplementedError, RuntimeError):
        return {}
    finally:
        torch.set_num_threads(threads)


def _time_ratio(packed: nn.Module, plain: nn.Module, *, rows: int, times: int) -> float:
    x = torch.randn(rows, PROBE_SIZE[1], dtype=torch.bfloat16)
    best = {packed: float("inf"), plain: float("inf")}
    for _ in range(PROBE_ROUNDS):
        for linear in best:
            started = time.thread_time()
            for _ in range(times):
                linear(x)
            best[linear] = min(best[linear], time.thread_time() - started)
    return best[packed] / best[plain]
