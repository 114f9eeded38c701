"""A long clip costs what its chosen pictures cost: memory does not grow with its length."""

from __future__ import annotations

import io
import subprocess
import sys
from fractions import Fraction
from functools import cache
from pathlib import Path

import av
import numpy as np
import pytest

from tests.clips import draw_numbered, read_numbers
from vision.cage import DecodePool
from vision.request import DecodeRequest, MediaFile
from vision.resize import VideoSmartResize
from vision.sampling import SamplingPolicy

FPS, GROUP = 30, 60
MINUTE = 60 * FPS
ALLOWED_BYTES = 200 << 20

# Decodes in a process of its own and says how much memory that took at its height.
PROGRAM = """
import resource, sys
sys.path.insert(0, {root!r})
from vision.child import MemorySink, warm_up
from vision.decode import decode_file
from vision.limits import DecodeLimits
from vision.request import DecodeRequest
from vision.resize import VideoSmartResize
from vision.sampling import SamplingPolicy
import os
warm_up()
request = DecodeRequest(kind="video", resize=VideoSmartResize(max_pixels=64 * 224 * 448),
                        sampling=SamplingPolicy(num_frames=64))
with open(sys.argv[1], "rb") as file:
    decode_file(file, request, limits=DecodeLimits(), sink=MemorySink(os.memfd_create("frames")))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


@cache
def coded_groups(size: tuple[int, int]) -> bytes:
    """Ten groups of a still scene with a number in it, which says the group; small to code, and long when repeated."""
    height, width = size
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as output:
        options = {"preset": "ultrafast", "g": str(GROUP), "threads": "1", "sc_threshold": "0"}
        stream = output.add_stream("libx264", rate=FPS, options=options)
        stream.height, stream.width, stream.pix_fmt = height, width, "yuv420p"
        for index in range(10 * GROUP):
            picture = draw_numbered(index // GROUP, height, width)
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24").reformat(format="yuv420p")
            frame.pts, frame.time_base = index, Fraction(1, FPS)
            output.mux(stream.encode(frame))
        output.mux(stream.encode(None))
    return file.getvalue()


def write_long_clip(path: Path, *, frames: int, size: tuple[int, int]) -> None:
    """The ten groups over and over, until there are so many frames."""
    with av.open(io.BytesIO(coded_groups(size))) as source, av.open(str(path), "w") as output:
        film = source.streams.video[0]
        stream = output.add_stream_from_template(film)
        packets = [packet for packet in source.demux(film) if packet.size]
        step = round(1 / (FPS * film.time_base))
        for index in range(frames):
            packet = av.Packet(bytes(packets[index % len(packets)]))
            packet.pts = packet.dts = index * step
            packet.time_base, packet.stream = film.time_base, stream
            packet.is_keyframe = index % GROUP == 0
            output.mux(packet)


def peak_bytes(path: Path) -> int:
    program = PROGRAM.format(root=str(Path(__file__).parents[2]))
    done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.soak
def test_ten_minutes_cost_the_memory_of_one(tmp_path: Path) -> None:
    """720p, 64 pictures."""
    write_long_clip(tmp_path / "ten.mp4", frames=10 * MINUTE, size=(720, 1280))
    write_long_clip(tmp_path / "one.mp4", frames=MINUTE, size=(720, 1280))
    assert peak_bytes(tmp_path / "ten.mp4") - peak_bytes(tmp_path / "one.mp4") < ALLOWED_BYTES


def test_pictures_cover_the_whole_of_a_long_clip(pool: DecodePool, tmp_path: Path) -> None:
    """Ten minutes to 64 pictures, from the first to the last, each the one of its time."""
    write_long_clip(tmp_path / "long.mp4", frames=10 * MINUTE, size=(96, 128))
    request = DecodeRequest(
        kind="video", resize=VideoSmartResize(max_pixels=64 * 96 * 128), sampling=SamplingPolicy(num_frames=64)
    )
    frames = pool.decode(MediaFile(path=str(tmp_path / "long.mp4")), request)
    assert (frames.frame_indices[0], frames.frame_indices[-1], frames.num_frames) == (0, 10 * MINUTE - 1, 10 * MINUTE)
    assert frames.duration_s == pytest.approx(600.0)
    assert np.ptp(np.diff(frames.times_s)) <= 2 / FPS
    assert read_numbers(frames.pixels) == [index // GROUP % 10 for index in frames.frame_indices]
