"""High dynamic range is shown as on an ordinary screen."""

from __future__ import annotations

import numpy as np
import pytest

from tests.clips import looks_upright, make_clip, read_numbers
from tests.vision.sinks import decode
from vision.hdr import HLG, PQ, map_colours, to_standard_range

# Signals of diffuse white (203 cd/m2) and of a highlight of 1000 cd/m2, from BT.2408 and BT.2100.
WHITE = {PQ: 0.5807, HLG: 0.75}
PEAK = {PQ: 0.7518, HLG: 1.0}


@pytest.mark.parametrize("transfer", [PQ, HLG])
def test_greys_stay_grey_and_rise(transfer: int) -> None:
    """Black is black, diffuse white is near white, highlights are above it and below the end; no hue, no step back."""
    steps = np.linspace(0, 1, 200)[:, None].repeat(3, axis=1)
    shown = map_colours(steps, transfer)
    assert np.abs(shown - shown[:, :1]).max() < 2e-3
    assert (np.diff(shown[:, 1]) >= 0).all()
    assert shown[0].max() == 0.0
    assert map_colours(np.full(3, WHITE[transfer]), transfer)[0] == pytest.approx(0.88, abs=0.01)
    assert 0.93 < map_colours(np.full(3, PEAK[transfer]), transfer)[0] < 1.0


@pytest.mark.parametrize("transfer", [PQ, HLG])
def test_the_table_is_the_rule(transfer: int) -> None:
    """What is read from the cube is what the rule says, to within a few of 255 steps."""
    rng = np.random.default_rng(3)
    pixels = rng.integers(0, 256, (3, 64, 64), dtype=np.uint8)
    exact = map_colours(pixels.transpose(1, 2, 0) / 255, transfer).transpose(2, 0, 1) * 255
    error = np.abs(to_standard_range(pixels, transfer) - exact)
    assert error.mean() < 1.0
    assert np.quantile(error, 0.99) < 10


@pytest.mark.parametrize(("transfer", "curve"), [(PQ, "smpte2084"), (HLG, "arib-std-b67")])
def test_clips_are_mapped(transfer: int, curve: str) -> None:
    """Ten-bit clips of both kinds: numbers readable, colours in their corners, and not as the signal stands."""
    params = f"log-level=none:pools=none:frame-threads=1:colorprim=bt2020:transfer={curve}:colormatrix=bt2020nc"
    data = make_clip(frames=4, codec="libx265", pixel_format="yuv420p10le", options={"x265-params": params},
                     context={"colorspace": 9, "color_trc": transfer, "color_primaries": 9})  # fmt: skip
    _, pixels = decode(data)
    assert read_numbers(pixels) == [0, 1, 2, 3]
    assert looks_upright(pixels[0], tolerance=75)
