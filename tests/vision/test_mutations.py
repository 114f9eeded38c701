"""Damaged files of every kind: no hang, no crash, nothing left behind, and the next clip is decoded as before.

The damage is random but the same in every run: a failure is found again by its number.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable

import numpy as np
import pytest

from tests.clips import make_clip, make_gif
from tests.vision.fakes import SameSize
from tests.vision.test_cage import children_of, open_descriptors, server_pid, wait_until
from vision.cage import DecodePool
from vision.errors import DecodeCancelledError, DecodeCrashedError, DecodeDeadlineError, MediaError
from vision.limits import DecodeLimits
from vision.request import DecodeRequest, MediaBytes
from vision.sampling import SamplingPolicy

CI_MUTATIONS, SOAK_MUTATIONS = 100, 2000
GROUPS = {"preset": "veryfast", "bf": "2", "g": "6"}
REQUEST = DecodeRequest(
    kind="video", resize=SameSize(), sampling=SamplingPolicy(num_frames=4), limits=DecodeLimits(decode_timeout_s=20.0)
)


def small(**options: object) -> bytes:
    return make_clip(**{"frames": 12, "size": (48, 64), **options})  # type: ignore[arg-type]


SEEDS: dict[str, bytes] = {
    "h264": small(options=GROUPS),
    "faststart": small(options=GROUPS, container_options={"movflags": "faststart"}),
    "fragments": small(options=GROUPS, container_options={"movflags": "frag_keyframe+empty_moov"}),
    "matroska": small(options=GROUPS, container="matroska"),
    "ts": small(options=GROUPS, container="mpegts"),
    "vp9": small(codec="libvpx-vp9", container="webm"),
    "avi": small(codec="mpeg4", container="avi", options={"bf": "2", "g": "6"}),
    "flv": small(codec="flv", container="flv"),
    "mpeg": small(codec="mpeg2video", container="mpeg"),
    "gif": make_gif(delays_ms=[100] * 4, size=(48, 64)),
}


def cut(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data))]


def flip_bits(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice((1, 3, 10, 50))):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def flip_header(data: bytes, rng: random.Random) -> bytes:
    """As above, within the first and the last 512 bytes, where indices and tables are."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 2, 5))):
        place = rng.randrange(min(512, len(data)))
        changed[rng.choice((place, -1 - place))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def lie_about_sizes(data: bytes, rng: random.Random) -> bytes:
    """A number of four bytes becomes an extreme one."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 2))):
        place = rng.randrange(max(len(changed) - 4, 1))
        changed[place : place + 4] = rng.choice(
            (bytes(4), b"\xff" * 4, b"\x7f\xff\xff\xff", b"\0\0\0\1", b"\xff\xff\xff\xf0")
        )
    return bytes(changed)


def repeat_or_drop(data: bytes, rng: random.Random) -> bytes:
    """A stretch is missing, or comes twice."""
    start = rng.randrange(len(data))
    stop = min(len(data), start + rng.choice((1, 4, 100, 1000)))
    return data[:start] + rng.choice((b"", data[start:stop] * 2)) + data[stop:]


DAMAGES: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    cut, flip_bits, flip_header, lie_about_sizes, repeat_or_drop,
)  # fmt: skip


def mutate(number: int) -> bytes:
    """Mutation `number`: the seeds take turns, the damage is drawn."""
    rng = random.Random(number)
    data = list(SEEDS.values())[number % len(SEEDS)]
    for _ in range(rng.choice((1, 1, 2))):
        data = rng.choice(DAMAGES)(data, rng) or b"\0"
    return data


def run_mutations(pool: DecodePool, count: int) -> None:
    control = pool.decode(MediaBytes(data=SEEDS["h264"]), REQUEST)
    ours, theirs = open_descriptors(), len(os.listdir(f"/proc/{server_pid(pool)}/fd"))
    server = server_pid(pool)
    failures, decoded = [], 0
    for number in range(count):
        try:
            decoded += len(pool.decode(MediaBytes(data=mutate(number)), REQUEST).pixels) > 0
        except (DecodeCrashedError, DecodeDeadlineError, DecodeCancelledError) as error:
            failures.append((number, error.message))
        except MediaError:
            pass
    assert failures == []
    assert 0.2 * count < decoded < count
    wait_until(lambda: children_of(server) == [])
    assert server_pid(pool) == server
    assert (open_descriptors(), len(os.listdir(f"/proc/{server}/fd"))) == (ours, theirs)
    assert not [name for name in os.listdir("/dev/shm") if "evserve" in name]
    again = pool.decode(MediaBytes(data=SEEDS["h264"]), REQUEST)
    assert np.array_equal(again.pixels, control.pixels)


def test_a_hundred_mutations(pool: DecodePool) -> None:
    run_mutations(pool, CI_MUTATIONS)


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_two_thousand_mutations(pool: DecodePool) -> None:
    run_mutations(pool, SOAK_MUTATIONS)
