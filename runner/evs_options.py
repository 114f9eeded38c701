"""From what a request asks of EVS and what the server allows to the policy in force. Owns defaults and ceilings;
chooses no cell."""

from __future__ import annotations

from evs.count import check_rate
from evs.policy import ENCODERS, MEANINGFUL, Encoder, EvsPolicy, Method, make_policy
from runner.config import EvsServing
from runner.errors import RequestError
from runner.requests import EvsOptions

KEEP_ALL = make_policy("none")
FIELDS = ("rate", "threshold", "refresh", "seed")


def settle_policy(wanted: EvsOptions, serving: EvsServing, *, encoders: tuple[Encoder, ...]) -> EvsPolicy:
    """The request's values over the server's defaults, clamped to its ceilings; the answer echoes what comes out.

    The server's numbers are those of its own method: a request for another method starts from that method's defaults.
    encoders: the modes that the model's family can encode in. Raises RequestError for a value out of bounds, one the
    method does not read, and a mode that the method or the family does not have.
    """
    method = wanted.method or serving.method
    unread = [name for name in FIELDS if getattr(wanted, name) is not None and name not in MEANINGFUL[method]]
    if unread:
        raise RequestError("invalid", f"evs.{unread[0]} means nothing with method {method!r}", param=f"evs.{unread[0]}")
    ours = serving if method == serving.method else EvsServing()
    encoder = ours.encoder if wanted.encoder is None else wanted.encoder
    try:
        if wanted.rate is not None:
            check_rate(wanted.rate)  # a rate that is none is refused, not clamped
        return make_policy(
            method,
            encoder=_settle_encoder(method, encoder, encoders),
            rate=_settle(wanted.rate, ours.rate, serving.max_rate),
            threshold=_settle(wanted.threshold, ours.threshold, serving.max_threshold),
            refresh=ours.refresh if wanted.refresh is None else min(wanted.refresh, serving.max_refresh),
            seed=wanted.seed,
        )
    except ValueError as error:
        named = next((name for name in FIELDS if name in str(error)), None)
        raise RequestError("invalid", f"evs: {error}", param=f"evs.{named}" if named else "evs") from error


def check_serving(serving: EvsServing, encoders: tuple[Encoder, ...]) -> None:
    """Raises ValueError where the server's own encoder mode is none of its method's, or of the model's `encoders`."""
    possible = [mode for mode in ENCODERS[serving.method] if mode in encoders]
    if serving.encoder is not None and serving.encoder not in possible:
        raise ValueError(
            f"--evs-encoder {serving.encoder} is not possible with --evs {serving.method} and this model; choose from "
            f"{possible}"
        )


def _settle_encoder(method: Method, wanted: Encoder | None, encoders: tuple[Encoder, ...]) -> Encoder:
    """The mode asked for, else the first of the method's that the family has; "full" is always one."""
    possible = [mode for mode in ENCODERS[method] if mode in encoders]
    if wanted is None:
        return possible[0]
    if wanted not in possible:
        raise RequestError(
            "invalid",
            f"evs.encoder {wanted!r} is not possible with method {method!r} and this model; choose from {possible}",
            param="evs.encoder",
        )
    return wanted


def _settle(wanted: float | None, default: float | None, ceiling: float) -> float | None:
    value = default if wanted is None else wanted
    return None if value is None else min(value, ceiling)
