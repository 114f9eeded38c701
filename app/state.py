"""Owns what all routes of one server share, made once when it starts.

Knows nothing of single requests.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import cast

from fastapi import Request

from app.body import BodyLimits
from app.detokenize import Vocabulary
from app.media import MediaPolicy
from app.metrics import Metrics
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
    metrics: Metrics
    policy: MediaPolicy
    limits: BodyLimits
    started: int

    @property
    def model_names(self) -> tuple[str, ...]:
        return self.settings.model_names

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


def make_state(settings: Settings, client: EngineClient, metrics: Metrics) -> ServerState:
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
        store=MediaStore(settings.media_folder),
        metrics=metrics,
        policy=policy,
        limits=BodyLimits(max_bytes=settings.max_body, idle_s=settings.body_idle_s),
        started=int(time.time()),
    )


def get_state(request: Request) -> ServerState:
    return cast(ServerState, request.app.state.server)
