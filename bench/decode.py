"""Time decoding of the same pictures of the same clips by ours and by other libraries, on one core.

    python bench/decode.py [--case WORD ...] [--repeats N] [--size HEIGHT WIDTH] [--seconds N]

Owns the clips, the clock and the table; knows nothing of models. Everything is tied to one core, because decord and
OpenCV start threads of their own whatever they are told. Runs are interleaved and the best is taken. Pictures are
compared with ours: a decoder that fails, or gives fewer or other ones, is left out of that case and its reason is
printed. Two questions are asked apart:

  pictures of full size   ours / the fastest other
  a server's whole work   a child process, pictures resized for a model and copied back / the fastest other, plus the
                          same resizing of as many pictures in this process
"""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from pathlib import Path

os.environ.update({"OMP_NUM_THREADS": "1", "OPENCV_FFMPEG_CAPTURE_OPTIONS": "threads;1"})
sys.path.insert(0, str(Path(__file__).parents[1]))

import av
import numpy as np

from bench.decoders import OURS, Decode, Pixels, decode_opencv_seeking, find_decoders
from bench.machine import Watch, describe_machine
from vision.cage import DecodePool
from vision.images import shape_picture
from vision.limits import DecodeLimits
from vision.request import DecodeRequest, MediaFile
from vision.resize import VideoSmartResize
from vision.sampling import SamplingPolicy

FPS = 30
SEEK_FROM = 100  # pictures apart; closer than this, jumping to each takes minutes
POINTS = 48  # every so many rows and columns a pixel is compared
FAR_APART = 8.0  # mean difference of those; one picture on it is above 15, another conversion of colours below 4
LIMITS = DecodeLimits(decode_timeout_s=600)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Which clip, and how many pictures of it; None takes every one."""

    name: str
    clip: Path
    count: int | None

    def choose_indices(self) -> list[int]:
        with av.open(str(self.clip)) as opened:
            total = opened.streams.video[0].frames
        return np.linspace(0, total - 1, total if self.count is None else self.count).round().astype(int).tolist()


@dataclass(slots=True, kw_only=True)
class Figures:
    """Best seconds of one case: by decoder; through the pool; resizing alone. left_out: decoder -> reason."""

    decoders_s: dict[str, float] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    pool_s: float = float("inf")
    resize_s: float = float("inf")
    others: float = 0.0

    @property
    def fastest_other_s(self) -> float | None:
        return min((s for name, s in self.decoders_s.items() if name != OURS), default=None)

    @property
    def ratio(self) -> float | None:
        other = self.fastest_other_s
        return None if other is None else round(self.decoders_s[OURS] / other, 2)

    @property
    def server_ratio(self) -> float | None:
        other = self.fastest_other_s
        return None if other is None else round(self.pool_s / (other + self.resize_s), 2)


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


def time_decoder(decode: Decode, path: str, indices: Sequence[int]) -> tuple[float, Pixels]:
    """Seconds, and a few pixels of each picture. Raises what the library raises, ValueError where it gives none."""
    started = time.perf_counter()
    seen = [picture[::POINTS, ::POINTS].copy() for picture in decode(path, indices)]
    wall_s = time.perf_counter() - started
    if len(seen) != len(indices):
        raise ValueError(f"gave {len(seen)} of {len(indices)} pictures")
    return wall_s, np.stack(seen)


def check_pictures(seen: Pixels, ours: Pixels) -> None:
    """Raises ValueError that says how many are not the wanted ones."""
    apart = np.abs(seen.astype(np.int16) - ours).mean(axis=(1, 2, 3))
    if (apart > FAR_APART).any():
        raise ValueError(f"{int((apart > FAR_APART).sum())} of {len(ours)} are other pictures")


def make_request(count: int) -> DecodeRequest:
    policy = SamplingPolicy(num_frames=count, max_frames=count)
    return DecodeRequest(kind="video", resize=VideoSmartResize(max_pixels=count * 256 * 448), sampling=policy)


def time_pool(pool: DecodePool, case: Case, count: int) -> float:
    started = time.perf_counter()
    assert len(pool.decode(MediaFile(path=str(case.clip)), make_request(count)).pixels) == count
    return time.perf_counter() - started


def time_resize(picture: Pixels, count: int) -> float:
    """So many pictures like this one, resized as the pool does."""
    request = make_request(count)
    size = picture.shape[0], picture.shape[1]
    target, started = request.resize.target_size(count, *size), time.perf_counter()
    for _ in range(count):
        shape_picture(picture, size, target, request)
    return time.perf_counter() - started


def measure(case: Case, decoders: dict[str, Decode], pool: DecodePool, repeats: int) -> Figures:
    indices, best = case.choose_indices(), Figures()
    step = indices[1] - indices[0]
    with Watch() as watch:
        _, ours = time_decoder(decoders[OURS], str(case.clip), indices)
        for _ in range(repeats):
            for name, decode in decoders.items():
                if name in best.left_out:
                    continue
                try:
                    if decode is decode_opencv_seeking and step < SEEK_FROM:
                        raise ValueError("would jump to each picture of a dense choice")
                    wall_s, seen = time_decoder(decode, str(case.clip), indices)
                    check_pictures(seen, ours)
                except Exception as error:  # a library may raise anything; ours may not
                    if name == OURS:
                        raise
                    best.decoders_s.pop(name, None)
                    best.left_out[name] = " ".join(str(error).split())[:90]
                else:
                    best.decoders_s[name] = min(wall_s, best.decoders_s.get(name, wall_s))
            picture = next(decoders[OURS](str(case.clip), indices[:1]))
            best.pool_s = min(best.pool_s, time_pool(pool, case, len(indices)))
            best.resize_s = min(best.resize_s, time_resize(picture, len(indices)))
    best.others = round(watch.others, 2)
    return best


def print_case(case: Case, best: Figures) -> None:
    print(f"\n{case.name}   (others used {best.others:.2f} cores)")
    for name, wall_s in best.decoders_s.items():
        print(f"  {name:18} {wall_s:8.3f} s")
    for name, reason in best.left_out.items():
        print(f"  {name:18} left out: {reason}")
    print(f"  ratio to the fastest other: {best.ratio}")
    print(f"  through the pool   {best.pool_s:8.3f} s; resizing alone {best.resize_s:.3f} s; ratio {best.server_ratio}")


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", action="append", default=[], help="only cases whose name holds this; may be repeated")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--size", type=int, nargs=2, default=(720, 1280))
    parser.add_argument("--seconds", type=int, default=600, help="length of the long clip")
    return parser.parse_args()


def main() -> None:
    options = read_options()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # and with it all children and threads to come
    with tempfile.TemporaryDirectory() as folder, DecodePool(LIMITS, workers=1) as pool:
        short, long = Path(folder) / "short.mp4", Path(folder) / "long.mp4"
        make_clip(short, seconds=10, size=(options.size[0], options.size[1]))
        repeat_clip(short, long, options.seconds // 10)
        cases = (
            Case(name="short sparse: 8 pictures of 10 s", clip=short, count=8),
            Case(name="short dense: every picture of 10 s", clip=short, count=None),
            Case(name=f"long sparse: 64 pictures of {options.seconds} s", clip=long, count=64),
            Case(name=f"long dense: 512 pictures of {options.seconds} s", clip=long, count=512),
        )
        decoders, absent = find_decoders()
        results = {}
        for case in cases:
            if not options.case or any(word in case.name for word in options.case):
                best = results[case.name] = measure(case, decoders, pool, options.repeats)
                print_case(case, best)
    print(f"\nnot installed: {', '.join(absent) or 'nothing'}")
    rows = {name: {**asdict(r), "ratio": r.ratio, "server_ratio": r.server_ratio} for name, r in results.items()}
    print(json.dumps({"machine": describe_machine(), "cases": rows}))


if __name__ == "__main__":
    main()
