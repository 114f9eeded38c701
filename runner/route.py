"""Graph or eager, and why. Owns the choice and the ladders of shapes that graphs exist for; runs nothing and captures
nothing."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from attention.tiles import TileShape

GraphPolicy = Literal["auto", "always", "never"]

# Under `auto`, a bucket that does more than this many times what the step asks for is not worth it.
MOST_PADDING = 2.0
ENCODER_RATIO = 1.3


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class DecodeBucket:
    """A step of num_seqs sequences with rows_per_seq rows each, of at most num_pages pages."""

    rows_per_seq: int
    num_seqs: int
    num_pages: int

    @property
    def num_rows(self) -> int:
        return self.num_seqs * self.rows_per_seq


@dataclass(frozen=True, slots=True, kw_only=True)
class StepShape:
    """num_rows packed rows of num_seqs sequences, the longest of num_pages pages. rows_per_seq: how many each has, 0
    where they differ. is_decode: no sequence of it is being prefilled. extras: what a graph's step has no place for,
    first things first, such as "ranges"."""

    num_rows: int
    num_seqs: int
    rows_per_seq: int
    num_pages: int
    is_decode: bool
    extras: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderBucket:
    """A packed batch of so many patches and slots, and how its rows are tiled in each of the views in which the tower's
    layers attend."""

    patches: int
    slots: int
    views: tuple[tuple[str, TileShape], ...]


Bucket = TypeVar("Bucket")


@dataclass(frozen=True, slots=True, kw_only=True)
class Route(Generic[Bucket]):
    """mode, the captured shape when it is a graph, and the reason, counted in metrics."""

    mode: Literal["graph", "eager"]
    bucket: Bucket | None
    reason: str


def route(
    shape: StepShape, *, policy: GraphPolicy, captured: Collection[DecodeBucket], refusal: str | None = None
) -> Route[DecodeBucket]:
    """Choose how one step of the decoder runs.

    captured: the shapes that a graph exists for. refusal: why there is none at all.

    Worked example, captured 1, 2 and 4 sequences of one row: 3 decoding sequences: a graph of 4; 5 sequences: eager,
    "larger_than_captured"; a step with a prefill chunk: eager, "prefill".
    """
    if policy == "never":
        return Route(mode="eager", bucket=None, reason="policy_never")
    if refusal is not None:
        return Route(mode="eager", bucket=None, reason=refusal)
    if shape.rows_per_seq not in {bucket.rows_per_seq for bucket in captured}:
        reason = "prefill" if not shape.is_decode else "other_depth" if captured else "nothing_captured"
        return Route(mode="eager", bucket=None, reason=reason)
    if shape.extras:
        return Route(mode="eager", bucket=None, reason=shape.extras[0])
    fitting = [
        bucket
        for bucket in captured
        if bucket.rows_per_seq == shape.rows_per_seq
        and bucket.num_seqs >= shape.num_seqs
        and bucket.num_pages >= shape.num_pages
    ]
    if not fitting:
        return Route(mode="eager", bucket=None, reason="larger_than_captured")
    bucket = min(fitting)
    if policy == "auto" and bucket.num_rows > MOST_PADDING * shape.num_rows:
        return Route(mode="eager", bucket=None, reason="too_much_padding")
    return Route(mode="graph", bucket=bucket, reason="decode")


def decode_ladder(
    *, max_num_seqs: int, num_pages: int, depths: Collection[int] = (1,), by_length: bool
) -> tuple[DecodeBucket, ...]:
    """Shapes to capture, the largest first. depths: rows a sequence may have, one more than are drafted. num_pages: of
    the longest sequence. by_length: a graph for each length of context, doubling.

    Worked example, 12 sequences of at most 20 pages: of 12, 8, 4, 2 and 1 sequences; by length of 20, 16 and 8 pages
    each.
    """
    seqs = {size for size in (1, 2, 4) if size < max_num_seqs}
    seqs |= {*range(8, min(max_num_seqs, 64), 8), *range(64, max_num_seqs, 32)}
    pages = {num_pages}
    if by_length:
        size = 8
        while size < num_pages:
            pages.add(size)
            size *= 2
    buckets = [
        DecodeBucket(rows_per_seq=depth, num_seqs=count, num_pages=length)
        for depth in set(depths)
        for count in seqs | {max_num_seqs}
        for length in pages
    ]
    return tuple(sorted(buckets, key=lambda bucket: (bucket.num_rows, bucket.num_pages), reverse=True))


def route_encoder(
    bucket: EncoderBucket,
    *,
    num_patches: int,
    policy: GraphPolicy,
    captured: Collection[EncoderBucket],
    times_seen: int,
    is_lazy: bool,
    most: int,
) -> Route[EncoderBucket]:
    """Choose how one packed batch of num_patches patches, which fits this bucket, is encoded. Graphs are captured when
    first needed; is_lazy: a shape that comes once does not pay for that.

    Worked example, `auto` and is_lazy, nothing captured: the first batch of a shape goes eager, "seen_once", the second
    is captured; of 10 patches in a bucket of 32: eager, "too_much_padding".
    """
    if policy == "auto" and bucket.patches > MOST_PADDING * num_patches:
        return Route(mode="eager", bucket=None, reason="too_much_padding")
    if bucket not in captured:
        if len(captured) >= most:
            return Route(mode="eager", bucket=None, reason="too_many_shapes")
        if policy == "auto" and is_lazy and not times_seen:
            return Route(mode="eager", bucket=None, reason="seen_once")
    return Route(mode="graph", bucket=bucket, reason="packed")


def round_up(count: int, multiple: int) -> int:
    """The next of a ladder of multiples that rises by ENCODER_RATIO, or by one multiple where that is more.

    Worked example, multiples of 16: 16, 32, 48, 64, 80, 96, 112, 144, 176, 224, ...: 100 gives 112, 113 gives 144.
    """
    size = multiple
    while size < count:
        size = max(size + multiple, int(size * ENCODER_RATIO) // multiple * multiple)
    return size
