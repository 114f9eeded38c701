"""An engine behind a socket: loads, answers, ends. Owns the threads and the hand-over between them; the thread that
calls `serve` is the model's, and no other touches the model."""

from __future__ import annotations

import logging
import queue
import socket
import threading
import time
from collections.abc import Callable

from runner.assembly import Assembled, assemble
from runner.config import EngineConfig
from runner.embed_messages import Embed
from runner.engine import Engine
from runner.errors import EngineStartError
from runner.heartbeat import Ping, Pong
from runner.messages import (
    Abort,
    Delta,
    DropCaches,
    Fatal,
    Generate,
    GetStats,
    Loading,
    Overlay,
    Progress,
    Render,
    Shutdown,
    StepOutput,
    ToEngine,
)
from runner.outbox import Outbox
from runner.sequence import Sequence
from runner.stats import collect_stats
from runner.step_clock import StepClock
from runner.stream import StreamDoor
from runner.stream_messages import OpenStream, StreamData, StreamEnd
from runner.streams import Streams
from runner.submissions import Submissions
from runner.wire import read_to_engine

log = logging.getLogger("evserve.engine")

MAX_FAILED_STEPS = 3
WAITING_THREADS = 8  # submissions that may wait for the encoder (method `evs`) without holding up decoding
_INTERNAL = "the server failed while answering; the request may be sent again"


def serve(sock: socket.socket, config: EngineConfig) -> None:
    """Load the model and answer messages until told to stop or until the client's end closes."""
    outbox = Outbox(sock)
    with sock:
        try:
            assembled = assemble(config, lambda phase, done, total: _say_loading(outbox, phase, done, total))
        except EngineStartError as error:
            outbox.send(Fatal(kind="invalid", message=str(error)))
            return
        except Exception:
            log.exception("the engine cannot start")
            outbox.send(Fatal(kind="internal", message="the engine cannot start; its log says why"))
            return
        with assembled.pool:
            Service(sock, outbox, assembled, config).run()


def _say_loading(outbox: Outbox, phase: str, done: int, total: int) -> None:
    outbox.send(Loading(phase=phase, done=done, total=total))


class Service:
    """One loaded engine and its client."""

    def __init__(self, sock: socket.socket, outbox: Outbox, assembled: Assembled, config: EngineConfig) -> None:
        self._socket = sock
        self._outbox = outbox
        self._assembled = assembled
        self._engine: Engine = assembled.engine
        self._mailbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._stop_at: float | None = None
        self._clock = StepClock()
        door = StreamDoor(
            admission=assembled.admission,
            pool=assembled.pool,
            send=outbox.send,
            prepare=self._engine.scheduler.prefix.prepare,
            post=lambda sequences: self._mailbox.put(lambda: self._engine.add(sequences)),
            next_arrival=lambda: self._submissions.next_arrival(),
            max_frames=config.decode.max_frames,
        )
        self._streams = Streams(door, max_streams=config.max_streams)
        self._submissions = Submissions(
            assembled.admission,
            outbox,
            self._engine.scheduler.prefix.prepare,
            lambda sequences: self._mailbox.put(lambda: self._engine.add(sequences)),
            lambda job: self._mailbox.put(lambda: self._engine.scheduler.add_job(job)),
            threads=config.decode.workers * 2 + WAITING_THREADS,
            max_pending=config.max_waiting,
        )

    def run(self) -> None:
        self._outbox.send(self._assembled.info)
        reader = threading.Thread(target=self._read_forever, name="evs-reader", daemon=True)
        reader.start()
        try:
            failures = 0
            while not self._is_over():
                self._take_mail(block=not self._engine.has_work)
                if self._engine.has_work:
                    with self._clock.step():
                        failures = 0 if self._step() else failures + 1
                if failures >= MAX_FAILED_STEPS:
                    self._outbox.send(Fatal(kind="internal", message="the model fails at every step; see the log"))
                    return
        finally:
            self._streams.close()
            self._submissions.close()
            self._socket.shutdown(socket.SHUT_RDWR)
            reader.join()

    # --------------------------------------------------------------------------------------------- the model's thread

    def _is_over(self) -> bool:
        if self._stop_at is None:
            return False
        idle = not self._engine.has_work and self._submissions.num_pending + self._streams.num_open == 0
        return idle or time.monotonic() >= self._stop_at

    def _take_mail(self, *, block: bool) -> None:
        """Do what other threads asked for; when there is nothing else to do, wait for them."""
        try:
            timeout = None if self._stop_at is None else 0.05
            self._mailbox.get(block=block, timeout=timeout if block else None)()
            while True:
                self._mailbox.get_nowait()()
        except queue.Empty:
            return

    def _step(self) -> bool:
        """One step; a failing one ends the sequences that ran in it and no others. False when it failed."""
        try:
            report = self._engine.step(meanwhile=lambda: self._take_mail(block=False))
        except Exception:
            log.exception("a step failed")
            self._send(self._engine.fail_all(_INTERNAL))
            return False
        if report.deltas or report.vectors:
            self._outbox.send(StepOutput(deltas=report.deltas, vectors=report.vectors))
        for sequence in {work.sequence for work in report.plan.rows if work.sequence.wants_progress}:
            if not sequence.output or len(sequence.output) == 1:
                self._say_prefill(sequence)
        return True

    def _say_prefill(self, sequence: Sequence) -> None:
        total = len(sequence.prompt)
        done = min(sequence.num_computed_tokens, total)
        self._outbox.send(Progress(request_id=sequence.request_id, phase="prefill", done=done, total=total))

    def _send(self, deltas: tuple[Delta, ...] | list[Delta]) -> None:
        if deltas:
            self._outbox.send(StepOutput(deltas=tuple(deltas)))

    # --------------------------------------------------------------------------------------------- the reader's thread

    def _read_forever(self) -> None:
        while (message := read_to_engine(self._socket)) is not None:
            self._receive(message)
        self._mailbox.put(lambda: self._stop(0.0))

    def _receive(self, message: ToEngine) -> None:
        match message:
            case Generate() | Embed() | Render() | Overlay():
                self._submissions.start(message, num_waiting=self._engine.scheduler.num_waiting)
            case OpenStream():
                self._streams.start(message)
            case StreamData() | StreamEnd():
                self._streams.feed(message)
            case Abort(request_id=request_id, index=index, reason=reason):
                self._streams.cancel(request_id)
                self._submissions.cancel(
                    request_id,
                    lambda: self._mailbox.put(lambda: self._send(self._engine.abort(request_id, index, reason))),
                )
            case Ping(number=number):
                self._outbox.send(Pong(number=number, num_idle=self._clock.look()))
            case GetStats(request_id=request_id):
                self._outbox.send(collect_stats(request_id, self._assembled, self._submissions))
            case DropCaches():
                self._assembled.admission.ingest.cache.clear()
                self._mailbox.put(self._assembled.store.drop_unpinned)
                self._mailbox.put(self._assembled.pages.forget)
            case Shutdown(grace_s=grace_s):
                self._submissions.refuse_new()
                self._mailbox.put(lambda: self._stop(grace_s))

    def _stop(self, grace_s: float) -> None:
        self._stop_at = time.monotonic() + grace_s
