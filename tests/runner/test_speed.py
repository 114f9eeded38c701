"""How many threads compute, and that the measured table has its rows; no figure is asserted."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from runner import doctor, speed


def place(folder: Path, cpu: int, package: int, core: int) -> None:
    topology = folder / f"cpu{cpu}" / "topology"
    topology.mkdir(parents=True)
    (topology / "physical_package_id").write_text(f"{package}\n")
    (topology / "core_id").write_text(f"{core}\n")


def test_the_halves_of_a_core_count_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Six CPUs: two cores of two halves on one package, one core on another, one of unknown place."""
    for cpu, (package, core) in enumerate([(0, 0), (0, 0), (0, 1), (0, 1), (1, 0)]):
        place(tmp_path, cpu, package, core)
    monkeypatch.setattr(speed, "TOPOLOGY", tmp_path)
    monkeypatch.setattr(speed, "CPU_MAX", tmp_path / "missing")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)))
    assert speed.count_cores() == 4
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    assert speed.count_cores() == 1


@pytest.mark.parametrize(("text", "threads"), [("max 100000", 8), ("250000 100000", 2), ("50000 100000", 1), ("", 8)])
def test_a_container_is_not_given_more_threads_than_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, threads: int
) -> None:
    (tmp_path / "cpu.max").write_text(text)
    monkeypatch.setattr(speed, "CPU_MAX", tmp_path / "cpu.max")
    monkeypatch.setattr(speed, "TOPOLOGY", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert speed.count_cores() == threads


def test_the_table_and_the_threads_left_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "BUDGET_S", 0.01)
    monkeypatch.setattr(speed, "READ_BYTES", 1 << 20)
    before = torch.get_num_threads()
    facts = doctor.describe()
    assert torch.get_num_threads() == before
    assert "GFLOP/s" in facts["speed, 1 threads"] and "GB/s" in facts["speed, 1 threads"]
    assert "used" in facts["products of weights"]
    assert facts["compute threads"] == speed.count_cores()


def test_packing_in_words() -> None:
    told = speed.describe_forms({"packed": {1: 0.5, 512: 1.0}})
    assert told == "packed: 2.00, 1.00 times as fast as plain ones at 1, 512 rows; used: packed, for the head packed"
    assert speed.describe_forms({}) == "used: plain, for the head plain"
