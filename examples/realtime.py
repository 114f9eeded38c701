"""Send a video or a folder of pictures to /v1/realtime and print each window's vector as it comes.

    python examples/realtime.py CLIP [--find TEXT] [--window 4] [--stride 2] [--key KEY] [--url ws://HOST:PORT/v1/realtime]

CLIP is fragmented MP4, WebM or MPEG-TS, or a folder of JPEG, PNG or WebP pictures, sent twice a second. With --find
each window is scored by its likeness to the text: live search. Needs the package websockets.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
from pathlib import Path
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

PIECE_BYTES = 64 << 10
PICTURES_FPS = 2.0


async def send_media(socket: ClientConnection, clip: Path) -> None:
    """Binary messages are bytes of a container; pictures go as events, each with its time."""
    if clip.is_dir():
        for number, picture in enumerate(sorted(path for path in clip.iterdir() if path.is_file())):
            event = {"type": "input_video_buffer.append", "image": base64.b64encode(picture.read_bytes()).decode()}
            await socket.send(json.dumps({**event, "timestamp_s": number / PICTURES_FPS}))
            await asyncio.sleep(1 / PICTURES_FPS)
    else:
        data = clip.read_bytes()
        for at in range(0, len(data), PIECE_BYTES):
            await socket.send(data[at : at + PIECE_BYTES])
    await socket.send(json.dumps({"type": "input_video_buffer.commit"}))


def score(vector: list[float], sought: list[float] | None) -> str:
    """Vectors have length 1: their product is the cosine."""
    return "" if sought is None else f"  likeness {sum(a * b for a, b in zip(vector, sought, strict=True)):+.3f}"


async def follow(options: argparse.Namespace) -> None:
    headers = {"Authorization": f"Bearer {options.key}"} if options.key else {}
    window = {"duration_s": options.window, "stride_s": options.stride}
    async with connect(options.url, additional_headers=headers, max_size=None) as socket:
        await socket.send(json.dumps({"type": "session.update", "session": {"type": "embedding", "window": window}}))
        if options.find:
            await socket.send(json.dumps({"type": "input_text.embed", "event_id": "find", "text": options.find}))
        sending = asyncio.create_task(send_media(socket, options.clip))
        sought: list[float] | None = None
        async for message in socket:
            event: dict[str, Any] = json.loads(message)
            match event["type"]:
                case "embedding.done" if event["item_id"] == "find":
                    sought = event["embedding"]
                case "embedding.done":
                    span = f"{event['start_sec']:7.2f} - {event['end_sec']:7.2f} s"
                    kept = f"{event['evs']['kept']} of {event['evs']['cells']} cells read"
                    print(f"{span}  {kept}{score(event['embedding'], sought)}", flush=True)
                case "input_video_buffer.committed":
                    break
                case "error":
                    raise SystemExit(f"error: {event['error']['message']}")
        await sending


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("clip", type=Path)
    parser.add_argument("--find")
    parser.add_argument("--url", default="ws://127.0.0.1:8000/v1/realtime")
    parser.add_argument("--key")
    parser.add_argument("--window", type=float, default=4.0)
    parser.add_argument("--stride", type=float, default=2.0)
    asyncio.run(follow(parser.parse_args()))


if __name__ == "__main__":
    main()
