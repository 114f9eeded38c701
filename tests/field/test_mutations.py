"""Damaged files of every kind through the front door: an answer or a refusal, no hang, no crash, nothing left behind,
and the next clip is answered as before."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest

from tests.field.talk import Talk, body_of, raw
from tests.mutations import SEEDS, mutate
from tests.processes import children_of, descriptors_of, wait_until

CI_MUTATIONS, SOAK_MUTATIONS = 100, 2000
AT_ONCE = 4
SLOW_S = 25.0


def held_by(talk: Talk) -> dict[int, int]:
    """Open descriptors of the server and each of its processes."""
    return {pid: len(descriptors_of(pid)) for pid in (talk.server.pid, *children_of(talk.server.pid))}


def send(talk: Talk, data: bytes) -> httpx2.Response:
    return talk.send(body_of(raw(data, max_frames=4), "?", max_tokens=1))


@pytest.fixture
def control(talk: Talk) -> Iterator[None]:
    """The same tokens before and after, from the same processes, which hold no more than they did."""
    clips = [raw(SEEDS[name], max_frames=4) for name in ("h264", "gif")]
    before = [talk.tokens(clip, "control", max_tokens=6) for clip in clips]
    talk.wait_for_rest()
    wait_until(lambda: children_of(talk.server.pid) == talk.first_children, what="the end of decoding children")
    held = held_by(talk)
    yield
    assert [talk.tokens(clip, "control", max_tokens=6) for clip in clips] == before
    talk.wait_for_rest()
    wait_until(lambda: held_by(talk) == held, what="the same processes with as many descriptors")
    assert not [name for name in os.listdir("/dev/shm") if "evserve" in name]


def run_mutations(talk: Talk, count: int) -> None:
    with ThreadPoolExecutor(AT_ONCE) as threads:
        replies = list(threads.map(lambda number: send(talk, mutate(number)), range(count)))
    wrong = [
        (number, reply.status_code, reply.text[:200])
        for number, reply in enumerate(replies)
        # A decoder that dies on a file is no 5xx, but none of these files makes it die.
        if reply.status_code not in (200, 400, 413, 415, 422)
        or "the decoder" in reply.text
        or reply.elapsed.total_seconds() > SLOW_S
    ]
    assert wrong == []
    assert 0.2 * count < sum(reply.status_code == 200 for reply in replies) < count


@pytest.mark.usefixtures("control")
def test_a_hundred_mutations(talk: Talk) -> None:
    run_mutations(talk, CI_MUTATIONS)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("control")
def test_two_thousand_mutations(talk: Talk) -> None:
    run_mutations(talk, SOAK_MUTATIONS)
