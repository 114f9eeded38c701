"""Vectors through the whole engine: transformers' hidden states are the oracle, and history does not matter."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from runner.embed_messages import ChatInput, Embed, TokensInput
from runner.embedding import merge_options, submit_embedding, write_chat
from runner.errors import EngineStartError, RequestError
from runner.families.embedding import EmbeddingPolicy, embedding_policy
from runner.families.qwen3_vl_embedding import INSTRUCTION, read_embedding_policy
from runner.requests import ChatMessage, EvsOptions, TextPart, VideoOptions
from tests.harness import LocalCaller, LocalEngine, local_engine, rebuilt
from tests.oracle import Part, as_message, load_oracle, noise_clip, noise_picture, prepare_inputs
from tests.oracle_items import BY_ITEM

TOLERANCE = 1e-4
NONE = EvsOptions(method="none")
TURNS: dict[str, list[Part]] = {
    "text": ["The quick brown fox."],
    "image": [noise_picture(3, size=(64, 96)), "a picture"],
    "clip": [noise_clip(5, num_frames=6, size=(64, 96))],
}


def embed(local: LocalEngine, *inputs: ChatInput | TokensInput, **options: Any) -> list[np.ndarray]:
    request = Embed(request_id="e", inputs=inputs, evs=NONE, **options)
    sequences, usages = submit_embedding(
        local.assembled.admission, request, next(local.arrivals), LocalCaller(local, 0)
    )
    assert [usage.prompt_tokens for usage in usages] == [len(sequence.prompt) for sequence in sequences]
    local.engine.add(sequences)
    found: dict[int, np.ndarray] = {}
    while local.engine.has_work:
        report = local.engine.step()
        local.receive(report.deltas)
        found |= {vector.index: np.frombuffer(vector.data, "<f4") for vector in report.vectors}
    local.engine.scheduler.check_integrity()
    return [found[index] for index in range(len(inputs))]


def turn_input(turn: list[Part]) -> ChatInput:
    return ChatInput(chat=(as_message(turn),))


@torch.inference_mode()
def oracle_states(folder: Path, turn: list[Part], *, system: str | None = None) -> np.ndarray:
    """(L, D) float64: the untouched model's hidden states after the final norm."""
    model, processor = load_oracle(folder)
    by_item = BY_ITEM.get(model.config.model_type)
    if system is None:
        inputs = prepare_inputs(processor, turn) if by_item is None else by_item(model, processor, turn)
    else:
        chat = [("system", system), ("user", turn[0])]
        content = [{"role": role, "content": [{"type": "text", "text": text}]} for role, text in chat]
        text = processor.apply_chat_template(content, add_generation_prompt=True, tokenize=False)
        inputs = dict(processor(text=[text], return_tensors="pt"))
    out = model.model(**inputs, use_cache=False)
    states: np.ndarray = out.last_hidden_state[0].double().numpy()
    return states


def unit(vector: np.ndarray) -> np.ndarray:
    return vector / np.linalg.norm(vector)


@pytest.mark.parametrize("family", ["llava_onevision", "qwen2_5_vl", "qwen3_vl", "smolvlm"])  # each kind of layout
def test_vectors_are_transformers(checkpoint: Callable[[str], Path], family: str) -> None:
    """The last row's state of text, an image and a clip, normalised; the row before it is another vector."""
    folder = checkpoint(family)
    with local_engine(folder) as local:
        inputs = [turn_input(turn) for name, turn in TURNS.items() if name in ("text", *local.assembled.info.modalities)
                  or (name == "clip" and "video" in local.assembled.info.modalities)]  # fmt: skip
        ours = embed(local, *inputs)
        alone = embed(local, inputs[-1])[0]
    assert np.abs(alone - ours[-1]).max() < 1e-5
    for vector, turn in zip(ours, TURNS.values(), strict=False):
        states = oracle_states(folder, turn)
        assert np.abs(vector - unit(states[-1])).max() < TOLERANCE
        assert np.abs(vector - unit(states[-2])).max() > 10 * TOLERANCE  # the test can fail
        assert abs(np.linalg.norm(vector) - 1) < 1e-6


def embedding_checkpoint(source: Path, folder: Path, pooling: dict[str, Any]) -> Path:
    """The chat model's files with sentence-transformers' beside them: the layout of Qwen3-VL-Embedding."""
    shutil.copytree(source, folder)
    (folder / "modules.json").write_text("[]")
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return folder


@pytest.mark.parametrize("mode", ["lasttoken", "mean"])
def test_embedding_checkpoints_bring_their_own_template(
    checkpoint: Callable[[str], Path], tmp_path: Path, mode: str
) -> None:
    """Instruction, sampling and pooling of the layout; the mean is the same in one chunk and in many."""
    folder = embedding_checkpoint(checkpoint("qwen3_vl"), tmp_path / "embedding", {f"pooling_mode_{mode}": True}
                                  if mode == "lasttoken" else {"pooling_mode_mean_tokens": True})  # fmt: skip
    turn = TURNS["text"]
    states = oracle_states(folder, turn, system=INSTRUCTION)
    expected = unit(states[-1] if mode == "lasttoken" else states.mean(0))
    with local_engine(folder) as local:
        assert np.abs(embed(local, turn_input(turn))[0] - expected).max() < TOLERANCE
        chunked = rebuilt(local, folder, max_num_batched_tokens=7, max_num_seqs=4)
        assert np.abs(embed(chunked, turn_input(turn))[0] - expected).max() < TOLERANCE
        policy = embedding_policy(local.assembled.admission.family)
        clip = write_chat((as_message(TURNS["clip"]),), policy)[1].parts[0]
    assert clip.video.fps == 1.0 and clip.video.max_frames == 64  # type: ignore[union-attr]
    with_system = (ChatMessage(role="system", parts=(TextPart(text="Mine."),)), *(as_message(turn),))
    assert write_chat(with_system, policy) == with_system


def test_an_unknown_pooling_is_refused(tmp_path: Path) -> None:
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text('{"pooling_mode_max_tokens": true}')
    with pytest.raises(EngineStartError, match="not served"):
        read_embedding_policy(str(tmp_path), cell=32)
    assert read_embedding_policy(str(tmp_path / "elsewhere"), cell=32) == EmbeddingPolicy()


def test_dimensions_cut_and_normalise_again(checkpoint: Callable[[str], Path]) -> None:
    with local_engine(checkpoint("qwen3_vl")) as local:
        whole, raw = embed(local, turn_input(["x"]))[0], embed(local, turn_input(["x"]), normalize=False)[0]
        short = embed(local, turn_input(["x"]), dimensions=5)[0]
        assert np.abs(unit(raw) - whole).max() < 1e-6 and abs(np.linalg.norm(raw) - 1) > 1e-3
        assert np.abs(short - unit(whole[:5])).max() < 1e-6
        for wrong in (0, len(whole) + 1):
            with pytest.raises(RequestError, match="dimensions"):
                embed(local, turn_input(["x"]), dimensions=wrong)


def test_vectors_share_steps_with_chats(checkpoint: Callable[[str], Path]) -> None:
    """Law 4: among answers, in chunks and preempted now and then, vectors and answers are those of quiet times."""
    folder = checkpoint("qwen3_vl")
    clip: list[Part] = [noise_clip(8, num_frames=4, size=(64, 64)), "What is this?"]
    with local_engine(folder) as local:
        alone = embed(local, turn_input(clip), turn_input(["short"]))
        answer = local.answer([as_message(clip)], evs=NONE)
        crowded = rebuilt(local, folder, max_num_batched_tokens=16, max_num_seqs=8)
        ids = [crowded.submit([as_message(clip)], evs=NONE) for _ in range(2)]
        together = embed(crowded, turn_input(clip), turn_input(["short"]))
    for ours, theirs in zip(together, alone, strict=True):
        assert np.abs(ours - theirs).max() < 1e-5
    assert all(crowded.answers[name, 0].token_ids == answer.token_ids for name in ids)


def test_token_ids_are_embedded_as_they_are(checkpoint: Callable[[str], Path]) -> None:
    """The same ids as the template's give the same vector; placeholders and unknown ids are refused."""
    with local_engine(checkpoint("qwen3_vl")) as local:
        ids = tuple(local.lay_out([as_message(["hello"])], NONE).prompt.token_ids.tolist())
        by_ids, by_text = embed(local, TokensInput(token_ids=ids), turn_input(["hello"]))
        assert np.abs(by_ids - by_text).max() < 1e-6
        pad = local.assembled.admission.family.placeholder_id("video")
        for wrong in ((), (local.vocab_size,), (pad,)):
            with pytest.raises(RequestError):
                embed(local, TokensInput(token_ids=wrong))


def test_options_of_a_request_stand_over_the_checkpoints() -> None:
    defaults = VideoOptions(fps=1.0, max_frames=64)
    assert merge_options(VideoOptions(fps=4.0), defaults) == VideoOptions(fps=4.0, max_frames=64)
    assert merge_options(VideoOptions(num_frames=3), defaults) == VideoOptions(num_frames=3, max_frames=64)
