"""Threads make room for other programs, and results do not depend on how many there are."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from runner import threads
from runner.linear_forms import FORMS, Form, best_forms, probe_forms
from runner.threads import FEW_ROWS, ComputeThreads, choose_threads
from tests.harness import local_engine, rebuilt
from tests.oracle import as_message

SIZES = ((896, 1152), (4864, 896))  # (inputs, outputs)
# Bounded, so that nobody starves for longer wherever this runs; a busy machine takes its time to start them.
BUSY_S = 20.0
BUSY = f"""
import time
until = time.monotonic() + {BUSY_S}
while time.monotonic() < until:
    pass
"""


def test_choice_is_its_worked_example() -> None:
    assert [choose_threads(2, num_cpus=2, others=others) for others in (0.4, 0.6, 3.0)] == [2, 1, 1]
    assert choose_threads(4, num_cpus=8, others=2.2) == 4


def test_busy_programs_take_threads_away() -> None:
    most = len(os.sched_getaffinity(0))
    busy = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(most)]
    before = torch.get_num_threads()
    try:
        compute = ComputeThreads(most)
        until = time.monotonic() + BUSY_S
        while compute.count > 1 and time.monotonic() < until:
            time.sleep(threads.SAMPLE_S)
            compute.adjust(1)
        assert compute.count == torch.get_num_threads() == 1 or most == 1
        compute.adjust(FEW_ROWS + 1)  # results would depend on it
        assert compute.count == most
    finally:
        for process in busy:
            process.kill()
            process.wait()
        torch.set_num_threads(before)


def test_where_the_system_does_not_tell_all_threads_compute(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setattr(threads, "STAT", threads.Path(str(tmp_path)) / "none")
    monkeypatch.setattr(threads, "SAMPLE_S", 0.0)
    compute = ComputeThreads(7)
    compute.adjust(1)
    assert compute.count == 7


@pytest.mark.skipif(not best_forms().are_arranged, reason="plain products are fastest on this CPU")
def test_the_engine_adjusts_its_threads_where_the_user_has_not(checkpoint: Callable[[str], Path]) -> None:
    """Set by the user, or where results would depend on them, they stay; else each step asks."""
    folder = checkpoint("qwen2_5_vl")
    before = torch.get_num_threads()
    try:
        with local_engine(folder, dtype="bfloat16", threads=None) as local:
            adjusted = local.engine.runner.threads
            assert adjusted is not None
            adjusted._free, adjusted._last = 1, _FarAway()  # as if somebody were using the other cores
            local.answer([as_message(["x"])], sampling=local.everything(3))
            assert adjusted.count == torch.get_num_threads() == 1
            assert rebuilt(local, folder, dtype="bfloat16", threads=1).engine.runner.threads is None
        with local_engine(folder, dtype="float32", threads=None) as local:
            assert local.engine.runner.threads is None
    finally:
        torch.set_num_threads(before)


class _FarAway(threads._Sample):
    """A sample that the next one is not due after."""

    def __init__(self) -> None:
        super().__init__()
        self.at_s += 1e6


@torch.inference_mode()
@pytest.mark.parametrize("rows", [1, 4, FEW_ROWS])
@pytest.mark.parametrize("form", list(probe_forms()))
def test_results_do_not_depend_on_the_count(form: Form, rows: int) -> None:
    """Arranged products and attention: bit for bit."""
    generator = torch.Generator().manual_seed(0)
    linears = [FORMS[form](nn.Linear(*size, dtype=torch.bfloat16)) for size in SIZES]
    inputs = [torch.randn(rows, size[0], generator=generator).bfloat16() for size in SIZES]
    q = torch.randn(1, 4, rows, 64, generator=generator).bfloat16()
    k, v = torch.randn(2, 1, 4, 900, 64, generator=generator).bfloat16()
    before, results = torch.get_num_threads(), []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        products = [linear(x) for linear, x in zip(linears, inputs, strict=True)]
        results.append([*products, F.scaled_dot_product_attention(q, k, v)])
    torch.set_num_threads(before)
    for result in results[1:]:
        assert all(torch.equal(one, other) for one, other in zip(results[0], result, strict=True))
