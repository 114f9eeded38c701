"""Time decoding of the same pictures of the same clips by ours and by other libraries, one thread each.

    python bench/decode.py [--repeats N] [--size HEIGHT WIDTH] [--seconds N]

Owns the clips, the clock and the table; knows nothing of models. Decoders that are not installed are left out and
named. Each gives 8-bit RGB pictures of full size, thrown away as they come; the row "through the pool" is
what a server does: a child, pictures resized for a model, copied back. Runs are interleaved and the best is taken.
`ratio` is ours to the fastest of the others. Beside the clock stands processor time, which other programs on the
machine disturb less, and the share of the processors that others used.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path

os.environ.update({"OMP_NUM_THREADS": "1", "OPENCV_FFMPEG_CAPTURE_OPTIONS": "threads;1"})
sys.path.insert(0, str(Path(__file__).parents[1]))

import av
import numpy as np

from vision.backends.protocol import available_backends
from vision.backends.pyav import PyavBackend
from vision.cage import DecodePool
from vision.containers import HEAD_BYTES, sniff_container
from vision.limits import DecodeLimits
from vision.probe import read_clip
from vision.request import DecodeRequest, MediaFile
from vision.resize import VideoSmartResize
from vision.sampling import SamplingPolicy

FPS = 30
CHUNK = 8
SEEK_FROM = 100  # pictures apart; closer than this, jumping to each takes minutes
OURS = "ours, in process"
POOLED = "through the pool"
LIMITS = DecodeLimits(decode_timeout_s=600)
Decode = Callable[[str, Sequence[int]], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Which clip, and how many pictures of it; None takes every one."""

    name: str
    clip: Path
    count: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """One run: seconds by the clock, seconds of processor time, share of all processors used by other programs."""

    wall_s: float
    cpu_s: float
    others: float


def decode_ours(path: str, indices: Sequence[int]) -> int:
    """What the child does but for resizing: look at all packets, then decode what the wanted pictures depend on."""
    with open(path, "rb") as file:
        clip = read_clip(file, sniff_container(file.read(HEAD_BYTES), "video"), LIMITS)
        return sum(1 for _ in PyavBackend().find_pictures(clip, clip.ticks[list(indices)].tolist()))


def decode_pooled(pool: DecodePool, path: str, indices: Sequence[int]) -> int:
    request = DecodeRequest(
        kind="video", resize=VideoSmartResize(max_pixels=len(indices) * 256 * 448), sampling=_policy(len(indices))
    )
    return len(pool.decode(MediaFile(path=path), request).pixels)


def decode_decord(path: str, indices: Sequence[int]) -> int:
    import decord

    reader = decord.VideoReader(path, num_threads=1)
    return sum(len(reader.get_batch(part).asnumpy()) for part in _chunks(indices))


def decode_torchcodec(path: str, indices: Sequence[int]) -> int:
    from torchcodec.decoders import VideoDecoder

    decoder = VideoDecoder(path, num_ffmpeg_threads=1)
    return sum(len(decoder.get_frames_at(part).data) for part in _chunks(indices))


def decode_opencv_reading(path: str, indices: Sequence[int]) -> int:
    """Read on to each picture, converting only the wanted ones."""
    import cv2

    capture, place = cv2.VideoCapture(path, cv2.CAP_FFMPEG), -1
    for index in indices:
        while place < index and capture.grab():
            place += 1
        _, picture = capture.retrieve()
        cv2.cvtColor(picture, cv2.COLOR_BGR2RGB)
    capture.release()
    return len(indices)


def decode_opencv_seeking(path: str, indices: Sequence[int]) -> int:
    """Jump to each picture."""
    import cv2

    capture = cv2.VideoCapture(path, cv2.CAP_FFMPEG)
    for index in indices:
        capture.set(cv2.CAP_PROP_POS_FRAMES, index)
        _, picture = capture.read()
        cv2.cvtColor(picture, cv2.COLOR_BGR2RGB)
    capture.release()
    return len(indices)


def find_decoders(pool: DecodePool) -> tuple[dict[str, Decode], list[str]]:
    """Everything that can be measured here, and what is missing."""
    decoders: dict[str, Decode] = {
        OURS: decode_ours,
        POOLED: lambda path, indices: decode_pooled(pool, path, indices),
    }
    absent = []
    for name, function in (("decord", decode_decord), ("torchcodec", decode_torchcodec)):
        if name in available_backends():
            decoders[name] = function
        else:
            absent.append(name)
    try:
        import cv2  # noqa: F401
    except ImportError:
        absent.append("opencv")
    else:
        decoders["opencv, reading"] = decode_opencv_reading
        decoders["opencv, seeking"] = decode_opencv_seeking
    return decoders, absent


def make_clip(path: Path, *, seconds: int, size: tuple[int, int]) -> None:
    """A texture that moves, with B-frames and groups of 250 pictures, as encoders make them by default."""
    height, width = size
    rng = np.random.default_rng(0)
    coarse = rng.integers(0, 255, (height // 8, width // 4, 3), dtype=np.uint8).repeat(8, 0).repeat(8, 1)
    with av.open(str(path), "w", options={"movflags": "faststart"}) as output:
        stream = output.add_stream("libx264", rate=FPS, options={"preset": "veryfast", "threads": "1"})
        stream.height, stream.width, stream.pix_fmt = height, width, "yuv420p"
        for index in range(seconds * FPS):
            start = index * 2 % width
            picture = np.ascontiguousarray(coarse[:height, start : start + width])
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24").reformat(format="yuv420p")
            frame.pts, frame.time_base = index, Fraction(1, FPS)
            output.mux(stream.encode(frame))
        output.mux(stream.encode(None))


def repeat_clip(source: Path, target: Path, times: int) -> None:
    """A longer clip of the same coded pictures, over and over."""
    data = source.read_bytes()
    with av.open(str(target), "w", options={"movflags": "faststart"}) as output:
        stream, base = None, 0
        for _ in range(times):
            with av.open(io.BytesIO(data)) as opened:
                film = opened.streams.video[0]
                stream = stream or output.add_stream_from_template(film)
                for packet in opened.demux(film):
                    if packet.size:
                        packet.stream, packet.pts, packet.dts = stream, packet.pts + base, packet.dts + base
                        output.mux(packet)
                base += film.duration


def choose_indices(case: Case) -> list[int]:
    with av.open(str(case.clip)) as opened:
        total = opened.streams.video[0].frames
    count = total if case.count is None else case.count
    return np.linspace(0, total - 1, count).round().astype(int).tolist()


def time_once(decode: Decode, path: str, indices: Sequence[int]) -> Timing:
    busy, own, started = _busy_s(), _own_s(), time.perf_counter()
    assert decode(path, indices) == len(indices)
    wall_s, cpu_s = time.perf_counter() - started, _own_s() - own
    others = max(0.0, _busy_s() - busy - cpu_s) / (wall_s * (os.cpu_count() or 1))
    return Timing(wall_s=wall_s, cpu_s=cpu_s, others=min(others, 1.0))


def measure(case: Case, decoders: dict[str, Decode], repeats: int) -> dict[str, Timing]:
    """The best run of each decoder, by its clock."""
    indices, best = choose_indices(case), dict[str, Timing]()
    step = indices[1] - indices[0]
    for _ in range(repeats):
        for name, decode in decoders.items():
            if decode is decode_opencv_seeking and step < SEEK_FROM:
                continue
            timing = time_once(decode, str(case.clip), indices)
            if name not in best or timing.wall_s < best[name].wall_s:
                best[name] = timing
    return best


def ratio_of(best: dict[str, Timing], unit: str) -> float | None:
    others = [getattr(timing, unit) for name, timing in best.items() if name not in (OURS, POOLED)]
    return round(getattr(best[OURS], unit) / min(others), 2) if others else None


def print_case(case: Case, best: dict[str, Timing]) -> None:
    print(f"\n{case.name}")
    for name, timing in best.items():
        print(f"  {name:18} {timing.wall_s:8.3f} s {timing.cpu_s:8.3f} s of processor   others {timing.others:4.0%}")
    print(
        f"  ratio to the fastest other: {ratio_of(best, 'wall_s')} by the clock, {ratio_of(best, 'cpu_s')} by processor"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--size", type=int, nargs=2, default=(720, 1280))
    parser.add_argument("--seconds", type=int, default=600, help="length of the long clip")
    options = parser.parse_args()
    size = (options.size[0], options.size[1])
    with tempfile.TemporaryDirectory() as folder, DecodePool(LIMITS, workers=1) as pool:
        short, long = Path(folder) / "short.mp4", Path(folder) / "long.mp4"
        make_clip(short, seconds=10, size=size)
        repeat_clip(short, long, options.seconds // 10)
        decoders, absent = find_decoders(pool)
        results = {}
        for case in (
            Case(name="short sparse: 8 pictures of 10 s", clip=short, count=8),
            Case(name="short dense: every picture of 10 s", clip=short, count=None),
            Case(name=f"long sparse: 64 pictures of {options.seconds} s", clip=long, count=64),
            Case(name=f"long dense: 512 pictures of {options.seconds} s", clip=long, count=512),
        ):
            results[case.name] = best = measure(case, decoders, options.repeats)
            print_case(case, best)
    print(f"\nnot installed: {', '.join(absent) or 'nothing'}; load now {os.getloadavg()[0]:.1f}")
    print(json.dumps({
        name: {**{who: asdict(timing) for who, timing in best.items()}, "ratio_wall": ratio_of(best, "wall_s"),
               "ratio_cpu": ratio_of(best, "cpu_s")}
        for name, best in results.items()
    }))  # fmt: skip


def _policy(count: int) -> SamplingPolicy:
    return SamplingPolicy(num_frames=count, max_frames=count)


def _chunks(indices: Sequence[int]) -> list[list[int]]:
    return [list(indices[start : start + CHUNK]) for start in range(0, len(indices), CHUNK)]


def _busy_s() -> float:
    """Seconds of work of all processors since the start of the machine."""
    user, nice, system = (int(field) for field in Path("/proc/stat").read_text().split()[1:4])
    return (user + nice + system) / os.sysconf("SC_CLK_TCK")


def _own_s() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


if __name__ == "__main__":
    main()
