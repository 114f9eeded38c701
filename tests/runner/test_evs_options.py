"""The policy in force: the request's over the server's, within its ceilings, in a mode that method and model have."""

from __future__ import annotations

import pytest

from evs.policy import Encoder
from runner.config import EvsServing
from runner.entering import ALL_ENCODERS
from runner.errors import RequestError
from runner.evs_options import check_serving, settle_policy
from runner.requests import EvsOptions

GATE = EvsServing(method="gate", threshold=0.02)


@pytest.mark.parametrize(
    ("options", "encoders", "expected"),
    [
        ({}, ALL_ENCODERS, "reuse"),
        ({}, ("full",), "full"),
        ({"encoder": "skip"}, ALL_ENCODERS, "skip"),
        ({"method": "random", "rate": 0.5}, ALL_ENCODERS, "full"),
        ({"method": "random", "rate": 0.5, "encoder": "reuse"}, ALL_ENCODERS, "reuse"),
        ({"method": "evs", "rate": 0.5}, ALL_ENCODERS, "full"),
        ({"method": "none"}, ALL_ENCODERS, "full"),
    ],
)
def test_the_encoder_is_the_methods_own_unless_asked(
    options: dict[str, object], encoders: tuple[Encoder, ...], expected: str
) -> None:
    policy = settle_policy(EvsOptions(**options), GATE, encoders=encoders)  # type: ignore[arg-type]
    assert policy.encoder == expected


@pytest.mark.parametrize(
    ("options", "encoders"),
    [
        ({"encoder": "reuse"}, ("full",)),
        ({"method": "evs", "rate": 0.5, "encoder": "reuse"}, ALL_ENCODERS),
        ({"method": "none", "encoder": "skip"}, ALL_ENCODERS),
    ],
)
def test_a_mode_that_is_not_there_is_refused_by_name(options: dict[str, object], encoders: tuple[Encoder, ...]) -> None:
    with pytest.raises(RequestError, match=r"choose from \['full'\]") as caught:
        settle_policy(EvsOptions(**options), GATE, encoders=encoders)  # type: ignore[arg-type]
    assert caught.value.param == "evs.encoder"


def test_ceilings_clamp_and_other_methods_start_from_their_own_defaults() -> None:
    policy = settle_policy(EvsOptions(rate=0.99, threshold=0.9, refresh=5000), GATE, encoders=ALL_ENCODERS)
    assert (policy.rate, policy.threshold, policy.refresh) == (0.98, 32 / 255, 1024)
    assert settle_policy(EvsOptions(), GATE, encoders=ALL_ENCODERS).threshold == 0.02


def test_the_servers_own_mode_is_for_its_own_method() -> None:
    """A request for another method starts from that method's; one that names a mode gets it."""
    serving = EvsServing(method="gate", encoder="skip")
    wanted = (EvsOptions(), EvsOptions(encoder="reuse"), EvsOptions(method="random", rate=0.5))
    modes = [settle_policy(options, serving, encoders=ALL_ENCODERS).encoder for options in wanted]
    assert modes == ["skip", "reuse", "full"]


@pytest.mark.parametrize(
    ("method", "encoders"), [("evs", ALL_ENCODERS), ("none", ALL_ENCODERS), ("gate", ("full",))]
)  # fmt: skip
def test_a_server_that_could_not_do_its_own_mode_does_not_start(method: str, encoders: tuple[Encoder, ...]) -> None:
    """Before its first request: by flag, with what can be chosen."""
    with pytest.raises(ValueError, match=r"--evs-encoder reuse is not possible.*choose from \['full'\]"):
        check_serving(EvsServing(method=method, encoder="reuse"), encoders)  # type: ignore[arg-type]
    check_serving(EvsServing(method=method), encoders)  # type: ignore[arg-type]
    check_serving(EvsServing(method="gate", encoder="reuse"), ALL_ENCODERS)
