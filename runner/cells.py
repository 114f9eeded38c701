"""Where a decoded clip's cells lie in its pixels, as EVS wants to know it. Owns the step from patches to pixels; scores
nothing."""

from __future__ import annotations

import math

from evs.cells import CellGrid, Span
from vision.patches import PatchGrid


def cell_grid(grid: PatchGrid) -> CellGrid:
    """A cell is its merge_size x merge_size patches or, where a family pools, the patches that its pooling reads."""
    if grid.pooled is None:
        side = grid.patch_size * grid.merge_size
        return CellGrid.regular(grid=grid.grid, cell=(side, side), frames_per_slot=grid.frames_per_slot)
    _, rows, columns = grid.patch_grid
    height, width = grid.pooled
    return CellGrid(
        rows=pooled_spans(rows, height, grid.patch_size),
        columns=pooled_spans(columns, width, grid.patch_size),
        frames_per_slot=grid.frames_per_slot,
    )


def pooled_spans(patches: int, cells: int, patch_size: int) -> tuple[Span, ...]:
    """Pixels under each of `cells` bilinear samples of a row of `patches` (half-pixel centres): one or two patches.

    Worked example, 27 patches of 14 pixels pooled to 14 cells: cell 0 is read at patch 0.46, so from patches 0 and 1,
    pixels [0, 28); cell 13 at 25.54, so from patches 25 and 26, pixels [350, 378).
    """
    spans = []
    for cell in range(cells):
        centre = min(max((cell + 0.5) * patches / cells - 0.5, 0.0), patches - 1.0)
        first, last = math.floor(centre), math.ceil(centre)
        spans.append((first * patch_size, (last + 1) * patch_size))
    return tuple(spans)
