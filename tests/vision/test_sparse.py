"""Choosing few pictures gives the bits that decoding everything gives, from less work."""

from __future__ import annotations

import io
import random
from dataclasses import replace

import numpy as np
import pytest

from tests.clips import find_box, read_numbers
from tests.vision.coded import CODED, NUM_FRAMES, coded_clip
from tests.vision.fakes import SameSize
from tests.vision.sinks import KeptFrames, decode
from vision.backends.pyav import PyavBackend, UntrueKeyError
from vision.containers import sniff_container
from vision.decode import decode_clip
from vision.demux import PacketReader
from vision.limits import DecodeLimits
from vision.packets import find_groups, one_group
from vision.probe import Clip, read_clip
from vision.request import DecodeRequest
from vision.sampling import SamplingPolicy


def open_clip(data: bytes) -> Clip:
    return read_clip(io.BytesIO(data), sniff_container(data[:4096], "video"), DecodeLimits())


def find(clip: Clip, ticks: list[int]) -> dict[int, np.ndarray]:
    return {tick: picture.pixels for tick, picture in PyavBackend().find_pictures(clip, ticks)}


def find_or_stream(clip: Clip, ticks: list[int]) -> dict[int, np.ndarray]:
    """As decode_clip does when a key turns out to be none."""
    try:
        found = find(clip, ticks)
    except UntrueKeyError:
        found = {}
    return found if len(found) == len(set(ticks)) else find(streaming(clip), ticks)


def streaming(clip: Clip) -> Clip:
    return replace(clip, groups=one_group(clip.groups.table))


@pytest.mark.parametrize("name", [*CODED, "gif"])
def test_sparse_is_streaming_bit_for_bit(name: str) -> None:
    """Any choice of pictures: the same pictures, to the bit, as a decoder that saw the whole clip."""
    clip = open_clip(coded_clip(name))
    ticks = clip.ticks.tolist()
    whole = find(streaming(clip), ticks)
    assert len(whole) == NUM_FRAMES
    assert read_numbers([whole[tick] for tick in ticks]) == list(range(NUM_FRAMES))
    rng = random.Random(name)
    choices = [[tick] for tick in rng.sample(ticks, 6)] + [rng.sample(ticks, count) for count in (2, 3, 5, 8, 20)]
    for chosen in [*choices, ticks]:
        sparse = find_or_stream(clip, chosen)
        assert sorted(sparse) == sorted(chosen)
        assert all(np.array_equal(sparse[tick], whole[tick]) for tick in chosen)


SEEKABLE = ("h264 b-frames", "h264 open groups in matroska", "hevc open groups", "vp9 hidden", "h264 fragments")


@pytest.mark.parametrize("name", SEEKABLE)
def test_seeking_is_streaming_bit_for_bit(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same when the demuxer jumps instead of reading on; none of them is lost."""
    monkeypatch.setattr("vision.demux.SEEK_ABOVE", 0)
    clip = open_clip(coded_clip(name))
    ticks = clip.ticks.tolist()
    whole = find(streaming(clip), ticks)
    for chosen in ([ticks[40]], [ticks[1], ticks[30], ticks[47]], [ticks[13], ticks[25]]):
        found = find(clip, chosen)
        assert sorted(found) == chosen
        assert all(np.array_equal(pixels, whole[tick]) for tick, pixels in found.items())


@pytest.mark.parametrize("name", SEEKABLE)
def test_seeks_land_on_the_wanted_key(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One opening of the file and no packet passed over, B-frames or not: each jump is to the group's first packet."""
    monkeypatch.setattr("vision.demux.SEEK_ABOVE", 0)
    monkeypatch.setattr("vision.demux.MAX_PASSED", 1)
    clip = open_clip(coded_clip(name))
    starts = clip.groups.starts.tolist()
    assert len(starts) > 2
    with PacketReader(clip.file, clip.container, clip.limits, clip.groups.table) as reader:
        opened = reader.film
        for start in starts[1:]:
            tick, _, size, is_key = clip.groups.table.row(start)
            (packet,) = reader.read(start, start + 1)
            assert (packet.pts, packet.size, packet.is_keyframe) == (tick, size, is_key)
        assert reader.film is opened


@pytest.mark.parametrize("name", ["h264 b-frames", "vp9 hidden"])
def test_a_seek_that_lands_elsewhere_is_not_believed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the packet that comes is not the one asked for, the file is read from its start, and nothing is lost."""
    clip = open_clip(coded_clip(name))
    monkeypatch.setattr("vision.demux.SEEK_ABOVE", 0)
    monkeypatch.setattr("vision.demux.MAX_PASSED", 0)
    ticks = clip.ticks.tolist()
    backend = PyavBackend()
    found = dict(backend.find_pictures(clip, [ticks[place] for place in (5, 29, 40, 46)]))
    assert read_numbers([picture.pixels for picture in found.values()]) == [5, 29, 40, 46]
    assert backend.broken == 0


def test_sparse_decodes_only_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """One picture near the end of a clip with groups of ten costs at most one group."""
    clip = open_clip(coded_clip("h264"))
    fed = [span.stop - span.start for span in clip.groups.plan([int(clip.ticks[43])])]
    assert fed == [4]
    assert sum(span.stop - span.start for span in clip.groups.plan(clip.ticks[::10].tolist())) == 5


@pytest.mark.parametrize("name", ["h264", "h264 b-frames", "hevc closed groups", "mpeg4 b-frames", "vp9", "av1"])
def test_keys_that_are_none_are_noticed(name: str) -> None:
    """A file that calls every picture a key is decoded from its start; nothing is taken for damaged."""
    clip = open_clip(coded_clip(name))
    table = replace(clip.groups.table, is_key=np.ones_like(clip.groups.table.is_key))
    lying = replace(clip, groups=find_groups(table, tail=0))
    sink = KeptFrames()
    request = DecodeRequest(kind="video", resize=SameSize(), sampling=SamplingPolicy(num_frames=5))
    report = decode_clip(lying, request, sink=sink)
    assert read_numbers(sink.pixels) == list(report.frame_indices) == [0, 12, 24, 35, 47]
    assert (report.num_frames, report.num_broken) == (NUM_FRAMES, 0)


def test_refreshed_pictures_are_not_damaged() -> None:
    """A clip that heals by columns has keys that take a while to become whole."""
    report, pixels = decode(coded_clip("h264 intra refresh"), SamplingPolicy(num_frames=5))
    assert read_numbers(pixels) == [0, 12, 24, 35, 47]
    assert (report.num_frames, report.num_broken) == (NUM_FRAMES, 0)


def test_damage_in_one_group_leaves_the_others_alone() -> None:
    """Only the group of the damaged picture loses pictures; the choice is spread anew over what is left."""
    data = bytearray(coded_clip("h264"))
    start = find_box(bytes(data), "mdat")[0]
    clip = open_clip(bytes(data))
    sizes = clip.groups.table.sizes
    where = start + int(sizes[:20].sum())
    data[where : where + int(sizes[20:30].sum())] = b"\xff" * int(sizes[20:30].sum())
    report, pixels = decode(bytes(data), SamplingPolicy(num_frames=12))
    shown = [number for number in range(NUM_FRAMES) if not 20 <= number < 30]
    assert report.num_broken == 10 == NUM_FRAMES - report.num_frames
    assert read_numbers(pixels) == [shown[index] for index in report.frame_indices]


def test_a_table_row_costs_a_few_bytes() -> None:
    """What is kept of a clip does not hold its pictures."""
    data = coded_clip("raw")
    table = open_clip(data).groups.table
    columns = (table.ticks, table.decode_ticks, table.sizes, table.durations, table.is_key, table.is_shown)
    assert sum(column.nbytes for column in columns) == 34 * len(table) < len(data) / 100
