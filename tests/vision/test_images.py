"""Pictures come out upright, opaque and in eight bits, and lists of them are clips."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from tests.clips import draw_numbered, looks_upright, make_image, read_number, read_numbers
from tests.vision.fakes import SameSize
from tests.vision.sinks import KeptFrames, decode
from vision.errors import InvalidMediaOptionError, MediaError, MediaTooLargeError, UndecodableError
from vision.images import decode_pictures
from vision.limits import DecodeLimits
from vision.request import DecodeRequest, EncodedFrames, FramesReport
from vision.sampling import SamplingPolicy


@pytest.mark.parametrize(
    ("image_format", "options"),
    [("PNG", {}), ("BMP", {}), ("GIF", {}), ("JPEG", {"quality": 95}), ("WEBP", {"lossless": True})],
)
def test_every_format_is_read(image_format: str, options: dict[str, object]) -> None:
    report, pixels = decode(make_image(image_format=image_format, **options), kind="image")
    assert pixels.shape == (1, 3, 96, 128)
    assert looks_upright(pixels[0])
    assert read_number(pixels[0]) == 5
    assert (report.times_s, report.num_frames, report.source_fps) == ((0.0,), 1, None)


def test_pixels_are_exact() -> None:
    _, pixels = decode(make_image(), kind="image")
    assert np.array_equal(pixels[0].transpose(1, 2, 0), draw_numbered(5))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(orientation: int) -> None:
    """The eight orientations a camera may write; the picture on disk is turned so that applying it is upright."""
    undo = {
        1: lambda p: p, 2: np.fliplr, 3: lambda p: np.rot90(p, 2), 4: np.flipud,
        5: lambda p: p.transpose(1, 0, 2), 6: lambda p: np.rot90(p, 1),
        7: lambda p: np.rot90(p, 2).transpose(1, 0, 2), 8: lambda p: np.rot90(p, -1),
    }  # fmt: skip
    stored = np.ascontiguousarray(undo[orientation](draw_numbered(9)))
    data = make_image(picture=stored, image_format="PNG", exif_orientation=orientation)
    report, pixels = decode(data, kind="image")
    assert report.source_size == (96, 128)
    assert np.array_equal(pixels[0].transpose(1, 2, 0), draw_numbered(9))


def test_transparency_is_white() -> None:
    rgba = np.zeros((8, 8, 4), np.uint8)
    rgba[:, :4] = 10, 20, 30, 255
    rgba[:, 4:] = 255, 0, 0, 0
    _, pixels = decode(make_image(picture=Image.fromarray(rgba)), kind="image")
    assert tuple(pixels[0, :, 0, 0]) == (10, 20, 30)
    assert (pixels[0, :, :, 4:] == 255).all()


def test_deep_grey_is_scaled_not_clipped() -> None:
    grey = np.linspace(0, 65_535, 256).astype(np.uint16).reshape(16, 16)
    _, pixels = decode(make_image(picture=Image.fromarray(grey)), kind="image")
    assert np.array_equal(pixels[0, 0], (grey >> 8).astype(np.uint8))


@pytest.mark.parametrize("mode", ["L", "P", "CMYK", "1"])
def test_every_mode_has_three_channels(mode: str) -> None:
    image = Image.fromarray(draw_numbered(5)).convert(mode)
    _, pixels = decode(make_image(picture=image, image_format="JPEG" if mode == "CMYK" else "PNG"), kind="image")
    assert pixels.shape == (1, 3, 96, 128)


def test_bombs_are_refused_from_the_header() -> None:
    data = make_image(picture=Image.new("L", (8000, 8000)), compress_level=1)
    with pytest.raises(MediaTooLargeError, match="8000x8000"):
        decode(data, kind="image")


@pytest.mark.parametrize("image_format", ["PNG", "JPEG", "WEBP"])
def test_damaged_pictures_are_refused(image_format: str) -> None:
    data = make_image(image_format=image_format)
    for length in (20, len(data) // 2):
        with pytest.raises(MediaError):
            decode(data[:length], kind="image")


def decode_list(
    pictures: list[bytes], fps: float = 1.0, sampling: SamplingPolicy | None = None, limits: DecodeLimits | None = None
) -> tuple[FramesReport, np.ndarray]:
    sink = KeptFrames()
    request = DecodeRequest(kind="video", resize=SameSize(), sampling=sampling or SamplingPolicy())
    return decode_pictures(pictures, fps, request, limits=limits or DecodeLimits(), sink=sink), sink.pixels


def jpegs(count: int) -> list[bytes]:
    return [make_image(picture=draw_numbered(number), image_format="JPEG", quality=90) for number in range(count)]


def test_a_list_of_pictures_is_a_clip() -> None:
    report, pixels = decode_list(jpegs(8))
    assert read_numbers(pixels) == list(range(8))
    assert report.times_s == tuple(float(second) for second in range(8))
    assert (report.duration_s, report.source_fps, report.codec) == (8.0, 1.0, "jpeg")


def test_a_list_is_sampled_like_a_clip() -> None:
    report, pixels = decode_list(jpegs(9), fps=4.0, sampling=SamplingPolicy(num_frames=3))
    assert read_numbers(pixels) == [0, 4, 8]
    assert report.times_s == (0.0, 1.0, 2.0)


def test_pictures_of_other_sizes_take_the_first_ones_size() -> None:
    pictures = [make_image(size=(96, 128)), make_image(size=(200, 150)), make_image(size=(50, 60))]
    report, pixels = decode_list(pictures)
    assert report.source_size == pixels.shape[2:] == (96, 128)
    assert read_numbers(pixels) == [5, 5, 5]


def test_lists_are_bounded() -> None:
    with pytest.raises(UndecodableError, match="empty"):
        decode_list([])
    with pytest.raises(MediaTooLargeError, match=r"3 pictures .* limit of 2"):
        decode_list(jpegs(3), limits=DecodeLimits(max_frame_list=2))


def test_a_bad_picture_of_a_list_is_named_by_number() -> None:
    pictures = jpegs(3)
    pictures[1] = pictures[1][: len(pictures[1]) // 2]
    with pytest.raises(UndecodableError, match="picture 1 of the frame list"):
        decode_list(pictures)


@pytest.mark.parametrize("fps", [0.0, -1.0, float("nan"), float("inf")])
def test_rates_of_lists_are_checked(fps: float) -> None:
    with pytest.raises(InvalidMediaOptionError):
        EncodedFrames(frames=(b"",), fps=fps)
