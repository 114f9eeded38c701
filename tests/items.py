"""Items as tests want them: any pixels, any cells kept."""

from __future__ import annotations

import numpy as np

from evs.policy import make_policy
from evs.selection import Selection
from runner.items import Decoded, MediaItem
from vision.frames import VideoFrames
from vision.patches import PatchGrid


def item_of(frames: VideoFrames, grid: PatchGrid, keep: np.ndarray | None = None) -> MediaItem:
    """All cells kept unless `keep` (T, P) says otherwise."""
    chosen = np.ones((grid.slots, grid.cells_per_slot), dtype=np.bool_) if keep is None else keep
    method = "none" if keep is None else "random"
    policy = make_policy("none") if keep is None else make_policy("random", rate=0.5)
    return MediaItem.of(Decoded.of(frames, grid), Selection(keep=chosen, method=method), policy)
