"""Where vision's segments meet the attention room, which do not know each other. Owns the two hand-overs; computes
nothing."""

from __future__ import annotations

from attention.grouped import plan_grouped
from vision.towers.arranged import Tower, encode_arranged
from vision.towers.keys import Segments
from vision.towers.packed import EncodedCells, PatchBatch
from vision.towers.rotary import Attend


def plan_segments(segments: Segments) -> Attend:
    """The attention in which rows see their segment's keys."""
    return plan_grouped(segments.cu_seqlens, segments.index, segments.cu_keys)


def encode_batch(tower: Tower, batch: PatchBatch) -> EncodedCells:
    """Encode with the attention that the batch asks for, and keep what its clips' next parts will read."""
    return encode_arranged(tower, batch, plan_segments)
