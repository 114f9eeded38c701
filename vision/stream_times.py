"""Which pictures of a stream are looked at while it still arrives: pure arithmetic on rising times.

Knows nothing of containers, decoding or pixels. A clip that is there whole is sampled by vision/sampling.py, which may
look ahead; here only what came before is known.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

# Times are whole milliseconds or finer in containers; pictures that a camera sends one by one come when they can.
STREAM_SLACK_S = 1.001e-3
PICTURE_SLACK = 0.25


@dataclass(slots=True, kw_only=True)
class GridSampler:
    """Takes the first picture at or after each point of a grid of `fps` a second; times count from the first picture.

    slack: how much early a picture may be, as a share of a step of the grid.

    Worked example, fps 2, slack 0: pictures at 0, 0.4, 0.52, 0.9, 1.3 and 2.6 s stand for the points 0, none, 1, none,
    2 and 5; with slack 0.25 the one at 0.4 s stands for point 1, and that at 0.52 s for none.
    """

    fps: float
    slack: float
    last: int = -1

    @classmethod
    def of_stream(cls, fps: float) -> GridSampler:
        return cls(fps=fps, slack=min(STREAM_SLACK_S * fps, PICTURE_SLACK))

    @classmethod
    def of_pictures(cls, fps: float) -> GridSampler:
        return cls(fps=fps, slack=PICTURE_SLACK)

    def take(self, time_s: float) -> int | None:
        """The point this picture stands for; None when it is passed over."""
        point = math.floor(time_s * self.fps + self.slack)
        if point <= self.last:
            return None
        self.last = point
        return point
