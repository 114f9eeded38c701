"""Labels say what each cell shows."""

from __future__ import annotations

import numpy as np

from demo.labels import EVENTS, NO_COLOR, NO_EVENT, NO_SHAPE, UNCLEAR, label_cells
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
