"""Every frame stands in a window or is left out once, and windows lie where they should."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.errors import RequestError
from runner.stream_messages import WindowOptions
from runner.stream_options import settle_windows
from runner.stream_windows import LeftOut, Window, WindowLine

Gate = Literal["all", "changed"]


@dataclass(frozen=True, kw_only=True)
class Slot:
    number: int
    changed: int = 1

    @property
    def seqs(self) -> tuple[int, ...]:
        return (2 * self.number, 2 * self.number + 1)


def walk(slots: list[Slot], *, size: int, stride: int, gate: Gate = "all") -> list[Window[Slot] | LeftOut]:
    line: WindowLine[Slot] = WindowLine(size=size, stride=stride, gate=gate)
    return [event for slot in slots for event in line.add(slot)] + line.finish()


def spans(events: list[Window[Slot] | LeftOut]) -> list[tuple[int, int]]:
    return [(event.first, event.stop) for event in events if isinstance(event, Window)]


def test_worked_examples() -> None:
    """Those of the docstring."""
    slots = [Slot(number=number) for number in range(7)]
    assert spans(walk(slots, size=4, stride=2)) == [(0, 4), (2, 6), (4, 7)]
    events = walk(slots, size=2, stride=5)
    assert spans(events) == [(0, 2), (5, 7)]
    assert [event.seqs for event in events if isinstance(event, LeftOut)] == [(4, 5), (6, 7), (8, 9)]


def test_unchanged_windows_are_left_out() -> None:
    """A slot of an unchanged window that a later, changed one shows is used; the others are named."""
    slots = [Slot(number=number, changed=int(number in (0, 7))) for number in range(10)]
    events = walk(slots, size=4, stride=2, gate="changed")
    assert spans(events) == [(0, 4), (4, 8), (6, 10)]
    assert not [event for event in events if isinstance(event, LeftOut)]
    events = walk([Slot(number=n, changed=int(n == 0)) for n in range(8)], size=2, stride=2, gate="changed")
    assert spans(events) == [(0, 2)] and len([e for e in events if isinstance(e, LeftOut)]) == 6


def test_a_long_gap_costs_nothing() -> None:
    slots = [Slot(number=0), Slot(number=10**12), Slot(number=10**12 + 1)]
    assert spans(walk(slots, size=2, stride=1))[0] == (0, 2)
    assert spans(walk(slots, size=2, stride=1))[-1] == (10**12, 10**12 + 2)


@given(
    numbers=st.sets(st.integers(0, 40), min_size=1, max_size=30),
    still=st.sets(st.integers(0, 40)),
    size=st.integers(1, 6),
    stride=st.integers(1, 8),
    gate=st.sampled_from(["all", "changed"]),
    stopped=st.integers(0, 30),
)
def test_every_frame_has_one_fate(
    numbers: set[int], still: set[int], size: int, stride: int, gate: Gate, stopped: int
) -> None:
    """In a window or left out, never both, never neither; also where the stream is forgotten in the middle."""
    slots = [Slot(number=number, changed=int(number not in still)) for number in sorted(numbers)]
    line: WindowLine[Slot] = WindowLine(size=size, stride=stride, gate=gate)
    events = [event for slot in slots[:stopped] for event in line.add(slot)]
    forgotten = line.forget() if stopped < len(slots) else ()
    events += line.finish()
    used = {seq for event in events if isinstance(event, Window) for slot in event.slots for seq in slot.seqs}
    left = [seq for event in events if isinstance(event, LeftOut) for seq in event.seqs] + list(forgotten)
    assert len(left) == len(set(left)) and not used & set(left)
    assert used | set(left) == {seq for slot in slots[:stopped] for seq in slot.seqs}
    firsts = [event.first for event in events if isinstance(event, Window)]
    assert firsts == sorted(set(firsts)) and all(first % stride == 0 for first in firsts)


def test_windows_are_whole_slots() -> None:
    """The worked examples of settle_windows, and what it refuses."""
    wanted = WindowOptions(duration_s=3.2, stride_s=1.4)
    assert settle_windows(wanted, fps=2.0, per_slot=2, max_frames=64) == (2.0, 3, 1)
    assert settle_windows(WindowOptions(), fps=2.0, per_slot=2, max_frames=4) == (1.0, 2, 2)
    assert settle_windows(WindowOptions(duration_s=0.01), fps=2.0, per_slot=2, max_frames=4)[1:] == (1, 1)
    for wrong in (WindowOptions(duration_s=0.0), WindowOptions(stride_s=1e9), WindowOptions(duration_s=float("nan"))):
        with pytest.raises(RequestError):
            settle_windows(wrong, fps=2.0, per_slot=2, max_frames=64)
