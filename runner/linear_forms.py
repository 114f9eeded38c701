"""The form in which this CPU multiplies bfloat16 rows by weights fastest: plain, packed or as columns. Owns finding out
and the swap; knows no model but its head.

What is fastest depends on the CPU, so it is measured. A head meets few rows, and its table is mostly the embedding's,
of which packing would keep a second copy: there packing must gain a half.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from itertools import cycle
from typing import Literal

import torch
from torch import nn

from runner.column_linear import ColumnLinear
from runner.mapped_weights import MappedFiles
from runner.packed_linear import PackedLinear

Form = Literal["plain", "packed", "columns"]
FORMS: dict[Form, type[PackedLinear] | type[ColumnLinear]] = {"packed": PackedLinear, "columns": ColumnLinear}
LAYERS_MUST_GAIN, HEAD_MUST_GAIN = 1.0, 1.5  # by packing
# The probe: rows of a product and how often it runs, for decode, small batches and prefill; about as long each. Weights
# take turns, for those of a model do not stay in a cache.
PROBES = ((1, 8), (4, 8), (16, 8), (512, 1))
PROBE_SIZE = (4864, 896)
PROBE_WEIGHTS = 8
PROBE_ROUNDS = 5
FEW_ROWS = 16  # of the probes, that a head meets


@dataclass(frozen=True, slots=True, kw_only=True)
class Forms:
    """Of the layers, and of the head."""

    layers: Form
    head: Form

    @property
    def are_arranged(self) -> bool:
        """Whether no product is a plain one, whose results for few rows may depend on the number of threads."""
        return "plain" not in (self.layers, self.head)


def arrange_linears(model: nn.Module) -> int:
    """Swap the linear layers in `model` that are bfloat16 on a CPU for the forms that are fastest here; returns the
    number of them. model.get_output_embeddings(), where there is one, gives the head."""
    found = [
        (parent, name)
        for parent in model.modules()
        for name, child in parent.named_children()
        if isinstance(child, nn.Linear) and child.weight.dtype == torch.bfloat16 and child.weight.device.type == "cpu"
    ]
    if not found:
        return 0
    head = getattr(model, "get_output_embeddings", lambda: None)()
    forms = best_forms()
    chosen = [(*place, forms.head if getattr(*place) is head else forms.layers) for place in found]
    chosen = [place for place in chosen if place[2] != "plain"]
    if chosen:
        files = MappedFiles()
        _swap(chosen, files)
        for parameter in model.parameters():  # what is left must not keep the checkpoint's file mapped
            read, parameter.data = parameter.data, parameter.data.clone()
            files.let_go(read)
    return len(chosen)


def _swap(chosen: Sequence[tuple[nn.Module, str, Form]], files: MappedFiles) -> None:
    """Each thread takes layer after layer: arranging one weight on all threads takes nearly three times as long."""

    def swap(place: tuple[nn.Module, str, Form]) -> None:
        parent, name, form = place
        linear = getattr(parent, name)
        setattr(parent, name, FORMS[form](linear))
        files.let_go(linear.weight.data)

    count = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(count, initializer=torch.set_num_threads, initargs=(1,)) as threads:
            list(threads.map(swap, chosen))
    finally:
        torch.set_num_threads(count)  # threads that begin later are given the number that was set last


@cache
def best_forms() -> Forms:
    """Measured once, in a fraction of a second."""
    return choose_forms(probe_forms())


def choose_forms(ratios: dict[Form, dict[int, float]]) -> Forms:
    """ratios: each form's time over that of plain products, by rows; means over the rows decide.

    Worked example: packed 0.60 at 1 row and 0.90 at 512, columns 0.65 and 1.05: layers packed, a head, which never
    meets 512 rows, columns. With columns 0.95 at 1 row the head is packed, too.
    """
    few = {form: {rows: r for rows, r in found.items() if rows <= FEW_ROWS} for form, found in ratios.items()}
    return Forms(layers=_fastest(ratios, LAYERS_MUST_GAIN), head=_fastest(few, HEAD_MUST_GAIN))


def _fastest(ratios: dict[Form, dict[int, float]], packed_must_gain: float) -> Form:
    means: dict[Form, float] = {"plain": 1.0}
    means |= {form: sum(found.values()) / len(found) for form, found in ratios.items()}
    if "packed" in means:
        means["packed"] *= packed_must_gain
    return min(means, key=lambda form: means[form])


@torch.inference_mode()
def probe_forms() -> dict[Form, dict[int, float]]:
    """For each form that torch has here, its time over that of plain products by the rows of PROBES. All take turns on
    one thread, and the least CPU time of each counts: others may be using the machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        weight = torch.randn(PROBE_SIZE).bfloat16()  # of many values: how it is packed is looked up by them
        plain = [_make_linear(weight.clone()) for _ in range(PROBE_WEIGHTS)]
        kinds: dict[Form, list[nn.Module]] = {"plain": list(plain)}
        for form, make in FORMS.items():
            made = _make_all(make, plain)
            if made:
                kinds[form] = made
        times = {rows: _least_times(kinds, rows=rows, times=count) for rows, count in PROBES}
    finally:
        torch.set_num_threads(threads)
    return {form: {rows: t[form] / t["plain"] for rows, t in times.items()} for form in kinds if form != "plain"}


def _make_linear(weight: torch.Tensor) -> nn.Linear:
    linear = nn.Linear(PROBE_SIZE[1], PROBE_SIZE[0], bias=False, dtype=torch.bfloat16, device="meta")
    linear.weight = nn.Parameter(weight, requires_grad=False)
    return linear


def _make_all(make: Callable[[nn.Linear], nn.Module], plain: Sequence[nn.Linear]) -> list[nn.Module]:
    """Empty where an operator is missing."""
    try:
        made = [make(linear) for linear in plain]
        for rows, _ in PROBES:
            made[0](torch.ones(rows, PROBE_SIZE[1], dtype=torch.bfloat16))
    except (AttributeError, NotImplementedError, RuntimeError):
        return []
    return made


def _least_times(kinds: dict[Form, list[nn.Module]], *, rows: int, times: int) -> dict[Form, float]:
    x = torch.ones(rows, PROBE_SIZE[1], dtype=torch.bfloat16)
    best: dict[Form, float] = dict.fromkeys(kinds, float("inf"))
    turns: dict[Form, Iterator[nn.Module]] = {form: cycle(linears) for form, linears in kinds.items()}
    for _ in range(PROBE_ROUNDS):
        for form, linears in turns.items():
            started = time.thread_time()
            for _ in range(times):
                next(linears)(x)
            best[form] = min(best[form], time.thread_time() - started)
    return best
