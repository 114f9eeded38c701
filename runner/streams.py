"""The streams that are open: each has a thread. Owns their number, their names and their ends; knows nothing of what a
stream does.
"""

from __future__ import annotations

import logging
import threading

from runner.errors import RequestCancelled, RequestError
from runner.messages import Rejected
from runner.stream import Stream, StreamDoor
from runner.stream_messages import OpenStream, StreamData, StreamEnd

JOIN_S = 10.0
log = logging.getLogger("evserve.engine")


class Streams:
    """`start`, `feed` and `cancel` are called by the reader's thread alone. A stream that was cancelled and is still
    ending takes no place, or nobody could begin another in its stead; of those there may be as many again."""

    def __init__(self, door: StreamDoor, *, max_streams: int) -> None:
        self._door = door
        self._max_streams = max_streams
        self._open: dict[str, tuple[Stream, threading.Thread]] = {}
        self._lock = threading.Lock()
        self._closed = False
        self.total = 0

    @property
    def num_open(self) -> int:
        return len(self._open)

    @property
    def _is_full(self) -> bool:
        living = sum(not stream.cancelled.is_set() for stream, _ in self._open.values())
        return living >= self._max_streams or len(self._open) >= 2 * self._max_streams

    def start(self, request: OpenStream) -> None:
        """Open a stream, or refuse it at once."""
        with self._lock:
            refusal = None
            if self._closed:
                refusal = RequestError("unavailable", "the server is shutting down; try another one")
            elif self._is_full:
                refusal = RequestError(
                    "queue_full", f"{self._max_streams} streams are open, as many as may be; try again later",
                    code="too_many_sessions",
                )  # fmt: skip
            else:
                stream = Stream(request, self._door)
                thread = threading.Thread(target=self._work, args=(stream,), name="evs-stream", daemon=True)
                self._open[request.request_id] = (stream, thread)
                self.total += 1
        if refusal is not None:
            self._reject(request.request_id, refusal)
        else:
            thread.start()

    def feed(self, message: StreamData | StreamEnd) -> None:
        """A stream that has just ended is no error: its end is on its way to the client."""
        entry = self._open.get(message.request_id)
        if entry is not None:
            entry[0].feed(message)

    def cancel(self, request_id: str) -> None:
        entry = self._open.get(request_id)
        if entry is not None:
            entry[0].cancel()

    def close(self) -> None:
        """Refuse new streams, end those that are open, and wait for their threads."""
        with self._lock:
            self._closed = True
            entries = list(self._open.values())
        for stream, _ in entries:
            stream.cancel()
        for _, thread in entries:
            if thread.ident is not None:
                thread.join(JOIN_S)

    def _work(self, stream: Stream) -> None:
        request_id = stream.request.request_id
        try:
            stream.run()
        except RequestCancelled:
            pass
        except RequestError as error:
            self._reject(request_id, error)
        except Exception:
            log.exception("a stream failed")
            self._reject(request_id, RequestError("internal", "the server failed on this stream"))
        finally:
            with self._lock:
                entry = self._open.get(request_id)
                if entry is not None and entry[0] is stream:  # a name may be taken again while its last owner ends
                    del self._open[request_id]

    def _reject(self, request_id: str, error: RequestError) -> None:
        self._door.send(
            Rejected(request_id=request_id, kind=error.kind, message=error.message, param=error.param, code=error.code)
        )
