"""High dynamic range (PQ and HLG) as it looks on an ordinary screen: one stated rule, as a table of colours.

Owns the rule; knows nothing of frames or decoders. Steps, each channel between 0 and 1:

1. To light in cd/m2: PQ by its definition (SMPTE ST 2084); HLG by its own with a 1000 cd/m2 screen (BT.2100).
2. Diffuse white, 203 cd/m2 (BT.2408), is 1.
3. From BT.2020's colours to BT.709's.
4. Light above KNEE is bent towards 1, by the strongest of a pixel's channels, so that hues stay and nothing burns out.
5. To sRGB.

Pictures are resized before: both signals are made to be even to the eye, as sRGB is, and small pictures cost less. The
signal is taken with 8 bits, and the rule is read from a cube of CUBE points a side, between which colours are
interpolated: a tenth of the work of the rule itself.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageFilter

PQ, HLG = 16, 18  # FFmpeg's numbers (and H.273's) for the two curves
DIFFUSE_WHITE = 203.0
HLG_PEAK = 1000.0
KNEE = 0.5
CUBE = 33

Colours = npt.NDArray[np.float64]
Pixels = npt.NDArray[np.uint8]

_TO_BT709 = np.array([[1.6605, -0.5876, -0.0728], [-0.1246, 1.1329, -0.0083], [-0.0182, -0.1006, 1.1187]])
_BT2020_LUMA = np.array([0.2627, 0.6780, 0.0593])


def is_hdr(transfer: int) -> bool:
    return transfer in (PQ, HLG)


def to_standard_range(pixels: Pixels, transfer: int) -> Pixels:
    """(3, h, w) uint8 RGB in a PQ or HLG signal -> (3, h, w) uint8 sRGB."""
    image = Image.fromarray(np.ascontiguousarray(pixels.transpose(1, 2, 0)))
    return np.ascontiguousarray(np.asarray(image.filter(_table(transfer))).transpose(2, 0, 1))


def map_colours(signal: Colours, transfer: int) -> Colours:
    """(..., 3) signal in [0, 1] -> (..., 3) sRGB in [0, 1]: the rule itself."""
    light = (_pq_light(signal) if transfer == PQ else _hlg_light(signal)) / DIFFUSE_WHITE
    light = np.clip(light @ _TO_BT709.T, 0.0, None)
    strongest = light.max(axis=-1, keepdims=True)
    over = np.clip(strongest - KNEE, 0.0, None) / (1 - KNEE)
    bent = np.minimum(strongest, KNEE) + (1 - KNEE) * over / (1 + over)
    light = light * (bent / np.maximum(strongest, 1e-9))
    return np.asarray(np.where(light <= 0.0031308, 12.92 * light, 1.055 * light ** (1 / 2.4) - 0.055))


@cache
def _table(transfer: int) -> ImageFilter.Color3DLUT:
    steps = np.linspace(0.0, 1.0, CUBE)
    blue, green, red = np.meshgrid(steps, steps, steps, indexing="ij")  # red varies fastest
    colours = map_colours(np.stack((red, green, blue), axis=-1), transfer)
    return ImageFilter.Color3DLUT(CUBE, colours.reshape(-1).tolist())


def _pq_light(signal: Colours) -> Colours:
    root = np.clip(signal, 0.0, 1.0) ** (1 / 78.84375)
    return np.asarray(
        10_000.0 * (np.clip(root - 0.8359375, 0.0, None) / (18.8515625 - 18.6875 * root)) ** (1 / 0.1593017578125)
    )


def _hlg_light(signal: Colours) -> Colours:
    a, b, c = 0.17883277, 0.28466892, 0.55991073
    scene = np.where(signal <= 0.5, signal**2 / 3, (np.exp((signal - c) / a) + b) / 12)
    luma = np.maximum((scene @ _BT2020_LUMA)[..., None], 1e-9)
    return np.asarray(HLG_PEAK * scene * luma**0.2)
