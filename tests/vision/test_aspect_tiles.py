"""Pictures are cut as transformers' processor for InternVL cuts them, bit for bit."""

from __future__ import annotations

import pickle

import pytest
import torch
from transformers import GotOcr2ImageProcessor

from vision.aspect_tiles import AspectTiles

SIZES = [(100, 77), (64, 190), (33, 33), (5, 300), (301, 7), (80, 80), (81, 80), (90, 130), (1, 1), (200, 200)]
BOUNDS = [(1, 12), (2, 5), (1, 1)]


@pytest.mark.parametrize("bounds", BOUNDS)
def test_tiles_equal_the_processor(bounds: tuple[int, int]) -> None:
    low, high = bounds
    processor = GotOcr2ImageProcessor(
        size={"height": 40, "width": 40}, crop_to_patches=True, min_patches=low, max_patches=high,
        do_normalize=False, do_rescale=False,
    )  # fmt: skip
    tiling = pickle.loads(pickle.dumps(AspectTiles(side=40, min_tiles=low, max_tiles=high)))
    for size in SIZES:
        generator = torch.Generator().manual_seed(size[0])
        picture = torch.randint(0, 256, (3, *size), dtype=torch.uint8, generator=generator)
        expected = processor(picture, return_tensors="pt")["pixel_values"].to(torch.uint8)
        assert torch.equal(tiling.cut(picture, size, "bicubic"), expected), size


def test_a_wide_picture_is_the_worked_example() -> None:
    tiling = AspectTiles(side=40, min_tiles=1, max_tiles=4)
    assert tiling.layout((64, 190)) == (1, 3)
    assert len(tiling.cut(torch.zeros(3, 64, 190, dtype=torch.uint8), (64, 190), "bicubic")) == 4
