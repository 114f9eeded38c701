"""A small model's guesses are its own greedy answers to the text, and leave the target's as they are."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import Gemma2Config, Gemma2ForCausalLM, Qwen2Config, Qwen2ForCausalLM

from runner.assembly import build_engine
from runner.config import Speculating
from runner.draft_loader import load_draft
from runner.draft_model import DraftModel
from runner.errors import EngineStartError
from runner.speculation import Speculation
from tests.checkpoints.base import scale_weights
from tests.harness import LocalEngine, local_engine, make_config, shared_pool
from tests.oracle import Part, as_message
from tests.runner.test_history import TURN, assert_same
from tests.runner.test_speculation import AnyDepth

LENGTH = 36
TEXT: list[Part] = ["say something"]


@pytest.fixture(scope="module")
def qwen(checkpoint: Callable[[str], Path]) -> Iterator[tuple[LocalEngine, Path]]:
    folder = checkpoint("qwen2_5_vl")
    with local_engine(folder) as local:
        yield local, folder


def text_model(folder: Path, vocab_size: int) -> Path:
    """A Qwen2 of two layers, without a tokenizer."""
    config = Qwen2Config(
        vocab_size=vocab_size, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=2048, tie_word_embeddings=False,
    )  # fmt: skip
    model = Qwen2ForCausalLM(config)
    scale_weights(model, seed=3, head_gain=4.0)
    model.save_pretrained(folder)
    return folder


def with_draft(local: LocalEngine, folder: Path, draft: Path, **settings: int) -> LocalEngine:
    config = make_config(folder, speculating=Speculating(method="draft", model=str(draft)), **settings)
    loaded = local.assembled.loaded
    drafted = load_draft(config, loaded, lambda _phase, _done, _total: None)
    engine = LocalEngine(build_engine(config, loaded, shared_pool(), started=time.monotonic(), draft=drafted))
    proposer = proposer_of(engine)
    engine.engine.speculation = Speculation(proposer, AnyDepth())
    return engine


def proposer_of(engine: LocalEngine) -> DraftModel:
    proposer = engine.engine.speculation._proposer
    assert isinstance(proposer, DraftModel)
    return proposer


def test_its_guesses_are_transformers_greedy_answers(qwen: tuple[LocalEngine, Path], tmp_path: Path) -> None:
    """Whatever came of the guesses before, and however many steps tried none: rows of wrong ones are written over,
    those of right ones kept, and a prompt of several chunks is read in as many steps."""
    local, folder = qwen
    small = text_model(tmp_path, local.vocab_size)
    oracle = Qwen2ForCausalLM.from_pretrained(small, dtype=torch.float32).eval()
    engine = with_draft(local, folder, small, max_num_batched_tokens=32)
    for turn in (TEXT, ["word " * 30]):
        engine.submit([as_message(turn)], sampling=engine.everything(LENGTH))
    proposer, checked, steps = proposer_of(engine), 0, 0
    while engine.engine.has_work:
        report = engine.engine.step()
        engine.receive(report.deltas)
        steps += 1
        for sequence in engine.engine.scheduler.decoding if steps % 3 == 0 else ():
            (guess,) = proposer.propose([sequence], 3)
            text = np.concatenate((sequence.prompt.token_ids, sequence.output))
            ids = torch.from_numpy(text)[None]
            for token in guess:
                logits = oracle(ids).logits[0, -1]
                logits[list(sequence.drawing.suppressed)] = -torch.inf
                assert token == int(logits.argmax())
                ids = torch.cat((ids, torch.tensor([[token]])), dim=1)
                checked += 1
    assert checked > 30


@pytest.mark.parametrize("turn", [TEXT, TURN], ids=["text", "clip"])
def test_the_same_model_guesses_right(qwen: tuple[LocalEngine, Path], turn: list[Part]) -> None:
    """About a text nearly all is accepted, for it is the model itself; about a clip, which it does not see, the answer
    is the same all the same. All pages come back."""
    local, folder = qwen
    alone = local.answer([as_message(turn)], sampling=local.everything(LENGTH))
    engine = with_draft(local, folder, folder)
    names = [engine.submit([as_message(turn)], sampling=engine.everything(LENGTH)) for _ in range(3)]
    engine.run()
    for name in names:
        assert_same(engine.answers[name, 0], alone)
    counted = engine.engine.speculation.counters
    assert counted["drafted"] > 20
    if turn is TEXT:
        assert counted["accepted"] > 0.9 * counted["drafted"]
    pages = proposer_of(engine).pages
    pages.check_integrity()
    assert pages.num_free == pages.num_pages


def test_preemptions_and_aborts_leave_no_page_behind(qwen: tuple[LocalEngine, Path]) -> None:
    """Nor is a text whose sequence was preempted continued where it was."""
    local, folder = qwen
    alone = local.answer([as_message(TEXT)], sampling=local.everything(60))
    draft = with_draft(local, folder, folder)
    per_page = local.engine.runner.backend.layout.page_bytes + proposer_of(draft)._backend.layout.page_bytes
    prompt_pages = -(-(alone.usage.prompt_tokens + 1) // 16)
    engine = with_draft(local, folder, folder, kv_memory_bytes=(3 * prompt_pages + 3) * per_page)
    names = [engine.submit([as_message(TEXT)], sampling=engine.everything(60)) for _ in range(4)]
    for _ in range(5):
        engine.step()
    engine.receive(engine.engine.abort(names[0], None))
    engine.run()
    assert engine.engine.scheduler.events["preemptions"] > 0
    for name in names[1:]:
        assert_same(engine.answers[name, 0], alone)
    assert proposer_of(engine).pages.num_free == proposer_of(engine).pages.num_pages


def test_what_cannot_guess_is_refused(qwen: tuple[LocalEngine, Path], tmp_path: Path) -> None:
    local, folder = qwen
    small = text_model(tmp_path / "small", local.vocab_size + 1)
    with pytest.raises(EngineStartError, match=f"{local.vocab_size + 1} tokens"):
        with_draft(local, folder, small)
    stranger = Gemma2Config(
        vocab_size=local.vocab_size, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=1,
        num_key_value_heads=1, head_dim=16,
    )  # fmt: skip
    Gemma2ForCausalLM(stranger).save_pretrained(tmp_path / "stranger")
    with pytest.raises(EngineStartError, match="gemma2"):
        with_draft(local, folder, tmp_path / "stranger")
