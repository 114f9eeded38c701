"""Requests on their way in: each is laid out in a thread of its own and handed to the model's thread. Owns their
cancellation and the bound on how many there may be; decides nothing about them."""

from __future__ import annotations

import itertools
import logging
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from runner.admission import Admission, Cancelled
from runner.errors import RequestError
from runner.messages import Accepted, Generate, Progress, Rejected, Render
from runner.outbox import Outbox
from runner.render import render_request
from runner.sequence import Sequence

log = logging.getLogger("evserve.engine")


class Submissions:
    """`post` hands accepted sequences to the model's thread; it is called under the lock that cancels."""

    def __init__(
        self,
        admission: Admission,
        outbox: Outbox,
        post: Callable[[list[Sequence]], None],
        *,
        threads: int,
        max_pending: int,
    ) -> None:
        self._admission = admission
        self._outbox = outbox
        self._post = post
        self._max_pending = max_pending
        self._pending: dict[str, threading.Event] = {}
        self._lock = threading.Lock()
        self._arrivals = itertools.count()
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="evs-submit")
        self._closed = False
        self.counters: Counter[str] = Counter()

    @property
    def num_pending(self) -> int:
        return len(self._pending)

    def start(self, request: Generate | Render, *, num_waiting: int) -> None:
        """Take a request, or refuse it at once when the queue is full or closing."""
        cancel = threading.Event()
        with self._lock:
            if self._closed:
                refusal = RequestError("unavailable", "the server is shutting down; try another one")
            elif len(self._pending) + num_waiting >= self._max_pending:
                refusal = RequestError("queue_full", f"{self._max_pending} requests are waiting; try again later")
            else:
                refusal = None
                self._pending[request.request_id] = cancel
        if refusal is not None:
            self._reject(request.request_id, refusal)
            return
        self._threads.submit(self._work, request, next(self._arrivals), cancel)

    def cancel(self, request_id: str, then: Callable[[], None]) -> None:
        """Stop a request that is still coming in, and call `then` in order with its hand-over."""
        with self._lock:
            event = self._pending.get(request_id)
            if event is not None:
                event.set()
            then()

    def close(self) -> None:
        """Refuse new requests, stop those coming in, and wait for their threads."""
        with self._lock:
            self._closed = True
            for event in self._pending.values():
                event.set()
        self._threads.shutdown(wait=True)

    def refuse_new(self) -> None:
        with self._lock:
            self._closed = True

    def _work(self, request: Generate | Render, arrival: int, cancel: threading.Event) -> None:
        try:
            if cancel.is_set():
                raise Cancelled
            if isinstance(request, Render):
                self._render(request, cancel)
            else:
                self._submit(request, arrival, cancel)
        except Cancelled:
            self.counters["cancelled"] += 1
        except RequestError as error:
            self._reject(request.request_id, error)
        except Exception:
            log.exception("submission failed")
            self._reject(request.request_id, RequestError("internal", "the server failed to prepare this request"))
        finally:
            with self._lock:
                self._pending.pop(request.request_id, None)

    def _submit(self, request: Generate, arrival: int, cancel: threading.Event) -> None:
        def on_decoded(done: int, total: int) -> None:
            if request.progress:
                self._outbox.send(Progress(request_id=request.request_id, phase="decode", done=done, total=total))

        sequences, usage = self._admission.submit(request, arrival, cancel, on_decoded)
        max_tokens = sequences[0].drawing.max_tokens
        with self._lock:
            if cancel.is_set():
                raise Cancelled
            self._outbox.send(Accepted(request_id=request.request_id, usage=usage, max_tokens=max_tokens))
            self._post(sequences)

    def _render(self, request: Render, cancel: threading.Event) -> None:
        laid = self._admission.lay_out(request.chat, request.evs, cancel, lambda _done, _total: None)
        self._outbox.send(render_request(request.request_id, laid, include_frames=request.include_frames))

    def _reject(self, request_id: str, error: RequestError) -> None:
        self.counters[f"rejected_{error.kind}"] += 1
        self._outbox.send(
            Rejected(request_id=request_id, kind=error.kind, message=error.message, param=error.param, code=error.code)
        )
