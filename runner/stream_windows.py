"""Which slots make a window, and what becomes of every frame: it stands in a window, or is named as left out, once.
Owns the bookkeeping, which holds no more than one window's slots; knows no pixels and no prompts.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Generic, Literal, Protocol, TypeVar

Left = Literal["unchanged", "sampled_out"]
Fate = Literal["waiting", "used", "unchanged"]


class SlotLike(Protocol):
    """A slot by its number on the grid of times, the frames in it, and how many of its cells changed."""

    @property
    def number(self) -> int: ...
    @property
    def seqs(self) -> tuple[int, ...]: ...
    @property
    def changed(self) -> int: ...


S = TypeVar("S", bound=SlotLike)


@dataclass(frozen=True, slots=True, kw_only=True)
class Window(Generic[S]):
    """The slots of [first, stop) that there are; at least one."""

    first: int
    stop: int
    slots: tuple[S, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """Frames that are in no window: of unchanged ones alone, or between two windows."""

    seqs: tuple[int, ...]
    reason: Left


@dataclass(slots=True, eq=False)
class _Held(Generic[S]):
    slot: S
    fate: Fate = "waiting"


class WindowLine(Generic[S]):
    """Window k is slots [k * stride, k * stride + size). gate "changed" leaves out windows in which nothing changed.

    Worked example, size 4, stride 2, slots 0 to 6 and then the end: windows of slots 0-3, 2-5 and 4-6; the last is
    short, and the one of slot 6 alone would show nothing new. With stride 5 and size 2: 0-1, 5-6; 2-4 are left out.
    """

    def __init__(self, *, size: int, stride: int, gate: Literal["all", "changed"]) -> None:
        self._size, self._stride, self._gate = size, stride, gate
        self._held: deque[_Held[S]] = deque()
        self._next = 0

    def add(self, slot: S) -> list[Window[S] | LeftOut]:
        """Slots come in rising order; numbers may be missing. What is complete, and what is left out for good."""
        events = self._close(slot.number)
        self._held.append(_Held(slot))
        return events + self._close(slot.number + 1)

    def finish(self) -> list[Window[S] | LeftOut]:
        """The end of the stream: what is in no window yet makes the last ones."""
        events: list[Window[S] | LeftOut] = []
        while any(held.fate == "waiting" for held in self._held):
            events += self._advance(is_last=True)
        return events + self._retire(before=None)

    def forget(self) -> tuple[int, ...]:
        """Frames in no window so far; none is held any more."""
        seqs = [seq for held in self._held if held.fate != "used" for seq in held.slot.seqs]
        self._held.clear()
        return tuple(seqs)

    def _close(self, before: int) -> list[Window[S] | LeftOut]:
        """Decide every window that ends at or before a slot's number."""
        events: list[Window[S] | LeftOut] = []
        while self._held and self._next * self._stride + self._size <= before:
            events += self._advance()
        if not self._held:  # windows without any slot are passed over, however long the gap
            self._next = max(self._next, (before - self._size) // self._stride + 1)
        return events

    def _advance(self, *, is_last: bool = False) -> list[Window[S] | LeftOut]:
        first = self._next * self._stride
        stop = first + self._size
        inside = [held for held in self._held if first <= held.slot.number < stop]
        is_wanted = self._gate == "all" or any(held.slot.changed for held in inside)
        for held in inside:
            if is_wanted or held.fate == "waiting":
                held.fate = "used" if is_wanted else "unchanged"
        self._next += 1
        events: list[Window[S] | LeftOut] = []
        if inside and is_wanted:
            stop = inside[-1].slot.number + 1 if is_last else stop  # the stream ended in the middle of it
            events.append(Window(first=first, stop=stop, slots=tuple(held.slot for held in inside)))
        return events + self._retire(before=self._next * self._stride)

    def _retire(self, before: int | None) -> list[Window[S] | LeftOut]:
        """Let go of slots that no later window can hold."""
        events: list[Window[S] | LeftOut] = []
        while self._held and (before is None or self._held[0].slot.number < before):
            held = self._held.popleft()
            if held.fate != "used":
                reason: Left = "unchanged" if held.fate == "unchanged" else "sampled_out"
                events.append(LeftOut(seqs=held.slot.seqs, reason=reason))
        return events
