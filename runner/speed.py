"""What this machine computes and reads per second, measured in a few seconds, and how many threads that takes. Owns the
measuring; knows no model."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import torch

from runner.linear_forms import Form, choose_forms, probe_forms
from runner.products import TILES, load_library

SIDE = 1024  # of the square matrices whose product is timed
READ_BYTES = 256 << 20
BUDGET_S = 0.4  # for each figure
TOPOLOGY = Path("/sys/devices/system/cpu")
CPU_MAX = Path("/sys/fs/cgroup/cpu.max")


def count_cores() -> int:
    """Threads that compute fastest when nothing else runs: one for each core this process may use. Two threads on the
    two halves of a core, or more threads than the container is given time for, wait for each other at every step."""
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    cores = {_core_of(cpu) for cpu in allowed}
    return max(1, min(len(cores), _quota(CPU_MAX)))


def _core_of(cpu: int) -> tuple[str, str]:
    """(package, core); a CPU whose place is unknown is a core of its own."""
    folder = TOPOLOGY / f"cpu{cpu}" / "topology"
    try:
        return (folder / "physical_package_id").read_text(), (folder / "core_id").read_text()
    except OSError:
        return "", str(cpu)


def _quota(file: Path) -> int:
    """Whole CPUs that a container may use; many where there is no limit. "150000 100000" is 1."""
    try:
        quota, period = file.read_text().split()
    except (OSError, ValueError):
        return 1 << 16
    return 1 << 16 if quota == "max" else max(1, int(quota) // int(period))


def measure_speed() -> dict[str, str]:
    """For people: what is measured with one thread and with one for each core, and which form of products pays."""
    before = torch.get_num_threads()
    try:
        rows = {f"speed, {count} threads": _describe(count) for count in sorted({1, count_cores()})}
        torch.set_num_threads(count_cores())
        return {**rows, "products of weights": f"{describe_products()}; {describe_forms(probe_forms())}"}
    finally:
        torch.set_num_threads(before)


def describe_products() -> str:
    """Whether ours were compiled and run here."""
    library = load_library()
    if library is None:
        return "ours not compiled, or not for this CPU"
    return "ours by tiles" if library.evs_support() == TILES else "ours by vectors"


def describe_forms(ratios: dict[Form, dict[int, float]]) -> str:
    """{"packed": {1: 0.5, 512: 1.0}} reads "packed: 2.00, 1.00 times as fast as plain ones at 1, 512 rows; used:
    packed, for the head packed"."""
    told = []
    for form, by_rows in ratios.items():
        speeds, rows = [f"{1 / ratio:.2f}" for ratio in by_rows.values()], [str(count) for count in by_rows]
        told.append(f"{form}: {', '.join(speeds)} times as fast as plain ones at {', '.join(rows)} rows")
    used = choose_forms(ratios)
    return "; ".join([*told, f"used: {used.layers}, for the head {used.head}"])


@torch.inference_mode()
def _describe(threads: int) -> str:
    torch.set_num_threads(threads)
    figures = [f"{name} {_multiply(dtype) / 1e9:.0f} GFLOP/s" for name, dtype in _DTYPES.items()]
    return ", ".join([*figures, f"read {_read() / 1e9:.1f} GB/s"])


_DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


def _multiply(dtype: torch.dtype) -> float:
    a, b = torch.randn(SIDE, SIDE, dtype=dtype), torch.randn(SIDE, SIDE, dtype=dtype)
    return 2 * SIDE**3 / _best_s(lambda: a @ b)


def _read() -> float:
    data = torch.ones(READ_BYTES // 4)
    return READ_BYTES / _best_s(data.sum)


def _best_s(run: Callable[[], object]) -> float:
    """The best of what fits the budget: the machine's own speed, whoever else uses it."""
    best, until = float("inf"), time.perf_counter() + BUDGET_S
    while time.perf_counter() < until:
        started = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - started)
    return best
