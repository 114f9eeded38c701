"""What decodes strangers' files can open no socket and start no program."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.clips import make_clip
from tests.vision.fakes import Escaping, SameSize
from vision.cage import DecodePool
from vision.launch import _BOOT
from vision.request import DecodeRequest, MediaBytes
from vision.seal import can_seal
from vision.warden import _warn_unsealed

SEAL = f"import sys; sys.path.insert(0, {str(Path(__file__).parents[2])!r}); from vision.seal import seal_process; "


def run(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", SEAL + program], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def seals() -> bool:
    return run("print(seal_process())") == "True"


needs_seal = pytest.mark.skipif(not seals(), reason="the kernel or the sandbox round us takes no seccomp filter")


@needs_seal
def test_children_cannot_dial_or_start_programs(pool: DecodePool) -> None:
    frames = pool.decode(MediaBytes(data=make_clip(frames=2)), DecodeRequest(kind="video", resize=Escaping()))
    assert frames.size[0] == 3


@needs_seal
def test_open_descriptors_keep_working() -> None:
    program = (
        "import os, socket; a, b = socket.socketpair(); assert seal_process(); a.sendall(b'x'); "
        "assert b.recv(1) == b'x'; assert os.fork() == 0 or os.wait(); print('works')"
    )
    assert run(program).splitlines()[-1] == "works"


def test_what_cannot_be_sealed_says_so() -> None:
    assert run("import platform; platform.machine = lambda: 'other'; print(seal_process())") == "False"


def test_the_pool_says_whether_its_children_are_sealed(pool: DecodePool) -> None:
    pool.decode(MediaBytes(data=make_clip(frames=2)), DecodeRequest(kind="video", resize=SameSize()))
    assert pool.is_sealed is seals() is can_seal()


def test_children_that_are_not_sealed_are_told_of_once(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    """A machine whose calls nobody listed: decoding works, the pool says so, and the log says it once, not twice."""
    monkeypatch.setattr("vision.launch._BOOT", "import platform; platform.machine = lambda: 'other'; " + _BOOT)
    _warn_unsealed.cache_clear()
    with DecodePool(workers=1) as pool:
        assert pool.is_sealed is None
        pool.decode(MediaBytes(data=make_clip(frames=2)), DecodeRequest(kind="video", resize=SameSize()))
        assert pool.is_sealed is False
    _warn_unsealed()  # the next server's
    assert [record.message.count("seccomp") for record in caplog.records if record.name == "evserve.vision"] == [1]
