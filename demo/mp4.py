"""Owns the way of frames through a real file: H.264, 4:2:0. Knows nothing of what they show."""

from __future__ import annotations

import io
from fractions import Fraction

import av
import numpy as np
import numpy.typing as npt

from demo.scenes import FPS

Frames = npt.NDArray[np.uint8]


def encode_mp4(frames: Frames, *, crf: int, fps: float = FPS, preset: str = "medium") -> bytes:
    """The bytes of an mp4; frames (T, H, W, 3) RGB with even sides."""
    out = io.BytesIO()
    with av.open(out, "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=Fraction(fps).limit_denominator(1000))
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = "yuv420p"
        stream.codec_context.thread_count = 1
        # without the last, bytes depend on where the heap lies: the same pictures gave ten files in twelve tries
        stream.options = {"crf": str(crf), "preset": preset, "x264-params": "cpu-independent=1"}
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode(None))
    return out.getvalue()


def decode_mp4(data: bytes) -> Frames:
    """(T, H, W, 3) RGB of all pictures."""
    with av.open(io.BytesIO(data), "r") as container:
        container.streams.video[0].codec_context.thread_count = 1
        frames = container.decode(video=0)
        return np.stack([np.asarray(frame.to_ndarray(format="rgb24"), dtype=np.uint8) for frame in frames])
