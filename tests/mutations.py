"""Damaged copies of small clips. The damage is drawn, but the same in every run: a failure is found by its number."""

from __future__ import annotations

import random
from collections.abc import Callable

from tests.clips import make_clip, make_gif

GROUPS = {"preset": "veryfast", "bf": "2", "g": "6"}


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
