"""The engine's settings as plain data; made by app/settings.py (or a test) and sent to the engine's process.

Owns names, units and defaults. Knows nothing of flags, environment variables or torch.
"""

from __future__ import annotations

from typing import Literal

import msgspec


class DecodeLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What one media item may cost before and while it is decoded."""

    max_bytes: int = 512 << 20
    max_pixels_per_frame: int = 8192 * 4352
    max_frames: int = 768
    max_duration_s: float = 4 * 3600.0
    max_frame_list: int = 768
    decode_timeout_s: float = 30.0
    max_child_memory_bytes: int = 4 << 30
    workers: int = 2
    backend: Literal["pyav", "decord", "torchcodec"] = "pyav"


class EvsServing(msgspec.Struct, frozen=True, kw_only=True):
    """The pruning of requests that do not ask for any, and how far requests may go."""

    method: Literal["none", "gate", "evs", "uniform", "random"] = "none"
    rate: float | None = None
    threshold: float | None = None
    refresh: int | None = None
    encoder: Literal["full", "skip", "reuse"] | None = None
    max_rate: float = 0.98
    max_threshold: float = 32 / 255
    max_refresh: int = 1024


class Speculating(msgspec.Struct, frozen=True, kw_only=True):
    """Who guesses tokens before the model draws them, and at most how many a step. model: folder or hub id of the model
    that guesses, with `draft` alone."""

    method: Literal["none", "ngram", "draft"] = "none"
    model: str | None = None
    max_tokens: int = 8

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise ValueError(f"num_speculative_tokens must be at least 1, got {self.max_tokens}")
        if (self.method == "draft") != (self.model is not None):
            raise ValueError("speculative_method draft needs a speculative_model, and no other method has one")


_AT_LEAST_ONE = (
    "max_num_seqs", "max_num_batched_tokens", "max_waiting", "page_size", "max_encoder_patches",
    "max_encoder_patches_decoding",
)  # fmt: skip


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the engine needs to know. None means: derive it from the model and the machine, and say so at start.

    `kv_memory_bytes` sizes the page pool; `encoder_cache_bytes` bounds encoder outputs that wait for prefill;
    `prefix_cache_bytes` bounds what of that pool is kept for prompts to come while nobody reads it,
    0: nothing;
    `max_encoder_patches` bounds the patches one step may encode, `max_encoder_patches_decoding` those of a step in
    which answers wait for their next token; `silence_s` is how long the engine may leave its client without a sign
    of life.
    """

    model: str
    served_name: str
    revision: str | None = None
    device: Literal["auto", "cpu", "cuda"] = "auto"
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    threads: int | None = None
    max_model_len: int | None = None
    max_num_seqs: int = 32
    max_num_batched_tokens: int = 2048
    max_waiting: int = 256
    max_streams: int = 16
    page_size: int = 16
    kv_memory_bytes: int | None = None
    encoder_cache_bytes: int | None = None
    max_encoder_patches: int = 8192
    max_encoder_patches_decoding: int = 2048
    max_media_items: int = 16
    attention_backend: Literal["auto", "sdpa", "flashinfer"] = "auto"
    kv_cache_dtype: Literal["auto", "fp8"] = "auto"
    prefix_cache_bytes: int | None = None
    graphs: Literal["auto", "always", "never"] = "auto"
    evs: EvsServing = EvsServing()
    media_cache_bytes: int = 256 << 20
    silence_s: float = 30.0
    decode: DecodeLimits = DecodeLimits()
    seed: int | None = None
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    speculating: Speculating = Speculating()

    def __post_init__(self) -> None:
        for name in _AT_LEAST_ONE:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) must be at least "
                f"max_num_seqs ({self.max_num_seqs}): each running sequence takes a token a step"
            )
