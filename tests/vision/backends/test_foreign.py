"""Every decoder gives the pictures PyAV gives, or says why not and leaves the clip to PyAV."""

from __future__ import annotations

import importlib.util
import io
from pathlib import Path

import numpy as np
import pytest

from tests.clips import draw_numbered, find_box, make_clip, read_numbers
from tests.vision.coded import coded_clip
from tests.vision.fakes import SameSize
from tests.vision.sinks import KeptFrames, decode
from vision.backends.protocol import available_backends, check_backend
from vision.cage import DecodePool
from vision.decode import decode_file
from vision.frames import BackendName
from vision.limits import DecodeLimits
from vision.request import DecodeRequest, FramesReport, MediaBytes, MediaFile
from vision.sampling import SamplingPolicy

# Decoders turn planes of colour into RGB each with its own interpolation: edges differ, areas do not.
MEAN_TOLERANCE = 1.5
HALF_SIZE_TOLERANCE = 16

needs_decord = pytest.mark.skipif("decord" not in available_backends(), reason="decord is not installed")
needs_torchcodec = pytest.mark.skipif("torchcodec" not in available_backends(), reason="torchcodec is not installed")
BACKENDS = [pytest.param("decord", marks=needs_decord), pytest.param("torchcodec", marks=needs_torchcodec)]


def decode_with(
    backend: BackendName, data: bytes, sampling: SamplingPolicy | None = None
) -> tuple[FramesReport, np.ndarray]:
    sink = KeptFrames()
    request = DecodeRequest(kind="video", resize=SameSize(), sampling=sampling or SamplingPolicy())
    report = decode_file(io.BytesIO(data), request, limits=DecodeLimits(), sink=sink, backend=backend)
    return report, sink.pixels


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["h264", "h264 b-frames", "h264 one group", "vp8 hidden", "vp9 hidden", "vp9", "av1"])
@pytest.mark.parametrize("sampling", [SamplingPolicy(), SamplingPolicy(num_frames=5)])
def test_the_same_pictures(backend: BackendName, name: str, sampling: SamplingPolicy) -> None:
    """The same frames at the same times; colours to within interpolation."""
    expected, ours = decode(coded_clip(name), sampling)
    report, theirs = decode_with(backend, coded_clip(name), sampling)
    assert (report.backend, report.backend_reason) == (backend, "")
    assert (report.times_s, report.frame_indices) == (expected.times_s, expected.frame_indices)
    assert read_numbers(theirs) == list(report.frame_indices)
    assert np.abs(theirs.astype(int) - ours.astype(int)).mean() <= MEAN_TOLERANCE
    assert np.abs(halve(theirs) - halve(ours)).max() <= HALF_SIZE_TOLERANCE


def halve(pixels: np.ndarray) -> np.ndarray:
    """Colours are kept at half size: there they can be compared."""
    return pixels.reshape(*pixels.shape[:2], 48, 2, 64, 2).mean(axis=(3, 5))


def damaged_clip() -> bytes:
    data = make_clip(frames=40, options={"g": "10"})
    middle = sum(find_box(data, "mdat")) // 2
    return data[:middle] + b"\xff" * 600 + data[middle + 600 :]


def turned_clip() -> bytes:
    return make_clip(frames=[np.rot90(draw_numbered(number, 128, 96), k=-1) for number in range(4)], rotation=90)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (coded_clip("h264 open groups in ts"), "container"),
        (coded_clip("prores"), "codec"),
        (turned_clip(), "turned"),
        (make_clip(frames=3, context={"color_trc": 16, "colorspace": 9}), "high dynamic range"),
        (damaged_clip(), "it failed"),
    ],
)
def test_what_it_cannot_do_truly_is_left_to_pyav(backend: BackendName, data: bytes, reason: str) -> None:
    """The reason is said, and the frames are those of PyAV."""
    expected, ours = decode(data)
    report, theirs = decode_with(backend, data)
    assert (report.backend, report.backend_reason) == ("pyav", f"{backend}: {reason}")
    assert np.array_equal(ours, theirs)
    assert (report.num_frames, report.num_broken) == (expected.num_frames, expected.num_broken)


@needs_decord
@pytest.mark.parametrize("name", ["h264 open groups in matroska", "hevc open groups"])
def test_decord_is_not_asked_for_open_groups(name: str) -> None:
    """It shows other pictures than asked for there."""
    report, pixels = decode_with("decord", coded_clip(name), SamplingPolicy(num_frames=5))
    assert report.backend_reason == "decord: open groups of pictures"
    assert read_numbers(pixels) == list(report.frame_indices)


@needs_torchcodec
@pytest.mark.parametrize(
    "name", ["h264 open groups in matroska", "hevc open groups", "hevc closed groups", "mpeg4 b-frames"]
)
def test_torchcodec_does_open_groups(name: str) -> None:
    report, pixels = decode_with("torchcodec", coded_clip(name), SamplingPolicy(num_frames=5))
    assert report.backend == "torchcodec"
    assert read_numbers(pixels) == list(report.frame_indices)


@needs_decord
def test_a_pool_of_another_backend(tmp_path: Path) -> None:
    """The choice reaches the children, and what came out says which decoder it was."""
    path = tmp_path / "clip.mp4"
    path.write_bytes(coded_clip("h264"))
    request = DecodeRequest(kind="video", resize=SameSize(), sampling=SamplingPolicy(num_frames=4))
    with DecodePool(workers=1, backend="decord") as pool:
        frames = pool.decode(MediaFile(path=str(path)), request)
        assert (frames.backend, read_numbers(frames.pixels)) == ("decord", [0, 16, 31, 47])
        left = pool.decode(MediaBytes(data=coded_clip("raw")), request)
        assert (left.backend, left.backend_reason) == ("pyav", "decord: container")


def test_backends_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="no decode backend 'ffmpeg'; known: pyav, decord, torchcodec"):
        check_backend("ffmpeg")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "decord" else True)
    with pytest.raises(ValueError, match=r"'decord' is not installed \(install evserve\[decord\]\)"):
        DecodePool(backend="decord")
