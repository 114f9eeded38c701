"""The load on /v1/realtime measures what it says: whose frames are missing, how late they are, what counts as found."""

from __future__ import annotations

import numpy as np
import pytest

from bench.realtime import Live, is_found, note_event, summarize, summarize_memory
from bench.scenes import make_scene


def window(index: int, vector: list[float]) -> dict[str, object]:
    return {
        "type": "embedding.done", "item_id": f"window_{index}", "index": index,
        "start_sec": 2.0 * index, "end_sec": 2.0 * index + 4,
        "frame_seqs": [4 * index, 4 * index + 1], "embedding": vector,
        "evs": {"cells": 40, "slots": 2, "encoder_cells": 10},
    }  # fmt: skip


def test_every_frame_is_counted_once() -> None:
    """Windows use frames, drops name them; a frame that is named twice is a fault, one that is not is reported."""
    live = Live(sent=8)
    sent_at = dict.fromkeys(range(8), 0.0)
    for index in range(2):
        note_event(live, window(index, [1.0, 0.0]), sent_at)
    note_event(live, {"type": "input_video_buffer.dropped", "seqs": [2, 3], "reason": "sampled_out"}, sent_at)
    figures = summarize([live], stride_s=2.0)
    assert figures["frames_unaccounted"] == 2 and figures["frames_dropped"] == 2 and figures["windows"] == 2
    assert figures["encoder_share"] == 20 / (20 * 8 / 2)
    with pytest.raises(AssertionError):
        note_event(live, {"type": "input_video_buffer.dropped", "seqs": [0], "reason": "closed"}, sent_at)
    with pytest.raises(RuntimeError, match="broken"):
        note_event(live, {"type": "error", "error": {"message": "broken"}}, sent_at)


@pytest.mark.parametrize(("best", "found"), [(0, False), (2, True), (4, True), (6, True), (7, False)])
def test_found_is_within_two_windows(best: int, found: bool) -> None:
    scene = make_scene(3, duration_s=24.0)
    live = Live(texts={"text": np.array([1.0, 0.0])})
    first = int(max(0.0, (scene.event_s - 4.0) // 2 + 1))  # the first window that ends after the event
    live.windows = [(2.0 * n, 2.0 * n + 4, np.array([float(n == first - 4 + best), 1.0])) for n in range(24)]
    assert is_found(live, scene, "text") is found


def test_scenes_differ_and_one_shape_appears() -> None:
    scene, other = make_scene(1, duration_s=24.0), make_scene(2, duration_s=24.0)
    before, after = scene.picture(scene.events_s[0] - 0.1), scene.picture(scene.events_s[0])
    assert before == scene.picture(0.0) == scene.picture(24.0, "static") != after
    assert other.picture(0.0) != before
    assert scene.picture(24.0) != after and scene.events_s[0] < 11 < scene.events_s[1] < 21
    assert scene.text != scene.other_text and scene.text.endswith("appears.")


def test_a_moving_scene_moves_and_shows_the_same_events() -> None:
    scene = make_scene(1, duration_s=24.0)
    pictures = [scene.picture(second, "moving") for second in (0.0, 1.0, 23.0)]
    assert len(set(pictures)) == 3 and pictures[0] == scene.picture(0.0)


def test_growth_is_that_of_the_second_half() -> None:
    """What fills up at first is no growth; a leak is, in MiB a minute."""
    filled = [(float(second), (100 + min(second, 60)) << 20) for second in range(0, 240, 5)]
    leaking = [(second, size + int(second * 2**20 / 30)) for second, size in filled]
    assert abs(summarize_memory(filled)["memory_mib_per_min"]) < 1e-6
    assert summarize_memory(leaking)["memory_mib_per_min"] == pytest.approx(2.0, abs=0.01)
    shown = summarize_memory(filled)["memory_mib"]
    assert (shown[0], shown[-1], len(shown)) == (100, 160, 12)
