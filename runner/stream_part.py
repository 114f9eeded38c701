"""One run of a stream's media, from its first byte to its end: frames, slots, windows. Owns what waits between these,
which is bounded, and the fate of every frame; knows no threads, no inbox and no model.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from typing import Literal, Protocol

from runner.admission import Admission
from runner.errors import RequestError
from runner.items import MediaItem
from runner.prompt import Prompt
from runner.stream_layout import LaidWindow, lay_window
from runner.stream_messages import DropReason, OpenStream, StreamEnd, WindowLaid
from runner.stream_options import StreamSettings
from runner.stream_slots import Slot, SlotMaker
from runner.stream_windows import LeftOut, Window, WindowLine
from vision.stream_cage import LiveDecoder, StreamEvent, StreamFrame
from vision.stream_protocol import SkipRecord, StreamReport

PieceKind = Literal["picture", "bytes"]

PUMP_S = 0.2
MAX_WAITING_FRAMES = 64
MAX_WAITING_BYTES = 64 << 20
REMEMBERED_ITEMS = 512


class Host(Protocol):
    """The stream a part belongs to: see runner/stream.py."""

    request: OpenStream

    @property
    def wake_fd(self) -> int: ...
    @property
    def has_room(self) -> bool: ...
    def doze(self) -> None: ...
    def rouse(self) -> None: ...
    def take_media(self, decoder: LiveDecoder) -> tuple[list[int], StreamEnd | None]: ...
    def drop(self, seqs: tuple[int, ...], reason: DropReason) -> None: ...
    def tell_opened(self, settings: StreamSettings) -> None: ...
    def submit(self, prompt: Prompt, items: tuple[MediaItem, ...], describe: Describe) -> None: ...


class Describe(Protocol):
    def __call__(self, index: int, /) -> WindowLaid: ...


class StreamPart:
    """`run` to the end, then `close` in any case."""

    def __init__(
        self, host: Host, admission: Admission, settings: StreamSettings, decoder: LiveDecoder, *, kind: PieceKind
    ) -> None:
        """kind: whether each piece is a picture, of which something will be said, or the next bytes of a container."""
        self._host, self._admission, self._settings, self._decoder = host, admission, settings, decoder
        self._kind = kind
        self._slots = SlotMaker(admission.family, settings, passes=host.request.source is None)
        self._line: WindowLine[Slot] = WindowLine(
            size=settings.window_slots, stride=settings.stride_slots, gate=host.request.gate
        )
        self._frames: deque[StreamFrame] = deque()
        self._unheard: deque[int] = deque()  # pictures that the child has and has said nothing of
        self._end: StreamEnd | None = None
        self._report: StreamReport | None = None
        self._is_told = host.request.source is None
        self._encoded: OrderedDict[str, None] = OrderedDict()

    def run(self) -> int:
        """Pictures there were. Raises RequestError, RequestCancelled, a MediaError."""
        while self._report is None or self._frames:
            if self._end is None and self._host.request.source is None:
                self._take_media()
            if self._end is not None and self._end.how == "clear":
                return 0
            if self._report is None:
                for event in self._decoder.pump(PUMP_S, wake_fd=self._host.wake_fd, taking=self._has_place):
                    self._note(event)
                self._host.rouse()
            elif not self._host.has_room:
                self._host.doze()
            self._advance()
        for slot in self._slots.finish():
            self._settle(self._line.add(slot))
        self._settle(self._line.finish())
        return self._report.pictures

    def close(self) -> None:
        """End the child; what is in no window yet never will be."""
        self._decoder.close()
        waiting = tuple(frame.record.seq for frame in self._frames)
        self._host.drop((*self._line.forget(), *self._slots.forget(), *waiting, *self._unheard), "closed")

    # ---------------------------------------------------------------------------------------------- from the child

    def _take_media(self) -> None:
        seqs, self._end = self._host.take_media(self._decoder)
        if self._kind == "picture":
            self._unheard.extend(seqs)
        if self._end is not None:
            self._decoder.end_input()

    def _note(self, event: StreamEvent) -> None:
        match event:
            case SkipRecord(seqs=seqs, reason=reason):
                self._hear(seqs)
                self._host.drop(seqs, reason)
            case StreamReport():
                self._report = event
            case StreamFrame():
                self._hear((event.record.seq,))
                self._tell_opened()
                self._queue(event)

    def _hear(self, seqs: tuple[int, ...]) -> None:
        if self._unheard:
            for seq in seqs:
                self._unheard.remove(seq)

    def _tell_opened(self) -> None:
        """A source is known to be good when its first frame is there."""
        if not self._is_told:
            self._is_told = True
            self._host.tell_opened(self._settings)

    @property
    def _has_place(self) -> bool:
        """Whether frames are still taken: where none may be dropped, only while there is room."""
        return self._host.request.overload != "wait" or not self._is_full

    @property
    def _is_full(self) -> bool:
        held = sum(frame.pixels.nbytes for frame in self._frames)
        return len(self._frames) >= MAX_WAITING_FRAMES or held >= MAX_WAITING_BYTES

    def _queue(self, frame: StreamFrame) -> None:
        if not self._is_full or self._host.request.overload == "wait":  # what one read brought is taken whole
            self._frames.append(frame)
            return
        match self._host.request.overload:
            case "drop_oldest":
                self._host.drop((self._frames.popleft().record.seq,), "overload")
                self._frames.append(frame)
            case "drop_newest":
                self._host.drop((frame.record.seq,), "overload")
            case _:
                self._frames.append(frame)
                raise RequestError(
                    "queue_full", "frames come faster than they can be embedded; send fewer, or choose another "
                    "overload policy", code="overload",
                )  # fmt: skip

    # ----------------------------------------------------------------------------------------------- to the model

    def _advance(self) -> None:
        while self._frames and self._host.has_room:
            for slot in self._slots.add(self._frames.popleft()):
                self._settle(self._line.add(slot))

    def _settle(self, events: list[Window[Slot] | LeftOut]) -> None:
        for event in events:
            if isinstance(event, LeftOut):
                self._host.drop(event.seqs, event.reason)
                continue
            while not self._host.has_room:
                self._host.doze()
            self._lay(event)

    def _lay(self, window: Window[Slot]) -> None:
        start_s = window.first * self._settings.slot_s
        laid = lay_window(self._admission, self._settings, window.slots, start_s=start_s)
        self._host.submit(laid.prompt, laid.items, lambda index: self._describe(index, window, laid))

    def _describe(self, index: int, window: Window[Slot], laid: LaidWindow) -> WindowLaid:
        slots, slot_s = window.slots, self._settings.slot_s
        return WindowLaid(
            request_id=self._host.request.request_id, index=index,
            start_s=window.first * slot_s, end_s=window.stop * slot_s, origin_s=slots[0].origin_s,
            frame_seqs=tuple(seq for slot in slots for seq in slot.seqs),
            times_s=tuple(time_s for slot in slots for time_s in slot.times_s), size=slots[0].size,
            prompt_tokens=len(laid.prompt), slots=len(slots), cells=sum(len(slot.keep) for slot in slots),
            kept=laid.kept, changed=sum(slot.changed for slot in slots), encoder_cells=self._charge(laid.items),
            decoded_s=time.monotonic() - slots[-1].ready_s,
        )  # fmt: skip

    def _charge(self, items: tuple[MediaItem, ...]) -> int:
        """Cells that are encoded for these and were not for a window before. What was forgotten is charged again."""
        new = [item for item in items if item.encoding_key not in self._encoded]
        for item in items:
            self._encoded[item.encoding_key] = None
            self._encoded.move_to_end(item.encoding_key)
        while len(self._encoded) > REMEMBERED_ITEMS:
            self._encoded.popitem(last=False)
        return sum(item.encoder_cells for item in new)
