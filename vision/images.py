"""Decoding still pictures, alone or as a list that makes a clip.

Owns Pillow and EXIF orientation; knows nothing of video containers or of processes.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image, ImageOps

from vision.color import BACKGROUND, Pixels
from vision.containers import HEAD_BYTES, Container, sniff_container
from vision.errors import MediaError, UndecodableError
from vision.limits import DecodeLimits
from vision.request import DecodeRequest, FrameSink, FramesReport
from vision.resize import resize_frames
from vision.sampling import choose_frames


def decode_image(
    data: bytes, container: Container, request: DecodeRequest, *, limits: DecodeLimits, sink: FrameSink
) -> FramesReport:
    """One picture (the first of an animated one), upright, over a white background where transparent; or its tiles."""
    pixels = open_picture(data, container, limits)
    height, width = pixels.shape[:2]
    target = request.resize.target_size(1, height, width)
    pictures = shape_picture(pixels, (height, width), target, request)
    sink.begin(len(pictures), *target)
    for position, picture in enumerate(pictures):
        sink.put(position, picture)
    return FramesReport(
        height=target[0], width=target[1], times_s=(0.0,) * len(pictures), frame_indices=(0,) * len(pictures),
        duration_s=0.0, source_fps=None,
        source_size=(height, width), codec=container.reader.lower(), container=container.name,
        num_frames=1, num_broken=0,
    )  # fmt: skip


def decode_pictures(
    pictures: Sequence[bytes], fps: float, request: DecodeRequest, *, limits: DecodeLimits, sink: FrameSink
) -> FramesReport:
    """A list of encoded pictures, sampled like any clip of that rate; only the chosen ones are decoded.

    A picture that cannot be decoded fails the list, by number: whoever sent it chose each picture.
    """
    limits.check_frame_list(len(pictures))
    times = [index / fps for index in range(len(pictures))]
    choice = choose_frames(times, len(pictures) / fps, request.sampling, source_fps=fps)
    source_size, target, codec = (0, 0), (0, 0), ""
    for position, index in enumerate(choice.indices):
        pixels, name = _open_numbered(pictures, index, limits)
        if position == 0:
            source_size, codec = (pixels.shape[0], pixels.shape[1]), name
            target = request.resize.target_size(len(choice.indices), *source_size)
            sink.begin(len(choice.indices), *target)
        sink.put(position, shape_picture(pixels, source_size, target, request)[0])
    return FramesReport(
        height=target[0], width=target[1], times_s=choice.times_s, frame_indices=choice.indices,
        duration_s=len(pictures) / fps, source_fps=fps, source_size=source_size, codec=codec,
        container="frame list", num_frames=len(pictures), num_broken=0,
    )  # fmt: skip


def open_picture(data: bytes, container: Container, limits: DecodeLimits) -> Pixels:
    """(h, w, 3) uint8, turned by its EXIF orientation. Raises MediaTooLargeError before decoding, UndecodableError."""
    try:
        with (
            warnings.catch_warnings(action="ignore"),
            Image.open(io.BytesIO(data), formats=[container.reader]) as image,
        ):
            limits.check_picture(image.height, image.width)
            return _to_rgb(ImageOps.exif_transpose(image))
    except (MediaError, MemoryError):
        raise
    except Exception as error:  # Pillow's plugins raise whatever they like on damaged input
        raise UndecodableError(f"the {container.name} picture is damaged or incomplete") from error


def _open_numbered(pictures: Sequence[bytes], index: int, limits: DecodeLimits) -> tuple[Pixels, str]:
    try:
        container = sniff_container(pictures[index][:HEAD_BYTES], "image")
        return open_picture(pictures[index], container, limits), container.reader.lower()
    except MediaError as error:
        raise type(error)(f"picture {index} of the frame list: {error.message}") from error


def _to_rgb(image: Image.Image) -> Pixels:
    if image.mode.startswith("I;16") or image.mode == "I":
        # Pillow clips 16-bit grey at 255 instead of scaling it.
        grey = (np.asarray(image, dtype=np.int64).clip(0, 65_535) >> 8).astype(np.uint8)
        return np.repeat(grey[..., None], 3, axis=2)
    if "A" in image.getbands() or image.info.get("transparency") is not None:
        rgba = image.convert("RGBA")
        background = Image.new("RGBA", rgba.size, (BACKGROUND, BACKGROUND, BACKGROUND, 255))
        image = Image.alpha_composite(background, rgba)
    return np.array(image.convert("RGB"))


def shape_picture(pixels: Pixels, shown: tuple[int, int], target: tuple[int, int], request: DecodeRequest) -> Pixels:
    """(h, w, 3) to (n, 3, *target): one picture, or its tiles. shown: (height, width) with square pixels."""
    frame = torch.from_numpy(np.ascontiguousarray(pixels)).permute(2, 0, 1)
    if request.tiling is None:
        pictures = resize_frames(frame, target, interpolation=request.interpolation)[None]
    else:
        pictures = request.tiling.cut(frame, shown, request.interpolation)
        assert pictures.shape[2:] == target, (pictures.shape, target)
    # numpy puts channels first twice as fast as torch does.
    return np.ascontiguousarray(pictures.numpy())
