"""One clip or image of a request, decoded and with its Selection made. Owns the type and its identity in caches;
knows no prompt and no model."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal

import numpy as np

from evs.policy import Encoder, EvsPolicy
from evs.selection import Selection
from runner.entering import EnteringPatches, entering_patches, settle_encoder
from vision.frames import VideoFrames
from vision.patches import PatchGrid, pixels_sha256


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Decoded:
    """What the decoder gave, cut into T slots x P cells. `pixels_key`: hex digest of the pixels."""

    kind: Literal["image", "video"]
    frames: VideoFrames
    grid: PatchGrid
    pixels_key: str

    @classmethod
    def of(cls, frames: VideoFrames, grid: PatchGrid) -> Decoded:
        return cls(kind=frames.kind, frames=frames, grid=grid, pixels_key=pixels_sha256(grid))

    @property
    def size_bytes(self) -> int:
        return self.frames.pixels.nbytes + (self.grid.pixels.nbytes if self.grid.pixels.base is None else 0)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Link:
    """That an item is one slot of a stream, encoded by `reuse`: its dropped places show what `before` and those before
    it left there, and it leaves a whole picture to the next. before None: it keeps everything and needs nobody."""

    before: MediaItem | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, weakref_slot=True)
class MediaItem:
    """selection: the cells that will be read; policy: what chose them. encoder: the policy's mode, or "full" where that
    saves little; entering: which patches it encodes. encoding_key: equal for two items exactly when their encoder
    outputs are. link: None for a clip or an image by itself. passes: it is of a live stream, and will not come again:
    what is kept of it goes when it goes."""

    decoded: Decoded
    selection: Selection
    policy: EvsPolicy
    encoder: Encoder
    entering: EnteringPatches
    encoding_key: str
    link: Link | None = None
    passes: bool = False

    @classmethod
    def of(
        cls,
        decoded: Decoded,
        selection: Selection,
        policy: EvsPolicy,
        link: Link | None = None,
        *,
        passes: bool = False,
    ) -> MediaItem:
        """Raises ValueError for a Selection of another shape, and for a link of several slots or to nothing."""
        expected = (decoded.grid.slots, decoded.grid.cells_per_slot)
        if selection.keep.shape != expected:
            raise ValueError(f"a Selection of {selection.keep.shape} does not fit a grid of {expected}")
        if link is not None and (len(selection.keep) > 1 or (link.before is None and not selection.keep.all())):
            raise ValueError("a link is one slot, and one that drops cells needs a slot before it")
        encoder = settle_encoder(policy.encoder, selection) if link is None else policy.encoder
        return cls(
            decoded=decoded,
            selection=selection,
            policy=policy,
            encoder=encoder,
            entering=entering_patches(decoded.grid, selection, encoder),
            encoding_key=encoding_key(decoded, selection, encoder, link),
            link=link,
            passes=passes,
        )

    @property
    def before(self) -> MediaItem | None:
        """The item whose keys and values this one reads."""
        return None if self.link is None else self.link.before

    @property
    def kind(self) -> Literal["image", "video"]:
        return self.decoded.kind

    @property
    def frames(self) -> VideoFrames:
        return self.decoded.frames

    @property
    def grid(self) -> PatchGrid:
        return self.decoded.grid

    def kept_before(self, slot: int) -> int:
        """Kept cells in slots [0, slot): how many encoded rows exist once those slots are encoded."""
        return int(np.count_nonzero(self.selection.keep[:slot]))

    @property
    def encoder_cells(self) -> int:
        """Cells that are encoded: slots that keep nothing are left out, but where the method had to see them first."""
        if self.policy.method == "evs":
            return self.selection.cells
        if self.encoder != "full":
            return self.selection.kept
        return int(np.count_nonzero(self.selection.keep.any(axis=1))) * self.grid.cells_per_slot


def encoding_key(decoded: Decoded, selection: Selection, encoder: Encoder, link: Link | None = None) -> str:
    """Hex digest of all that an item's encoder output depends on, each part framed by its length.

    Pixels with their shape, how they are cut into patches and cells, the size as shown (which decides what margins are
    left out), which cells are kept, how dropped ones are treated, and what a link's item shows in their place. Not
    times: they are in positions and text.
    """
    grid = decoded.grid
    geometry = (grid.temporal_patch_size, grid.patch_size, grid.merge_size, grid.pooled, grid.pictures_per_slot)
    parts = (
        decoded.kind.encode(),
        decoded.pixels_key.encode(),
        repr((geometry, decoded.frames.source_size)).encode(),
        repr(selection.keep.shape).encode(),
        np.packbits(selection.keep).tobytes(),
        encoder.encode(),
    )
    if link is None:
        return framed_digest(parts)
    return framed_digest((*parts, b"link", b"" if link.before is None else link.before.encoding_key.encode()))


def framed_digest(parts: tuple[bytes, ...]) -> str:
    """sha256 over parts, each after its length: no two lists of parts share bytes.

    Worked example: (b"ab", b"c") and (b"a", b"bc") differ.
    """
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.hexdigest()
