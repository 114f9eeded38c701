"""Owns every setting of the server: flags, EVS_* environment variables and a file, in this order of strength.

Knows nothing of how a setting is used. Nothing else reads the environment. Names are vLLM's where vLLM has one.
"""

from __future__ import annotations

import os
import re
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from dotenv import dotenv_values
from pydantic import BeforeValidator, Field, model_validator
from pydantic_settings import (
    BaseSettings,
    CliPositionalArg,
    InitSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from app.media_url import parse_host_rule
from runner.config import DecodeLimits, EngineConfig, EvsServing, Speculating

ENV_PREFIX = "EVS_"
MAX_TTL_S = 30 * 86400
_POWERS = {"k": 1, "m": 2, "g": 3, "t": 4}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([kmgt])(i?))?b?", re.IGNORECASE)


def parse_size(value: object) -> object:
    """'2GiB' -> 2147483648; numbers pass, anything else is left for the type to refuse."""
    if not isinstance(value, str):
        return value
    match = _SIZE.fullmatch(value.strip())
    if match is None:
        raise ValueError("not a size; write bytes as 2GiB, 512MB or 1048576")
    step = 1024 if match[3] else 1000
    return int(float(match[1]) * step ** _POWERS.get((match[2] or "").lower(), 0))


def split_list(value: object) -> object:
    """An environment variable or a repeated flag comes as one text with commas."""
    return [item.strip() for item in value.split(",") if item.strip()] if isinstance(value, str) else value


Size = Annotated[int, BeforeValidator(parse_size), Field(ge=1)]
CacheSize = Annotated[int, BeforeValidator(parse_size), Field(ge=0)]  # 0 keeps nothing
Names = Annotated[list[str], NoDecode, BeforeValidator(split_list)]


class Settings(BaseSettings):
    """Flags of `evs serve`; the same fields come from EVS_HOST, EVS_PORT, ... and from the file named by --config."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        env_ignore_empty=True,  # as compose files and shells write what is not set
        extra="forbid",
        frozen=True,
        protected_namespaces=(),
        cli_kebab_case=True,
        cli_hide_none_type=True,
        cli_prog_name="evs serve",
        cli_exit_on_error=False,
    )

    model: CliPositionalArg[str] = Field(description="a folder, a hub id, or 'demo'")
    config: Path | None = Field(None, description="a TOML or .env file with any of these settings")

    # where and for whom
    host: str = Field("127.0.0.1", description="address to listen on")
    port: int = Field(8000, ge=0, le=65535, description="port to listen on; 0 takes a free one")
    root_path: str = Field("", description="path under which a proxy serves this server")
    api_key: Names = Field([], repr=False, description="a key clients must send; repeat for more")
    allowed_origins: Names = Field([], description="web origins that may call this server (CORS); repeat for more")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="what to log")
    engine_silence_s: float = Field(
        30.0, gt=0, description="seconds without a sign of life after which the engine counts as silent: 503"
    )
    shutdown_grace_s: float = Field(10.0, ge=0, description="seconds that running requests get at shutdown")

    # the model
    served_model_name: Names = Field([], description="names clients may use; the first is used in answers")
    revision: str | None = Field(None, description="branch, tag or commit of a hub model")
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="where to compute")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field("auto", description="type of the weights")
    threads: int | None = Field(None, ge=1, description="compute threads; default: what measures fastest")
    seed: int | None = Field(None, description="seed of requests that give none")

    # the engine's budgets
    max_model_len: int | None = Field(None, ge=1, description="longest prompt and answer together, in tokens")
    max_num_seqs: int = Field(32, ge=1, description="answers generated at once")
    max_num_batched_tokens: int = Field(2048, ge=1, description="tokens in one step")
    max_waiting: int = Field(256, ge=1, description="requests that may wait; beyond that: 429")
    page_size: int = Field(16, ge=1, description="tokens in a KV page")
    kv_memory: Size | None = Field(None, description="memory for the KV cache, as 2GiB")
    prefix_cache: CacheSize | None = Field(
        None,
        description="KV memory that may keep prompts for others that begin the same way: by default 512 MiB on a CPU, "
        "all of it on CUDA; 0 keeps none",
    )
    media_cache: CacheSize = Field(
        256 << 20, description="memory for decoded clips that are asked about again; 0 keeps none"
    )
    encoder_cache: Size | None = Field(None, description="memory for encoder outputs that wait")
    max_encoder_patches: int = Field(8192, ge=1, description="patches encoded in one step")
    max_encoder_patches_decoding: int = Field(2048, ge=1, description="the same while answers are being written")
    attention_backend: Literal["auto", "sdpa", "flashinfer"] = Field("auto", description="attention backend")
    kv_cache_dtype: Literal["auto", "fp8"] = Field("auto", description="numbers of the KV cache; fp8 with flashinfer")
    graphs: Literal["auto", "always", "never"] = Field(
        "auto",
        description="run steps of fixed shape as graphs: on CUDA (auto), wherever it can be done, or not at all",
    )
    speculative_method: Literal["none", "ngram", "draft"] = Field(
        "ngram", description="who guesses tokens that the model then checks: earlier text, or a small model"
    )
    speculative_model: str | None = Field(None, description="draft: the small model, a folder or a hub id")
    num_speculative_tokens: int = Field(8, ge=1, description="most tokens guessed at once; how many pay is measured")

    # sessions of /v1/realtime, and windows over a clip
    realtime_max_sessions: int = Field(16, ge=1, description="sessions and clips that are embedded window by window")
    realtime_idle_s: float = Field(60.0, gt=0, description="seconds a session may be silent")
    realtime_session_s: float = Field(3600.0, gt=0, description="seconds a session may last")
    realtime_max_message: Size = Field(16 << 20, description="largest message of a session")

    # Efficient Video Sampling, for requests that do not say, and how far requests may go
    evs: Literal["none", "gate", "evs", "uniform", "random"] = Field("gate", description="default pruning method")
    evs_rate: float | None = Field(None, ge=0, lt=1, description="share of cells that method drops; gate: at least")
    evs_threshold: float | None = Field(None, ge=0, le=1, description="gate: difference that keeps a cell, 0..1")
    evs_refresh: int | None = Field(None, ge=1, description="gate: every so many slots one is kept whole")
    evs_encoder: Literal["full", "skip", "reuse"] | None = Field(
        None, description="what the vision encoder computes with that method; default: the method's own"
    )
    evs_max_rate: float = Field(0.98, ge=0, lt=1, description="highest rate a request may ask for")
    evs_max_threshold: float = Field(32 / 255, ge=0, le=1, description="highest threshold a request may ask for")
    evs_max_refresh: int = Field(1024, ge=1, description="largest refresh a request may ask for")

    # media
    limit_media_items: int = Field(16, ge=1, description="images and videos in one request")
    allowed_media_domains: Names = Field(
        [], description="host[:port] that http(s) media may come from; .example.com is all below it; repeat for more"
    )
    media_redirects: int = Field(0, ge=0, le=10, description="redirects followed, each checked as the first URL was")
    media_fetch_timeout_s: float = Field(60.0, gt=0, description="seconds that fetching one URL may take in all")
    media_fetch_idle_s: float = Field(10.0, gt=0, description="seconds a media host may be silent")
    media_fetch_min_rate: Size = Field(16 << 10, description="bytes a second that a media host must keep up")
    allowed_local_media_path: Path | None = Field(None, description="folder that file: URLs may name")
    media_dir: Path | None = Field(None, description="folder for uploads; default: one in the temporary folder")
    media_quota: Size = Field(16 << 30, description="bytes of media on disk at once, stored files included")
    file_ttl_s: int = Field(
        86400, ge=1, le=MAX_TTL_S, description="seconds a stored file lives unless it says otherwise"
    )
    max_upload: Size = Field(512 << 20, description="largest media file, uploaded or inline")
    max_body: Size = Field(256 << 20, description="largest JSON body")
    body_idle_s: float = Field(60.0, gt=0, description="seconds a request's body may stall")
    max_pixels_per_frame: int = Field(8192 * 4352, ge=1, description="largest frame that is decoded")
    max_frames: int = Field(768, ge=1, description="frames sampled from a video")
    max_duration_s: float = Field(4 * 3600.0, gt=0, description="longest video")
    decode_timeout_s: float = Field(30.0, gt=0, description="seconds one decode may take")
    decode_backend: Literal["pyav", "decord", "torchcodec"] = Field("pyav", description="what decodes videos")
    decode_workers: int = Field(2, ge=1, description="decodes that run at once")

    @model_validator(mode="after")
    def _check(self) -> Self:
        for domain in self.allowed_media_domains:
            parse_host_rule(domain)
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"--max-num-batched-tokens ({self.max_num_batched_tokens}) must be at least --max-num-seqs "
                f"({self.max_num_seqs})"
            )
        if (self.speculative_method == "draft") != (self.speculative_model is not None):
            raise ValueError("--speculative-method draft needs --speculative-model, and no other method has one")
        if self.allowed_local_media_path is not None and not self.allowed_local_media_path.is_dir():
            raise ValueError("--allowed-local-media-path is not a folder")
        return self

    @property
    def model_names(self) -> tuple[str, ...]:
        """A folder's path is nobody's business, so a folder is served under its last name."""
        if self.served_model_name:
            return tuple(self.served_model_name)
        return (Path(self.model).resolve().name if Path(self.model).is_dir() else self.model,)

    @property
    def media_folder(self) -> Path:
        return self.media_dir or Path(tempfile.gettempdir()) / f"evserve-media-{os.getuid()}"

    def to_engine_config(self) -> EngineConfig:
        return EngineConfig(
            model=self.model,
            served_name=self.model_names[0],
            revision=self.revision,
            device=self.device,
            dtype=self.dtype,
            threads=self.threads,
            max_model_len=self.max_model_len,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            max_waiting=self.max_waiting,
            max_streams=self.realtime_max_sessions,
            page_size=self.page_size,
            kv_memory_bytes=self.kv_memory,
            encoder_cache_bytes=self.encoder_cache,
            max_encoder_patches=self.max_encoder_patches,
            max_encoder_patches_decoding=self.max_encoder_patches_decoding,
            max_media_items=self.limit_media_items,
            attention_backend=self.attention_backend,
            kv_cache_dtype=self.kv_cache_dtype,
            prefix_cache_bytes=self.prefix_cache,
            graphs=self.graphs,
            log_level=self.log_level,
            speculating=Speculating(
                method=self.speculative_method, model=self.speculative_model, max_tokens=self.num_speculative_tokens
            ),
            evs=self._evs_serving(),
            media_cache_bytes=self.media_cache,
            silence_s=self.engine_silence_s,
            decode=DecodeLimits(
                max_bytes=self.max_upload,
                max_pixels_per_frame=self.max_pixels_per_frame,
                max_frames=self.max_frames,
                max_duration_s=self.max_duration_s,
                max_frame_list=self.max_frames,
                decode_timeout_s=self.decode_timeout_s,
                workers=self.decode_workers,
                backend=self.decode_backend,
            ),
            seed=self.seed,
        )

    def _evs_serving(self) -> EvsServing:
        return EvsServing(
            method=self.evs,
            rate=self.evs_rate,
            threshold=self.evs_threshold,
            refresh=self.evs_refresh,
            encoder=self.evs_encoder,
            max_rate=self.evs_max_rate,
            max_threshold=self.evs_max_threshold,
            max_refresh=self.evs_max_refresh,
        )


# ------------------------------------------------------------------------------------------------------ the sources


class _ConfigPath(BaseSettings):
    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, extra="ignore")
    config: Path | None = None


def load_settings(args: Sequence[str] | None, **given: Any) -> Settings:
    """Settings from flags (None: there are none), then `given`, then the environment, then the file."""
    path = _find_config_flag(args or ()) or _ConfigPath().config
    values = {} if path is None else read_file(path)

    class WithFile(Settings):
        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - the library's signature
            file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return init_settings, env_settings, InitSettingsSource(settings_cls, values)

    return WithFile(_cli_parse_args=False if args is None else list(args), **given)  # type: ignore[call-arg]


def read_file(path: Path) -> dict[str, Any]:
    """TOML with our names, or NAME=value lines as in the environment, with or without the prefix."""
    if path.suffix == ".toml":
        values: dict[str, Any] = tomllib.loads(path.read_text())
    else:
        values = {key.removeprefix(ENV_PREFIX): value for key, value in dotenv_values(path).items()}
    return {key.replace("-", "_").lower(): value for key, value in values.items()}


def _find_config_flag(args: Sequence[str]) -> Path | None:
    for place, arg in enumerate(args):
        if arg.startswith("--config="):
            return Path(arg.partition("=")[2])
        if arg == "--config" and place + 1 < len(args):
            return Path(args[place + 1])
    return None
