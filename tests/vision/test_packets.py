"""Which packets are decoded for which pictures."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest

from vision.packets import NO_TIME, Groups, PacketTable, Span, find_groups, one_group


def make_table(shown: list[int], keys: set[int], hidden: frozenset[int] = frozenset()) -> PacketTable:
    """shown: time of each packet in decoding order; keys, hidden: times."""
    count = len(shown)
    return PacketTable(
        ticks=np.array(shown, dtype=np.int64), decode_ticks=np.arange(count, dtype=np.int64),
        sizes=np.ones(count, dtype=np.int64), durations=np.ones(count, dtype=np.int64),
        is_key=np.array([tick in keys for tick in shown]), is_shown=np.array([tick not in hidden for tick in shown]),
    )  # fmt: skip


EXAMPLE = make_table([0, 2, 1, 5, 4, 3, 6, 7, 8, 9], {0, 5, 8})


@pytest.mark.parametrize(
    ("wanted", "spans"),
    [
        ([6], [(3, 7)]),
        ([4], [(0, 5)]),
        ([1, 9], [(0, 3), (8, 10)]),
        ([0, 5, 8], [(0, 1), (3, 4), (8, 9)]),
        ([7, 8], [(3, 9)]),
        ([42], []),
    ],
)
def test_the_shortest_stretches(wanted: list[int], spans: list[tuple[int, int]]) -> None:
    planned = find_groups(EXAMPLE, tail=0).plan(wanted)
    assert planned == tuple(Span(start=start, stop=stop) for start, stop in spans)


def test_a_second_field_comes_along() -> None:
    assert find_groups(EXAMPLE, tail=1).plan([6, 9]) == (Span(start=3, stop=10),)


def test_one_group_is_everything() -> None:
    assert one_group(EXAMPLE).plan([9]) == (Span(start=0, stop=10),)


def test_damage_is_looked_for_in_whole_groups() -> None:
    spans, promised = find_groups(EXAMPLE, tail=0).survey([7])
    assert spans == (Span(start=0, stop=8),)  # and some way before them
    assert promised == {5, 4, 3, 6, 7}


def test_open_groups_are_known() -> None:
    assert find_groups(EXAMPLE, tail=0).has_leading()
    assert not find_groups(make_table([0, 2, 1, 3, 5, 4], {0, 3}), tail=0).has_leading()
    assert not one_group(EXAMPLE).has_leading()


def test_packets_before_the_first_key_are_a_group() -> None:
    groups = find_groups(make_table([1, 2, 3, 4], {3}), tail=0)
    assert groups.plan([1, 4]) == (Span(start=0, stop=1), Span(start=2, stop=4))


def test_packets_without_a_time_and_hidden_ones_are_never_chosen() -> None:
    table = make_table([0, NO_TIME, 2, 3], {0}, hidden=frozenset([2]))
    assert table.shown_ticks().tolist() == [0, 3]


def test_every_plan_holds_what_it_needs() -> None:
    """Random clips, random choices: each wanted packet is decoded after a key that it can lean on."""
    rng = random.Random(1)
    for _ in range(200):
        count = rng.randint(1, 40)
        shown, keys = list(range(count)), {0} | set(rng.sample(range(count), rng.randint(0, count // 4)))
        for place in range(0, count - 1, 2):
            if rng.random() < 0.3:
                shown[place], shown[place + 1] = shown[place + 1], shown[place]
        groups: Groups = find_groups(make_table(shown, keys), tail=0)
        wanted = rng.sample(range(count), rng.randint(1, count))
        spans = groups.plan(wanted)
        assert all(before.stop < after.start for before, after in pairwise(spans))
        for tick in wanted:
            place = shown.index(tick)
            span = next(span for span in spans if span.start <= place < span.stop)
            assert span.start == 0 or any(shown[k] in keys and shown[k] <= tick for k in range(span.start, place + 1))
