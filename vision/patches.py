"""From frames to what a patch-based vision tower reads: slots, cells and normalised pixel values.

Knows nothing of decoding, of models, or of which cells will be looked at.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from vision.frames import VideoFrames


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PatchGrid:
    """A clip cut into T slots of h x w cells; a cell is merge_size x merge_size patches, unless cells are pooled.

    pixels: (T * frames_per_slot, 3, H, W) uint8; the last real frame is repeated to fill the last slot.
    times_s: one time a frame of `pixels`; padding has the time of the frame it repeats.
    pooled: (h, w) where a family mixes a slot's patches into cells in its own way; merge_size is then 1.
    pictures_per_slot: pictures that are encoded apart and read together as one slot, such as the tiles of an image.

    Worked example, 27 x 27 patches pooled to (14, 14): 196 cells and 729 patches a slot. An image of a whole and two
    tiles, pooled to (1, 1500): one slot, 1500 cells, 2187 patches.
    """

    pixels: npt.NDArray[np.uint8]
    times_s: tuple[float, ...]
    temporal_patch_size: int
    patch_size: int
    merge_size: int
    pooled: tuple[int, int] | None = None
    pictures_per_slot: int = 1

    def __post_init__(self) -> None:
        frames, _, height, width = self.pixels.shape
        cell = self.patch_size * self.merge_size
        if frames % self.frames_per_slot or frames != len(self.times_s):
            raise ValueError(
                f"{frames} frames and {len(self.times_s)} times do not fill slots of {self.frames_per_slot} frames"
            )
        if self.pooled is None and self.pictures_per_slot > 1:
            raise ValueError(f"a slot of {self.pictures_per_slot} pictures must say into which cells they are pooled")
        if self.pooled is not None and self.merge_size > 1:
            raise ValueError(f"cells are pooled {self.pooled} or merged by {self.merge_size}, not both")
        if height % cell or width % cell:
            raise ValueError(f"{width}x{height} pixels do not divide into cells of {cell}x{cell}")

    @classmethod
    def from_frames(
        cls, frames: VideoFrames, *, temporal_patch_size: int, patch_size: int, merge_size: int
    ) -> PatchGrid:
        """Pad the clip to whole slots; copies pixels only when padding is needed."""
        padding = -len(frames.pixels) % temporal_patch_size
        pixels = frames.pixels
        if padding:
            pixels = np.concatenate([pixels, np.repeat(pixels[-1:], padding, axis=0)])
        return cls(
            pixels=pixels, times_s=frames.times_s + frames.times_s[-1:] * padding,
            temporal_patch_size=temporal_patch_size, patch_size=patch_size, merge_size=merge_size,
        )  # fmt: skip

    @property
    def frames_per_slot(self) -> int:
        return self.temporal_patch_size * self.pictures_per_slot

    @property
    def slots(self) -> int:
        """T."""
        return len(self.pixels) // self.frames_per_slot

    @property
    def grid(self) -> tuple[int, int]:
        """(h, w) in cells."""
        if self.pooled is not None:
            return self.pooled
        _, rows, columns = self.patch_grid
        return rows // self.merge_size, columns // self.merge_size

    @property
    def cells_per_slot(self) -> int:
        """P = h * w."""
        return self.grid[0] * self.grid[1]

    @property
    def patches_per_slot(self) -> int:
        _, rows, columns = self.patch_grid
        return self.pictures_per_slot * rows * columns

    @property
    def patch_grid(self) -> tuple[int, int, int]:
        """(T, rows, columns) in patches of one picture: one row of transformers' `*_grid_thw`."""
        height, width = self.pixels.shape[2:]
        return self.slots, height // self.patch_size, width // self.patch_size


def pixel_values(
    grid: PatchGrid,
    slot_start: int,
    slot_stop: int,
    *,
    mean: Sequence[float],
    std: Sequence[float],
    rescale: float = 1 / 255,
    chosen: npt.NDArray[np.int64] | None = None,
) -> torch.Tensor:
    """Normalised patches of slots [slot_start, slot_stop): (n, 3 * temporal * patch * patch) float32.

    n = slots x patches_per_slot, or as many as are `chosen` by their place among those; the others cost nothing.
    Patches stand picture by picture, then cell by cell in reading order, then inside a cell in reading order: a merged
    cell's patches are neighbours. Bit-equal to transformers' processors.
    """
    if not 0 <= slot_start <= slot_stop <= grid.slots:
        raise ValueError(f"slots [{slot_start}, {slot_stop}) are not inside [0, {grid.slots})")
    temporal, patch, merge = grid.temporal_patch_size, grid.patch_size, grid.merge_size
    _, rows, columns = grid.patch_grid
    h, w, pictures = rows // merge, columns // merge, (slot_stop - slot_start) * grid.pictures_per_slot
    pixels = torch.from_numpy(grid.pixels[slot_start * grid.frames_per_slot : slot_stop * grid.frames_per_slot])
    cut = pixels.view(pictures, temporal, 3, h, merge, patch, w, merge, patch)
    ordered = cut.permute(0, 3, 6, 4, 7, 2, 1, 5, 8)  # (pictures, h, w, merge, merge, 3, temporal, patch, patch)
    if chosen is not None:
        ordered = ordered[tuple(torch.from_numpy(x) for x in np.unravel_index(chosen, ordered.shape[:5]))]
    values = ordered.reshape(-1, 3, temporal * patch * patch)
    # The rescale is folded into mean and std in float32, as the processors do; any other order rounds differently.
    shift = torch.tensor(list(mean)) * (1.0 / rescale)
    scale = torch.tensor(list(std)) * (1.0 / rescale)
    normalised = values.to(torch.float32).sub_(shift.view(3, 1)).div_(scale.view(3, 1))
    return normalised.flatten(1)


def pixels_sha256(grid: PatchGrid) -> str:
    """Hex digest of shape and pixels, padding included: equal digests mean equal input to the tower."""
    digest = hashlib.sha256(repr(grid.pixels.shape).encode())
    digest.update(np.ascontiguousarray(grid.pixels).data)
    return digest.hexdigest()
