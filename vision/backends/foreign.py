"""What the decoders beside PyAV share: which clips may be given to them at all, and how they get the bytes.

Knows nothing of either decoder. The first picture is looked at with PyAV, because what matters here (turned,
transparent, high dynamic range) is often known only to the decoded picture.
"""

from __future__ import annotations

import io
from typing import BinaryIO

from vision.backends.protocol import BackendRefusalError
from vision.backends.pyav import PyavBackend
from vision.color import has_alpha
from vision.hdr import is_hdr
from vision.probe import Clip
from vision.rotation import read_orientation

# Codecs that people's clips have, decoded alike by everyone; none of them is transparent as FFmpeg decodes it.
CODECS = frozenset(["h264", "hevc", "av1", "libdav1d", "libaom-av1", "vp8", "vp9", "libvpx", "libvpx-vp9", "mpeg4"])


def check_clip(clip: Clip, *, readers: tuple[str, ...]) -> None:
    """Raises BackendRefusalError with the reason why PyAV must decode this clip."""
    if clip.container.reader not in readers:
        raise BackendRefusalError("container")
    if clip.codec not in CODECS:
        raise BackendRefusalError("codec")
    if clip.num_films > 1:
        raise BackendRefusalError("second video track")
    frame = PyavBackend().first_frame(clip)
    if frame is None:
        raise BackendRefusalError("damaged")
    if is_hdr(int(frame.color_trc)):
        raise BackendRefusalError("high dynamic range")
    if has_alpha(frame):
        raise BackendRefusalError("transparency")
    if read_orientation(frame) != "as_stored":
        raise BackendRefusalError("turned")


def media_source(file: BinaryIO) -> str | io.BytesIO:
    """A path to the very file that was probed (it need not have a name), or the file itself if it is only memory."""
    file.seek(0)
    try:
        return f"/proc/self/fd/{file.fileno()}"
    except io.UnsupportedOperation:
        return io.BytesIO(file.read() or b"")
