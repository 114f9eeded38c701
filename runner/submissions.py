"""Requests on their way in: each is laid out in a thread of its own and handed to the model's thread. Owns their
cancellation and the bound on how many there may be; decides nothing about them."""

from __future__ import annotations

import itertools
import logging
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from evs.policy import EvsPolicy
from evs.select import PendingSelection
from runner.admission import Admission
from runner.embed_messages import Embed
from runner.embedding import submit_embedding
from runner.errors import RequestCancelled, RequestError
from runner.items import MediaItem
from runner.messages import Accepted, EmbedAccepted, Generate, Overlay, Progress, PromptUsage, Rejected, Render
from runner.outbox import Outbox
from runner.plan import EncodeJob
from runner.render import draw_overlay, render_request
from runner.requests import ChatMessage
from runner.sequence import Sequence

CANCEL_POLL_S = 0.05
Submission = Generate | Embed | Render | Overlay

log = logging.getLogger("evserve.engine")


class Waiter:
    """The submitting thread of one request, as the stages of admission see it (see ingest.Caller)."""

    def __init__(self, submissions: Submissions, request: Submission, arrival: int, cancel: threading.Event) -> None:
        self._submissions = submissions
        self._request = request
        self._arrival = arrival
        self.cancel = cancel

    def tell_decoded(self, done: int, total: int) -> None:
        if isinstance(self._request, Generate) and self._request.progress:
            progress = Progress(request_id=self._request.request_id, phase="decode", done=done, total=total)
            self._submissions.outbox.send(progress)

    def finish_selection(self, item: MediaItem, pending: PendingSelection, policy: EvsPolicy) -> MediaItem:
        """Ask the model's thread, and look up now and then whether anybody still waits."""
        answer: Future[MediaItem] = Future()
        priority = self._request.priority if isinstance(self._request, Generate | Embed) else 0
        self._submissions.post_job(
            EncodeJob(
                request_id=self._request.request_id,
                item=item,
                priority=priority,
                arrival=self._arrival,
                pending=pending,
                policy=policy,
                answer=answer,
            )
        )
        while not self.cancel.is_set():
            try:
                return answer.result(timeout=CANCEL_POLL_S)
            except TimeoutError:
                continue
        raise RequestCancelled


class Submissions:
    """`prepare` does beforehand what the model's thread need not do. `post` hands accepted sequences to that thread; it
    is called under the lock that cancels."""

    def __init__(
        self,
        admission: Admission,
        outbox: Outbox,
        prepare: Callable[[list[Sequence]], None],
        post: Callable[[list[Sequence]], None],
        post_job: Callable[[EncodeJob], None],
        *,
        threads: int,
        max_pending: int,
    ) -> None:
        self._admission = admission
        self._prepare = prepare
        self._post = post
        self.post_job = post_job
        self.outbox = outbox
        self._max_pending = max_pending
        self._pending: dict[str, threading.Event] = {}
        self._lock = threading.Lock()
        self._arrivals = itertools.count()
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="evs-submit")
        self._closed = False
        self.counters: Counter[str] = Counter()
        self.cells: Counter[tuple[str, str]] = Counter()  # ("seen" or "kept", method)

    @property
    def num_pending(self) -> int:
        return len(self._pending)

    def next_arrival(self) -> int:
        """A place in the order of arrivals, for what comes by another way."""
        return next(self._arrivals)

    def start(self, request: Submission, *, num_waiting: int) -> None:
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

    def _work(self, request: Submission, arrival: int, cancel: threading.Event) -> None:
        try:
            if cancel.is_set():
                raise RequestCancelled
            match request:
                case Generate():
                    self._submit(request, arrival, cancel)
                case Embed():
                    self._embed(request, arrival, cancel)
                case Render():
                    self._render(request, arrival, cancel)
                case Overlay():
                    self._draw(request, arrival, cancel)
        except RequestCancelled:
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
        caller = Waiter(self, request, arrival, cancel)
        sequences, usage = self._admission.submit(request, arrival, caller)
        max_tokens = sequences[0].drawing.max_tokens
        accepted = Accepted(request_id=request.request_id, usage=usage, max_tokens=max_tokens)
        self._accept(accepted, (usage,), sequences, cancel)

    def _embed(self, request: Embed, arrival: int, cancel: threading.Event) -> None:
        caller = Waiter(self, request, arrival, cancel)
        sequences, usages = submit_embedding(self._admission, request, arrival, caller)
        self._accept(EmbedAccepted(request_id=request.request_id, usages=usages), usages, sequences, cancel)

    def _accept(
        self,
        accepted: Accepted | EmbedAccepted,
        usages: tuple[PromptUsage, ...],
        sequences: list[Sequence],
        cancel: threading.Event,
    ) -> None:
        """Tell the client, then the model's thread, unless the client has gone."""
        for evs in (usage.evs for usage in usages if usage.evs is not None):
            self.cells["seen", evs.method] += evs.cells
            self.cells["kept", evs.method] += evs.kept
        self._prepare(sequences)
        with self._lock:
            if cancel.is_set():
                raise RequestCancelled
            self.outbox.send(accepted)
            self._post(sequences)

    def _render(self, request: Render, arrival: int, cancel: threading.Event) -> None:
        laid = self._admission.lay_out(request.chat, request.evs, None, Waiter(self, request, arrival, cancel))
        self.outbox.send(render_request(request.request_id, laid, include_frames=request.include_frames))

    def _draw(self, request: Overlay, arrival: int, cancel: threading.Event) -> None:
        chat = (ChatMessage(role="user", parts=(request.clip,)),)
        laid = self._admission.lay_out(chat, request.evs, None, Waiter(self, request, arrival, cancel))
        self.outbox.send(draw_overlay(request, laid))

    def _reject(self, request_id: str, error: RequestError) -> None:
        self.counters[f"rejected_{error.kind}"] += 1
        self.outbox.send(
            Rejected(request_id=request_id, kind=error.kind, message=error.message, param=error.param, code=error.code)
        )
