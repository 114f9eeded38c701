"""Laws 1 to 3 through HTTP for the families that the other modules do not serve, on the first requests they get."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.field.conftest import FLAGS
from tests.field.talk import NO_EVS, Talk, user
from tests.oracle import Clip, Part, answer
from tests.runner.test_evs import TURNS as STILL_TURNS
from tests.runner.test_parity import TURNS
from tests.server import running_server

METHODS: tuple[dict[str, Any], ...] = (
    {"method": "gate"},
    {"method": "evs", "rate": 0.6},
    {"method": "uniform", "rate": 0.6},
    {"method": "random", "rate": 0.6, "seed": 3},
)
STRUCTURAL_ROWS = {"llava_onevision": 1}  # of a clip: its newline
MAX_TOKENS = 5


@pytest.fixture(scope="module", params=["llava_onevision", "qwen2_5_vl", "smolvlm"])
def family(
    request: pytest.FixtureRequest, checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Talk, str]]:
    folder = checkpoint(request.param)
    with running_server(folder, *FLAGS, media_dir=tmp_path_factory.mktemp("media")) as server:
        yield Talk(server, folder), request.param


@pytest.mark.parametrize("evs", METHODS, ids=lambda evs: evs["method"])
@pytest.mark.parametrize("name", ["two_clips", "clip_then_image"])
def test_one_count_and_the_dense_prompts_places(family: tuple[Talk, str], name: str, evs: dict[str, Any]) -> None:
    """Laws 2 and 3 (E-INIT-1: on the first request): what usage reports is what the prompt holds and the mask keeps,
    and every row stands where it stands in the dense prompt."""
    talk, kind = family
    turn = STILL_TURNS[name]
    pruned = talk.render(*turn, evs=evs)
    usage = talk.ask(*turn, evs=evs)["usage"]
    assert usage["prompt_tokens"] == pruned["usage"]["prompt_tokens"] == len(pruned["prompt_token_ids"])
    clips = [item for item in pruned["items"] if item["kind"] == "video"]
    kept = sum(len(slot) for clip in clips for slot in clip["kept"])
    assert usage["evs"]["kept"] == kept < usage["evs"]["cells"]
    assert usage["evs"]["kept_per_slot"] == [[len(slot) for slot in clip["kept"]] for clip in clips]
    structural = STRUCTURAL_ROWS.get(kind, 0)
    assert usage["prompt_tokens_details"]["video_tokens"] == kept + structural * len(clips)
    dense = talk.render(*turn, evs=NO_EVS)
    keep = kept_columns(talk, dense, pruned, structural)
    for ours, whole in (
        (pruned["prompt_token_ids"], dense["prompt_token_ids"]),
        *zip(pruned["position_ids"], dense["position_ids"], strict=True),
    ):
        assert ours == [value for value, is_kept in zip(whole, keep, strict=True) if is_kept]


def kept_columns(talk: Talk, dense: dict[str, Any], pruned: dict[str, Any], structural: int) -> list[bool]:
    """Which rows of the dense prompt are left: its placeholders, in order, are its items' cells."""
    flags: list[bool] = []
    for item, whole in zip(pruned["items"], dense["items"], strict=True):
        for kept, cells in zip(item["kept"], whole["kept"], strict=True):
            flags += [cell in set(kept) for cell in cells]
        if item["kind"] == "video":
            flags += [True] * structural
        elif structural:  # a lone image's newlines, and the cells that it loses its padding with
            flags += [True] * (dense["usage"]["prompt_tokens_details"]["image_tokens"] - sum(map(len, whole["kept"])))
    pads = {talk.tokenizer.convert_tokens_to_ids(mark) for mark in PLACEHOLDERS} - {None}
    rows = [token in pads for token in dense["prompt_token_ids"]]
    assert sum(rows) == len(flags)
    left = iter(flags)
    return [next(left) if is_pad else True for is_pad in rows]


PLACEHOLDERS = ("<image>", "<video>", "<|image_pad|>", "<|video_pad|>")


@pytest.mark.parametrize("name", [name for name in TURNS if name not in ("one_frame", "all_mixed")])
def test_tokens_and_logprobs_equal_the_oracle(family: tuple[Talk, str], name: str) -> None:
    """Law 1 from a file to a socket."""
    talk, _ = family
    turn: list[Part] = TURNS[name]
    oracle = answer(talk.folder, turn, MAX_TOKENS)
    choice = talk.ask(*turn, max_tokens=MAX_TOKENS, logprobs=True, top_logprobs=20)["choices"][0]
    assert choice["token_ids"] == oracle.token_ids
    spread = oracle.logits.std(-1)
    for entry, logits, width in zip(choice["logprobs"]["content"], oracle.logits.log_softmax(-1), spread, strict=True):
        expected = logits.topk(20).values.tolist()
        ours = [top["logprob"] for top in entry["top_logprobs"]]
        assert max(abs(a - b) for a, b in zip(ours, expected, strict=True)) < 1e-4 * float(width)


def test_logprobs_would_show_another_clip(family: tuple[Talk, str]) -> None:
    """The negative control of the comparison: one frame less is seen in the very first step."""
    talk, _ = family
    clip = TURNS["clip"][0]
    assert isinstance(clip, Clip)
    shorter = Clip(frames=clip.frames[: len(clip.frames) // 2], fps=clip.fps)
    both = [talk.ask(part, "What moves?", logprobs=True, top_logprobs=1) for part in (clip, shorter)]
    first, second = (reply["choices"][0]["logprobs"]["content"][0]["logprob"] for reply in both)
    assert abs(first - second) > 1e-3


def test_a_turn_without_content_is_written(family: tuple[Talk, str]) -> None:
    """M-EMPTY-1: clients echo an assistant's turn that has no content; templates look at its first part."""
    talk, _ = family
    chat = [user("a"), {"role": "assistant", "content": None}, user("b")]
    assert len(talk.tokens(messages=chat)) == 4
