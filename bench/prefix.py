"""Time the second question about a clip beside the first, over HTTP.

    python -m bench.prefix FOLDER [--evs METHOD] [--repeats N]

FOLDER is what bench/checkpoint.py made. Each round brings a clip that was never seen before, asks about it, and asks
something else about it: decoding, encoding and all of the prompt up to the question are there by then. Prints a table
for people and one JSON line for scripts. Owns what is measured; knows no engine from inside.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from pathlib import Path
from statistics import median

import httpx

from bench.checkpoint import QUESTION, fresh_clips
from bench.client import make_body, time_answer
from bench.machine import Watch, describe_machine, wait_until_quiet
from bench.serve import READY, evs_command
from bench.sessions import start_server

SECOND_QUESTION = "And how many things are to be seen at the end of it?"
TIMEOUT_S = 600.0


async def ask_twice(url: str, clip: Path, max_tokens: int) -> tuple[float, float]:
    """Seconds to the first token of the first and of the second question."""
    async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S) as client:
        model = (await client.get("/v1/models")).raise_for_status().json()["data"][0]["id"]
        bodies = [make_body(model, clip=clip, question=q, max_tokens=max_tokens) for q in (QUESTION, SECOND_QUESTION)]
        first, second = [await time_answer(client, body) for body in bodies]
        return first.first_token_s, second.first_token_s


def measure(url: str, repeats: int) -> list[tuple[float, float]]:
    """The first round warms and is not told."""
    with fresh_clips(range(repeats + 1)) as clips:
        return [asyncio.run(ask_twice(url, clip, max_tokens=2)) for clip in clips][1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--evs", default="none")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--wait-s", type=float, default=600.0)
    options = parser.parse_args()
    wait_until_quiet(options.wait_s)
    command = evs_command(options.folder, options.evs)
    with Watch() as watch, start_server(command, READY, timeout_s=TIMEOUT_S) as (url, _):
        rounds = measure(url, options.repeats)
    figures = {
        "evs": options.evs,
        "first_question_s": median(first for first, _ in rounds),
        "second_question_s": median(second for _, second in rounds),
        "ratio": median(second / first for first, second in rounds),
        "others": watch.others,
    }
    for name, value in figures.items():
        print(f"{name:20} {value:.4f}" if isinstance(value, float) else f"{name:20} {value}")
    print(json.dumps({**figures, "machine": describe_machine()}))


if __name__ == "__main__":
    main()
