"""Owns what all routes of one server share, made once when it starts, and whether it still takes work.

Knows nothing of single requests.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal, cast

from fastapi import Request

from app.addresses import Network
from app.body import BodyLimits
from app.detokenize import Vocabulary
from app.fetch import Fetcher, FetchPolicy
from app.files import FileShelf
from app.media import MediaPolicy
from app.media_url import parse_host_rule
from app.metrics import Metrics
from app.realtime.registry import SessionRegistry
from app.settings import Settings
from app.store import MediaStore
from runner.client import EngineClient
from runner.errors import RequestError


@dataclass(kw_only=True)
class ServerState:
    settings: Settings
    client: EngineClient
    vocabulary: Vocabulary
    store: MediaStore
    shelf: FileShelf
    fetcher: Fetcher | None
    metrics: Metrics
    policy: MediaPolicy
    limits: BodyLimits
    sessions: SessionRegistry
    started: int
    phase: Literal["serving", "draining"] = "serving"

    @property
    def model_names(self) -> tuple[str, ...]:
        return self.settings.model_names

    def check_serving(self) -> None:
        if self.phase == "draining":
            raise RequestError("unavailable", "the server is shutting down; send the request again later")

    def check_model(self, name: str | None) -> str:
        """The name to answer with. No name means the only model there is."""
        if name is None:
            return self.model_names[0]
        if name not in self.model_names:
            raise RequestError(
                "not_found",
                f"no such model here; this server has {', '.join(self.model_names)}",
                param="model",
                code="model_not_found",
            )
        return name


def make_state(settings: Settings, client: EngineClient, metrics: Metrics, network: Network) -> ServerState:
    store = MediaStore(settings.media_folder, settings.media_quota)
    config = settings.to_engine_config()
    policy = MediaPolicy(
        max_bytes=config.decode.max_bytes,
        max_frames=config.decode.max_frame_list,
        local_folder=settings.allowed_local_media_path,
    )
    return ServerState(
        settings=settings,
        client=client,
        vocabulary=Vocabulary(client.info.tokenizer_json),
        store=store,
        shelf=FileShelf(ttl_s=settings.file_ttl_s),
        fetcher=make_fetcher(settings, network, store),
        metrics=metrics,
        policy=policy,
        limits=BodyLimits(max_bytes=settings.max_body, idle_s=settings.body_idle_s),
        sessions=SessionRegistry(settings.realtime_max_sessions),
        started=int(time.time()),
    )


def make_fetcher(settings: Settings, network: Network, store: MediaStore) -> Fetcher | None:
    if not settings.allowed_media_domains:
        return None
    policy = FetchPolicy(
        rules=tuple(parse_host_rule(domain) for domain in settings.allowed_media_domains),
        max_bytes=settings.max_upload,
        max_redirects=settings.media_redirects,
        total_s=settings.media_fetch_timeout_s,
        idle_s=settings.media_fetch_idle_s,
        min_bytes_per_s=settings.media_fetch_min_rate,
    )
    return Fetcher(policy, network, store)


def get_state(request: Request) -> ServerState:
    return cast(ServerState, request.app.state.server)


def get_owner(request: Request) -> str:
    """Whose request it is, as app/auth.py found it."""
    return cast(str, request.state.owner)
