"""Where there is a card: CUDA graphs give what eager steps give in every bucket, and decode steps wait for nothing but
their tokens. Needs nothing that decodes, fetches or serves. A CPU runs the same, so that the test does not rot."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

from attention.backends import choose_backend, make_backend
from runner.capacity import plan_capacity
from runner.config import EngineConfig
from runner.draft_depth import DraftDepth
from runner.encoder_store import EncoderStore
from runner.engine import Engine
from runner.families.base import GenerationDefaults
from runner.families.embedding import embedding_policy
from runner.graph_policy import choose_graphs
from runner.limits import Limits
from runner.loader import LoadedModel, load_model
from runner.model_runner import ModelRunner
from runner.pages import PagePool
from runner.prompt import build_prompt
from runner.requests import ChatMessage, InlineBytes, MediaPart, SamplingParams, TextPart
from runner.sampling import settle_sampling
from runner.scheduler import Scheduler
from runner.sequence import Sequence
from runner.speculation import Speculation
from tests.cuda import need_cuda
from tests.items import item_of
from vision.frames import VideoFrames

TOLERANCE = 1e-4
SIDES = {"qwen2_5_vl": 56, "qwen2_vl": 56, "qwen3_vl": 64, "gemma3": 32}  # of pictures that its cells divide
ON_CARDS = [pytest.param(("cuda", family), marks=pytest.mark.cuda, id=f"cuda-{family}") for family in SIDES]


@pytest.fixture(scope="module", params=[pytest.param(("cpu", "qwen3_vl"), id="cpu"), *ON_CARDS])
def loaded(request: pytest.FixtureRequest, checkpoint: Callable[[str], Path]) -> tuple[EngineConfig, LoadedModel]:
    device, family = request.param
    if device == "cuda":
        need_cuda()
    torch.backends.cuda.matmul.allow_tf32 = False
    config = EngineConfig(
        model=str(checkpoint(family)), served_name="tiny", dtype="float32", device=device, max_num_seqs=6,
        kv_memory_bytes=8 << 20, attention_backend="sdpa",
    )  # fmt: skip
    return config, load_model(config, lambda _phase, _done, _total: None)


def make_engine(config: EngineConfig, loaded: LoadedModel, graphs: str) -> Engine:
    """As the assembly does, without what decodes."""
    shape, device = loaded.family.shape, loaded.device
    config = EngineConfig(**{name: getattr(config, name) for name in config.__struct_fields__} | {"graphs": graphs})
    capacity = plan_capacity(config, shape, loaded.dtype, device, 1 << 30)
    backend = make_backend(choose_backend("sdpa", capacity.kv), capacity.kv)
    store = EncoderStore(
        max_bytes=1 << 26, num_planes=shape.num_planes, width=shape.hidden_size, dtype=loaded.dtype, device=device
    )
    choice = choose_graphs(config.graphs, device.type, backend.capabilities)
    runner = ModelRunner(
        config, loaded.family, backend, store, max_model_len=capacity.max_model_len, dtype=loaded.dtype, graphs=choice
    )
    pages, pooling = PagePool(capacity.kv.num_pages), embedding_policy(loaded.family).pooling
    scheduler = Scheduler(config, pages, store, window=capacity.kv.window, pooling=pooling)
    limits = Limits(
        max_model_len=capacity.max_model_len, max_positions=shape.max_positions,
        kv_tokens=capacity.kv.num_pages * config.page_size, max_media_items=1,
        step_tokens=config.max_num_batched_tokens,
    )  # fmt: skip
    return Engine(scheduler, runner, store, Speculation(None, DraftDepth((1,))), limits)


def make_frames(side: int, *, num_frames: int) -> VideoFrames:
    pixels = np.random.default_rng(side).integers(0, 256, (num_frames, 3, side, side), dtype=np.uint8)
    return VideoFrames(
        kind="video", pixels=pixels, times_s=tuple(0.5 * n for n in range(num_frames)),
        frame_indices=tuple(range(num_frames)), duration_s=0.5 * num_frames, source_fps=2.0, source_size=(side, side),
        codec="raw", container="raw", num_frames=num_frames,
    )  # fmt: skip


def make_sequence(loaded: LoadedModel, index: int, length: int, **sampling: object) -> Sequence:
    """Every third one is about a clip, pruned by half."""
    family = loaded.family
    parts: tuple = (TextPart(text="what is it? " * (index + 1)),)
    items = []
    if index % 3 == 0:
        frames = make_frames(SIDES[family.name], num_frames=4)
        grid = family.patch_grid(frames)
        keep = np.random.default_rng(index).random((grid.slots, grid.cells_per_slot)) < 0.5
        keep[0, 0] = True
        items = [item_of(frames, grid, keep)]
        parts = (MediaPart(kind="video", source=InlineBytes(data=b"")), *parts)
    prompt, ordered = build_prompt(family, loaded.tokenizer, (ChatMessage(role="user", parts=parts),), items)
    wanted = SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True, **sampling)
    defaults: GenerationDefaults = family.defaults
    goal = settle_sampling(wanted, defaults, vocab_size=family.shape.vocab_size, room=length, seed=0)
    return Sequence(request_id=f"r{index}", index=0, arrival=index, prompt=prompt, items=ordered, goal=goal)


def answer_all(engine: Engine, sequences: list[Sequence]) -> dict[str, list[tuple[int, dict[int, float]]]]:
    found: dict[str, list[tuple[int, dict[int, float]]]] = {s.request_id: [] for s in sequences}
    engine.add(sequences)
    while engine.has_work:
        for delta in engine.step().deltas:
            tops = [dict(logprob.top) for logprob in delta.logprobs]
            found[delta.request_id] += list(zip(delta.token_ids, tops, strict=True))
    engine.scheduler.check_integrity()
    return found


def test_graphs_are_eager_in_every_bucket(
    loaded: tuple[EngineConfig, LoadedModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six sequences that end one after the other: batches of 6 to 1 in graphs of 6, 4, 2 and 1. Padding holds NaN and
    the tails of pages hold large numbers."""
    monkeypatch.setattr("runner.inputs.PADDING", torch.nan)
    monkeypatch.setattr("runner.slots.TAIL", 1e4)
    config, model = loaded
    everything = {"top_logprobs": model.family.shape.vocab_size}
    graph, eager = make_engine(config, model, "always"), make_engine(config, model, "never")
    graph.runner.backend.memory.fill_(1e4)
    ours, theirs = (
        answer_all(engine, [make_sequence(model, n, 12 + 3 * n, **everything) for n in range(6)])
        for engine in (graph, eager)
    )
    routes = graph.runner.routes
    assert routes["graph", "decode"] > 20 and {mode for mode, _ in eager.runner.routes} == {"eager"}
    for name, steps in theirs.items():
        for (token, tops), (expected, reference) in zip(ours[name], steps, strict=True):
            best, second = sorted(reference.values(), reverse=True)[:2]
            if token != expected:
                assert best - second < 1e-4
                break
            spread = max(reference.values()) - min(reference.values())
            assert max(abs(tops[key] - reference[key]) for key in reference) < TOLERANCE * spread


@contextmanager
def errors_on_waiting(device: torch.device) -> Iterator[None]:
    if device.type != "cuda":
        yield
        return
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_decoding_waits_for_nothing_but_its_tokens(loaded: tuple[EngineConfig, LoadedModel]) -> None:
    """Plain greedy steps under torch's own detector of synchronisation: no copy and no count stops the host."""
    config, model = loaded
    engine = make_engine(config, model, "always")
    engine.add([make_sequence(model, n, 60) for n in range(3)])
    for _ in range(8):  # prompts, encodings, and what is done once
        engine.step()
    assert all(sequence.is_decoding for sequence in engine.scheduler.running)
    before = engine.runner.routes["graph", "decode"]
    with errors_on_waiting(model.device):
        for _ in range(20):  # pages are taken meanwhile, too
            assert len(engine.step().deltas) == 3
    assert engine.runner.routes["graph", "decode"] == before + 20
