"""Pruning as clients see it: counts, picks, positions, rate bounds, several clips, chunks, bills."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from tests.field.talk import NO_EVS, Talk
from tests.field.test_caching import told
from tests.oracle import Clip, noise_clip, noise_picture

RATES = ("0", "0.25", "0.5", "0.7", "0.75", "0.8", "0.9")
ALL_FRAMES = {"fps": 2}


def first_frames(clip: Clip, count: int) -> Clip:
    return Clip(frames=clip.frames[:count], fps=clip.fps)


def changing(slots: int, *, at: int, seed: int = 80) -> Clip:
    """A still picture that another one replaces at slot `at`."""
    before, after = noise_clip(seed, num_frames=2, size=(96, 128)).frames
    frames = [before if number < 2 * at else after for number in range(2 * slots)]
    return Clip(frames=np.stack(frames), fps=2.0)


def kept_counts(item: dict[str, Any]) -> list[int]:
    return [len(slot) for slot in item["kept"]]


def runs_of_pads(talk: Talk, ids: list[int]) -> list[int]:
    """How many cells stand behind each timestamp."""
    text = talk.tokenizer.decode(ids)
    found = re.findall(r"<[\d.]+ seconds><\|vision_start\|>((?:<\|video_pad\|>)*)<\|vision_end\|>", text)
    return [len(run) // len("<|video_pad|>") for run in found]


@pytest.mark.parametrize("slots", range(1, 13))
def test_one_count_for_prompt_mask_and_bill(talk: Talk, slots: int) -> None:
    """E-COUNT-1, E-FLOAT-1: max(a slot, floor(cells x (1 - rate))) in exact arithmetic, by every method, everywhere."""
    clip = noise_clip(79, num_frames=2 * slots, size=(64, 96))
    for number, rate in enumerate(RATES):
        method = ("evs", "uniform", "random")[(slots + number) % 3]
        rendered = talk.render(clip, "?", evs={"method": method, "rate": float(rate)}, video=ALL_FRAMES)
        item, usage = rendered["items"][0], rendered["usage"]
        per_slot = item["grid"][0] * item["grid"][1]
        assert item["slots"] == slots
        wanted = max(per_slot, int(slots * per_slot * (1 - Fraction(rate))))
        assert sum(kept_counts(item)) == wanted == usage["evs"]["kept"]
        assert usage["prompt_tokens_details"]["video_tokens"] == wanted
        assert usage["evs"]["kept_per_slot"] == [kept_counts(item)]
        assert runs_of_pads(talk, rendered["prompt_token_ids"]) == kept_counts(item)
        assert len(item["kept"][0]) == per_slot


def test_the_float_trap(talk: Talk) -> None:
    """E-FLOAT-1: 60 x (1 - 0.8) is 12, and 11 in floats."""
    clip = noise_clip(79, num_frames=20, size=(64, 96))
    usage = talk.ask(clip, evs={"method": "uniform", "rate": 0.8}, video=ALL_FRAMES)["usage"]["evs"]
    assert usage["cells"] == 60
    assert int(60 * (1 - 0.8)) == 11
    assert usage["kept"] == 12


@pytest.mark.parametrize("shade", [0, 130])
def test_still_clips_are_ties(talk: Talk, shade: int) -> None:
    """E-STATIC: nothing to choose between, so the earliest are kept, the same every time, and nothing is NaN."""
    clip = Clip(frames=np.full((16, 96, 128, 3), shade, np.uint8), fps=2.0)
    evs = {"method": "evs", "rate": 0.5}
    seen = [talk.render(clip, evs=evs, video=ALL_FRAMES)["items"][0] for _ in range(2)]
    assert seen[0] == seen[1]
    per_slot = len(seen[0]["kept"][0])
    assert kept_counts(seen[0]) == [per_slot] * 4 + [0] * 4
    reply = talk.ask(clip, "?", evs=evs, video=ALL_FRAMES, logprobs=True)
    assert all(np.isfinite(entry["logprob"]) for entry in reply["choices"][0]["logprobs"]["content"])
    gated = talk.render(clip, evs={"method": "gate"}, video=ALL_FRAMES)["items"][0]
    assert kept_counts(gated) == [per_slot] + [1] * 7


def test_noise_is_kept_everywhere(talk: Talk) -> None:
    """E-NOISE-1: the choice is made over the whole clip, not to the end of a budget."""
    clip = noise_clip(81, num_frames=16, size=(96, 128))
    item = talk.render(clip, evs={"method": "evs", "rate": 0.5}, video=ALL_FRAMES)["items"][0]
    assert min(kept_counts(item)) > 0


@pytest.mark.parametrize("evs", [{"method": "evs", "rate": 0.75}, {"method": "gate"}], ids=["evs", "gate"])
def test_a_cut_is_kept_whole(talk: Talk, evs: dict[str, Any]) -> None:
    """E-CUT-1, E-PERFRAME-1: slot 0 and the slot of the cut, and the prompt says so slot by slot."""
    rendered = talk.render(changing(8, at=4), evs=evs, video=ALL_FRAMES)
    counts = kept_counts(rendered["items"][0])
    floor = 1 if evs["method"] == "gate" else 0
    per_slot = counts[0]
    assert counts == [per_slot, *[floor] * 3, per_slot, *[floor] * 3]
    assert runs_of_pads(talk, rendered["prompt_token_ids"]) == counts


def test_a_small_mover_is_kept(talk: Talk) -> None:
    """E-MOVE-1: what is kept lies where the square was or is."""
    still = noise_clip(82, num_frames=1, size=(96, 160)).frames[0]
    frames = np.repeat(still[None], 10, axis=0)
    places = []  # columns of cells that a slot shows changed
    for slot in range(5):
        left = 32 * slot
        frames[2 * slot : 2 * slot + 2, 36:60, left + 4 : left + 28] = (255, 255, 0)
        places.append(slot)
    item = talk.render(Clip(frames=frames, fps=2.0), evs={"method": "gate"}, video=ALL_FRAMES)["items"][0]
    assert item["grid"] == [3, 5]
    assert item["kept"][1:] == [[5 + slot - 1, 5 + slot] for slot in places[1:]]


# ------------------------------------------------------------------------------------------- positions, several, chunks


def test_kept_cells_stay_where_they_were(talk: Talk) -> None:
    """E-POS-1: each kept cell has its dense position, and the text goes on from the dense maximum."""
    turn = ("a", changing(6, at=3), "b", noise_picture(83, size=(64, 96)), "c")
    dense = talk.render(*turn, evs=NO_EVS, video=ALL_FRAMES)
    pruned = talk.render(*turn, evs={"method": "evs", "rate": 0.7}, video=ALL_FRAMES)
    pad = talk.tokenizer.convert_tokens_to_ids("<|video_pad|>")
    slots = zip(pruned["items"][0]["kept"], dense["items"][0]["kept"], strict=True)
    kept = iter([cell in ours for ours, whole in slots for cell in whole])
    columns = [next(kept) if token == pad else True for token in dense["prompt_token_ids"]]
    assert not all(columns)
    for ours, whole in zip(pruned["position_ids"], dense["position_ids"], strict=True):
        assert ours == [value for value, keep in zip(whole, columns, strict=True) if keep]
    assert [row[-1] for row in pruned["position_ids"]] == [row[-1] for row in dense["position_ids"]]


def test_several_clips_are_each_pruned(talk: Talk) -> None:
    """E-MULTI-1: the sum of both formulas, each clip's timestamps intact, a picture between them whole."""
    clips = (changing(6, at=2, seed=84), noise_clip(85, num_frames=8, size=(64, 96)))
    picture = noise_picture(86, size=(64, 64))
    evs = {"method": "evs", "rate": 0.5}
    rendered = talk.render(clips[0], picture, clips[1], "?", evs=evs, video=ALL_FRAMES)
    videos = [item for item in rendered["items"] if item["kind"] == "video"]
    for item in videos:
        cells = item["slots"] * item["grid"][0] * item["grid"][1]
        assert sum(kept_counts(item)) == max(cells // item["slots"], cells // 2)
    both = [count for item in videos for count in kept_counts(item)]
    assert runs_of_pads(talk, rendered["prompt_token_ids"]) == both
    assert rendered["usage"]["evs"]["kept"] == sum(both)
    rows, columns = rendered["items"][1]["grid"]
    assert rendered["usage"]["prompt_tokens_details"]["image_tokens"] == rows * columns


@pytest.mark.parametrize("evs", [NO_EVS, {"method": "gate"}, {"method": "evs", "rate": 0.6}], ids=lambda e: e["method"])
def test_chunks_and_small_steps_change_nothing(talk: Talk, tight: Talk, evs: dict[str, Any]) -> None:
    """E-CHUNK-1, law 4: prefill in pieces of 17 rows and encoding slot by slot give the same tokens and logits."""
    turn = ("a", changing(5, at=2, seed=87), "then", noise_picture(88, size=(70, 90)), "why?")
    replies = [t.ask(*turn, evs=evs, max_tokens=8, logprobs=True, top_logprobs=20) for t in (talk, tight)]
    whole, cut = (reply["choices"][0] for reply in replies)
    assert cut["token_ids"] == whole["token_ids"]
    for ours, theirs in zip(cut["logprobs"]["content"], whole["logprobs"]["content"], strict=True):
        pairs = zip(ours["top_logprobs"], theirs["top_logprobs"], strict=True)
        assert max(abs(a["logprob"] - b["logprob"]) for a, b in pairs) < 1e-3
    assert replies[0]["usage"] == replies[1]["usage"]


# -------------------------------------------------------------------------------------------------- requests and bills


@pytest.mark.parametrize(
    "evs",
    [
        {"rate": -0.1},
        {"rate": 1},
        {"rate": 1.5},
        {"rate": "a"},
        {"rate": True},
        {"rate": 0.5, "ratio": 0.5},
        {"method": "EVS"},
        {"method": "evs"},
        {"method": "none", "rate": 0.5},
        {"method": "uniform", "rate": 0.5, "threshold": 0.1},
        {"method": "gate", "refresh": 0},
        {"method": "gate", "threshold": 2},
        {"method": "gate", "encoder": "fast"},
    ],
    ids=str,
)
@pytest.mark.parametrize("route", ["", "/render"])
def test_senseless_pruning_is_refused(talk: Talk, evs: dict[str, Any], route: str) -> None:
    """E-RATE-1: a 400 that names the key; q = 1 has no meaning here."""
    wanted = {"method": "evs", **evs} if "rate" in evs and "method" not in evs else evs
    error = talk.refusal(noise_clip(89, num_frames=2, size=(64, 64)), evs=wanted, route="/v1/chat/completions" + route)
    assert error["status"] == 400
    assert str(error["param"]).startswith("evs")


def test_ceilings_clamp_and_are_echoed(talk: Talk) -> None:
    """What is beyond the server's ceilings is clamped, and the answer says to what."""
    clip = noise_clip(90, num_frames=4, size=(64, 64))
    echoed = talk.ask(clip, evs={"method": "uniform", "rate": 0.9999})["usage"]["evs"]
    assert echoed["rate"] == 0.98
    gate = {"method": "gate", "threshold": 1, "refresh": 10**6}
    echoed = talk.ask(clip, evs=gate)["usage"]["evs"]
    assert (echoed["threshold"], echoed["refresh"]) == (32 / 255, 1024)


@pytest.mark.parametrize("method", ["gate", "evs", "uniform", "random"])
@pytest.mark.parametrize("parts", [["only text"], [noise_picture(91, size=(64, 64)), "?"]], ids=["text", "image"])
def test_where_no_clip_is_nothing_is_pruned(talk: Talk, method: str, parts: list[Any]) -> None:
    """Options for clips change nothing about words and pictures."""
    evs = {"method": method} | ({} if method == "gate" else {"rate": 0.9})
    ours, plain = (told(talk, *parts, evs=e) for e in (evs, NO_EVS))
    assert ours == plain
    assert ours.bill["evs"] is None


@pytest.mark.parametrize("method", ["gate", "evs", "uniform", "random"])
def test_a_single_frame_is_kept_whole(talk: Talk, method: str) -> None:
    """T = 1: one slot is the least that is kept."""
    evs = {"method": method} | ({} if method == "gate" else {"rate": 0.9})
    clip = noise_clip(92, num_frames=9, size=(64, 96))
    ours, plain = (talk.ask(clip, "?", evs=e, video={"max_frames": 1}) for e in (evs, NO_EVS))
    assert ours["choices"] == plain["choices"]
    assert ours["usage"]["evs"]["kept"] == ours["usage"]["evs"]["cells"]


def test_rates_do_not_share_answers(talk: Talk) -> None:
    """E-CACHE-1: counts A, B, A, and the answers to A are equal."""
    clip = noise_clip(93, num_frames=8, size=(64, 96))
    policies: list[dict[str, Any]] = [NO_EVS, {"method": "evs", "rate": 0.75}, {"method": "evs", "rate": 0.5}]
    replies = [told(talk, clip, "?", evs=evs) for evs in (*policies, *policies)]
    assert replies[:3] == replies[3:]
    assert len({reply.bill["prompt_tokens"] for reply in replies}) == 3


def test_the_bill_and_the_context_count_what_is_kept(talk: Talk) -> None:
    """E-USAGE-1: a prompt that only fits when it is pruned is taken, and refused by its number when it is not."""
    clip = noise_clip(94, num_frames=32, size=(128, 128))
    dense = talk.refusal(*[clip] * 14, "?", evs=NO_EVS, video=ALL_FRAMES)
    assert dense["code"] == "context_length_exceeded"
    assert "4096" in dense["message"]
    reply = talk.ask(*[clip] * 14, "?", evs={"method": "evs", "rate": 0.9}, video=ALL_FRAMES)
    usage = reply["usage"]
    assert usage["prompt_tokens"] + 4 <= 4096 < usage["prompt_tokens"] + usage["evs"]["cells"] - usage["evs"]["kept"]
