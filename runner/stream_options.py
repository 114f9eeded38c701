"""What a stream's request comes to: windows of whole slots, a rate, the gate's rules, the chat round each window. Owns
the settling and its refusals; decodes and lays out nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from evs.gate import GateRules
from evs.policy import EvsPolicy
from runner.admission import Admission
from runner.embedding import write_chat
from runner.entering import encoders_of
from runner.errors import RequestError
from runner.evs_options import settle_policy
from runner.families.base import Family
from runner.families.embedding import embedding_policy
from runner.ingest import translate_media_error
from runner.pooling import check_dimensions
from runner.requests import ChatMessage, EvsOptions, InlineBytes, MediaPart, TextPart, VideoOptions
from runner.stream_messages import OpenStream, WindowOptions
from vision.errors import MediaError
from vision.frames import VideoFrames
from vision.request import DecodeRequest

DEFAULT_WINDOW_S = 4.0
DEFAULT_FPS = 2.0  # of families that sample a number of frames, whatever a clip's length
MAX_WINDOW_S = 3600.0
MAX_FPS = 60.0
MAX_REFRESH = 64  # slots whose pixels a stream may have to keep
STREAM_METHODS = ("gate", "none")
KEEP_EVERYTHING = GateRules(threshold=-1.0, refresh=1, scene_cut=0.0, floor=0, rate=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSettings:
    """A window is `window_slots` slots and begins every `stride_slots`; a slot is `frames_per_slot` frames of a grid of
    `fps` a second."""

    fps: float
    frames_per_slot: int
    window_slots: int
    stride_slots: int
    decode: DecodeRequest
    policy: EvsPolicy
    rules: GateRules
    chat: tuple[ChatMessage, ...]

    @property
    def slot_s(self) -> float:
        return self.frames_per_slot / self.fps

    @property
    def window_frames(self) -> int:
        return self.window_slots * self.frames_per_slot

    @property
    def window(self) -> WindowOptions:
        """The windows in force, as they are told to whoever asked."""
        return WindowOptions(
            duration_s=self.window_slots * self.slot_s,
            stride_s=self.stride_slots * self.slot_s,
            fps=self.fps,
            max_frames=self.window_frames,
        )

    @property
    def evs(self) -> EvsOptions:
        policy = self.policy
        return EvsOptions(
            method=policy.method, threshold=policy.threshold, refresh=policy.refresh, encoder=policy.encoder
        )


def settle_stream(request: OpenStream, admission: Admission, *, max_frames: int) -> StreamSettings:
    """Raises RequestError for what can never work. max_frames: that a window may have, whatever was asked for."""
    family = admission.family
    wrong = check_dimensions(request.dimensions, family.shape.hidden_size)
    if wrong is not None:
        raise RequestError("invalid", wrong, param="dimensions")
    defaults = embedding_policy(family).video
    options = VideoOptions(
        fps=request.window.fps if request.window.fps is not None else defaults.fps,
        max_frames=_least(request.window.max_frames, defaults.max_frames, max_frames),
        max_pixels=defaults.max_pixels,
        max_tokens=defaults.max_tokens,
    )
    try:
        decode = family.decode_request("video", options, 1)
        per_slot = frames_per_slot(family, decode)
    except MediaError as error:
        raise translate_media_error(error) from error
    policy = settle_stream_policy(request.evs, admission)
    if request.gate == "changed" and policy.method == "none":
        raise RequestError(
            "invalid", "gate_windows needs evs.method gate: with none, everything is taken to have changed",
            param="gate_windows",
        )  # fmt: skip
    fps, window, stride = settle_windows(
        request.window, fps=decode.sampling.fps or DEFAULT_FPS, per_slot=per_slot,
        max_frames=_least(options.max_frames, decode.sampling.max_frames),
    )  # fmt: skip
    return StreamSettings(
        fps=fps, frames_per_slot=per_slot, window_slots=window, stride_slots=stride, decode=decode, policy=policy,
        rules=gate_rules(policy), chat=_window_chat(request, family),
    )  # fmt: skip


def settle_windows(wanted: WindowOptions, *, fps: float, per_slot: int, max_frames: int) -> tuple[float, int, int]:
    """(rate, slots of a window, slots from one window's begin to the next's). Lengths are rounded to whole slots, at
    least one; the rate is lowered until a window has no more than max_frames.

    Worked example, 2 frames a slot: 3.2 s every 1.4 s at 2 a second are windows of 3 slots every 1. With at most 4
    frames, 4 s at 2 a second become 2 slots at 1 a second.
    """
    duration = DEFAULT_WINDOW_S if wanted.duration_s is None else wanted.duration_s
    stride = duration if wanted.stride_s is None else wanted.stride_s
    for name, value, high in (("duration_s", duration, MAX_WINDOW_S), ("stride_s", stride, MAX_WINDOW_S),
                              ("fps", fps, MAX_FPS)):  # fmt: skip
        if not 0 < value <= high:
            raise RequestError(
                "invalid", f"window.{name} must be above 0 and at most {high:g}, got {value}", param=f"window.{name}"
            )
    if max_frames < per_slot:
        raise RequestError(
            "invalid", f"window.max_frames must be at least {per_slot}, the frames of a slot", param="window.max_frames"
        )
    fps = min(fps, max_frames / duration)
    window = min(max(1, round(duration * fps / per_slot)), max_frames // per_slot)
    return fps, window, max(1, round(stride * fps / per_slot))


def settle_stream_policy(wanted: EvsOptions, admission: Admission) -> EvsPolicy:
    """A stream is gated or kept whole. What needs its end, or the slots to come, is refused by name."""
    method = wanted.method or (admission.evs.method if admission.evs.method in STREAM_METHODS else "none")
    if method not in STREAM_METHODS:
        raise RequestError(
            "invalid", f"evs.method {method!r} needs the whole clip; a stream takes gate or none", param="evs.method"
        )
    if wanted.rate is not None:
        raise RequestError("invalid", "evs.rate needs the whole clip; a stream has no end", param="evs.rate")
    settled = settle_policy(
        EvsOptions(method=method, threshold=wanted.threshold, refresh=wanted.refresh, encoder=wanted.encoder),
        admission.evs,
        encoders=encoders_of(admission.family),
    )
    if method == "none":
        return settled
    refresh = min(settled.refresh or MAX_REFRESH, MAX_REFRESH)
    return EvsPolicy(
        method=settled.method, encoder=settled.encoder, threshold=settled.threshold, refresh=refresh,
        scene_cut=settled.scene_cut, floor=settled.floor,
    )  # fmt: skip


def gate_rules(policy: EvsPolicy) -> GateRules:
    """Without a floor: a slot in which nothing changed is shown by what came before. `none` keeps every cell."""
    if policy.method == "none":
        return KEEP_EVERYTHING
    assert policy.threshold is not None and policy.refresh is not None and policy.scene_cut is not None
    return GateRules(threshold=policy.threshold, refresh=policy.refresh, scene_cut=policy.scene_cut, floor=0, rate=None)


def frames_per_slot(family: Family, decode: DecodeRequest) -> int:
    """What the family's own grid says of one frame."""
    size = decode.resize.target_size(1, 64, 64)
    frame = shaped_frames((0.0,), size=size, source_size=(64, 64), fps=1.0)
    return family.patch_grid(frame).frames_per_slot


def shaped_frames(
    times_s: tuple[float, ...], *, size: tuple[int, int], source_size: tuple[int, int], fps: float
) -> VideoFrames:
    """Frames for laying a prompt out, which reads their shape and times: black, and of no size in memory."""
    black = np.broadcast_to(np.zeros((), dtype=np.uint8), (len(times_s), 3, *size))
    return VideoFrames(
        kind="video", pixels=black, times_s=times_s, frame_indices=tuple(range(len(times_s))),
        duration_s=times_s[-1] + 1 / fps, source_fps=fps, source_size=source_size, codec="", container="stream",
        num_frames=len(times_s),
    )  # fmt: skip


def _window_chat(request: OpenStream, family: Family) -> tuple[ChatMessage, ...]:
    clip = ChatMessage(role="user", parts=(MediaPart(kind="video", source=InlineBytes(data=b"")),))
    if request.instruction is None:
        return write_chat((clip,), embedding_policy(family))
    return (ChatMessage(role="system", parts=(TextPart(text=request.instruction),)), clip)


def _least(*values: int | None) -> int:
    known = [value for value in values if value is not None]
    return min(known, default=math.inf)  # type: ignore[return-value]
