"""Labels say what each cell shows."""

from __future__ import annotations

import numpy as np

from demo.labels import EVENTS, NO_COLOR, NO_EVENT, NO_SHAPE, SIDES, UNCLEAR, label_cells
from demo.scenes import Scene, Thing

RED = Thing(color="red", shape="circle", radius=12, act="still", start=(16, 16), end=(16, 16))


def test_the_worked_example() -> None:
    """One cell with a still red circle."""
    labels = label_cells(Scene(things=(RED,), frames=6, height=64, width=64))
    assert labels.color.tolist() == [[0, NO_COLOR, NO_COLOR, NO_COLOR]] * 3
    assert labels.shape.tolist() == [[0, NO_SHAPE, NO_SHAPE, NO_SHAPE]] * 3
    assert labels.event.tolist() == [[UNCLEAR] * 4, [1, NO_EVENT, NO_EVENT, NO_EVENT], [1] + [NO_EVENT] * 3]
    assert labels.third.tolist() == [[0, UNCLEAR, UNCLEAR, UNCLEAR]] * 3
    covered = (labels.outline[0] > 127).sum(-1)
    assert covered.tolist() == [covered[0], 0, 0, 0] and abs(covered[0] - np.pi * 9) < 5


def test_events_stand_in_their_slots() -> None:
    """Each timed act is named in the one slot in which it happens, where it happens."""
    things = (
        Thing(color="blue", shape="star", radius=12, act="appear", start=(16, 16), end=(16, 16), slot=1),
        Thing(color="blue", shape="square", radius=12, act="disappear", start=(48, 16), end=(48, 16), slot=2),
        Thing(color="blue", shape="circle", radius=12, act="turn", start=(16, 48), end=(16, 48), slot=3, becomes="red"),
    )
    labels = label_cells(Scene(things=things, frames=8, height=64, width=64))
    names = [[EVENTS[event] for event in cell] for cell in labels.event[1:, :3].T.tolist()]
    assert names == [["appear", "still", "still"], ["still", "disappear", "nothing"], ["still", "still", "turn"]]
    assert labels.color[:, 2].tolist() == [2, 2, 2, 0]
    assert labels.color[:, 1].tolist() == [2, 2, NO_COLOR, NO_COLOR]
    assert labels.named_color[:, :3].T.tolist() == [[NO_COLOR, 2, 2, 2], [2, 2, 2, NO_COLOR], [2, 2, 2, 2]]
    assert labels.named_shape[:, 1].tolist() == [1, 1, 1, NO_SHAPE]
    assert labels.slot[:, 1].tolist() == [0, 1, 2, UNCLEAR]


def test_who_is_hidden_is_not_labelled() -> None:
    """A cell behind shows the one in front."""
    front = Thing(color="green", shape="square", radius=14, act="still", start=(16, 16), end=(16, 16))
    labels = label_cells(Scene(things=(RED, front), frames=4, height=64, width=64))
    assert labels.color[:, 0].tolist() == [1, 1]
    assert labels.shape[:, 0].tolist() == [1, 1]


def test_what_turned_is_called_by_its_first_colour_in_that_slot_only() -> None:
    """Behind it only memory could tell; what the cell shows stays a target."""
    turning = Thing(
        color="blue", shape="circle", radius=12, act="turn", start=(16, 16), end=(16, 16), slot=1, becomes="red"
    )
    labels = label_cells(Scene(things=(turning,), frames=8, height=64, width=64))
    assert labels.named_color[:, 0].tolist() == [2, 2, UNCLEAR, UNCLEAR]
    assert labels.named_shape[:, 0].tolist() == [0, 0, 0, 0]


def test_a_side_is_given_where_a_pair_overlaps() -> None:
    """Only in slots of the crossing, and only at cells of the two."""
    mover = Thing(
        color="red", shape="circle", radius=12, act="move", start=(16, 16), end=(112, 16), direction="left to right"
    )
    other = Thing(color="blue", shape="square", radius=12, act="still", start=(64, 16), end=(64, 16))
    aside = Thing(color="blue", shape="star", radius=12, act="still", start=(64, 48), end=(64, 48))
    scene = Scene(things=(other, mover, aside), frames=18, height=64, width=128, passing=("in front of", other))
    given = label_cells(scene).past
    crossing = [slot for slot in range(scene.slots) if scene.is_crossing(slot)]
    assert crossing == [3, 4, 5]
    assert set(np.flatnonzero((given != UNCLEAR).any(1)).tolist()) == {3, 4, 5}
    assert set(given[4].tolist()) == {UNCLEAR, SIDES.index("in front of")}
    assert given[4, 4:].tolist() == [UNCLEAR] * 4
