"""An engine that is there and does not answer is found out, and nobody who only takes long is."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from runner import heartbeat
from runner.client import start_engine
from runner.errors import EngineSilentError
from runner.heartbeat import PARTS, STALL_FACTOR, Heartbeat, Ping, Pong
from runner.messages import Generate
from runner.model_runner import ModelRunner
from runner.requests import SamplingParams
from runner.step_clock import LEAST_CPU_S, StepClock
from tests.harness import make_config
from tests.oracle import as_message
from tests.processes import wait_until


class Asked:
    """A heartbeat whose questions are counted, and who was told of silence."""

    def __init__(self) -> None:
        self.pings: list[Ping] = []
        self.told = 0
        self.heartbeat = Heartbeat(self.pings.append, self.tell, silence_s=0.05)

    def tell(self) -> None:
        self.told += 1

    async def wait_for(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not condition():
                await asyncio.sleep(0.001)


@pytest.fixture
async def asked() -> Any:
    asked = Asked()
    running = asyncio.create_task(asked.heartbeat.run())
    yield asked
    running.cancel()


async def test_silence_is_told_once_and_passes(asked: Asked) -> None:
    """One question stays open; its answer ends the silence, and the next question is asked."""
    await asked.wait_for(lambda: asked.heartbeat.is_silent)
    assert (asked.pings, asked.told) == ([Ping(number=1)], 1)
    asked.heartbeat.hear(Pong(number=1, num_idle=0))
    assert not asked.heartbeat.is_silent
    await asked.wait_for(lambda: len(asked.pings) == 2 and asked.heartbeat.is_silent)
    assert asked.told == 2


async def test_our_own_standstill_is_nobodys_silence(asked: Asked) -> None:
    """However long nothing ran here, and so nothing was heard: it is one sleep of ours."""
    await asked.wait_for(lambda: len(asked.pings) == 1)
    time.sleep(0.5)  # ten times the bound
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not asked.heartbeat.is_silent
    asked.heartbeat.hear(Pong(number=1, num_idle=0))
    assert asked.told == 0


@pytest.mark.parametrize(("num_idle", "silent"), [(PARTS * STALL_FACTOR - 1, False), (PARTS * STALL_FACTOR, True)])
def test_a_step_in_which_nothing_happens_is_silence(num_idle: int, silent: bool) -> None:
    asked = Asked()
    asked.heartbeat.hear(Pong(number=1, num_idle=num_idle))
    assert (asked.heartbeat.is_silent, asked.told) == (silent, int(silent))


class Worker:
    """A thread that enters a step and there computes or waits, as it is told."""

    def __init__(self) -> None:
        self.spins, self.ends = threading.Event(), threading.Event()
        self.used_s = 0.0
        self.clock: StepClock | None = None
        self.thread = threading.Thread(target=self.work)
        self.thread.start()
        wait_until(lambda: self.clock is not None)

    def work(self) -> None:
        clock = StepClock()
        with clock.step():
            self.clock = clock
            while not self.ends.is_set():
                if not self.spins.wait(0.01):
                    continue
                self.used_s = time.thread_time()
        self.clock = clock


@pytest.fixture
def worker() -> Iterator[Worker]:
    worker = Worker()
    yield worker
    worker.spins.set()
    worker.ends.set()
    worker.thread.join()


def test_a_long_step_is_not_idle_while_it_computes(worker: Worker) -> None:
    assert worker.clock is not None
    worker.spins.set()
    worker.clock.look()
    for _ in range(5):
        until = worker.used_s + 2 * LEAST_CPU_S
        wait_until(lambda end=until: worker.used_s > end, what="some computing")  # type: ignore[misc]
        assert worker.clock.look() == 0


def test_a_step_that_waits_for_ever_is(worker: Worker) -> None:
    """The worker here wakes every 10 ms to look, which is next to nothing; a step that ends is another step."""
    assert worker.clock is not None
    for _ in range(3):
        worker.clock.look()
    assert worker.clock.look() >= 3
    worker.ends.set()
    worker.thread.join()
    assert StepClock().look() == 0


async def test_a_model_that_hangs_is_told_and_may_come_back(
    checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """B-DEAD-1: the thread that owns the model waits for ever inside a step. Those who wait hear of it, others are
    refused at once, and when it goes on, so does the service, with nothing held."""
    monkeypatch.setattr(heartbeat, "STALL_FACTOR", 0.5)
    client = await start_engine(make_config(checkpoint("qwen3_vl"), silence_s=2.0), where="thread")

    async def ask(name: str) -> list[int]:
        sampling = SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True)
        stream = await client.generate(Generate(request_id=name, chat=(as_message(["hi"]),), sampling=sampling))
        return [token async for delta in stream for token in delta.token_ids]

    before, goes_on, forward = await ask("before"), threading.Event(), ModelRunner._forward

    def hang(runner: ModelRunner, *arguments: Any) -> Any:
        goes_on.wait()
        return forward(runner, *arguments)

    try:
        monkeypatch.setattr(ModelRunner, "_forward", hang)
        assert client.trouble is None
        with pytest.raises(EngineSilentError):
            await ask("hangs")
        assert isinstance(client.trouble, EngineSilentError)
        with pytest.raises(EngineSilentError):
            await ask("refused")
        goes_on.set()
        async with asyncio.timeout(60):
            while client.trouble is not None:
                await asyncio.sleep(0.01)
            assert await ask("after") == before
            while (gauges := (await client.stats("x")).gauges)["evs:kv_pages_free"] != gauges["evs:kv_pages_total"]:
                await asyncio.sleep(0.01)
    finally:
        goes_on.set()
        await client.close(grace_s=0.0)
