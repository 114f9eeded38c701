"""Pictures are cut as transformers' processors cut them, bit for bit, at sizes that divide into nothing."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from transformers import LlavaOnevisionImageProcessor
from transformers.models.smolvlm.image_processing_smolvlm import SmolVLMImageProcessor
from transformers.models.smolvlm.video_processing_smolvlm import SmolVLMVideoProcessor

from vision.tiling import AnyResolution, PadToSquare, ResizeTwice, SquareTiles, Tiling, fit_inside, fit_longest_edge

SIZES = [(100, 77), (64, 190), (33, 33), (5, 300), (301, 7), (50, 50), (49, 51), (100, 100), (90, 130), (1, 1)]
CANVASES = tuple((40 * rows, 40 * columns) for rows in (1, 2, 3) for columns in (1, 2, 3))
RAW: dict[str, Any] = {"do_normalize": False, "do_rescale": False}
SMOL: dict[str, Any] = {"size": {"longest_edge": 100}, "max_image_size": {"longest_edge": 50}, **RAW}
LLAVA: dict[str, Any] = {
    "size": {"height": 40, "width": 40}, "image_grid_pinpoints": [list(canvas) for canvas in CANVASES], **RAW,
}  # fmt: skip


def picture_of(size: tuple[int, int]) -> torch.Tensor:
    return torch.randint(0, 256, (3, *size), dtype=torch.uint8, generator=torch.Generator().manual_seed(size[0]))


def pixels(output: Any) -> torch.Tensor:
    return output["pixel_values"][0].to(torch.uint8)


def test_sizes_are_the_worked_examples() -> None:
    assert fit_longest_edge((64, 190), 100) == (34, 100)
    assert fit_longest_edge((720, 1280), 512) == (288, 512)
    assert fit_inside((100, 50), (80, 40)) == (80, 40)
    assert SquareTiles(longest_edge=100, side=50).layout((64, 190)) == (1, 2)
    assert SquareTiles(longest_edge=50, side=50).layout((64, 190)) == (0, 0)
    assert AnyResolution(side=40, canvases=((40, 80), (80, 40))).canvas((100, 50)) == (80, 40)


@pytest.mark.parametrize("size", SIZES)
def test_smolvlm_images_in_tiles(size: tuple[int, int]) -> None:
    picture, tiling = picture_of(size), SquareTiles(longest_edge=100, side=50)
    expected = SmolVLMImageProcessor(**SMOL)(picture, return_row_col_info=True, return_tensors="pt")
    assert torch.equal(tiling.cut(picture, size, "lanczos"), pixels(expected))
    assert tiling.layout(size) == (expected["rows"][0][0], expected["cols"][0][0])


@pytest.mark.parametrize("size", SIZES)
def test_smolvlm_pictures_that_are_not_split(size: tuple[int, int]) -> None:
    picture = picture_of(size)
    ours = ResizeTwice(longest_edge=100, side=50).cut(picture, size, "lanczos")
    whole = SmolVLMImageProcessor(do_image_splitting=False, **SMOL)(picture, return_tensors="pt")
    frame = SmolVLMVideoProcessor(**SMOL)([picture[None]], return_tensors="pt")
    assert torch.equal(ours, pixels(whole))
    assert torch.equal(ours, pixels(frame))


@pytest.mark.parametrize("size", SIZES)
def test_llava_onevision_images(size: tuple[int, int]) -> None:
    processor, picture = LlavaOnevisionImageProcessor(**LLAVA), picture_of(size)
    fill = tuple(int(value * 255) for value in processor.image_mean)
    alone = AnyResolution(side=40, canvases=CANVASES).cut(picture, size, "bicubic")
    among = PadToSquare(side=40, fill=fill).cut(picture, size, "bicubic")
    assert torch.equal(alone, pixels(processor([picture], return_tensors="pt")))
    assert torch.equal(among, pixels(processor([[picture, picture]], return_tensors="pt")))


@pytest.mark.parametrize(
    "tiling",
    [
        ResizeTwice(longest_edge=9, side=4),
        SquareTiles(longest_edge=9, side=4),
        PadToSquare(side=4, fill=(1, 2, 3)),
        AnyResolution(side=4, canvases=((4, 8),)),
    ],
)
def test_a_tiling_can_be_sent_to_a_child(tiling: Tiling) -> None:
    assert pickle.loads(pickle.dumps(tiling)) == tiling


def test_pixels_that_are_not_square_are_measured_as_shown() -> None:
    """A clip stored as 60 x 50 and shown as 60 x 100 goes through the size that a picture of 60 x 100 goes through."""
    stored = picture_of((60, 50))
    tiling = ResizeTwice(longest_edge=100, side=50)
    assert torch.equal(
        tiling.cut(stored, (60, 100), "bilinear"),
        ResizeTwice(longest_edge=100, side=50).cut(stored, (30, 50), "bilinear"),
    )
