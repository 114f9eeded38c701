"""Which frames are chosen: equal to transformers at a constant rate, true to the clock at a varying one."""

from __future__ import annotations

import math
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor

from vision.errors import InvalidMediaOptionError
from vision.sampling import SamplingPolicy, choose_frames, estimate_rate

RATES = [
    Fraction(24),
    Fraction(25),
    Fraction(30),
    Fraction(30_000, 1001),
    Fraction(60),
    Fraction(1, 10),
    Fraction(15, 2),
]


def constant(total: int, rate: Fraction, tick_s: float = 0.0) -> list[float]:
    """Presentation times of a constant rate, rounded to the container's tick as muxers do."""
    exact = [float(index / rate) for index in range(total)]
    return exact if not tick_s else [round(time / tick_s) * tick_s for time in exact]


def test_constant_rate_equals_transformers() -> None:
    """The oracle: Qwen3VLVideoProcessor.sample_frames, for counts, rates and bounds of every kind."""
    processor = Qwen3VLVideoProcessor()
    rng = np.random.default_rng(0)
    for _ in range(400):
        rate = RATES[rng.integers(len(RATES))]
        total, fps = int(rng.integers(1, 2000)), float(rng.choice([0.1, 0.5, 1, 2, 3.3, 30, 100]))
        low, high = int(rng.integers(1, 6)), int(rng.integers(6, 800))
        processor.min_frames, processor.max_frames = low, high
        expected = processor.sample_frames(SimpleNamespace(total_num_frames=total, fps=float(rate)), fps=fps)
        policy = SamplingPolicy(fps=fps, min_frames=low, max_frames=high)
        times = constant(total, rate)
        choice = choose_frames(times, float(total / rate), policy, source_fps=float(rate))
        assert list(choice.indices) == expected.tolist(), (rate, total, fps, low, high)
        assert choice.times_s == pytest.approx([times[index] for index in choice.indices])


@pytest.mark.parametrize("rate", [Fraction(24), Fraction(25), Fraction(30), Fraction(30_000, 1001), Fraction(60)])
@pytest.mark.parametrize("total", [2, 7, 60, 900])
def test_millisecond_ticks_change_nothing(rate: Fraction, total: int) -> None:
    """Matroska rounds times to milliseconds; the frames chosen are those of the exact rate."""
    policy = SamplingPolicy(fps=2.0, min_frames=1)
    rounded = constant(total, rate, tick_s=0.001)
    found = estimate_rate(rounded, hint=float(rate))
    assert found == pytest.approx(float(rate), abs=1e-9)
    exact = choose_frames(constant(total, rate), float(total / rate), policy, source_fps=float(rate))
    assert choose_frames(rounded, float(total / rate), policy, source_fps=found).indices == exact.indices


def test_a_lying_header_rate_is_not_believed() -> None:
    times = constant(60, Fraction(30))
    assert estimate_rate(times, hint=1000.0) == pytest.approx(30.0)
    assert estimate_rate([0.0], hint=25.0) == 25.0
    assert estimate_rate([0.0], hint=None) is None


@settings(max_examples=200, deadline=None)
@given(
    gaps=st.lists(st.floats(0.001, 20.0), min_size=0, max_size=60),
    tail=st.floats(0.001, 5.0),
    fps=st.one_of(st.none(), st.floats(0.01, 60)),
    num_frames=st.one_of(st.none(), st.integers(1, 50)),
    max_frames=st.integers(50, 80),
    multiple_of=st.sampled_from([1, 2, 4]),
)
def test_laws_of_any_clip(
    gaps: list[float], tail: float, fps: float | None, num_frames: int | None, max_frames: int, multiple_of: int
) -> None:
    """At least one frame, bounded, in order, never before it is shown, and no repeat that the clip does not show."""
    times = [0.0, *np.cumsum(gaps).tolist()]
    policy = SamplingPolicy(
        fps=None if num_frames else fps, num_frames=num_frames, max_frames=max_frames, multiple_of=multiple_of
    )
    choice = choose_frames(times, times[-1] + tail, policy)
    assert 1 <= len(choice.indices) == len(choice.times_s) <= max_frames
    assert list(choice.indices) == sorted(choice.indices)
    assert all(b > a for a, b in zip(choice.times_s, choice.times_s[1:], strict=False))
    for index, time in zip(choice.indices, choice.times_s, strict=True):
        assert times[index] <= time + 1e-9
        assert index + 1 == len(times) or time <= times[index + 1] + 1e-9


def test_varying_rate_follows_the_clock() -> None:
    """Ten frames in a second, then one at sixty: the gap is sampled as what is on screen, and the end is reached."""
    times = [index / 10 for index in range(10)] + [60.0]
    choice = choose_frames(times, 60.1, SamplingPolicy(fps=0.1))
    assert choice.indices == (0, 9, 9, 9, 9, 10)
    assert choice.times_s == pytest.approx([0, 12, 24, 36, 48, 60])


def test_near_targets_snap_to_the_frame() -> None:
    """Within half an interval the frame's own time is used, whichever side it lies on."""
    times = [0.0, 0.11, 0.19, 0.31, 0.4]
    choice = choose_frames(times, 0.5, SamplingPolicy(num_frames=5))
    assert choice.indices == (0, 1, 2, 3, 4)
    assert choice.times_s == tuple(times)


def test_asking_for_more_than_there_is_gives_all_once() -> None:
    times = constant(5, Fraction(1, 10))
    assert choose_frames(times, 50.0, SamplingPolicy(num_frames=32)).indices == (0, 1, 2, 3, 4)
    assert choose_frames(times, 50.0, SamplingPolicy(min_frames=8)).indices == (0, 1, 2, 3, 4)


def test_caps_lower_the_rate_and_keep_the_tail() -> None:
    times = constant(3600, Fraction(1))
    choice = choose_frames(times, 3600.0, SamplingPolicy(fps=2.0, max_frames=64))
    assert len(choice.indices) == 64
    assert choice.indices[0] == 0
    assert choice.indices[-1] == 3599


def test_count_is_rounded_down_to_a_multiple() -> None:
    times = constant(30, Fraction(30))
    assert len(choose_frames(times, 1.0, SamplingPolicy(num_frames=7, multiple_of=4)).indices) == 4
    assert len(choose_frames(times, 1.0, SamplingPolicy(num_frames=3, multiple_of=4)).indices) == 3


@pytest.mark.parametrize(
    ("start_s", "end_s", "first", "last"),
    [(None, None, 0, 59), (1.0, None, 30, 59), (None, 1.0, 0, 29), (0.5, 1.5, 15, 44), (1.99, 2.5, 59, 59)],
)
def test_the_cut_is_half_open(start_s: float | None, end_s: float | None, first: int, last: int) -> None:
    times = constant(60, Fraction(30), tick_s=1 / 90_000)
    choice = choose_frames(times, 2.0, SamplingPolicy(start_s=start_s, end_s=end_s))
    assert (choice.indices[0], choice.indices[-1]) == (first, last)


def test_a_cut_inside_a_gap_shows_what_is_on_screen() -> None:
    times = [0.0, 0.1, 0.2, 60.0]
    choice = choose_frames(times, 60.1, SamplingPolicy(fps=1.0, start_s=10.0, end_s=12.0))
    assert set(choice.indices) == {2}
    assert choice.times_s[0] == 10.0


def test_a_cut_after_the_end_is_refused_by_name() -> None:
    with pytest.raises(InvalidMediaOptionError, match=r"start_s.*2\.000 s") as caught:
        choose_frames([0.0, 1.0], 2.0, SamplingPolicy(start_s=2.0))
    assert caught.value.param == "start_s"


@pytest.mark.parametrize(
    ("param", "value"),
    [("fps", value) for value in (0, -1.0, math.nan, math.inf, 1e9, "2", True)]
    + [("num_frames", value) for value in (0, -1, 10**9, 2.5, "2", True)]
    + [("max_frames", 0), ("min_frames", -1), ("multiple_of", 0)]
    + [("start_s", value) for value in (-1.0, math.nan, math.inf)]
    + [("end_s", value) for value in (0.0, -1.0, math.nan)],
)
def test_bad_values_are_refused_by_name(param: str, value: object) -> None:
    with pytest.raises(InvalidMediaOptionError) as caught:
        SamplingPolicy(**{param: value})  # type: ignore[arg-type]
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"fps": 1.0, "num_frames": 4}, "num_frames"),
        ({"min_frames": 9, "max_frames": 8}, "min_frames"),
        ({"num_frames": 9, "max_frames": 8}, "num_frames"),
        ({"start_s": 3.0, "end_s": 3.0}, "end_s"),
    ],
)
def test_options_that_contradict_are_refused(options: dict[str, float], param: str) -> None:
    with pytest.raises(InvalidMediaOptionError) as caught:
        SamplingPolicy(**options)  # type: ignore[arg-type]
    assert caught.value.param == param
