"""How a family makes vectors of what it reads. Owns the statement and its default; pools nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from runner.families.base import Family
from runner.pooling import Pooling
from runner.requests import VideoOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingPolicy:
    """pooling: over the last row, or the mean of all. instruction: a system turn for whoever brings none; None: no such
    turn. image, video: how it samples where a request does not say."""

    pooling: Pooling = "last"
    instruction: str | None = None
    image: VideoOptions = field(default_factory=VideoOptions)
    video: VideoOptions = field(default_factory=VideoOptions)


@runtime_checkable
class StatesEmbedding(Protocol):
    """A family that states more than the default."""

    embedding: EmbeddingPolicy


def embedding_policy(family: Family) -> EmbeddingPolicy:
    """What the family states, else the last row of its chat template: what a decoder was trained to sum up."""
    return family.embedding if isinstance(family, StatesEmbedding) else EmbeddingPolicy()
