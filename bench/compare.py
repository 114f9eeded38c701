"""This engine beside others on the same checkpoint, clips and questions, one after the other on a quiet machine.

    python -m bench.compare FOLDER [--evs none --evs gate] [--server NAME=URL ...] [--repeats N]

transformers always runs, vLLM where `vllm` is installed; other servers that speak the OpenAI protocol and take
`video_url` are measured at their address. Prints a table with ratios and one JSON line, and keeps the line under
bench/results/. Owns the order and the ratios; what is measured is serve.py's.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from bench.checkpoint import FRAMES
from bench.machine import QUIET_CORES, Watch, describe_machine, wait_until_quiet
from bench.serve import READY, Figures, evs_command, measure, measure_server

RESULTS = Path(__file__).with_name("results")
VLLM_PORT = 8917
Measure = Callable[[Progress], Figures]


def find_engines(options: argparse.Namespace) -> dict[str, Measure]:
    """What can be measured here, in order; this engine comes first and transformers next."""
    wanted = {"repeats": options.repeats, "max_tokens": options.max_tokens}
    found: dict[str, Measure] = {}
    for evs in options.evs or ["none"]:
        name = f"evs ({evs})"
        found[name] = partial(_serve, evs_command(options.folder, evs), READY, name, wanted)
    found["transformers"] = lambda _progress: _run_transformers(options.folder, wanted)
    if shutil.which("vllm"):
        found["vllm"] = partial(_serve, vllm_command(options.folder), VLLM_READY, "vllm", wanted)
    for server in options.server:
        name, url = server.split("=", 1)
        found[name] = partial(_visit, url, name, wanted)
    return found


VLLM_READY = re.compile(rf"(http://\S+:{VLLM_PORT})[\s\S]*Application startup complete")


def vllm_command(folder: Path) -> list[str]:
    media = json.dumps({"video": {"num_frames": FRAMES}})
    return [
        "vllm", "serve", str(folder / "model"), "--host", "127.0.0.1", "--port", str(VLLM_PORT), "--dtype", "bfloat16",
        "--max-model-len", "4096", "--media-io-kwargs", media,
    ]  # fmt: skip


def _serve(
    command: list[str], ready: re.Pattern[str], name: str, wanted: dict[str, int], progress: Progress
) -> Figures:
    return measure_server(command, ready, engine=name, progress=progress, **wanted)


def _visit(url: str, name: str, wanted: dict[str, int], progress: Progress) -> Figures:
    return asyncio.run(measure(url, engine=name, progress=progress, **wanted))


def _run_transformers(folder: Path, wanted: dict[str, int]) -> Figures:
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in wanted.items()]
    command = [sys.executable, "-m", "bench.transformers_peer", str(folder), *flags]
    with Watch() as watch:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    figures = Figures(**json.loads(done.stdout.strip().splitlines()[-1]))
    return replace(figures, peak_memory_bytes=watch.peak_memory_bytes, others=watch.others)


def ratios(ours: Figures, other: Figures) -> dict[str, float]:
    """How much better we are: first token in shares of the other's time (small is good), speeds as factors."""
    return {
        "first_token": ours.first_token_s / other.first_token_s,
        "decode": other.per_token_s / ours.per_token_s,
        "together": ours.together_tokens_per_s / other.together_tokens_per_s,
    }


def show(measured: list[Figures]) -> None:
    table = Table(
        "engine", "first token s", "decode tok/s", "4 at once tok/s", "step 4 / 1", "RSS GB", "start s", "others"
    )
    for figures in measured:
        step = figures.together_per_token_s
        against = ratios(measured[0], figures)
        table.add_row(
            figures.engine,
            f"{figures.first_token_s:.2f} (x{against['first_token']:.2f})",
            f"{1 / figures.per_token_s:.1f} (x{against['decode']:.2f})",
            f"{figures.together_tokens_per_s:.1f} (x{against['together']:.2f})",
            "-" if step is None else f"{step / figures.per_token_s:.2f}",
            "-" if figures.peak_memory_bytes is None else f"{figures.peak_memory_bytes / 1e9:.2f}",
            "-" if figures.start_s is None else f"{figures.start_s:.1f}",
            f"{figures.others:.2f}",
        )
    Console(width=130).print(table)
    print("(x...): the first row against that one; first token small is good, speeds large")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path, help="what bench/checkpoint.py made")
    parser.add_argument("--evs", action="append", help="a method of this engine; may be repeated")
    parser.add_argument("--server", action="append", default=[], metavar="NAME=URL")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--wait-s", type=float, default=600.0, help="for a quiet machine, before each engine")
    options = parser.parse_args()
    measured = []
    for name, run in find_engines(options).items():
        wait_until_quiet(options.wait_s)
        with Progress(transient=True) as progress:
            measured.append(run(progress))
        if measured[-1].others > QUIET_CORES:
            print(f"{name}: others used {measured[-1].others:.2f} cores; these figures are disturbed")
    show(measured)
    line = json.dumps(
        {
            "figures": [asdict(figures) for figures in measured],
            "ratios": {figures.engine: ratios(measured[0], figures) for figures in measured[1:]},
            "machine": describe_machine(),
        }
    )
    RESULTS.mkdir(exist_ok=True)
    with (RESULTS / "compare.jsonl").open("a") as file:
        file.write(line + "\n")
    print(line)


if __name__ == "__main__":
    main()
