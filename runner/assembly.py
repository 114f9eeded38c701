"""Puts an engine together from its settings. Owns the order in which parts are made; each part's work is its own."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from attention.backends import choose_backend, make_backend
from attention.protocol import AttentionBackend, KVLayout
from runner.admission import Admission
from runner.capacity import Capacity, free_memory_bytes, plan_capacity
from runner.config import EngineConfig
from runner.draft_depth import DraftDepth, depths_up_to
from runner.draft_loader import LoadedDraft, load_draft
from runner.draft_model import DraftModel
from runner.encoder_store import EncoderStore
from runner.engine import Engine
from runner.entering import encoders_of
from runner.errors import EngineStartError
from runner.evs_options import check_serving
from runner.families.embedding import embedding_policy
from runner.graph_policy import choose_graphs
from runner.ingest import Ingest
from runner.limits import Limits
from runner.linear_forms import best_forms
from runner.loader import LoadedModel, OnProgress, load_model
from runner.media_cache import MediaCache
from runner.messages import EngineInfo
from runner.model_runner import ModelRunner
from runner.pages import PagePool
from runner.scheduler import Scheduler
from runner.speculation import NgramProposer, Proposer, Speculation
from runner.speed import count_cores
from runner.threads import ComputeThreads
from vision.cage import DecodePool
from vision.limits import DecodeLimits


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Assembled:
    """A whole engine, ready to step, and what it may tell its client about itself."""

    engine: Engine
    admission: Admission
    pool: DecodePool
    pages: PagePool
    store: EncoderStore
    loaded: LoadedModel
    info: EngineInfo


def assemble(config: EngineConfig, on_progress: OnProgress) -> Assembled:
    """Load the model and put an engine round it. Raises EngineStartError with what to do when it cannot be served."""
    started = time.monotonic()
    torch.set_num_threads(config.threads or count_cores())
    pool = _decode_pool(config)
    loaded = load_model(config, on_progress)
    draft = load_draft(config, loaded, on_progress) if config.speculating.method == "draft" else None
    return build_engine(config, loaded, pool, started=started, draft=draft)


def build_engine(
    config: EngineConfig, loaded: LoadedModel, pool: DecodePool, *, started: float, draft: LoadedDraft | None = None
) -> Assembled:
    """An engine over models that are in memory; several may be built over one, but only one may step at a time."""
    shape = loaded.family.shape
    kv_dtype = torch.float8_e4m3fn if config.kv_cache_dtype == "fp8" else loaded.dtype
    beside = 0 if draft is None else draft.layout(num_pages=1, page_size=config.page_size).page_bytes
    capacity = plan_capacity(
        config, shape, kv_dtype, loaded.device, free_memory_bytes(loaded.device), draft_page_bytes=beside
    )
    backend, chosen = _backend(config, capacity.kv)
    if shape.prefix != "none" and not backend.capabilities.mm_prefix:
        raise EngineStartError(f"{loaded.family.name} reads pictures both ways, which {chosen} does not compute")
    try:
        check_serving(config.evs, encoders_of(loaded.family))
    except ValueError as error:
        raise EngineStartError(str(error)) from error
    pages = PagePool(capacity.kv.num_pages, max_cached=capacity.max_cached_pages)
    store = EncoderStore(
        max_bytes=capacity.encoder_cache_bytes,
        num_planes=shape.num_planes,
        width=shape.hidden_size,
        dtype=loaded.dtype,
        device=loaded.device,
    )
    graphs = choose_graphs(config.graphs, loaded.device.type, backend.capabilities)
    runner = ModelRunner(
        config, loaded.family, backend, store, max_model_len=capacity.max_model_len, dtype=loaded.dtype, graphs=graphs,
        threads=_threads(config, loaded),
    )  # fmt: skip
    limits = Limits(
        max_model_len=capacity.max_model_len,
        max_positions=shape.max_positions,
        kv_tokens=capacity.kv.num_pages * config.page_size,
        max_media_items=config.max_media_items,
        step_tokens=config.max_num_batched_tokens,
    )
    pooling = embedding_policy(loaded.family).pooling
    scheduler = Scheduler(config, pages, store, window=capacity.kv.window, pooling=pooling)
    ingest = Ingest(loaded.family, pool, MediaCache(config.media_cache_bytes), store)
    return Assembled(
        engine=Engine(scheduler, runner, store, _speculation(config, draft, capacity.kv.num_pages), limits),
        admission=Admission(loaded.family, loaded.tokenizer, ingest, limits, evs=config.evs, seed=config.seed),
        pool=pool,
        pages=pages,
        store=store,
        loaded=loaded,
        info=_describe(config, loaded, capacity, (chosen, graphs.note), time.monotonic() - started),
    )


def _speculation(config: EngineConfig, draft: LoadedDraft | None, num_pages: int) -> Speculation:
    """Texts are no longer than the sequences they are of, so as many pages as there are for these hold them."""
    proposer: Proposer | None = NgramProposer() if config.speculating.method == "ngram" else None
    if draft is not None:
        backend, _ = _backend(config, draft.layout(num_pages=num_pages, page_size=config.page_size))
        proposer = DraftModel(draft.model, backend, max_rows=config.max_num_batched_tokens)
    return Speculation(proposer, DraftDepth(depths_up_to(config.speculating.max_tokens)))


def _threads(config: EngineConfig, loaded: LoadedModel) -> ComputeThreads | None:
    """Adjusted where the user has not set their number and results do not depend on it."""
    is_arranged = loaded.device.type == "cpu" and loaded.dtype == torch.bfloat16 and best_forms().are_arranged
    return ComputeThreads(count_cores()) if config.threads is None and is_arranged else None


def _backend(config: EngineConfig, layout: KVLayout) -> tuple[AttentionBackend, str]:
    """The backend, and the sentence said about it at start."""
    try:
        choice = choose_backend(config.attention_backend, layout)
        return make_backend(choice, layout), f"attention: {choice.name} ({choice.reason})"
    except ValueError as error:
        raise EngineStartError(f"--attention-backend {config.attention_backend}: {error}") from error


def _decode_pool(config: EngineConfig) -> DecodePool:
    try:
        return DecodePool(_decode_limits(config), workers=config.decode.workers, backend=config.decode.backend)
    except ValueError as error:
        raise EngineStartError(f"--decode-backend: {error}") from error


def _decode_limits(config: EngineConfig) -> DecodeLimits:
    wanted = config.decode
    return DecodeLimits(
        max_bytes=wanted.max_bytes,
        max_pixels_per_frame=wanted.max_pixels_per_frame,
        max_frames=wanted.max_frames,
        max_duration_s=wanted.max_duration_s,
        max_frame_list=wanted.max_frame_list,
        decode_timeout_s=wanted.decode_timeout_s,
        max_child_memory_bytes=wanted.max_child_memory_bytes,
    )


def _describe(
    config: EngineConfig, loaded: LoadedModel, capacity: Capacity, notes: tuple[str, ...], load_s: float
) -> EngineInfo:
    family = loaded.family
    return EngineInfo(
        model=config.served_name,
        family=family.name,
        device=str(loaded.device),
        dtype=str(loaded.dtype).removeprefix("torch."),
        parameters=loaded.parameters,
        vocab_size=family.shape.vocab_size,
        embedding_width=family.shape.hidden_size,
        max_model_len=capacity.max_model_len,
        page_size=config.page_size,
        num_pages=capacity.kv.num_pages,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_media_items=config.max_media_items,
        modalities=family.modalities,
        eos_token_ids=family.defaults.eos_token_ids,
        default_max_tokens=family.defaults.max_tokens,
        tokenizer_json=loaded.tokenizer.json,
        load_s=load_s,
        notes=(*capacity.notes, *notes),
    )
