"""The route is a pure function with a reason, and the ladders are their worked examples."""

from __future__ import annotations

from itertools import pairwise

import pytest

from attention.tiles import TileShape
from runner.route import DecodeBucket, EncoderBucket, Route, StepShape, decode_ladder, round_up, route, route_encoder


def decode(num_seqs: int, *, rows: int = 1, pages: int = 3, extras: tuple[str, ...] = ()) -> StepShape:
    return StepShape(
        num_rows=num_seqs * rows, num_seqs=num_seqs, rows_per_seq=rows, num_pages=pages, is_decode=True, extras=extras
    )


def buckets(*sizes: int, rows: int = 1, pages: int = 8) -> tuple[DecodeBucket, ...]:
    return tuple(DecodeBucket(rows_per_seq=rows, num_seqs=size, num_pages=pages) for size in sizes)


MIXED = StepShape(num_rows=9, num_seqs=3, rows_per_seq=0, num_pages=1, is_decode=False)
LADDER = (*buckets(1, 2, 4), *buckets(1, 2, 4, pages=20), *buckets(4, rows=3))


@pytest.mark.parametrize(
    ("shape", "policy", "captured", "refusal", "expected"),
    [
        (decode(3), "auto", LADDER, None, ("decode", 4, 8)),
        (decode(4, pages=8), "auto", LADDER, None, ("decode", 4, 8)),
        (decode(1, pages=9), "auto", LADDER, None, ("decode", 1, 20)),
        (decode(5), "auto", LADDER, None, "larger_than_captured"),
        (decode(1, pages=21), "auto", LADDER, None, "larger_than_captured"),
        (decode(3, rows=3), "auto", LADDER, None, ("decode", 4, 8)),
        (decode(1, rows=3), "auto", LADDER, None, "too_much_padding"),
        (decode(1, rows=3), "always", LADDER, None, ("decode", 4, 8)),
        (decode(2, rows=2), "always", LADDER, None, "other_depth"),
        (decode(3, extras=("ranges", "deepstack")), "always", LADDER, None, "ranges"),
        (MIXED, "always", LADDER, None, "prefill"),
        (decode(3), "never", LADDER, None, "policy_never"),
        (decode(3), "auto", (), "backend_has_no_graphs", "backend_has_no_graphs"),
        (decode(3), "auto", (), None, "nothing_captured"),
    ],
)  # fmt: skip
def test_routes(shape, policy, captured, refusal, expected) -> None:
    chosen = route(shape, policy=policy, captured=captured, refusal=refusal)
    if isinstance(expected, str):
        assert chosen == Route(mode="eager", bucket=None, reason=expected)
    else:
        reason, seqs, pages = expected
        bucket = DecodeBucket(rows_per_seq=shape.rows_per_seq, num_seqs=seqs, num_pages=pages)
        assert chosen == Route(mode="graph", bucket=bucket, reason=reason)


def test_the_decode_ladder_is_its_worked_example() -> None:
    plain = decode_ladder(max_num_seqs=12, num_pages=20, by_length=False)
    assert [(bucket.num_seqs, bucket.num_pages) for bucket in plain] == [(n, 20) for n in (12, 8, 4, 2, 1)]
    by_length = decode_ladder(max_num_seqs=12, num_pages=20, by_length=True)
    assert [(b.num_seqs, b.num_pages) for b in by_length] == [(n, p) for n in (12, 8, 4, 2, 1) for p in (20, 16, 8)]
    deep = decode_ladder(max_num_seqs=1, num_pages=4, depths=(1, 3), by_length=False)
    assert [bucket.rows_per_seq for bucket in deep] == [3, 1]


def packed(patches: int) -> EncoderBucket:
    tiles = TileShape(rows=patches, tiles=1, queries=16, keys=16)
    return EncoderBucket(patches=patches, slots=1, views=(("slots", tiles),))


@pytest.mark.parametrize(
    ("patches", "policy", "captured", "times_seen", "is_lazy", "expected"),
    [
        (20, "auto", (), 0, True, "seen_once"),
        (20, "auto", (), 1, True, "packed"),
        (20, "auto", (), 0, False, "packed"),
        (20, "auto", (packed(32),), 0, True, "packed"),
        (10, "auto", (), 5, True, "too_much_padding"),
        (10, "always", (), 0, True, "packed"),
        (20, "always", (packed(16), packed(48)), 3, True, "too_many_shapes"),
    ],
)
def test_encoder_routes(patches, policy, captured, times_seen, is_lazy, expected) -> None:
    chosen = route_encoder(
        packed(32), num_patches=patches, policy=policy, captured=captured, times_seen=times_seen, is_lazy=is_lazy,
        most=2,
    )  # fmt: skip
    assert chosen.reason == expected
    assert (chosen.mode, chosen.bucket) == (("graph", packed(32)) if expected == "packed" else ("eager", None))


def test_the_ladder_is_its_worked_example() -> None:
    assert [round_up(count, 16) for count in (1, 16, 17, 100, 113, 177)] == [16, 16, 32, 112, 144, 224]
    sizes = sorted({round_up(count, 16) for count in range(1, 20_000)})
    assert all(b <= max(a + 16, 1.3 * a) for a, b in pairwise(sizes))
