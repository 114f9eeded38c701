"""One server a kind for all tests of the field."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.field.talk import Talk
from tests.server import running_server

FLAGS = ("--dtype", "float32", "--threads", "1", "--served-model-name", "tiny", "--evs", "none")
# Chunks of a few tokens, pages for a few short prompts or a long one, room for one clip's encodings and a half.
TIGHT = (
    *("--max-num-seqs", "6", "--max-num-batched-tokens", "17", "--max-encoder-patches", "40"),
    *("--kv-memory", "420KiB", "--encoder-cache", "48KiB", "--media-cache", "1MiB"),
)


@pytest.fixture(scope="session")
def talk(checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Talk]:
    """A roomy server of a tiny Qwen3-VL, without pruning unless a request asks for it."""
    folder = checkpoint("qwen3_vl")
    with running_server(folder, *FLAGS, media_dir=tmp_path_factory.mktemp("media")) as server:
        yield Talk(server, folder)


@pytest.fixture(scope="session")
def tight(checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Talk]:
    """The same model with hardly any memory and small steps."""
    folder = checkpoint("qwen3_vl")
    with running_server(folder, *FLAGS, *TIGHT, media_dir=tmp_path_factory.mktemp("media")) as server:
        yield Talk(server, folder)
