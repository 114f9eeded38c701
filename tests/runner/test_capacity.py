"""Memory is derived from the model and the machine, and what cannot fit is refused at start with its numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from attention.protocol import LayerAttention
from runner.capacity import free_memory_bytes, plan_capacity
from runner.config import EngineConfig
from runner.errors import EngineStartError
from runner.families.base import DecoderShape

SHAPE = DecoderShape(
    num_layers=2, num_kv_heads=2, head_dim=8, hidden_size=32, vocab_size=100, max_positions=1000, rope_axes=1,
    num_planes=0
)  # fmt: skip
CPU = torch.device("cpu")
PAGE_BYTES = 2 * 2 * 16 * 2 * 8 * 4


def plan(free_bytes: int = 1 << 30, shape: DecoderShape = SHAPE, **settings):
    config = EngineConfig(model="m", served_name="m", **settings)
    return plan_capacity(config, shape, torch.float32, CPU, free_bytes)


def test_every_sequence_at_full_length_when_there_is_room() -> None:
    capacity = plan(max_num_seqs=3)
    assert capacity.kv.page_bytes == PAGE_BYTES
    assert capacity.kv.num_pages == 3 * 63
    assert capacity.max_model_len == 1000


def test_a_small_machine_gets_a_shorter_context_and_is_told() -> None:
    capacity = plan(free_bytes=100 * PAGE_BYTES)
    assert capacity.kv.num_pages == 40
    assert capacity.max_model_len == 640
    assert any("640" in note for note in capacity.notes)


def test_settings_stand_over_the_derived() -> None:
    capacity = plan(kv_memory_bytes=20 * PAGE_BYTES, encoder_cache_bytes=12345)
    assert capacity.kv.num_pages == 20
    assert capacity.encoder_cache_bytes == 12345


def test_kept_prompts_have_their_bound_and_it_is_said() -> None:
    """All pages where they are few, what was asked for, nothing; and nothing is said to be kept behind windows."""
    assert plan(max_num_seqs=3).max_cached_pages == 3 * 63
    assert plan(prefix_cache_bytes=5 * PAGE_BYTES).max_cached_pages == 5
    assert plan(prefix_cache_bytes=PAGE_BYTES - 1).max_cached_pages == 0
    assert (
        plan(free_bytes=1 << 40, max_num_seqs=4096, max_num_batched_tokens=4096).max_cached_pages
        == (512 << 20) // PAGE_BYTES
    )
    windowed = replace(SHAPE, layers=(LayerAttention(window=20), LayerAttention(window=30)))
    said = [plan(), plan(prefix_cache_bytes=0), plan(shape=windowed)]
    notes = [next(note for note in capacity.notes if note.startswith("prefix cache")) for capacity in said]
    assert ["at most" in notes[0], "none" in notes[1], "30 tokens" in notes[2]] == [True] * 3


@pytest.mark.parametrize(
    ("settings", "words"),
    [({"max_model_len": 1001}, "1000 positions"), ({"max_model_len": 900, "kv_memory_bytes": PAGE_BYTES}, "16 tokens")],
)
def test_what_cannot_fit_is_refused(settings: dict[str, int], words: str) -> None:
    with pytest.raises(EngineStartError, match=words):
        plan(**settings)


def test_free_memory_is_read_from_this_machine() -> None:
    assert 1 << 20 < free_memory_bytes(CPU) < 1 << 50
