"""Decoding with TorchCodec, where it and the FFmpeg libraries it needs are installed.

It says the time of each picture it gives, and a picture whose time is not the wanted one is never used. What it is not
asked for: MPEG streams and AVI (seen: it ends early where B-frames travel in them), turned clips and pixels that are
not square (left to one place), high dynamic range and transparency. Its colours differ by its own
interpolation of the colour planes.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence

import numpy as np
from torchcodec.decoders import VideoDecoder

from vision.backends.foreign import check_clip, media_source
from vision.backends.protocol import BackendRefusalError, Picture
from vision.probe import Clip

TIME_TOLERANCE_S = 1e-4


def make_backend() -> TorchcodecBackend:
    return TorchcodecBackend()


class TorchcodecBackend:
    """One decoder for each clip, one thread."""

    def find_pictures(self, clip: Clip, wanted: Sequence[int]) -> Iterator[tuple[int, Picture]]:
        check_clip(clip, readers=("mov", "matroska"))
        source = media_source(clip.file)
        try:
            decoder = VideoDecoder(
                source.getvalue() if isinstance(source, io.BytesIO) else source,
                stream_index=clip.stream_index, dimension_order="NHWC", num_ffmpeg_threads=1, seek_mode="exact",
            )  # fmt: skip
            if len(decoder) != len(clip.ticks):
                raise BackendRefusalError("it counts other pictures")
            for tick in sorted(set(wanted)):
                frame = decoder.get_frame_at(int(np.searchsorted(clip.ticks, tick)))
                if abs(frame.pts_seconds - float(tick * clip.time_base)) > TIME_TOLERANCE_S:
                    raise BackendRefusalError("it has other times")
                yield tick, Picture(pixels=frame.data.numpy(), orientation="as_stored")
        except (RuntimeError, ValueError, IndexError) as error:
            raise BackendRefusalError("it failed") from error
