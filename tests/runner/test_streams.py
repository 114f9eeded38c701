"""Windows through the whole engine: transformers is the oracle of each, and how the bytes come makes no difference."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from runner.client import EngineClient, start_engine
from runner.errors import RequestError
from runner.messages import Generate
from runner.requests import ChatMessage, EvsOptions, FrameList, InlineBytes, SamplingParams, TextPart
from runner.stream_client import EngineStream, WindowVector
from runner.stream_messages import FramesDropped, OpenStream, StreamEnd, StreamEnded, StreamOpened, WindowOptions
from runner.stream_part import MAX_WAITING_FRAMES
from tests.clips import make_clip
from tests.harness import make_config
from tests.oracle import Clip, load_oracle, lossless_file, noise_clip, png_file, prepare_inputs
from tests.runner.test_embedding import unit

NONE, GATE = EvsOptions(method="none"), EvsOptions(method="gate")
REUSE, FULL = EvsOptions(method="gate", encoder="reuse"), EvsOptions(method="gate", encoder="full")
NAMES = itertools.count()
WINDOW = WindowOptions(duration_s=4.0, stride_s=2.0, fps=2.0)


@asynccontextmanager
async def engine(folder: Path, **settings: Any) -> AsyncIterator[EngineClient]:
    client = await start_engine(make_config(folder, **settings), where="thread")
    try:
        yield client
    finally:
        await client.close(grace_s=0.0)


def scene(frames: int, *, moves_at: Sequence[int] = (), size: tuple[int, int] = (64, 96)) -> list[np.ndarray]:
    """A still picture in which one corner changes at some frames, for good."""
    still = noise_clip(3, num_frames=1, size=size).frames[0].copy()
    found = []
    for index in range(frames):
        if index in moves_at:
            still = still.copy()
            still[:32, :32] = (index * 37) % 256
        found.append(still)
    return found


async def follow(stream: EngineStream) -> list[Any]:
    return [event async for event in stream]


async def from_source(client: EngineClient, source: Any, **options: Any) -> list[Any]:
    request = OpenStream(request_id=f"source{next(NAMES)}", source=source, window=WINDOW, **options)
    return await follow(client.open_stream(request))


async def from_pieces(client: EngineClient, pieces: Sequence[bytes], *, pace_s: float = 0.0, fps: float = 2.0,
                      how: str = "commit", window: WindowOptions = WINDOW,
                      note: Callable[[Any], object] = lambda _: None, **options: Any) -> list[Any]:  # fmt: skip
    name = f"pieces{next(NAMES)}"
    request = OpenStream(request_id=name, window=window, **options)
    stream = client.open_stream(request)
    events: list[Any] = []

    async def send() -> None:
        for seq, piece in enumerate(pieces):
            await stream.feed(piece, seq=seq, time_s=seq / fps)
            await asyncio.sleep(pace_s)
        stream.end(StreamEnd(request_id=name, how=how))  # type: ignore[arg-type]

    sending = asyncio.create_task(send())
    async for event in stream:
        events.append(event)
        note(event)
        if isinstance(event, StreamEnded):
            break
    await sending
    stream.close()
    return events


def vectors(events: Sequence[Any]) -> np.ndarray:
    """In the order of the windows; a short one may be through before the one before it."""
    windows = sorted((e for e in events if isinstance(e, WindowVector)), key=lambda e: e.window.index)
    return np.stack([np.frombuffer(event.data, "<f4") for event in windows])


def spans(events: Sequence[Any]) -> list[tuple[float, float]]:
    return [(event.window.start_s, event.window.end_s) for event in events if isinstance(event, WindowVector)]


def fates(events: Sequence[Any]) -> tuple[set[int], dict[str, list[int]]]:
    used = {seq for event in events if isinstance(event, WindowVector) for seq in event.window.frame_seqs}
    dropped: dict[str, list[int]] = {}
    for event in events:
        if isinstance(event, FramesDropped):
            dropped.setdefault(event.reason, []).extend(event.seqs)
    return used, dropped


@torch.inference_mode()
def oracle_vector(folder: Path, frames: np.ndarray) -> np.ndarray:
    model, processor = load_oracle(folder)
    out = model.model(**prepare_inputs(processor, [Clip(frames=frames, fps=2.0)]), use_cache=False)
    return unit(out.last_hidden_state[0, -1].double().numpy())


@pytest.mark.parametrize("family", ["qwen3_vl", "qwen2_5_vl"])
async def test_windows_are_transformers(checkpoint: Callable[[str], Path], family: str) -> None:
    """Without a gate a window is the clip of its frames: the untouched model gives the same vector."""
    folder = checkpoint(family)
    clip = noise_clip(11, num_frames=14, size=(64, 96))
    clip = Clip(frames=clip.frames, fps=2.0)
    async with engine(folder) as client:
        events = await from_source(client, InlineBytes(data=lossless_file(clip)), evs=NONE)
    assert isinstance(events[0], StreamOpened) and isinstance(events[-1], StreamEnded)
    assert spans(events) == [(0.0, 4.0), (2.0, 6.0), (4.0, 7.0)]
    assert fates(events) == (set(range(14)), {})
    for ours, first in zip(vectors(events), (0, 4, 8), strict=True):
        theirs = oracle_vector(folder, clip.frames[first : first + 8])
        assert np.abs(ours - theirs).max() < 1e-4
        assert np.abs(ours - oracle_vector(folder, clip.frames[first + 1 : first + 7])).max() > 1e-3


async def test_how_media_comes_makes_no_difference(checkpoint: Callable[[str], Path]) -> None:
    """A file, its bytes at once and paced, and among other work: the same vectors, gated and not."""
    frames = scene(60, moves_at=(9, 30, 31))
    data = make_clip(frames=frames, fps=8, container="mp4", codec="libx264", options={"bf": "2", "g": "16"},
                     container_options={"movflags": "frag_keyframe+empty_moov"})  # fmt: skip
    pieces = [data[at : at + 1500] for at in range(0, len(data), 1500)]
    async with engine(checkpoint("qwen3_vl"), encoder_cache_bytes=16 << 10) as client:  # so each is encoded anew
        for evs in (REUSE, FULL, NONE):
            whole = await from_source(client, InlineBytes(data=data), evs=evs)
            at_once = await from_pieces(client, pieces, evs=evs)
            paced = await from_pieces(client, pieces, evs=evs, pace_s=0.01)
            pair = await asyncio.gather(
                from_source(client, InlineBytes(data=data), evs=evs),
                from_source(client, InlineBytes(data=data), evs=evs),
            )
            for other in (at_once, paced, *pair):
                assert spans(other) == spans(whole)
                assert np.abs(vectors(other) - vectors(whole)).max() < 1e-5
            assert whole[-1].pictures == 60
            used, dropped = fates(at_once)
            assert sorted([*used, *dropped["sampled_out"]]) == list(range(60)) and set(dropped) == {"sampled_out"}


async def test_a_still_scene_costs_next_to_nothing(checkpoint: Callable[[str], Path]) -> None:
    """Cells are encoded when they change; unchanged windows are left out where that is asked for, and named."""
    pictures = tuple(png_file(frame) for frame in scene(128, moves_at=(64,)))
    async with engine(checkpoint("qwen3_vl"), encoder_cache_bytes=64 << 20) as client:
        source = FrameList(frames=pictures, fps=2.0)
        everything = await from_source(client, source, evs=GATE)
        changed = await from_source(client, source, evs=GATE, gate="changed")
    windows = [event.window for event in everything if isinstance(event, WindowVector)]
    dense = 64 * windows[0].cells // windows[0].slots
    assert len(windows) == 31 and sum(window.encoder_cells for window in windows) < 0.1 * dense
    assert all(window.kept < window.cells for window in windows)
    assert fates(everything) == (set(range(128)), {})
    # The first windows show the first slot, the others the one that changed.
    assert spans(changed) == [(0.0, 4.0), (30.0, 34.0), (32.0, 36.0)]
    used, dropped = fates(changed)
    assert sorted([*used, *dropped["unchanged"]]) == list(range(128))
    assert np.abs(vectors(changed)[0] - vectors(everything)[0]).max() < 1e-5


async def test_pictures_that_come_one_by_one(checkpoint: Callable[[str], Path]) -> None:
    """As a list of the same pictures; `clear` names what is in no window, and the next part begins anew."""
    pictures = [png_file(frame) for frame in scene(13, moves_at=(3, 7))]
    async with engine(checkpoint("qwen3_vl")) as client:
        listed = await from_source(client, FrameList(frames=tuple(pictures), fps=2.0), evs=GATE)
        fed = await from_pieces(client, pictures, evs=GATE)
        cleared = await from_pieces(client, pictures[:5], evs=GATE, how="clear")
    assert spans(fed) == spans(listed) == [(0.0, 4.0), (2.0, 6.0), (4.0, 7.0)]
    assert np.abs(vectors(fed) - vectors(listed)).max() < 1e-5
    assert fates(cleared) == (set(), {"closed": [0, 1, 2, 3, 4]})


@pytest.mark.parametrize("overload", ["drop_oldest", "drop_newest", "error"])
async def test_overload(checkpoint: Callable[[str], Path], overload: Any) -> None:
    """More pictures at once than may wait, while answers have every place: each is in a window or named once, or the
    stream ends and says why."""
    pictures = [png_file(frame) for frame in scene(300, size=(64, 64))]
    window = WindowOptions(duration_s=4.0, stride_s=1.0, fps=2.0)
    async with engine(checkpoint("qwen3_vl"), max_num_seqs=2) as client:
        sampling = SamplingParams(temperature=0.0, max_tokens=3000, ignore_eos=True)
        chat = (ChatMessage(role="user", parts=(TextPart(text="go on"),)),)
        answers = await client.generate(Generate(request_id="beside", chat=chat, sampling=sampling, n=2))
        dropped: list[int] = []

        def note(event: Any) -> None:
            if isinstance(event, FramesDropped) and event.reason == "overload":
                dropped.extend(event.seqs)
                if len(dropped) > 10:
                    answers.close()

        if overload == "error":
            with pytest.raises(RequestError, match="faster than") as refusal:
                await from_pieces(client, pictures, evs=NONE, overload=overload, fps=2.0, window=window)
            assert refusal.value.code == "overload"
            return
        events = await from_pieces(client, pictures, evs=NONE, overload=overload, fps=2.0, window=window, note=note)
    used, fate = fates(events)
    assert sorted([*used, *[seq for seqs in fate.values() for seq in seqs]]) == list(range(300))
    assert fate["overload"] == dropped and len(dropped) > 10
    kept = {299} if overload == "drop_oldest" else set(range(MAX_WAITING_FRAMES))
    assert kept <= used


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"evs": EvsOptions(method="evs", rate=0.5)}, "evs.method"),
        ({"evs": EvsOptions(method="gate", rate=0.5)}, "evs.rate"),
        ({"evs": EvsOptions(method="none", encoder="reuse")}, "evs.encoder"),
        ({"evs": NONE, "gate": "changed"}, "gate_windows"),
        ({"window": WindowOptions(duration_s=-1.0)}, "window.duration_s"),
        ({"window": WindowOptions(max_frames=1)}, "window.max_frames"),
        ({"dimensions": 100_000}, "dimensions"),
    ],
)
async def test_what_can_never_work_is_refused(
    checkpoint: Callable[[str], Path], options: dict[str, Any], param: str
) -> None:
    async with engine(checkpoint("qwen3_vl")) as client:
        with pytest.raises(RequestError) as refusal:
            await follow(client.open_stream(OpenStream(request_id="x", **options)))
    assert refusal.value.param == param


async def test_a_slot_that_can_never_be_kept_ends_its_stream(checkpoint: Callable[[str], Path]) -> None:
    """It would wait for room for ever."""
    async with engine(checkpoint("qwen3_vl"), encoder_cache_bytes=1 << 10) as client:
        for evs in (REUSE, NONE):
            with pytest.raises(RequestError, match="1024") as refusal:
                await from_pieces(client, [png_file(frame) for frame in scene(9)], evs=evs)
            assert refusal.value.kind == "too_large"


async def test_streams_are_bounded_and_leave_nothing(checkpoint: Callable[[str], Path]) -> None:
    """One too many is refused by name; a client that goes takes everything with it."""
    async with engine(checkpoint("qwen3_vl"), max_streams=2) as client:
        streams = [client.open_stream(OpenStream(request_id=name)) for name in "ab"]
        opened = [aiter(stream) for stream in streams]
        for events in opened:
            assert isinstance(await anext(events), StreamOpened)
        with pytest.raises(RequestError) as refusal:
            await follow(client.open_stream(OpenStream(request_id="c")))
        assert refusal.value.code == "too_many_sessions"
        await streams[0].feed(png_file(scene(1)[0]), seq=0, time_s=0.0)
        for events, stream in zip(opened, streams, strict=True):
            await events.aclose()  # type: ignore[attr-defined]
            stream.close()
        for _ in range(1200):
            events = aiter(client.open_stream(OpenStream(request_id=f"again{_}")))
            try:
                await anext(events)
                break
            except RequestError:
                await asyncio.sleep(0.05)
        else:
            raise AssertionError("the streams that were left are still held")
        await events.aclose()  # type: ignore[attr-defined]


async def test_a_long_stream_leaves_no_more_than_a_short_one(checkpoint: Callable[[str], Path]) -> None:
    """Pages and encodings of windows that have passed are let go of; those of a clip are kept for the next question."""
    pieces = [png_file(frame) for frame in restless(80)]
    held = []
    async with engine(checkpoint("qwen3_vl")) as client:

        async def measure(name: str) -> tuple[float, float]:
            gauges = (await client.stats(name)).gauges
            return gauges["evs:kv_pages_cached"], gauges["evs:encoder_outputs_bytes"]

        for count in (24, 80):
            await from_pieces(client, pieces[:count], evs=REUSE)
            held.append(await measure(f"after {count}"))
            client.drop_caches()
        await from_source(client, FrameList(frames=tuple(pieces), fps=2.0), evs=REUSE)
        clip = await measure("clip")
    (pages, size), (more_pages, more_size) = held
    assert more_pages <= 1.5 * pages and more_size <= 1.5 * size, held
    assert clip[0] > 3 * more_pages and clip[1] > 1.5 * more_size, (clip, held)


def restless(frames: int) -> list[np.ndarray]:
    """A picture of which other cells, and another number of them, change in each pair of frames."""
    random = np.random.default_rng(5)
    picture = noise_clip(3, num_frames=1, size=(96, 128)).frames[0].copy()
    found = []
    for index in range(frames):
        if index % 2 == 0:
            picture = picture.copy()
            for cell in random.permutation(12)[: index // 2 % 12]:
                top, left = 32 * (cell // 4), 32 * (cell % 4)
                picture[top : top + 32, left : left + 32] = random.integers(0, 256, 3)
        found.append(picture)
    return found
