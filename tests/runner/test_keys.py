"""Law 6: whatever differs between two requests and changes what is computed is in the key."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from evs.policy import make_policy
from runner.items import framed_digest
from runner.media_cache import media_key
from runner.requests import FrameList, InlineBytes
from tests.runner.test_prompt import make_item
from vision.request import DecodeRequest
from vision.resize import VideoSmartResize
from vision.sampling import SamplingPolicy

REQUEST = DecodeRequest(kind="video", resize=VideoSmartResize(), sampling=SamplingPolicy(fps=2.0))


def test_framing_is_the_worked_example() -> None:
    assert framed_digest((b"ab", b"c")) != framed_digest((b"a", b"bc"))


def test_a_decoded_clips_key_holds_bytes_options_and_family() -> None:
    source = InlineBytes(data=b"clip")
    keys = [
        media_key(source, REQUEST, "a"),
        media_key(source, REQUEST, "b"),
        media_key(InlineBytes(data=b"clip2"), REQUEST, "a"),
        media_key(source, replace(REQUEST, sampling=SamplingPolicy(fps=4.0)), "a"),
        media_key(source, replace(REQUEST, sampling=SamplingPolicy(fps=2.0, start_s=1.0)), "a"),
        media_key(source, replace(REQUEST, resize=VideoSmartResize(max_pixels=1 << 22)), "a"),
        media_key(source, replace(REQUEST, interpolation="bilinear"), "a"),
        media_key(FrameList(frames=(b"cl", b"ip"), fps=1.0), REQUEST, "a"),
        media_key(FrameList(frames=(b"c", b"lip"), fps=1.0), REQUEST, "a"),
        media_key(FrameList(frames=(b"cl", b"ip"), fps=2.0), REQUEST, "a"),
    ]
    assert len(set(keys)) == len(keys)
    assert media_key(InlineBytes(data=b"clip"), replace(REQUEST), "a") == keys[0]


def test_an_encodings_key_holds_pixels_cells_and_mode() -> None:
    first, again = (make_item(np.array([[True, False], [True, True]])) for _ in range(2))
    others = [
        make_item(np.array([[True, True], [True, True]])),
        make_item(np.array([[True, False, True, True]])),
        make_item(np.array([[True, False], [True, True]]), kind="image"),
    ]
    skip = type(first).of(first.decoded, first.selection, make_policy("random", rate=0.5, encoder="skip"))
    keys = {item.encoding_key for item in (first, *others, skip)}
    assert first.encoding_key == again.encoding_key
    assert len(keys) == 5


def test_a_selections_key_holds_every_number_of_its_policy() -> None:
    policies = [
        make_policy("gate"),
        make_policy("gate", threshold=0.1),
        make_policy("gate", refresh=7),
        make_policy("gate", rate=0.5),
        make_policy("evs", rate=0.5),
        make_policy("uniform", rate=0.5),
        make_policy("random", rate=0.5),
        make_policy("random", rate=0.5, seed=1),
    ]
    assert len({policy.key() for policy in policies}) == len(policies)


def test_keys_are_whole_digests() -> None:
    """Nobody can make two contents of one key, nor meet them by chance: nothing is cut off a sha256."""
    item = make_item(np.array([[True, False], [True, True]]))
    for key in (media_key(InlineBytes(data=b"clip"), REQUEST, "a"), item.encoding_key, framed_digest((b"a",))):
        assert len(bytes.fromhex(key)) == 32
