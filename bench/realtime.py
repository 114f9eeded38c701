"""Load a server's /v1/realtime: live sessions beside each other, and how soon each window's vector is there.

    python -m bench.realtime [--sessions 8] [--seconds 60] [--scene event|static|moving] [--window 4] [--stride 2]
    python -m bench.realtime --encoder full                  encoder mode of the sessions; without: the server's own
    python -m bench.realtime --url http://127.0.0.1:8000     measures a server that runs
    python -m bench.realtime --recall 50                     how often an event is found by its text (demo model)

Each session sends pictures of its own scene, twice a second. Lag is from the moment the last frame of a window was sent
to the moment its vector was read. Memory is that of the server's processes, with its growth in MiB a minute over the
second half of the run. Prints a table for people and one JSON line for scripts; --keep appends it to
results/realtime.jsonl. Owns what is measured; knows no engine from inside.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from websockets.asyncio.client import connect

from bench.machine import Watch, describe_machine, read_processes, resident_bytes, tree_of
from bench.scenes import Scene, make_scene
from bench.serve import READY
from bench.sessions import start_server

FPS = 2.0
SLOT_FRAMES = 2  # of the demo model
HELD_OUT = 100_000  # seeds from here on have been used for nothing else
MEMORY_EVERY_S = 5.0
MEMORY_SHOWN = 12
RESULTS = Path(__file__).parent / "results" / "realtime.jsonl"


@dataclass(slots=True, kw_only=True)
class Live:
    """What one session gave: windows as (start, end, vector), lags in seconds, vectors of texts. fates: what became of
    each frame, by its number. dense_cells: what encoding every cell of every slot once would have been."""

    windows: list[tuple[float, float, np.ndarray]] = field(default_factory=list)
    lags_s: list[float] = field(default_factory=list)
    texts: dict[str, np.ndarray] = field(default_factory=dict)
    fates: dict[int, str] = field(default_factory=dict)
    sent: int = 0
    encoded_cells: int = 0
    dense_cells: float = 0.0


def update_event(options: argparse.Namespace) -> str:
    session: dict[str, Any] = {"type": "embedding"}
    session["window"] = {"duration_s": options.window, "stride_s": options.stride, "fps": FPS}
    if options.encoder:
        session["evs"] = {"encoder": options.encoder}
    return json.dumps({"type": "session.update", "session": session})


async def run_session(url: str, scene: Scene, options: argparse.Namespace, *, pace_s: float) -> Live:
    """pace_s: between two pictures; 0 sends all at once."""
    live, sent_at = Live(), {}
    async with connect(url.replace("http", "ws", 1) + "/v1/realtime", max_size=None) as socket:
        await socket.send(update_event(options))
        for name, text in (("text", scene.text), ("other", scene.other_text)):
            await socket.send(json.dumps({"type": "input_text.embed", "event_id": name, "text": text}))

        async def send() -> None:
            began = time.perf_counter()
            for seq in range(int(scene.duration_s * FPS)):
                await asyncio.sleep(max(0.0, began + seq * pace_s - time.perf_counter()))
                picture = scene.picture(seq / FPS, options.scene)
                event = {"type": "input_video_buffer.append", "image": base64.b64encode(picture).decode()}
                sent_at[seq] = time.perf_counter()
                live.sent += 1
                await socket.send(json.dumps({**event, "timestamp_s": seq / FPS, "seq": seq}))
            await socket.send(json.dumps({"type": "input_video_buffer.commit"}))

        sending = asyncio.create_task(send())
        while (event := json.loads(await socket.recv()))["type"] != "input_video_buffer.committed":
            note_event(live, event, sent_at)
        await sending
    return live


def note_event(live: Live, event: dict[str, Any], sent_at: dict[int, float]) -> None:
    now = time.perf_counter()
    match event["type"]:
        case "error":
            raise RuntimeError(event["error"]["message"])
        case "embedding.done" if event["index"] is None:
            live.texts[event["item_id"]] = np.array(event["embedding"])
        case "embedding.done":
            live.lags_s.append(now - sent_at[event["frame_seqs"][-1]])
            live.windows.append((event["start_sec"], event["end_sec"], np.array(event["embedding"])))
            live.fates |= dict.fromkeys(event["frame_seqs"], "used")
            live.encoded_cells += event["evs"]["encoder_cells"]
            live.dense_cells = event["evs"]["cells"] / event["evs"]["slots"] * live.sent / SLOT_FRAMES
        case "input_video_buffer.dropped":
            for seq in event["seqs"]:
                assert seq not in live.fates, f"frame {seq} is accounted for twice"
                live.fates[seq] = event["reason"]


def is_found(live: Live, scene: Scene, name: str) -> bool:
    """Whether the window most like this text is within two windows of the first that holds the event."""
    best = int(np.argmax([vector @ live.texts[name] for _, _, vector in live.windows]))
    true = next(index for index, (_, end_s, _) in enumerate(live.windows) if end_s > scene.event_s)
    return abs(best - true) <= 2


def summarize(lives: list[Live], stride_s: float) -> dict[str, Any]:
    lags = sorted(lag for live in lives for lag in live.lags_s)
    sent, known = sum(live.sent for live in lives), sum(len(live.fates) for live in lives)
    return {
        "windows": sum(len(live.windows) for live in lives),
        "lag_p50_s": lags[len(lags) // 2],
        "lag_p95_s": lags[int(len(lags) * 0.95)],
        "lag_max_s": lags[-1],
        "stride_s": stride_s,
        "frames_sent": sent,
        "frames_unaccounted": sent - known,
        "frames_dropped": sum(fate != "used" for live in lives for fate in live.fates.values()),
        "encoder_share": sum(live.encoded_cells for live in lives) / sum(live.dense_cells for live in lives),
    }


def summarize_memory(samples: list[tuple[float, int]]) -> dict[str, Any]:
    """samples: (seconds, bytes). Growth is the slope of a line through the second half."""
    shown = [samples[round(place)] for place in np.linspace(0, len(samples) - 1, min(MEMORY_SHOWN, len(samples)))]
    times, sizes = np.array(samples[len(samples) // 2 :]).T
    slope = float(np.polyfit(times, sizes, 1)[0]) if len(times) > 1 else 0.0
    return {"memory_mib": [size >> 20 for _, size in shown], "memory_mib_per_min": slope * 60 / 2**20}


async def measure(url: str, options: argparse.Namespace) -> dict[str, Any]:
    return await (measure_recall(url, options) if options.recall else measure_load(url, options))


async def measure_recall(url: str, options: argparse.Namespace) -> dict[str, Any]:
    scenes = [make_scene(HELD_OUT + seed, duration_s=options.seconds) for seed in range(options.recall)]
    lives = [await run_session(url, scene, options, pace_s=0.0) for scene in scenes]
    shares = {
        name: sum(is_found(live, scene, name) for live, scene in zip(lives, scenes, strict=True)) / len(scenes)
        for name in ("text", "other")
    }
    return {
        "scenes": len(scenes),
        "recall": shares["text"],
        "by_other_text": shares["other"],
        "chance": sum(5 / len(live.windows) for live in lives) / len(lives),
        "encoder_share": summarize(lives, options.stride)["encoder_share"],
    }


async def measure_load(url: str, options: argparse.Namespace) -> dict[str, Any]:
    scenes = [make_scene(seed, duration_s=options.seconds) for seed in range(options.sessions)]
    memory: list[tuple[float, int]] = []

    async def watch_memory() -> None:
        while True:
            started = tree_of(os.getpid(), read_processes())[1:]
            memory.append((time.perf_counter(), sum(resident_bytes(process.pid) for process in started)))
            await asyncio.sleep(MEMORY_EVERY_S)

    watching = asyncio.create_task(watch_memory())
    lives = await asyncio.gather(*(run_session(url, scene, options, pace_s=1 / FPS) for scene in scenes))
    watching.cancel()
    return {**summarize(lives, options.stride), "sessions": options.sessions, **summarize_memory(memory)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--url")
    parser.add_argument("--model", default="demo")
    parser.add_argument("--sessions", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--scene", choices=("event", "static", "moving"), default="event")
    parser.add_argument("--encoder", choices=("full", "reuse", "skip"))
    parser.add_argument("--window", type=float, default=4.0)
    parser.add_argument("--stride", type=float, default=2.0)
    parser.add_argument("--recall", type=int, default=0)
    parser.add_argument("--keep", action="store_true")
    options = parser.parse_args()
    with Watch() as watch:
        if options.url:
            figures = asyncio.run(measure(options.url.rstrip("/"), options))
        else:
            command = [str(Path(sys.executable).with_name("evs")), "serve", options.model, "--port", "0"]
            with start_server(command, READY, timeout_s=300) as (url, _):
                figures = asyncio.run(measure(url, options))
    for name, value in figures.items():
        print(f"{name:20} {value:.4f}" if isinstance(value, float) else f"{name:20} {value}")
    given = {name: value for name, value in vars(options).items() if name not in ("url", "keep")}
    line = json.dumps({**figures, "options": given, "others": watch.others, "machine": describe_machine()})
    print(line)
    if options.keep:
        with RESULTS.open("a") as file:
            file.write(line + "\n")


if __name__ == "__main__":
    main()
