"""What a request is told it was given and billed for. Owns the counting of prompts and clips; knows no answers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from evs.policy import EvsPolicy
from runner.items import MediaItem
from runner.messages import EvsUsage, PromptUsage, VideoUsage
from runner.prompt import Prompt


def prompt_usage(prompt: Prompt, items: Sequence[MediaItem], policy: EvsPolicy) -> PromptUsage:
    """Counts read off the prompt itself: what is billed is what the model reads."""
    videos = [item for item in items if item.kind == "video"]
    rows = np.bincount(prompt.item[prompt.item >= 0], minlength=len(items)).tolist()  # structural rows are billed, too
    cells = np.bincount(prompt.item[prompt.rank >= 0], minlength=len(items)).tolist()
    by_kind = {"image": 0, "video": 0}
    for item, count, kept in zip(items, rows, cells, strict=True):
        assert kept == item.selection.kept, f"{kept} rows of cells for {item.selection.kept} kept cells"
        by_kind[item.kind] += count
    return PromptUsage(
        prompt_tokens=len(prompt),
        image_tokens=by_kind["image"],
        video_tokens=by_kind["video"],
        evs=_evs_usage(videos, policy) if videos else None,
        video=tuple(_video_usage(item) for item in videos),
    )


def _evs_usage(videos: Sequence[MediaItem], policy: EvsPolicy) -> EvsUsage:
    """The policy in force, what it kept and what of that is encoded."""
    selections = [item.selection for item in videos]
    return EvsUsage(
        method=policy.method,
        frames=sum(len(item.frames.times_s) for item in videos),
        slots=sum(s.slots for s in selections),
        cells=sum(s.cells for s in selections),
        kept=sum(s.kept for s in selections),
        kept_per_slot=tuple(s.kept_per_slot for s in selections),
        encoder=policy.encoder,
        encoder_cells=sum(item.encoder_cells for item in videos),
        rate=policy.rate,
        threshold=policy.threshold,
        refresh=policy.refresh,
        seed=policy.seed,
    )


def _video_usage(item: MediaItem) -> VideoUsage:
    frames = item.frames
    return VideoUsage(
        duration_s=frames.duration_s,
        timestamps_s=frames.times_s,
        size=frames.size,
        fps=frames.sampled_fps,
        broken_frames=frames.num_broken,
    )
