"""Every clip of the field gives its outcome in a real child: exact pictures and times, or a refusal that helps."""

from __future__ import annotations

import re
import time

import pytest

from tests.clips import looks_upright, read_numbers
from tests.field import FIELD_CASES, FieldCase
from tests.vision.fakes import SameSize
from vision.cage import DecodePool
from vision.errors import DecodeCancelledError, DecodeCrashedError, DecodeDeadlineError, MediaError
from vision.frames import VideoFrames
from vision.request import DecodeRequest, MediaBytes
from vision.sampling import SamplingPolicy

REQUEST = DecodeRequest(kind="video", resize=SameSize(), sampling=SamplingPolicy(max_frames=64))
SLOW_S = 20.0  # of our deadline of 30; a busy machine is slow
LEAKS = re.compile(r"\b0x|Errno|Traceback|(?<![\w<])/[a-z]+/")

SMALL = [case for case in FIELD_CASES if case.size_class == "small"]
BIG = [case for case in FIELD_CASES if case.size_class == "big"]


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
def test_field(pool: DecodePool, case: FieldCase) -> None:
    check_case(pool, case)


@pytest.mark.soak
@pytest.mark.parametrize("case", BIG, ids=lambda case: case.name)
def test_big_field(pool: DecodePool, case: FieldCase) -> None:
    check_case(pool, case)


def test_names_are_their_own() -> None:
    names = [case.name for case in FIELD_CASES]
    assert len(set(names)) == len(names) > 80


def check_case(pool: DecodePool, case: FieldCase) -> None:
    data = case.make()
    started = time.monotonic()
    answer = decode_or_refuse(pool, data)
    assert time.monotonic() - started < SLOW_S
    if isinstance(answer, VideoFrames):
        assert case.outcome != "reject"
        check_frames(answer, case)
    else:
        assert case.outcome != "accept", answer
        assert 20 < len(answer) < 400
        assert not LEAKS.search(answer)


def decode_or_refuse(pool: DecodePool, data: bytes) -> VideoFrames | str:
    """The frames, or the words of a refusal; a crash or a hang is neither."""
    try:
        return pool.decode(MediaBytes(data=data), REQUEST)
    except (DecodeCrashedError, DecodeDeadlineError, DecodeCancelledError):
        raise
    except MediaError as error:
        return error.message


def check_frames(frames: VideoFrames, case: FieldCase) -> None:
    numbers, times_s = case.numbers, case.expected_times_s()
    if numbers is not None and min(frames.source_size) > 32:
        seen = read_numbers(frames.pixels)
        if case.outcome == "accept":
            assert (frames.num_frames, frames.num_broken) == (len(numbers), 0)
            assert seen == [numbers[index] for index in frames.frame_indices]
            assert seen[0] == numbers[0] and seen[-1] == numbers[-1]
        else:
            assert set(seen) <= set(numbers)
    if times_s is not None and case.outcome == "accept":
        assert frames.times_s == pytest.approx([times_s[index] for index in frames.frame_indices], abs=1.1e-3)
    if case.duration_s is not None:
        assert frames.duration_s == pytest.approx(case.duration_s, abs=2.1e-3)
    if case.size is not None:
        assert frames.source_size == case.size == frames.size
    if case.upright:
        assert all(looks_upright(picture, case.tolerance) for picture in frames.pixels)
