"""The libraries that `bench/decode.py` times, each asked for the same pictures in the way its documents advise.

Owns how each is called; knows no clock. A decoder gives 8-bit RGB pictures of full size one after the other, in the
order of their places; one that gives fewer has failed.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from vision.backends.protocol import available_backends
from vision.backends.pyav import PyavBackend
from vision.containers import HEAD_BYTES, sniff_container
from vision.limits import DecodeLimits
from vision.probe import read_clip

CHUNK = 8
OURS = "ours"
Pixels = npt.NDArray[np.uint8]
Decode = Callable[[str, Sequence[int]], Iterator[Pixels]]


def decode_ours(path: str, indices: Sequence[int]) -> Iterator[Pixels]:
    """What the child does but for resizing: look at all packets, then decode what the wanted pictures depend on."""
    with open(path, "rb") as file:
        clip = read_clip(file, sniff_container(file.read(HEAD_BYTES), "video"), DecodeLimits())
        for _, picture in PyavBackend().find_pictures(clip, clip.ticks[list(indices)].tolist()):
            yield picture.pixels


def decode_decord(path: str, indices: Sequence[int]) -> Iterator[Pixels]:
    import decord

    reader = decord.VideoReader(path, num_threads=1)
    for part in _chunks(indices):
        yield from reader.get_batch(part).asnumpy()


def decode_torchcodec(path: str, indices: Sequence[int]) -> Iterator[Pixels]:
    from torchcodec.decoders import VideoDecoder

    decoder = VideoDecoder(path, num_ffmpeg_threads=1, dimension_order="NHWC")
    for part in _chunks(indices):
        yield from decoder.get_frames_at(part).data.numpy()


def decode_opencv_reading(path: str, indices: Sequence[int]) -> Iterator[Pixels]:
    """Read on to each picture, converting only the wanted ones."""
    import cv2

    capture, place = cv2.VideoCapture(path, cv2.CAP_FFMPEG), -1
    for index in indices:
        while place < index and capture.grab():
            place += 1
        given, picture = capture.retrieve()
        if not given or place != index:
            break
        yield cv2.cvtColor(picture, cv2.COLOR_BGR2RGB)  # type: ignore[misc]
    capture.release()


def decode_opencv_seeking(path: str, indices: Sequence[int]) -> Iterator[Pixels]:
    """Jump to each picture."""
    import cv2

    capture = cv2.VideoCapture(path, cv2.CAP_FFMPEG)
    for index in indices:
        capture.set(cv2.CAP_PROP_POS_FRAMES, index)
        given, picture = capture.read()
        if not given:
            break
        yield cv2.cvtColor(picture, cv2.COLOR_BGR2RGB)  # type: ignore[misc]
    capture.release()


def find_decoders() -> tuple[dict[str, Decode], list[str]]:
    """Everything that can be measured here, ours first, and what is missing."""
    decoders: dict[str, Decode] = {OURS: decode_ours}
    absent = []
    for name, function in (("decord", decode_decord), ("torchcodec", decode_torchcodec)):
        if name in available_backends():
            decoders[name] = function
        else:
            absent.append(name)
    if importlib.util.find_spec("cv2") is None:
        absent.append("opencv")
    else:
        decoders |= {"opencv, reading": decode_opencv_reading, "opencv, seeking": decode_opencv_seeking}
    return decoders, absent


def _chunks(indices: Sequence[int]) -> list[list[int]]:
    return [list(indices[start : start + CHUNK]) for start in range(0, len(indices), CHUNK)]
