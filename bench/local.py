"""Asks an engine in this process, in the thread that asks. Owns how a request becomes sequences there; measures
nothing."""

from __future__ import annotations

import itertools
import threading
from concurrent.futures import Future

from evs.policy import EvsPolicy
from evs.select import PendingSelection
from runner.assembly import Assembled
from runner.items import MediaItem
from runner.messages import Generate
from runner.plan import EncodeJob
from runner.requests import ChatMessage, ContentPart, EvsMethod, EvsOptions, SamplingParams
from runner.sequence import Sequence


class LocalAsker:
    """One engine. It waits for nobody: what a submission needs of the encoder is had by stepping the engine itself."""

    def __init__(self, assembled: Assembled) -> None:
        self.assembled = assembled
        self.engine = assembled.engine
        self.cancel = threading.Event()
        self._numbers = itertools.count()

    def add(self, parts: tuple[ContentPart, ...], sampling: SamplingParams, *, evs: EvsMethod) -> Sequence:
        """Submit one user's message; its sequence waits for the next step."""
        number = next(self._numbers)
        request = Generate(
            request_id=str(number),
            chat=(ChatMessage(role="user", parts=parts),),
            sampling=sampling,
            evs=EvsOptions(method=evs),
        )
        (sequence,), _ = self.assembled.admission.submit(request, number, self)
        self.engine.add([sequence])
        return sequence

    def run(self) -> int:
        """Step until nothing is left to do; how many steps that took."""
        steps = 0
        while self.engine.has_work:
            self.engine.step()
            steps += 1
        return steps

    def tell_decoded(self, done: int, total: int) -> None:
        """Nobody watches."""

    def finish_selection(self, item: MediaItem, pending: PendingSelection, policy: EvsPolicy) -> MediaItem:
        answer: Future[MediaItem] = Future()
        self.engine.scheduler.add_job(
            EncodeJob(
                request_id="encode", item=item, priority=0, arrival=next(self._numbers), pending=pending, policy=policy,
                answer=answer,
            )
        )  # fmt: skip
        while not answer.done():
            self.engine.step()
        return answer.result()
