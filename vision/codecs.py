"""Which video codecs are taken, and what their coded pictures tell before they are decoded.

Knows nothing of containers or of how pictures are chosen.
"""

from __future__ import annotations

from av.packet import Packet
from av.video.stream import VideoStream

# Decoders that may meet untrusted bytes: what people have, and nothing that exists only for games and broadcast gear.
# In the first list a key picture depends on nothing before it, and pictures after it on nothing before it, but for
# leading pictures (shown before the key they follow in the file).
RANDOM_ACCESS = frozenset(
    (
        "h264", "hevc", "av1", "libdav1d", "libaom-av1", "vp8", "vp9", "libvpx", "libvpx-vp9", "mpeg1video",
        "mpeg2video", "mpeg4", "mjpeg", "prores", "dnxhd", "cfhd", "ffvhuff", "huffyuv", "utvideo", "rawvideo",
        "dvvideo",
    )
)  # fmt: skip
# Here key flags are rare, missing or not to be relied on: decoding starts with the first picture.
IN_SEQUENCE = frozenset(
    (
        "msmpeg4", "msmpeg4v1", "msmpeg4v2", "msmpeg4v3", "wmv1", "wmv2", "wmv3", "vc1", "h261", "h263", "h263p",
        "flv", "flv1", "theora", "mjpegb", "gif", "png", "qtrle", "ffv1", "cinepak", "svq1", "svq3", "rpza",
        "msvideo1", "indeo5", "vp6", "vp6f",
    )
)  # fmt: skip
CODECS = RANDOM_ACCESS | IN_SEQUENCE

# Codecs whose pictures may travel as two fields in packets of their own.
FIELD_CODECS = frozenset(["h264", "hevc", "mpeg2video"])
# Codecs that send pictures in another order than they are shown in, with the shown order known to the decoder alone.
REORDERING = frozenset(["h264", "hevc"])

# Codecs in which a picture that nothing leans on says so, and the decoder can pass over it at once.
PASSING_OVER = frozenset(["h264", "mpeg1video", "mpeg2video", "mpeg4"])


def is_hidden(packet: Packet[VideoStream], codec: str) -> bool:
    """VP8's alternate reference pictures travel in packets of their own with the show bit off."""
    return codec in ("vp8", "libvpx") and not memoryview(packet)[0] >> 4 & 1
