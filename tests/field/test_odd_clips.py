"""The clips of the field through the front door: those that a server owes an answer for get the exact pictures, the
others a refusal that helps, and nobody else notices any of it."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.clips import looks_upright, read_numbers
from tests.field import FIELD_CASES, FieldCase
from tests.field.talk import CHAT, Talk, raw, read_frames, user
from tests.oracle import noise_clip
from tests.processes import children_of, wait_until

SMALL = [case for case in FIELD_CASES if case.size_class == "small"]
ROUNDED_S = 2e-3  # containers store whole milliseconds
LEAKS = re.compile(r"0x[0-9a-f]{4}|Errno|Traceback|(?<![\w<])/[a-z]+/")


@pytest.fixture(scope="module", autouse=True)
def control(talk: Talk) -> Iterator[None]:
    """The same answer before and after all of them, from the same processes, with nothing left behind."""
    clip = noise_clip(160, num_frames=5, size=(64, 64))
    engine, before = talk.server.engine_pid, talk.tokens(clip, "control", max_tokens=8)
    yield
    assert talk.tokens(clip, "control", max_tokens=8) == before
    assert talk.server.engine_pid == engine
    talk.wait_for_rest()
    wait_until(lambda: children_of(talk.server.pid) == talk.first_children, what="the end of decoding children")


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
def test_a_clip_of_the_field(talk: Talk, case: FieldCase) -> None:
    """O1, O5: 200 with the pictures and times that are its own, or a 4xx in words; never a 5xx or a hang."""
    body = {"messages": [user(raw(case.make()), "?")], "include": ["frames"], "video": {"max_frames": 6}}
    reply = talk.send(body, CHAT + "/render")
    if reply.status_code != 200:
        assert 400 <= reply.status_code < 500, reply.text
        message = reply.json()["error"]["message"]
        assert case.outcome != "accept", message
        assert 20 < len(message) < 400
        assert not LEAKS.search(message)
        return
    assert case.outcome != "reject"
    item = reply.json()["items"][0]
    frames = read_frames(item)
    times = item["timestamps_s"]
    assert len(frames) == len(times) >= 1
    assert times == sorted(times)
    if case.outcome != "accept" or case.numbers is None:
        return
    if min(case.size or (0, 0)) > 32:
        check_pictures(frames, times, case)


def check_pictures(frames: list, times: list[float], case: FieldCase) -> None:
    """Each picture is upright and is the one that is on screen at its time."""
    assert case.numbers is not None
    seen = read_numbers(frames)
    known = case.expected_times_s()
    if known is not None:
        on_screen = [sum(began <= time + ROUNDED_S for began in known) - 1 for time in times]
        assert seen == [case.numbers[place] for place in on_screen]
    assert set(seen) <= set(case.numbers)
    assert seen[0] == case.numbers[0]
    if case.upright:
        assert all(looks_upright(frame, max(case.tolerance, 60)) for frame in frames)
