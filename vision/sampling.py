"""Which pictures of a clip are looked at, and at which times: pure arithmetic on presentation times.

Knows nothing of containers, decoding or pixels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

from vision.errors import InvalidMediaOptionError

MAX_FPS = 1000.0
MAX_FRAMES = 65_536
# Containers store whole milliseconds or finer: a grid that holds to one millisecond is a constant rate.
GRID_TOLERANCE_S = 1.001e-3
CUT_TOLERANCE_S = 1e-6

Times = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingPolicy:
    """How many pictures are taken, and from which part of the clip.

    fps: pictures for each second of the clip; excludes num_frames.
    num_frames: pictures in all; a clip with fewer gives all it has. Neither: every picture of the clip.
    min_frames, max_frames: bounds on the count. They lower or raise the rate and never cut the tail.
    multiple_of: the count is rounded down to a multiple of this while at least one multiple is left.
    spread: "ends" takes the first and the last picture and spreads the rest evenly between them; "starts" cuts the clip
        into equal parts and takes the picture at the start of each. "ends_down" is "ends" with places rounded down,
        "parts" is "starts" in whole numbers, "middles" takes the picture in the middle of each part.
    count_rounding: how seconds x fps become a count.
    trim_s: this much at both ends is left out, when more than trim_above_s remains between them.
    start_s, end_s: look only at [start_s, end_s) of the clip's own time.
    """

    fps: float | None = None
    num_frames: int | None = None
    min_frames: int = 1
    max_frames: int = 768
    multiple_of: int = 1
    spread: Literal["ends", "ends_down", "starts", "parts", "middles"] = "ends"
    count_rounding: Literal["down", "nearest"] = "down"
    trim_s: float = 0.0
    trim_above_s: float = 0.0
    start_s: float | None = None
    end_s: float | None = None

    def __post_init__(self) -> None:
        if self.fps is not None and self.num_frames is not None:
            raise InvalidMediaOptionError("fps and num_frames exclude each other; give one", param="num_frames")
        if self.fps is not None:
            _check_number("fps", self.fps, low=0.0, high=MAX_FPS, low_is_allowed=0)
        for name in ("num_frames", "min_frames", "max_frames", "multiple_of"):
            _check_count(name, getattr(self, name))
        if self.min_frames > self.max_frames:
            raise InvalidMediaOptionError(
                f"min_frames ({self.min_frames}) must not be above max_frames ({self.max_frames})", param="min_frames"
            )
        if self.num_frames is not None and self.num_frames > self.max_frames:
            raise InvalidMediaOptionError(
                f"num_frames ({self.num_frames}) is above the limit of {self.max_frames} frames", param="num_frames"
            )
        for name in ("start_s", "end_s"):
            value = getattr(self, name)
            if value is not None:
                _check_number(name, value, low=0.0, high=1e9, low_is_allowed=1)
        if self.end_s is not None and self.end_s <= (self.start_s or 0.0):
            raise InvalidMediaOptionError(
                f"end_s ({self.end_s}) must be after start_s ({self.start_s or 0.0})", param="end_s"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameChoice:
    """Places in presentation order, not falling, and the time each stands for, rising."""

    indices: tuple[int, ...]
    times_s: tuple[float, ...]


def choose_frames(
    pts_s: Sequence[float], end_s: float, policy: SamplingPolicy, *, source_fps: float | None = None
) -> FrameChoice:
    """Choose pictures from their rising presentation times; at least one is chosen.

    pts_s: times of the pictures that can be shown, the first one 0.
    end_s: when the last picture leaves the screen.
    source_fps: the rate, as `estimate_rate` gives it.

    At a constant rate the indices are those of transformers' Qwen3-VL processor (spread "ends") or Qwen2-VL processor
    ("starts"): the count is int(total / source_fps * fps) within the bounds, spread evenly over the indices. At a
    varying rate the *times* are spread evenly, and each takes the picture on screen then.
    Raises InvalidMediaOptionError when [start_s, end_s) holds nothing of the clip.
    """
    times = np.asarray(pts_s, dtype=np.float64)
    if not len(times):
        raise ValueError("a clip without pictures cannot be sampled")
    rate = source_fps if source_fps else estimate_rate(times, hint=None)
    first, stop = _cut(times, end_s, policy)
    if rate is None or _is_constant(times, rate):
        return _choose_by_index(times, first, stop, policy, rate)
    return _choose_by_time(times, first, stop, end_s, policy)


def estimate_rate(pts_s: Sequence[float] | Times, *, hint: float | None) -> float | None:
    """Average pictures a second, from the time stamps; None for a single picture without a hint.

    Stamps are rounded (often to milliseconds), so the exact rate behind them is taken when it agrees with the span
    to one millisecond: the header's `hint` first, then the nearest whole rate and the nearest n x 1000/1001.
    """
    intervals = len(pts_s) - 1
    span = float(pts_s[-1] - pts_s[0]) if intervals > 0 else 0.0
    if span <= 0:
        return hint
    average = intervals / span
    for candidate in (hint, float(round(average)), round(average * 1.001) * 1000 / 1001):
        if candidate and abs(intervals / candidate - span) <= GRID_TOLERANCE_S:
            return candidate
    return average


def nominal_interval(pts_s: Sequence[float] | Times) -> float:
    """The median time between neighbours; needs two times."""
    # np.median would import numpy.ma for its NaN check: 25 ms in every decoding child.
    return float(np.sort(np.diff(pts_s))[(len(pts_s) - 1) // 2])


def _choose_by_index(times: Times, first: int, stop: int, policy: SamplingPolicy, rate: float | None) -> FrameChoice:
    shown_s = (stop - first) / rate if rate is not None else 0.0
    wanted = _count_at(policy.fps, shown_s, policy) if policy.fps is not None and rate is not None else stop - first
    if rate is not None and _is_trimmed(shown_s, policy):
        cut = policy.trim_s * rate
        first, stop = first + int(cut), min(first + int(stop - first - cut) + 1, stop)
    count = _bound_count(wanted, stop - first, policy)
    chosen = _spread_indices(first, stop, count, policy)
    return FrameChoice(indices=tuple(chosen.tolist()), times_s=tuple(times[chosen].tolist()))


def _spread_indices(first: int, stop: int, count: int, policy: SamplingPolicy) -> npt.NDArray[np.int64]:
    """(count,) indices in [first, stop).

    Worked example, 3 of [0, 7): "ends" 0, 3, 6; "starts" 0, 2, 4 (parts of 7/3 begin at 0, 2.33 and 4.67). 4 of
    [0, 6): "ends" 0, 2, 3, 5; "ends_down" 0, 1, 3, 5. 3 of [0, 7): "middles" 1, 3, 5 (1.17, 3.5 and 5.83).
    """
    total = stop - first
    if policy.spread == "ends":
        return first + np.linspace(0, total - 1, count).round().astype(np.int64)
    if policy.spread == "ends_down":
        return np.linspace(first, stop - 1, count, dtype=np.int64)
    if policy.spread == "parts":
        return first + np.arange(count) * total // count
    # The very call of transformers' processors: its rounding decides where a part begins on a whole index. It can give
    # one index too many, `total` itself, and then fails there.
    shift = total / count / 2 if policy.spread == "middles" else 0
    starts: npt.NDArray[np.int64] = torch.arange(shift, total, total / count)[:count].to(torch.int64).numpy()
    return first + starts


def _count_at(fps: float, seconds: float, policy: SamplingPolicy) -> int:
    return int(seconds * fps) if policy.count_rounding == "down" else round(seconds * fps)


def _is_trimmed(seconds: float, policy: SamplingPolicy) -> bool:
    return policy.trim_s > 0 and seconds - 2 * policy.trim_s > policy.trim_above_s


def _choose_by_time(times: Times, first: int, stop: int, end_s: float, policy: SamplingPolicy) -> FrameChoice:
    """Spread target times over [first picture, last picture] and take what is on screen at each of them."""
    interval = nominal_interval(times)
    begin = max(float(times[first]), policy.start_s or 0.0)
    last = max(float(times[stop - 1]), begin)
    shown_s = min(end_s, policy.end_s if policy.end_s is not None else end_s) - begin
    if policy.fps is None and policy.num_frames is None and stop - first <= policy.max_frames:
        return _follow_targets(times, np.maximum(times[first:stop], begin), interval)
    by_fps = _count_at(policy.fps, shown_s, policy) if policy.fps is not None else stop - first
    count = _bound_count(by_fps, max(1, round(shown_s / interval)), policy)
    if _is_trimmed(shown_s, policy):
        begin, last = begin + policy.trim_s, max(last - policy.trim_s, begin + policy.trim_s)
    if policy.spread in ("starts", "parts", "middles"):
        parts = np.arange(count, dtype=np.float64) + (0.5 if policy.spread == "middles" else 0.0)
        return _follow_targets(times, begin + parts * (shown_s / count), interval)
    return _follow_targets(times, np.linspace(begin, last, count), interval)


def _follow_targets(times: Times, targets: Times, interval: float) -> FrameChoice:
    """The picture at each target: the nearest when within half an interval, else the last one that began before.

    A picture is taken again only when a whole interval has passed since it was last taken.
    """
    before = np.clip(np.searchsorted(times, targets, side="right") - 1, 0, None)
    after = np.minimum(before + 1, len(times) - 1)
    nearest = np.where(np.abs(times[after] - targets) < np.abs(times[before] - targets), after, before)
    snaps = np.abs(times[nearest] - targets) <= interval / 2
    chosen = np.where(snaps, nearest, before)
    stands_for = np.where(snaps, times[chosen], targets)
    indices: list[int] = []
    seconds: list[float] = []
    for index, second in zip(chosen.tolist(), stands_for.tolist(), strict=True):
        if not indices or index != indices[-1] or second - seconds[-1] >= interval * (1 - 1e-9):
            indices.append(index)
            seconds.append(second)
    return FrameChoice(indices=tuple(indices), times_s=tuple(seconds))


def _bound_count(wanted: int, available: int, policy: SamplingPolicy) -> int:
    count = policy.num_frames if policy.num_frames is not None else wanted
    count = min(max(count, policy.min_frames), policy.max_frames, available)
    if count > policy.multiple_of:
        count -= count % policy.multiple_of
    return max(count, 1)


def _cut(times: Times, end_s: float, policy: SamplingPolicy) -> tuple[int, int]:
    """[first, stop) of the pictures on screen during [start_s, end_s).

    A picture that began before start_s counts only when nothing newer is on screen there or within half an interval.
    """
    start = policy.start_s or 0.0
    if start >= end_s and start > 0.0:
        raise InvalidMediaOptionError(
            f"start_s ({start}) is not before the end of the clip, {end_s:.3f} s", param="start_s"
        )
    first = int(np.searchsorted(times, start - CUT_TOLERANCE_S))
    stop = len(times)
    if policy.end_s is not None:
        stop = int(np.searchsorted(times, policy.end_s - CUT_TOLERANCE_S))
    half = nominal_interval(times) / 2 if len(times) > 1 else 0.0
    if first > 0 and (first >= stop or times[first] - start > half):
        first -= 1
    return first, max(stop, first + 1)


def _is_constant(times: Times, rate: float) -> bool:
    grid = np.arange(len(times)) / rate
    return bool(np.abs(times - times[0] - grid).max() <= min(GRID_TOLERANCE_S, 0.25 / rate))


def _check_count(name: str, value: object) -> None:
    if value is None and name == "num_frames":
        return
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_FRAMES:
        raise InvalidMediaOptionError(
            f"{name} must be a whole number from 1 to {MAX_FRAMES}, got {value!r}", param=name
        )


def _check_number(name: str, value: object, *, low: float, high: float, low_is_allowed: int) -> None:
    number = value if isinstance(value, (int, float)) and not isinstance(value, bool) else math.nan
    if not (low < number <= high or (low_is_allowed and number == low)):
        bounds = f"{'from' if low_is_allowed else 'above'} {low:g} and at most {high:g}"
        raise InvalidMediaOptionError(f"{name} must be a number {bounds}, got {str(value)[:40]}", param=name)
