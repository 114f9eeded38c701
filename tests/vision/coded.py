"""Clips of every way of coding, made once: what the laws of decoding are tested over."""

from __future__ import annotations

from functools import cache

import numpy as np

from tests.clips import Picture, draw_numbered, make_clip, make_gif

_B_FRAMES = {"preset": "veryfast", "bf": "4", "g": "12", "sc_threshold": "0"}
_HIDDEN = {"auto-alt-ref": "1", "lag-in-frames": "12", "deadline": "good", "cpu-used": "5", "arnr-maxframes": "5"}
_X265 = "log-level=none:pools=none:frame-threads=1:bframes=4:keyint=12:min-keyint=12:scenecut=0"

CODED: dict[str, dict[str, object]] = {
    "h264": {"options": {"g": "10"}},
    "h264 b-frames": {"options": _B_FRAMES},
    "h264 one group": {"options": {**_B_FRAMES, "g": "400"}},
    "h264 open groups in ts": {"container": "mpegts", "options": {**_B_FRAMES, "x264-params": "open-gop=1"}},
    "h264 open groups in matroska": {"container": "matroska", "options": {**_B_FRAMES, "x264-params": "open-gop=1"}},
    "h264 intra refresh": {
        "container": "mpegts",
        "options": {**_B_FRAMES, "bf": "0", "x264-params": "intra-refresh=1"},
    },
    "h264 interlaced": {"options": {"g": "10", "bf": "2", "preset": "veryfast", "x264-params": "tff=1"}},
    "h264 in avi": {"container": "avi", "options": _B_FRAMES},
    "h264 fragments": {"options": _B_FRAMES, "container_options": {"movflags": "frag_keyframe+empty_moov"}},
    "h264 in flv": {"container": "flv", "options": _B_FRAMES},
    "hevc open groups": {"codec": "libx265", "options": {"x265-params": _X265 + ":open-gop=1"}},
    "hevc closed groups": {"codec": "libx265", "options": {"x265-params": _X265 + ":open-gop=0"}},
    "av1": {"codec": "libsvtav1", "options": {"g": "12", "preset": "10", "svtav1-params": "lp=1"}},
    "vp8": {"codec": "libvpx", "container": "webm", "options": {"g": "12"}},
    "vp8 hidden": {"codec": "libvpx", "container": "webm", "options": {"g": "20", **_HIDDEN}},
    "vp9": {"codec": "libvpx-vp9", "container": "webm", "options": {"g": "12"}},
    "vp9 hidden": {"codec": "libvpx-vp9", "container": "webm", "options": {"g": "20", **_HIDDEN}},
    "mpeg4 b-frames": {"codec": "mpeg4", "options": {"bf": "2", "g": "12", "qscale": "3"}},
    "mpeg4 in avi": {"codec": "mpeg4", "container": "avi", "options": {"bf": "2", "g": "12"}},
    "mpeg2 in ps": {"codec": "mpeg2video", "container": "mpeg", "options": {"bf": "2", "g": "12"}},
    "mpeg2 in ts": {"codec": "mpeg2video", "container": "mpegts", "options": {"bf": "2", "g": "12"}},
    "mjpeg": {"codec": "mjpeg", "container": "avi", "pixel_format": "yuvj422p"},
    "wmv2": {"codec": "wmv2", "container": "asf", "options": {"g": "12"}},
    "flv1": {"codec": "flv", "container": "flv", "options": {"g": "12"}},
    "ffv1": {"codec": "ffv1", "container": "matroska", "pixel_format": "bgr0"},
    "prores": {"codec": "prores_ks", "container": "mov", "pixel_format": "yuv422p10le"},
    "raw": {"codec": "rawvideo", "container": "avi", "pixel_format": "bgr24"},
}
NUM_FRAMES = 48


@cache
def coded_clip(name: str) -> bytes:
    """The clip of that name: NUM_FRAMES numbered frames of 96x128 over noise, so that every frame has its own bits."""
    if name == "gif":
        return make_gif(delays_ms=[100] * NUM_FRAMES)
    rng = np.random.default_rng(7)
    texture = rng.integers(0, 120, (24, 128, 3), dtype=np.uint8)
    frames: list[Picture] = []
    for number in range(NUM_FRAMES):
        picture = draw_numbered(number)
        picture[60:72, 32:96] = np.roll(texture, number * 3, axis=1)[:12, :64]
        frames.append(picture)
    return make_clip(frames=frames, **CODED[name])  # type: ignore[arg-type]
